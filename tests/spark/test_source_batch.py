"""Batch queries of the format lavinmq: which rows come back, and what is refused in one line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lavinmq.spark.options import SourceOptions
from lavinmq.spark.streams import Streams
from tests.conftest import BrokerFactory
from tests.spark.frames import bodies, failure, load
from tests.spark.streams import Stream, channel, numbers
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.raw_connection import Properties
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark


def test_the_format_is_found_and_reads_from_the_first_message_to_the_last(
    spark: SparkSession, stream: Stream
) -> None:
    stream.publish(numbers(0, 1000))

    frame = load(spark, stream)

    rows = frame.orderBy("offset").collect()
    assert [int(row.body) for row in rows] == list(range(1000))
    assert [row.offset for row in rows] == list(range(1, 1001))
    assert {(row.queue, row.routing_key, row.exchange) for row in rows} == {
        (stream.name, stream.name, "")
    }


def test_a_range_is_cut_into_tasks_and_read_once(spark: SparkSession, stream: Stream) -> None:
    stream.publish(numbers(0, 1000))
    offsets = {
        "startingOffsets": f'{{"{stream.name}": 101}}',
        "endingOffsets": f'{{"{stream.name}": 901}}',
    }

    frame = load(spark, stream, **offsets, maxRecordsPerPartition="300", columns="offset,body")

    assert frame.rdd.getNumPartitions() == 3
    assert frame.columns == ["offset", "body"]
    assert bodies(frame) == list(range(100, 900))


def test_several_streams_are_read_and_an_empty_one_has_no_rows(
    spark: SparkSession, stream: Stream
) -> None:
    second = Stream(stream.broker, stream.name + "-2").declare()
    empty = Stream(stream.broker, stream.name + "-3").declare()
    stream.publish(numbers(0, 50))
    second.publish(numbers(50, 80))
    names = f"{stream.name},{second.name},{empty.name}"

    frame = load(spark, stream, queue=names, minPartitions="5")

    assert frame.rdd.getNumPartitions() >= 5
    counts = {row.queue: row["count"] for row in frame.groupBy("queue").count().collect()}
    assert counts == {stream.name: 50, second.name: 30}
    assert load(spark, empty).count() == 0


def test_streams_are_chosen_by_pattern_and_by_exchange(spark: SparkSession, stream: Stream) -> None:
    names = [f"{stream.name}-{n}" for n in range(2)]
    with channel(stream.broker) as opened:
        opened.declare_exchange(stream.name, "fanout")
        opened.declare_queue(f"{stream.name}-classic")
        opened.bind_queue(f"{stream.name}-classic", stream.name)
        for name in names:
            Stream(stream.broker, name).declare()
            opened.bind_queue(name, stream.name)
    Stream(stream.broker, "").publish(numbers(0, 10), exchange=stream.name)
    options = {key: value for key, value in stream.options().items() if key != "queue"}

    for chosen in ({"superStream": stream.name}, {"queuePattern": stream.name + "-.*"}):
        frame = spark.read.format("lavinmq").options(**options, **chosen).load()
        rows = frame.select("queue", "body").collect()
        assert sorted((row.queue, int(row.body)) for row in rows) == [
            (name, n) for name in names for n in range(10)
        ]


def test_times_bound_a_range(spark: SparkSession, stream: Stream) -> None:
    stream.publish(numbers(0, 10))
    # The clock of the broker must have gone on: its resolution is a millisecond.
    start_ms = _later_than_now()
    stream.publish(numbers(10, 20))
    end_ms = _later_than_now()
    stream.publish(numbers(20, 30))

    within = load(spark, stream, startingTimestamp=str(start_ms), endingTimestamp=str(end_ms))
    behind = load(spark, stream, startingOffsetsByTimestamp=f'{{"{stream.name}": {end_ms}}}')

    assert bodies(within) == list(range(10, 20))
    assert bodies(behind) == list(range(20, 30))
    assert "has no message received at" in failure(
        load(spark, stream, startingTimestamp="9999999999999").count
    )


def test_filters_narrow_the_ranges_when_asked_to(spark: SparkSession, stream: Stream) -> None:
    stream.publish(numbers(0, 100))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, stream, filterPushdown="true", maxRecordsPerPartition="10")
        narrowed = frame.where("offset >= 41 and offset < 61 and body != '50'")

        assert bodies(narrowed) == [n for n in range(40, 60) if n != 50]
        assert narrowed.rdd.getNumPartitions() == 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_schema_of_ones_own_chooses_columns(spark: SparkSession, stream: Stream) -> None:
    properties = Properties(headers={"n": 5}, message_id="m")
    stream.publish(numbers(0, 3), properties=properties)
    reader = spark.read.format("lavinmq").options(**stream.options())

    frame = reader.schema("body binary, headers map<string,string>, message_id string").load()

    assert frame.columns == ["body", "headers", "message_id"]
    assert [(bytes(r.body), r.headers, r.message_id) for r in frame.take(1)] == [
        (b"0", {"n": "5"}, "m")
    ]
    for schema, text in (
        ("offset bigint, bdy binary", "unknown column 'bdy'; there are: queue, offset"),
        ("offset int", "column 'offset' is bigint, not int"),
    ):
        assert text in failure(reader.schema(schema).load().count)


def test_what_retention_removed_is_an_error_or_a_gap(
    spark: SparkSession, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    ini = tmp_path / "small-segments.ini"
    ini.write_text("[main]\nsegment_size = 65536\n")
    broker = broker_factory(["-c", str(ini)], http=True)
    stream = Stream(broker, "short").declare(**{"x-max-length": 500})
    stream.publish(b"%04d" % n + b"x" * 200 for n in range(2000))
    with Streams(SourceOptions.parse(stream.options())) as streams:
        held = streams.bounds()["short"]
    assert held.first > 500
    from_start = {"startingOffsets": '{"short": 100}', "columns": "offset"}

    text = failure(load(spark, stream, **from_start).count)
    kept = load(spark, stream, **from_start, failOnDataLoss="false").count()

    assert f"stream 'short': offsets 100 to {held.first - 1} are gone" in text
    assert kept == held.end - held.first


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"startingOffset": "earliest"},
            "unknown option 'startingoffset'; did you mean 'startingOffsets'",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets=latest has nothing to read in a batch"),
        ({"assign": '["a"]'}, "give exactly one of the options queue,"),
        ({"prefetch": "0"}, "option prefetch is '0'; expected a whole number from 1 to 65535"),
        ({"queue": "nowhere"}, "there is no queue 'nowhere'"),
        ({"password": "wrong-password"}, "403"),
        ({"vhost": "nowhere"}, "vhost 'nowhere'"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    spark: SparkSession, stream: Stream, options: dict[str, str], text: str
) -> None:
    def run() -> None:
        load(spark, stream, **options).count()

    told = failure(run)

    assert text in told
    assert "wrong-password" not in told


def test_a_queue_that_is_no_stream_is_refused_with_the_way_out(
    spark: SparkSession, stream: Stream
) -> None:
    with channel(stream.broker) as opened:
        opened.declare_queue(stream.name + "-classic")

    told = failure(load(spark, stream, queue=stream.name + "-classic").count)

    assert "is a classic queue; reading it would remove its messages" in told
    assert "Bind a stream queue to the same exchange" in told


def test_a_look_into_a_classic_queue_leaves_it_as_it_was(
    spark: SparkSession, stream: Stream
) -> None:
    name = stream.name + "-classic"
    with channel(stream.broker) as opened:
        opened.declare_queue(name, durable=True)
    queue = Stream(stream.broker, name)
    queue.publish([b"x" * 300_000, *numbers(1, 30)], properties=Properties(headers={"n": 5}))

    frame = load(spark, queue, mode="peek", maxRecords="20", includeHeaders="json", batchRows="7")
    rows = frame.collect()

    assert [len(rows[0].body), *(int(row.body) for row in rows[1:])] == [300_000, *range(1, 20)]
    assert {(row.queue, row.offset, row.routing_key) for row in rows} == {(name, None, name)}
    assert all("5" in row.headers_json for row in rows)
    with channel(stream.broker) as opened:
        assert opened.declare_queue(name, passive=True).message_count == 30
    assert load(spark, queue, mode="peek").count() == 30


def test_a_user_who_may_not_read_is_told_once(spark: SparkSession, http_broker: Broker) -> None:
    stream = Stream(http_broker, "secret").declare()
    stream.publish(numbers(0, 5))
    Api(http_broker).as_user("eve", "monitoring", **{"/": (".*", ".*", "^$")})

    told = failure(load(spark, stream, user="eve", password="eve-pw").count)

    assert "403" in told
    assert "secret" in told
    # One connection for each try that Spark allows a task, and no storm of them.
    assert http_broker.log_text().count("eve") < 20


def test_no_connection_stays(spark: SparkSession, http_broker: Broker) -> None:
    stream = Stream(http_broker, "left").declare()
    stream.publish(numbers(0, 200))

    assert load(spark, stream, minPartitions="4").count() == 200

    wait_for(lambda: not Api(http_broker).get("/api/connections"), "connections stay")


def _later_than_now() -> int:
    now_ms = int(time.time() * 1000)
    wait_for(lambda: int(time.time() * 1000) > now_ms + 1, "the clock stands still")
    return int(time.time() * 1000)
