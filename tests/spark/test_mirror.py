"""`lavinmq-pipeline mirror`: from one virtual host into another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lavinmq.client import Client
from lavinmq.pipeline.errors import UsageError
from tests.spark.jobs import broker_arguments, run_job
from tests.spark.streams import Stream, numbers
from tests.support.api import Api

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

VHOST, QUEUE = "mirrored", "copy"


def test_chosen_messages_arrive_once_changed_and_in_order(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Two runs on one checkpoint; the second one has only what is new."""
    broker = stream.broker
    Api(broker)("PUT", f"/api/vhosts/{VHOST}")
    there = f"amqp://guest:guest@{broker.host}:{broker.port}/{VHOST}"
    with Client(there) as client:
        client.channel().queue_declare(QUEUE, durable=True)
    args: list[Any] = [
        *(*broker_arguments(stream), "--queue", stream.name, "--once"),
        *(
            "--checkpoint",
            tmp_path,
            "--to",
            there,
        ),
        *("--exchange", "", "--routing-key", QUEUE),
        *("--where", "cast(cast(body AS STRING) AS INT) % 2 = 0"),
        *("--set", "body=concat('n', cast(body AS STRING))", "--set", "message_id='m'"),
    ]

    stream.publish(numbers(0, 100))
    first = run_job(spark, "mirror", *args)
    stream.publish(numbers(100, 110))
    second = run_job(spark, "mirror", *args)

    assert (first.values["rows"], first.values["published"]) == (100, 50)
    assert (second.values["rows"], second.values["published"]) == (10, 5)
    with Client(there) as client:
        channel = client.channel()
        found = [each for _ in range(60) if (each := channel.basic_get(QUEUE, no_ack=True))]
    assert [each.body for each in found] == [b"n%d" % n for n in range(0, 110, 2)]
    assert {each.message_id for each in found} == {"m"}
    headers = [each.headers for each in found]
    assert [each["x-origin-offset"] for each in headers] == list(range(1, 111, 2))
    assert json.dumps(headers[0]["x-origin-queue"]) == json.dumps(stream.name)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ([], "--to is missing"),
        (["--to", "amqp://b", "--set", "offset=1"], "--set offset: no such column"),
    ],
)
def test_wrong_usage_starts_no_session(more: list[str], complaint: str) -> None:
    args = ["--url", "amqp://a", "--queue", "q", "--checkpoint", "c", *more]

    with pytest.raises(UsageError, match=complaint):
        run_job(None, "mirror", *args)  # type: ignore[arg-type]
