"""Batch queries of the format lavinmq: which rows come back, and which do not."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.streams import Stream, numbers

pytestmark = pytest.mark.spark


def load(spark: SparkSession, stream: Stream, **options: str) -> DataFrame:
    return spark.read.format("lavinmq").options(**stream.options(**options)).load()


def bodies(frame: DataFrame) -> list[int]:
    rows = frame.select("offset", "body").collect()
    assert len({row.offset for row in rows}) == len(rows)
    return [int(row.body) for row in sorted(rows, key=lambda row: row.offset)]


def test_the_format_is_found_and_reads_from_the_first_message_to_the_last(
    spark: SparkSession, stream: Stream
) -> None:
    stream.publish(numbers(0, 1000))

    frame = load(spark, stream)

    assert bodies(frame) == list(range(1000))
    assert [row.offset for row in frame.orderBy("offset").take(2)] == [1, 2]
