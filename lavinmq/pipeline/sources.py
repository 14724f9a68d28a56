"""What a job reads: `DIR`, an archive; `segments:DIR`, a data directory; `queue:NAME`, a stream.

Whatever it is, the rows have the columns of the format `lavinmq`, headers as lossless JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lavinmq.pipeline.errors import PipelineError, UsageError
from lavinmq.pipeline.files import Files
from lavinmq.pipeline.ledger import Ledger, data_files
from lavinmq.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HELP = "an archive, segments:DIR for a data directory, or queue:NAME for a stream"
COMPACTION = "compact"
PLACE = ("queue", "offset", "timestamp")
"""Columns that say where a message was found, not what it is."""
CONTENT = tuple(name for name in COLUMNS if name not in (*PLACE, "headers"))
"""Columns that make the message."""
ORDER = "_order"


@dataclass(frozen=True, slots=True)
class Source:
    """Where messages are: `kind` is archive, segments or queue; `place` a directory or name."""

    kind: str
    place: str

    def __str__(self) -> str:
        return self.place if self.kind == "archive" else f"{self.kind}:{self.place}"


def parse_source(text: str) -> Source:
    """Read what HELP says. Raises: UsageError."""
    kind, colon, place = text.partition(":")
    if not colon or kind not in {"segments", "queue"}:
        kind, place = "archive", text
    if not place:
        raise UsageError(f"no source: {text!r}; expected {HELP}")
    return Source(kind, place)


def open_source(spark: SparkSession, source: Source, broker: Mapping[str, str]) -> DataFrame:
    """Return the messages, with the columns PLACE and CONTENT. Raises: PipelineError."""
    names = [*PLACE, *CONTENT]
    if source.kind == "queue":
        reader = spark.read.format("lavinmq").options(**broker).option("queue", source.place)
        return reader.option("columns", ",".join(names)).load()
    if source.kind == "segments":
        reader = spark.read.format("lavinmq-segments").option("path", source.place)
        columns = [*names, "segment", "position"]
        return reader.option("columns", ",".join(columns)).load()
    return open_archive(spark, source.place)


def open_archive(spark: SparkSession, place: str) -> DataFrame:
    """Return the messages of an archive with all its columns. Raises: PipelineError."""
    files = Files(spark, place)
    if not data_files(files):
        raise PipelineError(f"{place}: no archive, there are no Parquet files")
    if Ledger(files, COMPACTION).is_pending():
        raise PipelineError(f"{place}: a compaction is not finished; run compact again first")
    frame = spark.read.option("mergeSchema", "true").parquet(files.root)
    missing = [name for name in (*PLACE, *CONTENT) if name not in frame.columns]
    if missing:
        raise PipelineError(f"{place}: no archive of messages, it has no column {missing[0]}")
    return frame


def with_order(frame: DataFrame) -> DataFrame:
    """Add ORDER, a number that grows with the place of a message in its queue.

    It is the offset; for a classic queue, which has none, segment and position.
    """
    from pyspark.sql import functions as F

    if "segment" not in frame.columns:
        return frame.withColumn(ORDER, F.col("offset"))
    place = F.shiftleft(F.col("segment").cast("bigint"), 32) + F.col("position")
    return frame.withColumn(ORDER, F.coalesce(F.col("offset"), place))
