"""`verify`: what an archive holds, and whether two places hold the same messages.

Of one source: rows, first and last offset of each queue, gaps, offsets that are there twice. Of
two: count and checksum of each, and how many messages only one of them has, in whatever order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.arguments import Parser, add_broker, broker_options, check
from lavinmq.pipeline.comparison import compare
from lavinmq.pipeline.errors import DONE, FAILED
from lavinmq.pipeline.filters import add_filters, apply_filters
from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.sources import (
    CONTENT,
    HELP,
    ORDER,
    Source,
    open_source,
    parse_source,
    with_order,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def configure(parser: Parser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("sources", metavar="SOURCE", nargs="+", help=f"one or two: {HELP}")
    add("--place", action="store_true", help="compare queue and offset, too")
    add(
        "--ignore",
        metavar="COLUMN",
        action="append",
        default=[],
        help="a column that may differ; may be repeated",
    )
    add("--ignore-header", metavar="NAME", action="append", default=[],
        help="a header that may differ; may be repeated")  # fmt: skip
    add_filters(parser.add_argument_group("which messages"))
    add_broker(parser.add_argument_group("broker, for queue:NAME"))


def run(run: Run) -> Result:
    """Describe one source, or compare two."""
    options = run.options
    check(
        {
            "two sources at most": len(options.sources) > 2,
            **{f"--ignore {name}: no such column": name not in CONTENT for name in options.ignore},
        }
    )
    sources = [parse_source(text) for text in options.sources]
    broker = broker_options(options) if any(each.kind == "queue" for each in sources) else {}
    frames = [apply_filters(open_source(run.spark, each, broker), options) for each in sources]
    if len(frames) == 1:
        return _describe(run, sources[0], frames[0])
    return _compare(run, sources, frames)


def _describe(run: Run, source: Source, frame: DataFrame) -> Result:
    from pyspark.sql import functions as F

    order = F.col(ORDER)
    run.progress.note(f"reading {source}")
    facts = with_order(frame).groupBy("queue").agg(
        F.count("*").alias("rows"),
        F.min(order).alias("first"),
        F.max(order).alias("last"),
        F.count_distinct(order).alias("different"),
        F.count("offset").alias("offsets"),
    )  # fmt: skip
    queues = []
    for row in facts.orderBy("queue").collect():
        is_stream = row["offsets"] > 0
        found: dict[str, Any] = {"queue": row["queue"], "rows": row["rows"]}
        found["duplicates"] = row["rows"] - row["different"]
        if is_stream:
            found |= {"first_offset": row["first"], "last_offset": row["last"]}
            found["missing"] = row["last"] - row["first"] + 1 - row["different"]
        queues.append(found)
    n_twice = sum(queue["duplicates"] for queue in queues)
    values = {"source": str(source), "rows": sum(q["rows"] for q in queues), "queues": queues}
    return Result(
        values=values | {"duplicates": n_twice},
        text="\n".join(map(_line, queues)) or "no messages",
        status=FAILED if n_twice else DONE,
    )


def _line(queue: dict[str, Any]) -> str:
    text = f"{queue['queue']}: {queue['rows']:,} messages"
    if "first_offset" in queue:
        text += f", offsets {queue['first_offset']} to {queue['last_offset']}"
        text += f", {queue['missing']:,} of them missing" if queue["missing"] else ""
    return text + (f", {queue['duplicates']:,} of them twice" if queue["duplicates"] else "")


def _compare(run: Run, sources: list[Source], frames: list[DataFrame]) -> Result:
    options = run.options
    names = [str(source) for source in sources]
    found = compare(
        run.progress,
        list(zip(names, frames, strict=True)),
        place=options.place,
        ignore=options.ignore,
        ignore_headers=options.ignore_header,
    )
    status = DONE if found.is_equal else FAILED
    return Result(values=found.values(), text=str(found), status=status)


JOB = Job(
    name="verify",
    help="What an archive holds; whether two sources hold the same",
    configure=configure,
    run=run,
)
