"""`archive`: streams become a directory of Parquet files, each message in it exactly once.

The checkpoint says which offsets belong to which batch, and ``ledger.py`` adds the files of a batch
once. A file holds consecutive offsets of one stream, as one task writes it: --rows-per-file bounds
both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.arguments import (
    Parser,
    add_broker,
    add_streams,
    broker_options,
    check,
    positive,
)
from lavinmq.pipeline.errors import PipelineError, UsageError
from lavinmq.pipeline.files import Files
from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.ledger import Ledger
from lavinmq.pipeline.sources import CONTENT, PLACE
from lavinmq.pipeline.streaming import run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_FILE = 500_000
FORMATS: Mapping[str, str] = {
    "parquet": "",
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.SparkSessionCatalog",
}
"""Formats, and a class that is there when Spark has their jars."""
COLUMNS = (*PLACE, *CONTENT)
KEY_WORDS_MAX = 5


def configure(parser: Parser) -> None:
    """Add the options of the command."""
    add_broker(parser)
    add = parser.add_argument
    add(
        "target",
        metavar="TARGET",
        help="directory of the archive; with --format iceberg the name of a table",
    )
    add_streams(parser)
    add(
        "--start",
        metavar="WHERE",
        default="earliest",
        help="of a new archive: earliest (default), latest, or JSON of offsets by queue",
    )
    add("--start-time", metavar="TIME", help="of a new archive: messages of then or later")
    add("--max-rows", type=positive, metavar="N", help="messages of one batch at most")
    add(
        "--allow-data-loss",
        action="store_true",
        help="go on when messages were removed before they were read; else exit status 3",
    )
    add("--hour", action="store_true", help="a directory for each hour, too")
    add(
        "--key-words",
        type=positive,
        metavar="N",
        help="a directory for the first N words of the routing key, too; few of them must differ",
    )
    add(
        "--rows-per-file",
        type=positive,
        metavar="N",
        default=ROWS_PER_FILE,
        help=f"at most, default {ROWS_PER_FILE:,}; also what one task reads",
    )
    add(
        "--compression",
        choices=("zstd", "snappy", "gzip", "none"),
        default="zstd",
        help="of Parquet, default zstd",
    )
    add("--format", choices=tuple(FORMATS), default="parquet",
        help="default parquet; delta and iceberg need their jars")  # fmt: skip


def source_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the format lavinmq. Raises: UsageError."""
    chosen = broker_options(options)
    named = {
        "queue": options.queue,
        "queuePattern": options.queue_pattern,
        "superStream": options.super_stream,
        "startingOffsets": None if options.start_time else options.start,
        "startingTimestamp": options.start_time,
        "maxOffsetsPerTrigger": options.max_rows,
        "maxRecordsPerPartition": options.rows_per_file,
        "failOnDataLoss": "false" if options.allow_data_loss else None,
        "columns": ",".join(COLUMNS),
    }
    mine = {key: str(value) for key, value in named.items() if value is not None}
    clash = {key.lower() for key in mine} & {key.lower() for key, _ in options.option}
    check({f"--option {name} has an option of its own here": True for name in sorted(clash)})
    return chosen | mine


def run(run: Run) -> Result:
    """Archive until there is nothing more (--once) or a signal comes."""
    options = run.options
    reading = source_options(options)
    check(
        {
            f"--key-words must be at most {KEY_WORDS_MAX}": (options.key_words or 0)
            > KEY_WORDS_MAX,
        }
    )
    spark = run.spark
    check_format(spark, options.format)
    frame = spark.readStream.format("lavinmq").options(**reading).load()
    names = partition_names(options)
    frame = with_partitions(frame, options)
    if options.format == "iceberg":
        writer = frame.writeStream.format("iceberg").option("path", options.target)
        writer = writer.option("fanout-enabled", "true").outputMode("append")
    else:
        write = _write_delta if options.format == "delta" else _write_parquet
        writer = frame.writeStream.foreachBatch(write(spark, options, names))
    run.progress.note(f"archiving to {options.target}")
    counts = run_stream(run, writer)
    values = {"target": options.target, **counts.values()}
    return Result(
        values=values,
        text=f"{counts.rows:,} messages archived in {counts.batches} batches, "
        f"{counts.seconds:.1f} s",
    )


def check_format(spark: SparkSession, name: str) -> None:
    """Raise UsageError when Spark has no jars of the format."""
    marker = FORMATS[name]
    if not marker:
        return
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(marker.replace(".", "/") + ".class") is None:
        raise UsageError(f"--format {name}: its jars are not there; --conf spark.jars.packages=…")


def partition_names(options: argparse.Namespace) -> list[str]:
    """Return the columns that make directories."""
    names = {"date": True, "hour": options.hour, "key": bool(options.key_words)}
    return [name for name, is_wanted in names.items() if is_wanted]


def with_partitions(frame: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Add the columns of `partition_names`; the day of a message without any time is null."""
    from pyspark.sql import functions as F

    time = F.coalesce("timestamp", "message_timestamp")
    frame = frame.withColumn("date", F.to_date(time))
    if options.hour:
        frame = frame.withColumn("hour", F.hour(time))
    if options.key_words:
        words = F.substring_index(F.col("routing_key"), ".", options.key_words)
        frame = frame.withColumn("key", words)
    return frame


BatchWriter = Callable[["DataFrame", int], None]


def _write_parquet(
    spark: SparkSession, options: argparse.Namespace, names: list[str]
) -> BatchWriter:
    archive = Files(spark, options.target)
    checkpoint = Files(spark, options.checkpoint)

    def write(batch: DataFrame, number: int) -> None:
        query = query_id(checkpoint)
        ledger = Ledger(archive, query)
        ledger.settle()
        if number <= ledger.last():
            return  # its files are there, only Spark does not know
        if number > ledger.last() + 1:
            raise PipelineError(
                f"{options.target} lacks batch {ledger.last() + 1}, which is done in "
                f"{options.checkpoint}: was the archive moved or emptied?"
            )
        writer = batch.write.partitionBy(*names).mode("append")
        writer = writer.option("maxRecordsPerFile", options.rows_per_file)
        writer.option("compression", options.compression).parquet(ledger.begin())
        ledger.publish(number, f"{query[:8]}-{number:09}")

    return write


def _write_delta(spark: SparkSession, options: argparse.Namespace, names: list[str]) -> BatchWriter:
    checkpoint = Files(spark, options.checkpoint)

    def write(batch: DataFrame, number: int) -> None:
        # The table itself leaves out a batch that it has: that makes it once.
        writer = batch.write.format("delta").mode("append").partitionBy(*names)
        writer = writer.option("maxRecordsPerFile", options.rows_per_file)
        writer = writer.option("txnAppId", query_id(checkpoint)).option("txnVersion", number)
        writer.save(options.target)

    return write


def query_id(checkpoint: Files) -> str:
    """Return the id of the query that a checkpoint belongs to; it survives restarts."""
    text = checkpoint.read("metadata")
    if text is None:
        raise PipelineError(f"{checkpoint.root}: no checkpoint of Spark")
    return str(json.loads(text)["id"])


JOB = Job(
    name="archive",
    help="Streams to Parquet files, each message exactly once",
    configure=configure,
    run=run,
    is_stream=True,
)
