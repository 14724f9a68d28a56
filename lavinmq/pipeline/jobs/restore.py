"""`restore`: one queue's messages of an archive become a new stream, with all their properties.

They pass through a fanout exchange of the job's own, so that each keeps its routing key and reaches
nothing but the new stream. Then archive and stream are compared. Offsets and receive times are new.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.arguments import Parser, add_broker, broker_options
from lavinmq.pipeline.errors import FAILED, PipelineError, UsageError
from lavinmq.pipeline.files import Files
from lavinmq.pipeline.filters import add_filters, apply_filters
from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.publishing import Published, publish
from lavinmq.pipeline.sources import HELP, Source, open_source, parse_source, with_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lavinmq.spark.connection import Connection

PREFIX = "lavinmq-pipeline.restore."


def configure(parser: Parser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help=HELP)
    add("stream", metavar="STREAM", help="the stream to make")
    add(
        "--argument",
        type=_argument,
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="of the stream, such as x-max-age=30D; a number is one; may be repeated",
    )
    add("--checkpoint", metavar="DIR", help="remember here what is published, and go on from there")
    add("--no-verify", action="store_true", help="do not compare at the end")
    add_filters(parser.add_argument_group("which messages; those of one queue"))
    add_broker(parser.add_argument_group("broker"))  # fmt: skip


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected name=value, got: {text}")
    return name, int(value) if value.isdecimal() and len(value) < 19 else value


def run(run: Run) -> Result:
    """Declare, publish, compare."""
    options = run.options
    source = parse_source(options.source)
    broker = broker_options(options)
    frame = apply_filters(open_source(run.spark, source, broker), options)
    queue = _only_queue(frame, source)
    checkpoint = Files(run.spark, options.checkpoint) if options.checkpoint else None
    identity = {"source": options.source, "queue": queue, "stream": options.stream}
    state = Published.load(checkpoint, identity)
    exchange = PREFIX + options.stream
    with closing(_connect(broker, options.stream)) as connection:
        arguments = {"x-queue-type": "stream", **dict(options.argument)}
        _declare(connection, options.stream, arguments, exchange, is_new=not state.has_begun)
    state.save(checkpoint)  # what the first round has published is ours, also when it is stopped
    sink = broker | {"exchange": exchange, "mandatory": "true"}
    run.progress.note(f"publishing to {options.stream}")
    done = publish(run, with_order(frame), sink, state, checkpoint)
    with closing(_connect(broker, options.stream)) as connection:
        connection.call("exchange.delete", 0, exchange, False, False)
    values: dict[str, Any] = {"source": str(source), "queue": queue, "stream": options.stream}
    values["rows"] = done
    text = f"{done:,} messages of {queue} restored to {options.stream}"
    if options.no_verify:
        return Result(values=values, text=text)
    return _verified(run, frame, broker, values, text)


def _only_queue(frame: DataFrame, source: Source) -> str:
    """Return the name of the queue that all messages are of. Raises: PipelineError, UsageError."""
    names = [row["queue"] for row in frame.select("queue").distinct().limit(6).collect()]
    if not names:
        raise PipelineError(f"{source}: there is no such message")
    if len(names) > 1:
        raise UsageError(f"--queue is needed, there are several: {', '.join(sorted(names))}")
    return str(names[0])


def _connect(broker: Mapping[str, str], stream: str) -> Connection:
    from lavinmq.spark.connection import connect
    from lavinmq.spark.option_values import Values
    from lavinmq.spark.options import IGNORED, SINK_NAMES, ConnectionOptions

    where = ConnectionOptions.parse(Values(broker, SINK_NAMES, IGNORED))
    return connect(where, f"stream '{stream}'", name="lavinmq-pipeline restore")


def _declare(
    connection: Connection,
    stream: str,
    arguments: Mapping[str, Any],
    exchange: str,
    *,
    is_new: bool,
) -> None:
    """Make the stream and the exchange before it. Raises: PipelineError, ConnectionFailure."""
    durable = (False, True, False, False)
    _, messages, _ = connection.call("queue.declare", 0, stream, *durable, False, arguments)
    if is_new and messages:
        raise PipelineError(f"stream {stream} has {messages} messages already")
    connection.call("exchange.declare", 0, exchange, "fanout", *durable, False, {})
    connection.call("queue.bind", 0, stream, exchange, "", False, {})


def _verified(
    run: Run, frame: DataFrame, broker: Mapping[str, str], values: dict[str, Any], text: str
) -> Result:
    from lavinmq.pipeline.comparison import compare

    restored = open_source(run.spark, Source("queue", run.options.stream), broker)
    sides = (("archive", frame), ("stream", restored))
    found = compare(run.progress, sides, ignore=("exchange",))
    values |= {"verified": found.is_equal}
    if found.is_equal:
        return Result(values=values, text=f"{text}; verified")
    return Result(values=values | found.values(), text=f"{text}\n{found}", status=FAILED)


JOB = Job(
    name="restore",
    help="Messages of an archive to a new stream",
    configure=configure,
    run=run,
    publishes=True,
)
