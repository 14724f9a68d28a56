"""Whether two places hold the same messages, in whatever order: counts, checksums, what differs.

Each row becomes a 64-bit hash of the columns compared; the checksum of a place is their sum. Only
when sums or counts differ are the rows matched, by their hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.sources import CONTENT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lavinmq.pipeline.progress import Progress

EXAMPLES_MAX = 3


@dataclass(frozen=True, slots=True)
class Side:
    """One of two places; `only_here` counts what the other lacks, some of it is in `examples`."""

    name: str
    rows: int
    checksum: str
    only_here: int = 0
    examples: tuple[tuple[str, int | None], ...] = ()

    def values(self) -> dict[str, Any]:
        """The facts by name, for a result."""
        examples = [{"queue": queue, "offset": offset} for queue, offset in self.examples]
        found = {"source": self.name, "rows": self.rows, "checksum": self.checksum}
        return found | {"only_here": self.only_here, "examples": examples}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two places hold."""

    sides: tuple[Side, Side]

    @property
    def is_equal(self) -> bool:
        """Say whether both hold the same."""
        one, other = self.sides
        return (one.rows, one.checksum) == (other.rows, other.checksum)

    def values(self) -> dict[str, Any]:
        """The facts by name, for a result."""
        return {"equal": self.is_equal, "sides": [side.values() for side in self.sides]}

    def __str__(self) -> str:
        lines = [f"{s.name}: {s.rows:,} messages, checksum {s.checksum}" for s in self.sides]
        for side in self.sides:
            if side.only_here:
                where = ", ".join(f"{queue} {offset}" for queue, offset in side.examples)
                more = ", …" if side.only_here > len(side.examples) else ""
                lines.append(f"only in {side.name}: {side.only_here:,} ({where}{more})")
        return "\n".join([*lines, "equal" if self.is_equal else "not equal"])


def compare(
    progress: Progress,
    frames: Sequence[tuple[str, DataFrame]],
    *,
    place: bool = False,
    ignore: Sequence[str] = (),
    ignore_headers: Sequence[str] = (),
) -> Comparison:
    """Compare two frames of messages, given with names; with `place` also queue and offset."""
    from pyspark.sql import functions as F

    columns = [*(("queue", "offset") if place else ()), *(c for c in CONTENT if c not in ignore)]
    (first, one), (second, other) = [
        (name, frame.select(row_hash(frame, columns, ignore_headers), "queue", "offset"))
        for name, frame in frames
    ]
    sides = []
    for name, frame in ((first, one), (second, other)):
        progress.note(f"reading {name}")
        total = F.sum(F.col("hash").cast("decimal(38,0)"))
        ((rows, checksum),) = frame.agg(F.count("*"), total).collect()
        sides.append(Side(name, rows, f"{int(checksum or 0) % (1 << 64):016x}"))
    found = Comparison((sides[0], sides[1]))
    if found.is_equal:
        return found
    progress.note("looking for what differs")
    return Comparison((_surplus(sides[0], one, other), _surplus(sides[1], other, one)))


def row_hash(frame: DataFrame, columns: Sequence[str], ignored_headers: Sequence[str]) -> Column:
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


def _without(headers: Column, names: Sequence[str]) -> Column:
    """The headers as text without some of them; null when none is left."""
    from pyspark.sql import functions as F

    entries = F.map_entries(F.from_json(headers, "map<string,string>"))
    kept = F.filter(entries, lambda each: ~each["key"].isin(*names))
    text = F.transform(kept, lambda each: F.to_json(F.array(each["key"], each["value"])))
    return F.nullif(F.array_join(text, ","), F.lit(""))


def _surplus(side: Side, one: DataFrame, other: DataFrame) -> Side:
    """Return the side with what it has and the other has not, duplicates counted."""
    from pyspark.sql import functions as F

    here = one.groupBy("hash").agg(
        F.count("*").alias("n"), F.min(F.struct("queue", "offset")).alias("where")
    )
    there = other.groupBy("hash").agg(F.count("*").alias("m"))
    more = here.join(there, "hash", "left").withColumn(
        "more", F.col("n") - F.coalesce(F.col("m"), F.lit(0))
    )
    more = more.where("more > 0")
    ((rows,),) = more.agg(F.sum("more")).collect()
    examples = more.orderBy("where").select("where.*").limit(EXAMPLES_MAX).collect()
    places = tuple((row["queue"], row["offset"]) for row in examples)
    return Side(side.name, side.rows, side.checksum, rows or 0, places)
