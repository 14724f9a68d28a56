"""`mirror`: streams of one broker or virtual host into another one, chosen and changed on the way.

At least once: a batch that breaks is published again, by the same offsets. Each stream's messages
are published in their order. Without anything to choose or change a shovel does this, on the
broker and with far less; the job says so.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.arguments import (
    Parser,
    add_broker,
    add_streams,
    broker_options,
    check,
    setting,
)
from lavinmq.pipeline.errors import UsageError
from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.sources import CONTENT
from lavinmq.pipeline.streaming import run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TARGET_VARIABLE = "LAVINMQ_TARGET_URL"
PLACE = ("queue", "offset")
WARNING = "nothing to choose or change: a shovel does the same without Spark, see mirror --help"


def configure(parser: Parser) -> None:
    """Add the options of this job."""
    add_broker(parser.add_argument_group("source"))
    add = parser.add_argument
    add_streams(parser)
    add(
        "--start",
        metavar="WHERE",
        default="earliest",
        help="of a new checkpoint: earliest (default), latest, or JSON of offsets by queue",
    )
    add("--where", metavar="SQL", help="only messages for which this holds, as priority > 3")
    add(
        "--set",
        type=setting,
        metavar="COLUMN=SQL",
        action="append",
        default=[],
        help='change a column, as "body=upper(cast(body AS STRING))"; may be repeated',
    )
    to = parser.add_argument_group("target").add_argument
    to(
        "--to",
        metavar="URL",
        default=os.environ.get(TARGET_VARIABLE),
        help=f"amqp(s)://user:password@host:port/vhost, several by commas; else {TARGET_VARIABLE}",
    )
    to("--to-password-file", metavar="FILE", help="file with the password")
    to(
        "--to-option",
        type=setting,
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any other option of the format lavinmq for writing; may be repeated",
    )
    to("--exchange", metavar="NAME", help="publish to this one; else each message to its own")
    to("--routing-key", metavar="KEY", help="for all messages; else each keeps its own")
    to(
        "--no-origin",
        action="store_true",
        help="leave out the headers x-origin-queue and x-origin-offset",
    )


def source_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the format lavinmq for reading. Raises: UsageError."""
    named = {
        "queue": options.queue,
        "queuePattern": options.queue_pattern,
        "superStream": options.super_stream,
        "startingOffsets": options.start,
        "columns": ",".join((*PLACE, *CONTENT)),
    }
    return broker_options(options) | {key: text for key, text in named.items() if text is not None}


def sink_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the format lavinmq for writing. Raises: UsageError."""
    if not options.to:
        raise UsageError(f"--to is missing, and {TARGET_VARIABLE} is not set")
    named = {
        "url": options.to,
        "passwordFile": options.to_password_file,
        "exchange": options.exchange,
        "routingKey": options.routing_key,
        "keepOrigin": "false" if options.no_origin else "true",
    }
    return dict(options.to_option) | {key: v for key, v in named.items() if v is not None}


def run(run: Run) -> Result:
    """Mirror until there is nothing more (--once) or a signal comes."""
    options = run.options
    reading, writing = source_options(options), sink_options(options)
    unknown = [name for name, _ in options.set if name not in CONTENT]
    check(
        {f"--set {name}: no such column; there are {', '.join(CONTENT)}": True for name in unknown}
    )
    if not options.where and not options.set:
        run.progress.note(WARNING)
    frame = run.spark.readStream.format("lavinmq").options(**reading).load()
    frame = changed(frame, options)
    counts = Counts()
    writer = frame.writeStream.foreachBatch(counts.writer(writing))
    found = run_stream(run, writer, "messages")
    return Result(
        values={**found.values(), "published": counts.published},
        text=f"{counts.published:,} of {found.rows:,} messages published, {found.batches} batches",
    )


def changed(frame: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Return the messages that are wanted, as they are wanted."""
    from pyspark.sql import functions as f

    if options.where:
        frame = frame.where(options.where)
    types = dict(frame.dtypes)
    # All at once: an expression sees the message as it came, whatever stands before it.
    new = {name: f.expr(sql).cast(types[name]) for name, sql in options.set}
    return frame.withColumns(new) if new else frame


class Counts:
    """How many messages were published."""

    def __init__(self) -> None:
        self.published = 0

    def writer(self, sink: dict[str, str]) -> Any:
        """Return what publishes a batch: each stream in one task, by offset."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        def write(batch: DataFrame, _number: int) -> None:
            seen = Observation()
            rows = batch.repartition("queue").sortWithinPartitions(*PLACE)
            rows = rows.observe(seen, f.count("*").alias("rows"))
            rows.write.format("lavinmq").mode("append").options(**sink).save()
            self.published += int(seen.get["rows"])

        return write


JOB = Job(
    name="mirror",
    help="Streams into another broker or virtual host, changed on the way",
    configure=configure,
    run=run,
    is_stream=True,
    publishes=True,
)
