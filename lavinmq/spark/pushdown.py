"""Filters of a query that narrow the ranges to read: bounds of `offset`, `timestamp` and `queue`.

Only what follows from a single comparison; Spark applies every filter again, so to push less is
never wrong. Filters are recognised by the names of their classes: nothing of pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from lavinmq.spark.streams import Streams

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pushed:
    """Bounds that every row of the result has; each None without one.

    Offsets are [first, end), times [from_ms, until_ms) in milliseconds since 1970.
    """

    queues: frozenset[str] | None = None
    first: int | None = None
    end: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None

    @classmethod
    def of(cls, filters: Iterable[object]) -> Self:
        """Return the bounds that follow from the filters, all of which hold."""
        queues: frozenset[str] | None = None
        lows: dict[str, list[int]] = {"offset": [], "timestamp": []}
        highs: dict[str, list[int]] = {"offset": [], "timestamp": []}
        for each in filters:
            kind = type(each).__name__
            attribute = getattr(each, "attribute", None)
            value = getattr(each, "value", None)
            if attribute == ("queue",) and kind in ("EqualTo", "In"):
                names = frozenset(
                    value if kind == "In" and isinstance(value, tuple | list) else [value]
                )
                queues = names if queues is None else queues & names
            elif attribute in (("offset",), ("timestamp",)):
                low, high = _interval(kind, value)
                lows[attribute[0]] += low
                highs[attribute[0]] += high
        return cls(
            queues,
            max(lows["offset"], default=None),
            min(highs["offset"], default=None),
            max(lows["timestamp"], default=None),
            min(highs["timestamp"], default=None),
        )

    def wants_queue(self, queue: str) -> bool:
        """Tell whether any row of this queue can be in the result."""
        return self.queues is None or queue in self.queues

    def narrow(self, streams: Streams, queue: str, range_: tuple[int, int]) -> tuple[int, int]:
        """Return the part of [start, end) in which rows of the result can be."""
        start, end = range_
        start = start if self.first is None else max(start, self.first)
        end = end if self.end is None else min(end, self.end)
        # Where the broker does not tell when a message came, the column is the publisher's.
        if start < end and self.from_ms is not None:
            offset = streams.first_since(queue, self.from_ms)
            start = start if offset is None else max(start, offset)
        if start < end and self.until_ms is not None:
            offset = streams.first_since(queue, self.until_ms)
            end = end if offset is None else min(end, offset)
        return start, end


def _interval(kind: str, value: object) -> tuple[list[int], list[int]]:
    """Return the lowest value that a comparison lets through, and the first above; if it has them.

    Times are rounded outwards to milliseconds.
    """
    if isinstance(value, datetime):
        microseconds = round((value - EPOCH).total_seconds() * 1_000_000)
        floor, above = microseconds // 1000, microseconds // 1000 + 1
        after = floor
    elif type(value) is int:
        floor, above, after = value, value + 1, value + 1
    else:
        return [], []
    if kind == "EqualTo":
        return [floor], [above]
    if kind == "GreaterThanOrEqual":
        return [floor], []
    if kind == "GreaterThan":
        return [after], []
    if kind == "LessThanOrEqual":
        return [], [above]
    if kind == "LessThan":
        return [], [above if isinstance(value, datetime) else floor]
    return [], []
