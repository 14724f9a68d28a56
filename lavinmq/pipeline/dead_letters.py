"""Dead letters of any source, counted by where and why they died: Spark's half of the job `dlq`.

Takes rows of the format `lavinmq` with `headers_json`; the rule of what an origin is stands in
`deaths`. The JSON is taken apart by Spark itself; what is not of its type counts as absent. All
that comes back to the driver is bounded: groups, samples of each, errors of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.deaths import UNKNOWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS = ("exchange", "routing_key", "body", "timestamp", "headers_json")
GROUP = ("reason", "queue", "exchange", "routing_key")
# Each value is {type letter: value}; integers come in several widths.
DEATHS = (
    "ARRAY<STRUCT<F: STRUCT<queue: STRUCT<S: STRING>, reason: STRUCT<S: STRING>,"
    " exchange: STRUCT<S: STRING>, count: MAP<STRING, BIGINT>, time: STRUCT<T: BIGINT>,"
    " `routing-keys`: STRUCT<A: ARRAY<STRUCT<S: STRING>>>>>>"
)
# Where programs of several languages leave why a message failed.
ERROR_HEADERS = (
    *("x-exception-message", "x-exception", "x-error-message", "x-error", "error"),
    *("exception-message", "x-exception-stacktrace"),
)
ERROR_CHARS = 200
# Anybody can forge a header; beyond these a value is none.
COUNT_MAX = (1 << 31) - 1
TIME_MAX_S = 253_402_300_799  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many groups come back, with how many samples (of how many bytes) and errors each."""

    groups: int = 50
    samples: int = 3
    sample_bytes: int = 200
    errors: int = 3


@dataclass(frozen=True, slots=True)
class Report:
    """What was found; groups are the largest ones, `n_groups` counts them all."""

    messages: int
    n_groups: int
    never_died: int
    groups: list[dict[str, Any]]


def deaths(frame: DataFrame, error_headers: Sequence[str] = ERROR_HEADERS) -> DataFrame:
    """Return per message GROUP, `times`, `first_seen`, `last_seen`, `error`, `size` and `body`.

    `times` is how often it died; it was seen at unix seconds. Group columns of a message that never
    died are null.
    """
    from pyspark.sql import functions as f

    headers = f.col("headers_json")

    def text(name: str) -> Column:
        # A name may hold anything but the quote that ends it here.
        return _filled(f.get_json_object(headers, f"$['{name.replace(chr(39), '')}'].S"))

    entries = f.from_json(f.get_json_object(headers, "$['x-death'].A"), DEATHS)
    tables = f.transform(f.coalesce(entries, f.array()), lambda entry: entry["F"])
    named = f.filter(tables, lambda entry: _filled(entry["queue"]["S"]).isNotNull())
    frame = frame.select(
        *("body", "timestamp"),
        f.coalesce(f.octet_length("body"), f.lit(0)).cast("bigint").alias("size"),
        named.alias("entries"),
        text("x-first-death-queue").alias("first_queue"),
        text("x-first-death-reason").alias("first_reason"),
        f.coalesce(*(text(name) for name in error_headers), f.lit(None)).alias("error"),
    )
    last = f.try_element_at("entries", f.lit(-1))
    frame = frame.withColumn("queue", f.coalesce("first_queue", last["queue"]["S"]))
    here = f.filter("entries", lambda entry: entry["queue"]["S"] == f.col("queue"))
    frame = frame.withColumn("death", f.try_element_at(here, f.lit(1)))
    key = f.try_element_at(f.col("death")["routing-keys"]["A"], f.lit(1))["S"]
    died = f.col("queue").isNotNull()
    reason = f.coalesce(_filled(f.col("death.reason.S")), "first_reason", f.lit(UNKNOWN))
    one = f.lit(1).cast("bigint")
    counts = f.transform("entries", lambda entry: f.coalesce(_integer(entry["count"]), one))
    counts = f.filter(counts, lambda count: count.between(1, COUNT_MAX))
    times = f.transform("entries", lambda entry: entry["time"]["T"])
    times = f.filter(times, lambda time: time.between(0, TIME_MAX_S))
    received = f.unix_seconds("timestamp")
    first_line = f.element_at(f.split(f.trim("error"), r"\R", 2), 1)
    return frame.select(
        f.when(died, reason).alias("reason"),
        "queue",
        f.when(died, f.coalesce(f.col("death.exchange.S"), f.lit(""))).alias("exchange"),
        f.when(died, f.coalesce(key, f.lit(""))).alias("routing_key"),
        f.when(died, f.greatest(_sum(counts), one)).alias("times"),
        f.coalesce(f.array_min(times), received).alias("first_seen"),
        f.coalesce(f.array_max(times), received).alias("last_seen"),
        f.substring(first_line, 1, ERROR_CHARS).alias("error"),
        *("size", "body"),
    )


def report(messages: DataFrame, bounds: Bounds) -> Report:
    """Count rows of `deaths`, and take samples. The largest groups come first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    groups = messages.groupBy(*GROUP).agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.min("first_seen").alias("first_seen"),
        f.max("last_seen").alias("last_seen"),
        f.max("times").alias("deaths_max"),
        f.avg("times").alias("deaths_mean"),
    )
    whole = messages.agg(
        f.count("*").alias("messages"), f.count_if(f.col("queue").isNull()).alias("never_died")
    ).head()
    assert whole is not None
    largest = groups.orderBy(f.desc("messages"), *GROUP).limit(bounds.groups).collect()
    found = {tuple(row[name] for name in GROUP): row.asDict() for row in largest}
    for each in found.values():
        each |= {"errors": [], "samples": []}
    place = Window.partitionBy(*GROUP)
    errors = messages.where("error IS NOT NULL AND error != ''").groupBy(*GROUP, "error").count()
    order = place.orderBy(f.desc("count"), "error")
    errors = errors.withColumn("place", f.row_number().over(order))
    for row in errors.where(f.col("place") <= bounds.errors).orderBy("place").toLocalIterator():
        if group := found.get(tuple(row[name] for name in GROUP)):
            group["errors"].append({"error": row.error, "messages": row["count"]})
    samples = messages.select(
        *GROUP,
        "last_seen",
        "size",
        f.substring("body", 1, bounds.sample_bytes).alias("body"),
    )
    # The newest: the oldest of a large heap is often of another age of the program.
    order = place.orderBy(f.desc("last_seen"), "size", "body")
    samples = samples.withColumn("place", f.row_number().over(order))
    for row in samples.where(f.col("place") <= bounds.samples).orderBy("place").toLocalIterator():
        if group := found.get(tuple(row[name] for name in GROUP)):
            sample = {"size": row.size, "text": printable(bytes(row.body or b""))}
            group["samples"].append(sample | {"is_cut": (row.size or 0) > bounds.sample_bytes})
    return Report(whole.messages, groups.count(), whole.never_died, list(found.values()))


def printable(data: bytes) -> str:
    r"""Return bytes as one line that a terminal can show: what is not printable becomes \xNN."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _filled(column: Column) -> Column:
    """The text, null when empty."""
    from pyspark.sql import functions as f

    return f.nullif(column, f.lit(""))


def _integer(column: Column) -> Column:
    """The number of a value of whatever width."""
    from pyspark.sql import functions as f

    return f.try_element_at(f.map_values(column), f.lit(1))


def _sum(numbers: Column) -> Column:
    from pyspark.sql import functions as f

    return f.aggregate(numbers, f.lit(0).cast("bigint"), lambda total, each: total + each)
