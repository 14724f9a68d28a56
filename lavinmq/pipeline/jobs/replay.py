"""`replay`: stored messages are published again, each queue's in their order, at a chosen rate.

At least once: with --checkpoint a stopped replay goes on, and repeats at most the messages of the
round it was stopped in.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.arguments import Parser, add_broker, broker_options, check, positive
from lavinmq.pipeline.files import Files
from lavinmq.pipeline.filters import add_filters, apply_filters
from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.publishing import Published, publish, remaining
from lavinmq.pipeline.sources import HELP, open_source, parse_source, with_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def configure(parser: Parser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help=HELP)
    add(
        "--exchange",
        metavar="NAME",
        help='publish to this one, "" is the default exchange; '
        "else each message goes to the one it came from",
    )
    add("--routing-key", metavar="KEY", help="for all messages; else each keeps its own")
    add("--rate", type=positive, metavar="N", help="messages/s at most, of all queues together")
    add("--dry-run", action="store_true", help="only count what would be published")
    add("--checkpoint", metavar="DIR", help="remember here what is published, and go on from there")
    add(
        "--no-origin",
        action="store_true",
        help="leave out the headers x-origin-queue and x-origin-offset",
    )
    add("--mandatory", action="store_true", help="fail when a message reaches no queue")
    add_filters(parser.add_argument_group("which messages"))
    add_broker(parser.add_argument_group("broker"))  # fmt: skip


def sink_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the format lavinmq. Raises: UsageError."""
    named = {
        "exchange": options.exchange,
        "routingKey": options.routing_key,
        "keepOrigin": "false" if options.no_origin else "true",
        "mandatory": "true" if options.mandatory else None,
    }
    return broker_options(options) | {key: text for key, text in named.items() if text is not None}


def run(run: Run) -> Result:
    """Publish, or count."""
    options = run.options
    source = parse_source(options.source)
    check({"--dry-run needs no --rate": options.dry_run and options.rate is not None})
    needs_broker = source.kind == "queue" or not options.dry_run
    broker = broker_options(options) if needs_broker else {}
    frame = apply_filters(open_source(run.spark, source, broker), options)
    frame = with_order(frame)
    checkpoint = Files(run.spark, options.checkpoint) if options.checkpoint else None
    state = Published.load(checkpoint, _identity(options))
    if options.dry_run:
        return _count(remaining(frame, state))
    run.progress.note(f"publishing from {source}")
    n_before = state.rows
    done = publish(run, frame, sink_options(options), state, checkpoint, options.rate)
    text = f"{done:,} messages published" + (f", {n_before:,} before" if n_before else "")
    return Result(values={"source": str(source), "rows": done, "rows_before": n_before}, text=text)


def _identity(options: argparse.Namespace) -> dict[str, Any]:
    """What makes a replay another one, as it stands in JSON."""
    names = ("source", "exchange", "routing_key", "queue", "since", "until", "key", "header")
    found = {name: getattr(options, name) for name in names}
    found |= {name: str(found[name]) for name in ("since", "until") if found[name] is not None}
    return found | {"header": [list(pair) for pair in options.header]}


def _count(frame: DataFrame) -> Result:
    from pyspark.sql import functions as F

    facts = frame.groupBy("queue").agg(
        F.count("*").alias("rows"),
        F.sum(F.length("body")).alias("bytes"),
        F.min("timestamp").alias("first"),
        F.max("timestamp").alias("last"),
    )
    queues = [
        {
            "queue": row["queue"],
            "rows": row["rows"],
            "bytes": row["bytes"] or 0,
            "first": row["first"] and f"{row['first']:%Y-%m-%dT%H:%M:%SZ}",
            "last": row["last"] and f"{row['last']:%Y-%m-%dT%H:%M:%SZ}",
        }
        for row in facts.orderBy("queue").collect()
    ]
    total = sum(queue["rows"] for queue in queues)
    lines = [f"{q['queue']}: {q['rows']:,} messages, {q['bytes']:,} bytes" for q in queues]
    return Result(
        values={"dry_run": True, "rows": total, "queues": queues},
        text="\n".join([*lines, f"{total:,} messages would be published"]),
    )


JOB = Job(
    name="replay",
    help="Publish stored messages again, in their order",
    configure=configure,
    run=run,
    publishes=True,
)
