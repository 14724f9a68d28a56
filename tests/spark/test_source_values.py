"""What rows of the format lavinmq hold, column by column, and ranges whose end is silent."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lavinmq.spark.schema import COLUMNS, default_columns
from tests.spark.streams import Stream, channel, numbers
from tests.support.deliveries import frame, short
from tests.support.raw_connection import Properties

pytestmark = pytest.mark.spark

STAMP = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "identity",
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "user_id": "guest",
    "app_id": "tests",
    "delivery_mode": 2,
    "priority": 200,
}


def load(spark: SparkSession, stream: Stream, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("lavinmq").options(**stream.options(**options))
    return (reader.schema(schema) if schema else reader).load()


def by_offset(frame: DataFrame) -> list[Row]:
    return frame.orderBy("offset").collect()


def test_every_property_is_in_its_column(spark: SparkSession, stream: Stream) -> None:
    headers = {"n": -5, "s": "ü", "t": {"a": [True, None]}}
    properties = Properties(**PROPERTIES, message_type="kind", timestamp=STAMP, headers=headers)
    stream.publish([b"\x00\xff", b""], properties=properties)

    first, second = by_offset(load(spark, stream, includeHeaders="true"))

    found = first.asDict()
    assert {name: found[name] for name in PROPERTIES} == PROPERTIES
    assert (first.type, first.message_timestamp.astimezone(UTC)) == ("kind", STAMP)
    assert (first.queue, first.offset, first.exchange) == (stream.name, 1, "")
    assert (first.routing_key, bytes(first.body)) == (stream.name, b"\x00\xff")
    assert abs(first.timestamp.timestamp() - time.time()) < 600
    assert first.headers == {"n": "-5", "s": "ü", "t": '{"a":[true,null]}'}
    assert (second.offset, bytes(second.body)) == (2, b"")


def test_a_message_without_properties_has_nulls(spark: SparkSession, stream: Stream) -> None:
    publish = b"\x00\x3c\x00\x28\x00\x00\x00" + short(stream.name.encode()) + b"\0"
    with channel(stream.broker) as opened:
        opened.confirm_select()
        content = frame(2, b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\0\0") + frame(3, b"x")
        opened._connection.write(frame(1, publish) + content)
        opened.confirm(10)

    (row,) = by_offset(load(spark, stream, includeHeaders="json"))

    given = {"queue", "offset", "timestamp", "exchange", "routing_key", "body"}
    assert {name for name, value in row.asDict().items() if value is not None} == given


def test_headers_are_left_out_or_plain_or_lossless(spark: SparkSession, stream: Stream) -> None:
    stream.publish([b"x"], properties=Properties(headers={"a": 1, "b": {"c": "d"}}))

    without = load(spark, stream)
    plain = load(spark, stream, includeHeaders="true")
    typed = load(spark, stream, includeHeaders="json")

    assert tuple(without.columns) == default_columns()
    assert plain.columns == [*without.columns, "headers"]
    assert typed.columns == [*without.columns, "headers_json"]
    assert plain.first().headers == {"a": "1", "b": '{"c":"d"}'}
    assert typed.first().headers_json == '{"a":{"b":1},"b":{"F":{"c":{"S":"d"}}}}'


def test_a_schema_or_an_option_chooses_columns(spark: SparkSession, stream: Stream) -> None:
    stream.publish([b"x"], properties=Properties(message_id="m"))

    chosen = load(spark, stream, schema="body binary, message_id string, offset bigint")
    named = load(spark, stream, columns="offset, queue")

    assert [tuple(row) for row in chosen.collect()] == [(b"x", "m", 1)]
    assert [tuple(row) for row in named.collect()] == [(1, stream.name)]


@pytest.mark.parametrize(
    ("schema", "reason"), [("offset int", "offset"), ("offset bigint, value binary", "value")]
)
def test_a_wrong_column_is_refused_with_those_there_are(
    spark: SparkSession, stream: Stream, schema: str, reason: str
) -> None:
    with pytest.raises(Exception, match=reason) as caught:
        load(spark, stream, schema=schema).collect()

    if "value" in schema:
        assert all(name in str(caught.value) for name in COLUMNS)


def test_a_large_body_and_bad_text_survive(spark: SparkSession, stream: Stream) -> None:
    large = bytes(range(256)) * 81920  # 20 MiB
    stream.publish([large])
    publish = b"\x00\x3c\x00\x28\x00\x00" + short(stream.name.encode()) + short(b"k\xff") + b"\0"
    with channel(stream.broker) as opened:
        opened.declare_exchange(stream.name, "fanout")
        opened.bind_queue(stream.name, stream.name)
        opened.confirm_select()
        opened._connection.write(
            frame(1, publish) + frame(2, b"\x00\x3c\x00\x00" + bytes(8) + b"\0\0")
        )
        opened.confirm(10)
        opened.delete_exchange(stream.name)

    loaded = load(spark, stream, columns="offset,routing_key,body")
    digests = loaded.select("offset", "routing_key", F.md5("body").alias("digest"))

    from hashlib import md5

    first, second = by_offset(digests)
    assert (first.offset, first.digest) == (1, md5(large).hexdigest())
    assert (second.offset, second.routing_key) == (2, "k\ufffd")


def test_a_filter_that_matches_nothing_ends(spark: SparkSession, stream: Stream) -> None:
    stream.publish(numbers(0, 100), properties=Properties(headers={"kind": "a"}))

    nothing = load(spark, stream, filter='{"kind": "z"}', readTimeout="60s").count()
    everything = load(spark, stream, filter='{"kind": "a"}').count()

    assert (nothing, everything) == (0, 100)


def test_the_last_rows_may_be_filtered_out(spark: SparkSession, stream: Stream) -> None:
    stream.publish(numbers(0, 10), properties=Properties(headers={"kind": "a"}))
    stream.publish(numbers(10, 500))

    rows = by_offset(load(spark, stream, filter='{"kind": "a"}', columns="offset"))

    assert [row.offset for row in rows] == list(range(1, 11))
