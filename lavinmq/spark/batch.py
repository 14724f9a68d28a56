"""Batch queries: a range of each stream, planned once, read by one task per part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from lavinmq.spark import planner
from lavinmq.spark.bulk import read_blocks
from lavinmq.spark.offsets import Bounds, loss
from lavinmq.spark.options import SourceOptions
from lavinmq.spark.peek import PeekTask, peek
from lavinmq.spark.pushdown import Pushed
from lavinmq.spark.streams import Streams

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

PEEK_QUIET_S = 5.0


class BatchReader(DataSourceReader):
    """Reads what the streams hold between two offsets each. Picklable; no socket in it."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises SourceError, ConnectionFailure."""
        with Streams(self._options) as streams:
            held = {
                queue: bounds
                for queue, bounds in streams.bounds().items()
                if self._pushed.wants_queue(queue)
            }
            ranges = self._ranges(streams, held)
            return tasks_for(ranges, streams, self._options, self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(partition)

    def _ranges(self, streams: Streams, held: Mapping[str, Bounds]) -> dict[str, tuple[int, int]]:
        starts, ends = streams.starts(held, "earliest"), streams.ends(held)
        ranges = {}
        for queue, bounds in held.items():
            start, end = starts[queue], ends[queue]
            if start < end and (lost := loss(queue, start, None, bounds)) is not None:
                streams.report(lost)
            start, end = max(start, bounds.first), min(end, bounds.end)
            start, end = self._pushed.narrow(streams, queue, (start, end))
            if start < end:
                ranges[queue] = (start, end)
        return ranges


class FilteringBatchReader(BatchReader):
    """The same with filters pushed down; apart, since to define `pushFilters` is to need a setting.

    Spark evaluates every filter again: what is pushed only narrows the ranges.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows the ranges, and leave every filter to Spark too."""
        self._pushed = Pushed.of(filters)
        return filters


class PeekReader(DataSourceReader):
    """Shows the first messages of a classic queue and leaves them there."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the only task."""
        options = self._options
        assert options.peek_records is not None
        task = PeekTask(
            connection=options.connection,
            queue=options.queues[0],
            columns=self._columns,
            limit=options.peek_records,
            batch_rows=options.batch_rows,
            quiet_s=PEEK_QUIET_S,
        )
        return [InputPartition(task)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages."""
        return peek(partition.value)


def tasks_for(
    ranges: Mapping[str, tuple[int, int]],
    streams: Streams,
    options: SourceOptions,
    columns: tuple[str, ...],
) -> list[InputPartition]:
    """Return the tasks that read the ranges, cut at segments where there is more than one."""
    cuts = {}
    if planner.needs_cuts(options, ranges.values()):
        cuts = {q: [each.first for each in streams.segments(q, part)] for q, part in ranges.items()}
    return [InputPartition(task) for task in planner.plan(options, ranges, columns, cuts)]


def read_task(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task; none for the partition that Spark makes up when there is none."""
    if partition.value is None:
        return iter(())
    if partition.value.transport == "http":
        return read_blocks(partition.value)
    from lavinmq.spark.reading import read_range

    return read_range(partition.value)
