"""`verify`: what an archive holds, and whether two places hold the same messages.

Of one source: rows, first and last offset of each queue, gaps, offsets that are there twice. Of
two: count and checksum of each, and how many messages only one of them has, in whatever order.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.arguments import Parser, add_broker, broker_options, check
from lavinmq.pipeline.errors import DONE, FAILED
from lavinmq.pipeline.filters import add_filters, apply_filters
from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.sources import (
    CONTENT,
    HELP,
    ORDER,
    PLACE,
    Source,
    open_source,
    parse_source,
    with_order,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXAMPLES_MAX = 3


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
    from pyspark.sql import functions as F

    columns = compared(run.options)
    hashed = [
        frame.select(row_hash(frame, columns, run.options.ignore_header), *PLACE[:2])
        for frame in frames
    ]
    sides = []
    for source, frame in zip(sources, hashed, strict=True):
        run.progress.note(f"reading {source}")
        total = F.sum(F.col("hash").cast("decimal(38,0)"))
        row = frame.agg(F.count("*").alias("rows"), total.alias("sum")).collect()[0]
        checksum = f"{int(row['sum'] or 0) % (1 << 64):016x}"
        sides.append({"source": str(source), "rows": row["rows"], "checksum": checksum})
    is_equal = sides[0]["rows"] == sides[1]["rows"] and sides[0]["checksum"] == sides[1]["checksum"]
    values: dict[str, Any] = {"equal": is_equal, "sides": sides}
    if not is_equal:
        run.progress.note("looking for what differs")
        values["only_first"] = _surplus(hashed[0], hashed[1])
        values["only_second"] = _surplus(hashed[1], hashed[0])
    return Result(values=values, text=_report(values), status=DONE if is_equal else FAILED)


def compared(options: argparse.Namespace) -> list[str]:
    """Return the columns that have to be equal."""
    place = ["queue", "offset"] if options.place else []
    return place + [name for name in CONTENT if name not in options.ignore]


def row_hash(frame: DataFrame, columns: list[str], ignored_headers: list[str]) -> Column:
    """Return a 64-bit number that follows from the values of the columns, as column `hash`."""
    from pyspark.sql import functions as F

    parts = []
    for name in columns:
        value = frame[name]
        if name == "headers_json" and ignored_headers:
            value = _without(value, ignored_headers)
        # A null leaves the hash as it is: without the flag ("a", null) would equal (null, "a").
        parts += [F.isnull(value), value]
    return F.xxhash64(*parts).alias("hash")


def _without(headers: Column, names: list[str]) -> Column:
    """The headers as text without some; null when none is left."""
    from pyspark.sql import functions as F

    kept = F.map_filter(F.from_json(headers, "map<string,string>"), lambda key, _: ~key.isin(names))
    text = F.array_join(
        F.transform(F.map_entries(kept), lambda each: F.to_json(F.array(each.key, each.value))), ","
    )
    return F.nullif(text, F.lit(""))


def _surplus(one: DataFrame, other: DataFrame) -> dict[str, Any]:
    """How many rows of one have no counterpart in the other, and where some of them are."""
    from pyspark.sql import functions as F

    here = one.groupBy("hash").agg(F.count("*").alias("n"), F.first("queue").alias("queue"),
                                   F.min("offset").alias("offset"))  # fmt: skip
    there = other.groupBy("hash").agg(F.count("*").alias("m"))
    more = here.join(there, "hash", "left").withColumn(
        "more", F.col("n") - F.coalesce("m", F.lit(0))
    )
    more = more.where("more > 0")
    row = more.agg(F.sum("more").alias("rows")).collect()[0]
    examples = more.orderBy("queue", "offset").limit(EXAMPLES_MAX).collect()
    places = [{"queue": each["queue"], "offset": each["offset"]} for each in examples]
    return {"rows": row["rows"] or 0, "examples": places}


def _report(values: dict[str, Any]) -> str:
    lines = [
        f"{s['source']}: {s['rows']:,} messages, checksum {s['checksum']}" for s in values["sides"]
    ]
    if values["equal"]:
        return "\n".join([*lines, "equal"])
    for name, side in (("first", "only_first"), ("second", "only_second")):
        found = values[side]
        where = ", ".join(f"{e['queue']} {e['offset']}" for e in found["examples"])
        lines.append(f"only in the {name}: {found['rows']:,}" + (f" ({where}, …)" if where else ""))
    return "\n".join(lines)


JOB = Job(
    name="verify",
    help="What an archive holds; whether two sources hold the same",
    configure=configure,
    run=run,
)
