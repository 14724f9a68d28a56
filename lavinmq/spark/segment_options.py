"""Options of the format `lavinmq-segments`: text in, checked values out; nothing of pyspark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from lavinmq.spark.option_values import INT64_MAX, OptionError, Values
from lavinmq.spark.schema import SEGMENT_COLUMNS, check_columns, default_columns

NAMES = (
    *("path", "vhost", "queue", "queuePattern", "includeAcked", "targetPartitionBytes"),
    *("startingTimestamp", "endingTimestamp", "startingOffset", "endingOffset"),
    *("onCorrupt", "failOnDataLoss", "batchRows", "includeHeaders", "columns"),
)
TARGET_BYTES = 128 << 20
BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """What to read, and what to do about damage. Picklable.

    `vhost`, `queues` (empty: all) and `queue_pattern` choose by name. Times are milliseconds since
    1970, `times_ms` and `offsets` are [from, to) or None. `on_corrupt` is `stop`, `fail` or `skip`.
    """

    path: str
    vhost: str | None
    queues: tuple[str, ...]
    queue_pattern: str | None
    with_acked: bool
    target_bytes: int
    times_ms: tuple[int, int] | None
    offsets: tuple[int, int] | None
    on_corrupt: str
    fail_on_data_loss: bool
    batch_rows: int
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Return checked options. Raises OptionError, one line that names the option."""
        values = Values(options, NAMES)
        path = values.text("path")
        if path is None:
            raise OptionError("option path is missing: a data directory, or one in it, or a glob")
        for names in (("queue", "queuePattern"), ("includeHeaders", "columns")):
            if len(values.given(*names)) > 1:
                raise OptionError(f"give one of the options {' and '.join(names)}")
        return cls(
            path=path,
            vhost=values.text("vhost"),
            queues=values.name_list("queue"),
            queue_pattern=values.pattern("queuePattern"),
            with_acked=values.boolean("includeAcked", False),
            target_bytes=values.size_bytes("targetPartitionBytes") or TARGET_BYTES,
            times_ms=_times(values),
            offsets=_offsets(values),
            on_corrupt=values.choice("onCorrupt", ("stop", "fail", "skip"), "stop"),
            fail_on_data_loss=values.boolean("failOnDataLoss", True),
            batch_rows=values.number("batchRows", BATCH_ROWS, high=1_000_000),
            columns=_columns(values),
        )

    def wants(self, vhost: str, queue: str) -> bool:
        """Whether a queue is among those to read."""
        if self.vhost is not None and vhost != self.vhost:
            return False
        if self.queue_pattern is not None:
            return re.fullmatch(self.queue_pattern, queue) is not None
        return not self.queues or queue in self.queues


def _times(values: Values) -> tuple[int, int] | None:
    if not values.given("startingTimestamp", "endingTimestamp"):
        return None
    start, end = values.time_ms("startingTimestamp"), values.time_ms("endingTimestamp")
    for name, value in (("startingTimestamp", start), ("endingTimestamp", end)):
        if value is not None and value < 0:
            raise values.error(name, "a time since 1970")
    return start or 0, INT64_MAX if end is None else end


def _offsets(values: Values) -> tuple[int, int] | None:
    if not values.given("startingOffset", "endingOffset"):
        return None
    end = values.integer("endingOffset", None, 0)
    return values.number("startingOffset", 0, 0), INT64_MAX if end is None else end


def _columns(values: Values) -> tuple[str, ...]:
    names = values.name_list("columns")
    if not names:
        headers = values.choice("includeHeaders", ("false", "true", "json"), "false")
        return default_columns(headers, SEGMENT_COLUMNS)
    try:
        return check_columns(names, SEGMENT_COLUMNS)
    except ValueError as error:
        raise OptionError(f"option columns: {error}") from None
