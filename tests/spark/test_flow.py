"""Windows of messages: their figures, from plain rows and from a running stream."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lavinmq.pipeline.flow_figures import Windows, as_messages, figures
from lavinmq.spark.admin import Admin
from lavinmq.spark.option_values import Values
from lavinmq.spark.options import CONNECTION_NAMES, ConnectionOptions
from tests.spark.jobs import broker_arguments, run_job
from tests.spark.streams import Stream, channel, numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = (
    "queue string, timestamp timestamp, exchange string, routing_key string, body binary,"
    " message_timestamp timestamp"
)
BEGIN = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def rows(spark: SparkSession, *messages: tuple[float, str, int, float | None]) -> DataFrame:
    """Messages of second, routing key, size and latency in seconds (None: not told)."""
    made = [
        (
            "q",
            BEGIN + timedelta(seconds=at_s),
            "e",
            key,
            b"x" * size,
            None if latency is None else BEGIN + timedelta(seconds=at_s - latency),
        )
        for at_s, key, size, latency in messages
    ]
    return spark.createDataFrame(made, SCHEMA)


def counted(frame: DataFrame, how: Windows) -> list[Row]:
    return figures(frame, how).orderBy("window_start", *how.by).collect()


def test_a_window_has_rates_sizes_latencies_and_keys(spark: SparkSession) -> None:
    frame = rows(
        spark,
        *((second, "a", 100, 0.5) for second in range(8)),
        (8.0, "b", 1000, None),
        (9.999, "b", 0, 2.0),
        (10.0, "c", 7, None),
    )

    first, second = counted(frame, Windows(10.0, keys=2))

    assert (first.queue, first.messages, first.bytes) == ("q", 10, 1800)
    assert (first.per_s, first.bytes_per_s) == (1.0, 180.0)
    assert (first.size_p50, first.size_p90, first.size_p99, first.size_max) == (
        100,
        100,
        1000,
        1000,
    )
    assert (first.timed, first.latency_p50, first.latency_max) == (9, 500.0, 2000.0)
    assert [(key.routing_key, key.messages) for key in first.top_keys] == [("a", 8), ("b", 2)]
    assert (second.messages, second.timed, second.latency_p50) == (1, 0, None)
    assert second.window_end - second.window_start == timedelta(seconds=10)


def test_groups_are_counted_apart(spark: SparkSession) -> None:
    frame = rows(spark, (0, "a", 1, None), (1, "b", 2, None), (2, "a", 3, None))

    found = counted(frame, Windows(60.0, by=("routing_key", "exchange")))

    assert [(row.routing_key, row.exchange, row.bytes) for row in found] == [
        ("a", "e", 4),
        ("b", "e", 2),
    ]


def test_without_the_brokers_time_the_publishers_counts(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("q", None, "", "a", b"x", BEGIN), ("q", None, "", "a", None, None)], SCHEMA
    )

    (row,) = counted(frame, Windows(60.0))

    assert (row.messages, row.timed, row.bytes) == (1, 0, 1)


def test_a_window_is_published_with_an_id_that_stays(spark: SparkSession) -> None:
    frame = figures(rows(spark, (0, "a", 5, 1.0)), Windows(60.0))

    first, again = (as_messages(frame, "flow", ("queue",)).collect()[0] for _ in range(2))

    body = json.loads(first.body)
    assert (first.routing_key, first.content_type) == ("flow.q", "application/json")
    assert first.message_id == again.message_id == f"flow/{int(BEGIN.timestamp() * 1000)}/q"
    assert (body["messages"], body["latency_p50"]) == (1, 1000.0)
    assert body["top_keys"] == [{"routing_key": "a", "messages": 1}]


def test_what_a_stream_holds_is_counted_and_drawn(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    stream.publish(numbers(0, 1000))
    source = f"queue:{stream.name}"
    page, output = tmp_path / "flow.html", tmp_path / "out"

    args = [source, "--window", "1h", "--html", page, "--output", output]
    result = run_job(spark, "flow", *args, *broker_arguments(stream)).values

    assert sum(row["messages"] for row in result["latest"]) == 1000
    assert sum(row["bytes"] for row in result["latest"]) == sum(map(len, numbers(0, 1000)))
    assert result["latest"][0]["top_keys"][0]["routing_key"] == stream.name
    assert "<svg" in page.read_text()
    assert list(output.glob("run=*/*.parquet"))


def test_consumers_of_a_stream_are_shown_with_their_lag(
    spark: SparkSession, stream: Stream
) -> None:
    stream.publish(numbers(0, 10))
    options = {"url": stream.broker.uri, "httpUrl": stream.broker.http_url}
    with closing(Admin(ConnectionOptions.parse(Values(options, CONNECTION_NAMES, ())))) as admin:
        admin.store(stream.name, "reader", 5)

    result = run_job(spark, "flow", f"queue:{stream.name}", *broker_arguments(stream))

    found = [(each["name"], each["lag"]) for each in result.values["consumers"]]
    assert found == [("reader", 6)]
    assert f"{stream.name}  reader" in result.text


@pytest.mark.nightly
def test_a_stream_that_grows_is_counted_once_over_two_runs(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """A window comes when it is complete: what the first run leaves open the second one has."""
    args = [
        *(f"queue:{stream.name}", "--window", "1s", "--lateness", "1ms", "--once"),
        *("--checkpoint", tmp_path / "checkpoint", "--output", tmp_path / "out"),
        *broker_arguments(stream),
    ]
    exchange = f"{stream.name}-flow"[-120:]
    with channel(stream.broker) as opened:
        opened.declare_exchange(exchange, "topic", durable=True)
        opened.declare_queue(f"{exchange}-q", durable=True)
        opened.bind_queue(f"{exchange}-q", exchange, "flow.#")

    stream.publish(numbers(0, 300))
    first = run_job(spark, "flow", *args, "--publish", exchange).values
    stream.publish(numbers(300, 400))
    second = run_job(spark, "flow", *args, "--publish", exchange).values

    assert (first["rows"], second["rows"]) == (300, 100)
    written = spark.read.parquet(str(tmp_path / "out"))
    keys = written.select("window_start", "queue").collect()
    assert len(keys) == len(set(keys)) == first["windows"] + second["windows"]
    n_complete = sum(row.messages for row in written.collect())
    assert n_complete >= 300 or first["windows"] + second["windows"] == 0
    with channel(stream.broker) as opened:
        found = [opened.get(f"{exchange}-q", no_ack=True) for _ in keys]
    assert sum(json.loads(each.body)["messages"] for each in found if each) == n_complete
