"""Data frames of the format lavinmq: load, collect, and what a query failed with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.streams import Stream


def load(spark: SparkSession, stream: Stream, **options: str) -> DataFrame:
    """A batch query of a stream."""
    return spark.read.format("lavinmq").options(**stream.options(**options)).load()


def bodies(frame: DataFrame) -> list[int]:
    """The bodies as numbers, in the order of their offsets; no offset may be there twice."""
    rows = frame.select("offset", "body").collect()
    assert len({row.offset for row in rows}) == len(rows)
    return [int(row.body) for row in sorted(rows, key=lambda row: row.offset)]


def failure(run: Callable[[], object]) -> str:
    """The lines that the query failed with, without the stack traces around them.

    Each line of ours is whole in it: whoever looks for a text finds it in one line.
    """
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        run()
    lines = str(caught.value).splitlines()
    ours = re.compile(r"^(lavinmq\.spark\.\w+\.)?\w*(Error|Failure): ")
    return "\n".join(line for line in lines if ours.match(line)) or lines[0]
