"""The format lavinmq-segments in queries: what is found, which columns, damage, what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lavinmq import fieldtable
from lavinmq.spark.schema import SEGMENT_COLUMNS, default_columns
from tests.spark.frames import failure
from tests.spark.streams import Stream, channel, numbers
from tests.support.broker import Broker
from tests.support.raw_connection import Properties
from tests.support.segment_files import FIRST_MS, record, write_segment, write_stream
from tests.support.segments import queue_directory

pytestmark = pytest.mark.spark


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("lavinmq-segments").options(**options).load(str(path))


def test_the_format_is_found_and_reads_all_columns(spark: SparkSession, tmp_path: Path) -> None:
    write_stream(tmp_path, [500, 300, 200])

    frame = load(spark, tmp_path)

    assert frame.columns == list(default_columns("false", SEGMENT_COLUMNS))
    found = frame.orderBy("offset").collect()
    assert [int(row.body) for row in found] == list(range(1, 1001))
    assert [row.segment for row in found] == [1] * 500 + [2] * 300 + [3] * 200
    assert {(row.routing_key, row.queue_type, row.acked) for row in found} == {
        ("q", "stream", None)
    }


def test_segments_are_spread_over_tasks_and_aggregated(spark: SparkSession, tmp_path: Path) -> None:
    write_stream(tmp_path, [100] * 6)

    frame = load(spark, tmp_path, targetPartitionBytes="4k", columns="offset,segment")

    assert frame.rdd.getNumPartitions() == 3
    counts = {row.segment: row["count"] for row in frame.groupBy("segment").count().collect()}
    assert counts == dict.fromkeys(range(1, 7), 100)


def test_columns_headers_and_a_schema_are_as_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    table = fieldtable.encode({"n": 1, "t": "x", "f": {"a": [True]}})
    write_segment(tmp_path, 1, [record(b"\xff\x00", headers=table, priority=255, timestamp=60)])

    (of_map,) = load(spark, tmp_path, includeHeaders="true").collect()
    (typed,) = load(spark, tmp_path, columns="headers_json,priority").collect()
    reader = spark.read.format("lavinmq-segments").schema("position bigint, body binary")
    (own,) = reader.load(str(tmp_path)).collect()

    assert of_map.headers == {"n": "1", "t": "x", "f": '{"a":[true]}'}
    assert of_map.message_timestamp.timestamp() == 60
    assert of_map.timestamp.timestamp() == FIRST_MS / 1000
    assert json.loads(typed.headers_json)["n"] == {"I": 1}
    assert typed.priority == 255
    assert own.asDict() == {"position": 4, "body": b"\xff\x00"}


def test_a_running_broker_is_read_with_acks(spark: SparkSession, broker: Broker) -> None:
    stream = Stream(broker, "segments-live").declare()
    stream.publish(numbers(0, 2000), properties=Properties(message_id="m"))
    with channel(broker) as opened:
        opened.declare_queue("segments-classic", durable=True)
        for number in range(10):
            opened.publish("", "segments-classic", b"%d" % number)
        first = opened.get("segments-classic")
        assert first is not None
        opened.ack(first.delivery_tag)
        opened.declare_queue("segments-classic", durable=True, passive=True)

    live = load(spark, broker.data_dir, queue="segments-live", startingOffset="101")
    directory = queue_directory(broker.data_dir, "segments-classic")
    classic = load(spark, directory, includeAcked="true")

    assert sorted(int(row.body) for row in live.collect()) == list(range(100, 2000))
    assert live.where("message_id = 'm'").count() == 1900
    assert {(int(row.body), row.acked) for row in classic.collect()} == {
        (number, number == 0) for number in range(10)
    }


def test_damage_is_left_out_skipped_or_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    bad = struct.pack("<q", FIRST_MS) + b"\0\x01q\x03\0" + b"junk of a record"
    path = write_segment(tmp_path, 1, [record(b"a"), bad, record(b"behind")])
    write_segment(tmp_path, 2, [record(b"b")])

    stopped = load(spark, tmp_path).collect()
    skipped = load(spark, tmp_path, onCorrupt="skip").collect()
    error = failure(lambda: load(spark, tmp_path, onCorrupt="fail").collect())

    assert [row.body for row in stopped] == [b"a", b"b"]
    assert [row.body for row in skipped] == [b"a", b"behind", b"b"]
    assert f"{path} (queue" in error
    assert "there is no record at byte" in error


def test_a_segment_that_vanishes_after_planning(spark: SparkSession, tmp_path: Path) -> None:
    write_stream(tmp_path / "stream", [10, 10])
    write_segment(tmp_path / "queue", 1, [record(b"a")])
    write_segment(tmp_path / "queue", 2, [record(b"b")])
    strict = load(spark, tmp_path / "stream")
    lenient = load(spark, tmp_path / "stream", failOnDataLoss="false")
    queue = load(spark, tmp_path / "queue")
    # The first action plans; the next one on the same frame reads by the same plan.
    assert [len(frame.collect()) for frame in (strict, lenient, queue)] == [20, 20, 2]

    for name in ("stream", "queue"):
        (tmp_path / name / "msgs.0000000001").unlink()

    assert "removed since the query was planned" in failure(strict.collect)
    assert sorted(row.offset for row in lenient.collect()) == list(range(11, 21))
    assert [row.body for row in queue.collect()] == [b"b"]


def test_a_mistyped_option_is_named_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    error = failure(lambda: load(spark, tmp_path, onCorupt="skip").collect())

    assert "unknown option 'oncorupt'; did you mean 'onCorrupt'?" in error.lower().replace(
        "oncorrupt", "onCorrupt"
    )


def test_a_path_without_messages_is_named(spark: SparkSession, tmp_path: Path) -> None:
    assert "no broker keeps its messages there" in failure(lambda: load(spark, tmp_path).collect())
