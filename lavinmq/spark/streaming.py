"""Streaming queries: what each batch reads, by offsets that Spark keeps in its checkpoint.

One instance lives in the planning process as long as the query; tasks use pickled copies of
another one, so all that a task needs is in its partition. Correctness is in the checkpoint alone:
`commit` comes a batch late, for the last batch not at all, and `stop` never.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from lavinmq.spark.batch import read_task, tasks_for
from lavinmq.spark.errors import SourceError
from lavinmq.spark.offsets import (
    Bounds,
    Offsets,
    advance,
    bytes_between,
    changed,
    end_within_bytes,
    loss,
    ranges,
    share,
)
from lavinmq.spark.options import SourceOptions
from lavinmq.spark.streams import Streams

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("lavinmq.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a streaming query.

    Spark hides what its maker raises, so a problem with the options is kept in `problem` and
    raised by the first call.
    """

    def __init__(
        self,
        options: SourceOptions | None,
        columns: tuple[str, ...],
        problem: Exception | None = None,
    ) -> None:
        self._checked = options
        self._columns = columns
        self._problem = problem
        self._initial: Offsets | None = None
        self._latest: Offsets | None = None
        self._target: dict[str, int] | None = None
        self._planned_at = time.monotonic()

    # ---- what Spark calls, in this order ---------------------------------------------------------

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end of the query."""
        with Streams(self._options) as streams:
            held = streams.bounds(missing_ok=True)
        self._target = {queue: bounds.end for queue, bounds in held.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one limit of a batch, as Spark takes no more; the others are applied beside it."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, object]:
        """Return where a new query begins. Called twice, and answers the same both times."""
        if self._initial is None:
            with Streams(self._options) as streams:
                held = streams.bounds()
                starts = streams.starts(held, "latest")
            self._initial = _positions(held, starts)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, object]:
        """Return the end of the batch that begins at `start`; `start` when there is nothing."""
        begin = Offsets.from_json(start)
        with Streams(self._options, is_told=bool(begin.created)) as streams:
            held = self._held(streams, begin)
            resumed = self._resumed(streams, begin, held)
            backlog = {
                queue: (max(begin.next[queue], bounds.first), self._end(queue, bounds))
                for queue, bounds in held.items()
                if queue in begin.next and queue not in resumed
            }
            if not isinstance(limit, ReadAllAvailable) and self._waits(backlog):
                return start
            ends = self._limited(streams, backlog, limit)
        end = advance(begin, held, ends, resumed)
        if end.next != begin.next:
            self._planned_at = time.monotonic()
        elif end.created == begin.created:
            return start  # another epoch alone is not worth a batch
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Return the true end of the streams, by which Spark tells the lag."""
        return None if self._latest is None else self._latest.to_json()

    def commit(self, end: dict[str, Any]) -> None:
        """Have the broker show the position, if `storeOffsets` says so; for people to look at."""
        if self._options.store_offsets is None:
            return
        with Streams(self._options) as streams:
            for queue, offset in Offsets.from_json(end).next.items():
                if not streams.is_wanted(queue):
                    continue
                try:
                    streams.store(queue, offset)
                except SourceError as error:
                    log.warning("storeOffsets: %s", error)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch; the same rows for the same offsets, after a restart too."""
        begin, finish = Offsets.from_json(start), Offsets.from_json(end)
        parts = ranges(begin, finish)
        with Streams(self._options, is_told=bool(finish.created)) as streams:
            parts = self._readable(streams, begin, finish, parts) if parts else {}
            return tasks_for(parts, streams, self._options, self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(partition)

    # ---- one batch -------------------------------------------------------------------------------

    @property
    def _options(self) -> SourceOptions:
        if self._problem is not None:
            raise self._problem
        assert self._checked is not None
        return self._checked

    def _held(self, streams: Streams, begin: Offsets) -> dict[str, Bounds]:
        """Return what the streams of this batch hold, and keep their true ends for the report."""
        held = streams.bounds(begin.next)
        self._latest = _positions(held, {queue: bounds.end for queue, bounds in held.items()})
        if self._target is None:
            return held
        # A stream that came after the query began is for the next one.
        return {q: b for q, b in held.items() if q in self._target or q in begin.next}

    def _end(self, queue: str, held: Bounds) -> int:
        if self._target is None:
            return held.end
        # One that left a super stream is not in the target: it is frozen when first met.
        return min(held.end, self._target.setdefault(queue, held.end))

    def _resumed(
        self, streams: Streams, begin: Offsets, held: Mapping[str, Bounds]
    ) -> dict[str, int]:
        """Report what is lost; return where to go on in streams whose old position is void."""
        resumed = {}
        for queue, offset in begin.next.items():
            if not streams.is_wanted(queue):
                continue
            created, epoch = begin.created.get(queue), begin.epochs.get(queue)
            lost = loss(queue, offset, created, held.get(queue), epoch)
            if lost is not None:
                streams.report(lost)
                if lost.resume is not None:
                    resumed[queue] = lost.resume
        return resumed

    def _waits(self, backlog: Mapping[str, tuple[int, int]]) -> bool:
        """Tell whether to wait for a batch that is worth the effort."""
        minimum = self._options.min_offsets
        if minimum is None or self._target is not None:
            return False
        n_waiting = sum(max(0, end - start) for start, end in backlog.values())
        is_late = time.monotonic() - self._planned_at >= self._options.max_delay_s
        return n_waiting < minimum and not is_late

    def _limited(
        self, streams: Streams, backlog: Mapping[str, tuple[int, int]], limit: ReadLimit
    ) -> dict[str, int]:
        """Return how far the batch goes in each stream."""
        ends = {queue: end for queue, (_, end) in backlog.items()}
        waiting = {queue: part for queue, part in backlog.items() if part[0] < part[1]}
        if isinstance(limit, ReadMaxRows):
            shares = share({q: end - start for q, (start, end) in waiting.items()}, limit.max_rows)
            ends |= {q: start + shares.get(q, 0) for q, (start, _) in waiting.items()}
        max_bytes = self._options.max_bytes
        if max_bytes is None or isinstance(limit, ReadAllAvailable):
            return ends
        segments = {queue: streams.segments(queue, part) for queue, part in waiting.items()}
        sizes = {q: bytes_between(segments[q], start, ends[q]) for q, (start, _) in waiting.items()}
        shares = share(sizes, max_bytes)
        return ends | {
            q: end_within_bytes(segments[q], start, ends[q], shares.get(q, 0))
            for q, (start, _) in waiting.items()
            if shares.get(q, 0) < sizes[q]
        }

    def _readable(
        self,
        streams: Streams,
        begin: Offsets,
        finish: Offsets,
        parts: Mapping[str, tuple[int, int]],
    ) -> dict[str, tuple[int, int]]:
        """Return the ranges as far as they are still there; report what is not.

        Matters after a restart, when Spark plans the batch again that it was in.
        """
        present = streams.bounds(begin.next)
        found = {}
        for queue, (start, end) in parts.items():
            held = present.get(queue)
            lost = loss(queue, start, begin.created.get(queue), held, begin.epochs.get(queue))
            if lost is not None:
                streams.report(lost)
            if held is None or (lost is not None and lost.resume is not None):
                continue
            epoch = finish.epochs.get(queue)
            if (other := held.divergence(end, epoch)) is not None:
                # What is behind is for the next batch, which finds the same.
                streams.report_text(f"stream {queue!r}: {changed(end, epoch, other)}")
                end = min(end, other[1])
            if end > held.end:
                gone = f"offsets {held.end} to {end - 1} are gone, {end - held.end} messages"
                streams.report_text(f"stream {queue!r}: {gone}")
            start, end = max(start, held.first), min(end, held.end)
            if start < end:
                found[queue] = (start, end)
        return found


def _positions(held: Mapping[str, Bounds], offsets: Mapping[str, int]) -> Offsets:
    created = {queue: each.created for queue, each in held.items() if each.created is not None}
    epochs = {queue: each.epoch for queue, each in held.items() if each.epoch is not None}
    return Offsets(offsets, created, epochs)
