"""`lavinmq-pipeline dlq` on a running broker with dead letters of several reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lavinmq.pipeline.failures import explain
from tests.spark.jobs import run_job
from tests.spark.streams import Stream, channel
from tests.support.broker import Broker
from tests.support.raw_connection import Channel, Properties
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DEAD = "dlq-dead"
LOG = "dlq-log"
GROUPS = {
    ("rejected", "dlq-work", "dlq-orders", "order.new"): 3,
    ("expired", "dlq-work", "", "dlq-work"): 1,
    ("maxlen", "dlq-short", "", "dlq-short"): 1,
    (None, None, None, None): 1,
}


@pytest.fixture(scope="module")
def letters(broker: Broker) -> Iterator[Broker]:
    """A classic queue and a stream that have the same five dead letters, and one message alive."""
    with channel(broker) as opened:
        opened.declare_exchange("dlq-dlx", "fanout", durable=True)
        opened.declare_queue(DEAD, durable=True)
        opened.declare_queue(LOG, durable=True, arguments={"x-queue-type": "stream"})
        for queue in (DEAD, LOG):
            opened.bind_queue(queue, "dlq-dlx")
        to = {"x-dead-letter-exchange": "dlq-dlx"}
        opened.declare_queue("dlq-work", durable=True, arguments=to)
        opened.declare_queue("dlq-short", durable=True, arguments=to | {"x-max-length": 1})
        opened.declare_exchange("dlq-orders", "topic", durable=True)
        opened.bind_queue("dlq-work", "dlq-orders", "order.*")
        _make(opened)
        wait_for(lambda: _count(opened, DEAD) == 6, "six messages in the queue")
        yield broker
        for queue in (DEAD, LOG, "dlq-work", "dlq-short"):
            opened.delete_queue(queue)


def _make(opened: Channel) -> None:
    for number, error in enumerate(("no such customer", "no such customer", "time-out")):
        headers = {"x-exception-message": error}
        body = b'{"order": %d}' % number
        opened.publish("dlq-orders", "order.new", body, Properties(headers=headers))
    wait_for(lambda: _count(opened, "dlq-work") == 3, "three messages to reject")
    for _ in range(3):
        delivery = opened.get("dlq-work")
        assert delivery is not None
        opened.nack(delivery.delivery_tag, requeue=False)
    opened.publish("", "dlq-work", b"late", Properties(expiration="1"))
    for body in (b"pushed out", b"kept"):
        opened.publish("", "dlq-short", body)
    opened.publish("dlq-dlx", "", b"alive")


def _count(opened: Channel, queue: str) -> int:
    return opened.declare_queue(queue, passive=True).message_count or 0


def counted(result: dict[str, object]) -> dict[tuple[object, ...], int]:
    names = ("reason", "queue", "exchange", "routing_key")
    groups = result["groups"]
    assert isinstance(groups, list)
    return {tuple(group[name] for name in names): group["messages"] for group in groups}


def arguments(broker: Broker) -> list[str]:
    return ["--url", broker.uri, "--http-url", broker.http_url]


def test_a_look_reports_the_letters_and_leaves_them(spark: SparkSession, letters: Broker) -> None:
    result = run_job(spark, "dlq", f"peek:{DEAD}", *arguments(letters))

    assert counted(dict(result.values)) == GROUPS
    (rejected,) = (each for each in result.values["groups"] if each["reason"] == "rejected")
    assert rejected["errors"] == [
        {"error": "no such customer", "messages": 2},
        {"error": "time-out", "messages": 1},
    ]
    assert {each["text"] for each in rejected["samples"]} == {
        '{"order": 0}',
        '{"order": 1}',
        '{"order": 2}',
    }
    assert rejected["first_seen"].startswith("20") and rejected["deaths_max"] == 1
    assert result.text.startswith("5 dead letters in 3 groups\n1 messages that never died")
    with channel(letters) as opened:
        wait_for(lambda: _count(opened, DEAD) == 6, "all messages are back")
        found = [opened.get(DEAD) for _ in range(6)]
        assert [each.body for each in found if each][:3] == [
            b'{"order": 0}',
            b'{"order": 1}',
            b'{"order": 2}',
        ]


def test_a_look_stops_at_the_limit(spark: SparkSession, letters: Broker) -> None:
    args = ["--limit", "2", "--sample-bytes", "4", *arguments(letters)]

    result = run_job(spark, "dlq", f"peek:{DEAD}", *args)

    (group,) = result.values["groups"]
    assert (group["messages"], group["bytes"]) == (2, 24)
    assert group["samples"][0] == {"size": 12, "text": '{"or', "is_cut": True}


def test_a_stream_of_dead_letters_tells_the_same(spark: SparkSession, letters: Broker) -> None:
    result = run_job(spark, "dlq", f"queue:{LOG}", *arguments(letters))

    assert counted(dict(result.values)) == GROUPS


def test_segments_of_dead_letters_tell_the_same(spark: SparkSession, letters: Broker) -> None:
    result = run_job(
        spark, "dlq", f"segments:{letters.data_dir}", "--dead-queue", DEAD, "--url", "amqp://h"
    )

    assert counted(dict(result.values)) == GROUPS


def test_an_empty_queue_has_an_empty_report(spark: SparkSession, stream: Stream) -> None:
    result = run_job(spark, "dlq", f"queue:{stream.name}", *arguments(stream.broker))

    assert (result.values["messages"], result.values["groups"]) == (0, [])
    assert result.text == "0 dead letters in 0 groups"


def test_a_queue_that_is_not_there_is_one_line(spark: SparkSession, letters: Broker) -> None:
    with pytest.raises(Exception, match="no-such") as caught:
        run_job(spark, "dlq", "peek:no-such", *arguments(letters))

    line = str(explain(caught.value))
    assert line.endswith(
        "queue 'no-such': 404 NOT_FOUND - Queue 'no-such' doesn't exists in vhost '/'"
    )
    assert "\n" not in line
