"""From a path to tasks: which segments are to be read, and which of them by the same task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lavinmq.spark.data_directory import Segment, queues, segments
from lavinmq.spark.files import files_of
from lavinmq.spark.segment_options import SegmentOptions

# Clocks are set back at times: a message may be older than the first one of its segment.
CLOCK_STEP_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """All that one task needs; picklable."""

    options: SegmentOptions
    columns: tuple[str, ...]
    segments: tuple[Segment, ...]


def plan(options: SegmentOptions, columns: tuple[str, ...]) -> list[SegmentTask]:
    """Return the tasks. Raises OptionError, SourceError."""
    groups = grouped(wanted(options), options.target_bytes)
    return [SegmentTask(options, columns, group) for group in groups]


def wanted(options: SegmentOptions) -> Iterator[Segment]:
    """Yield the segments that may hold a row, queue by queue."""
    files, path = files_of(options.path)
    for queue in queues(files, path):
        if not options.wants(queue.vhost, queue.queue):
            continue
        if options.offsets and queue.queue_type != "stream":
            continue  # their messages have no offsets
        for segment in segments(files, queue):
            if not _is_outside(segment, options):
                yield segment


def grouped(found: Iterable[Segment], target_bytes: int) -> Iterator[tuple[Segment, ...]]:
    """Yield groups of neighbours; each but the last reaches the target."""
    group: list[Segment] = []
    size = 0
    for segment in found:
        group.append(segment)
        size += segment.size
        if size >= target_bytes:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def _is_outside(segment: Segment, options: SegmentOptions) -> bool:
    """Whether the meta file says that nothing in the segment is wanted."""
    if options.offsets and segment.first_offset is not None:
        start, end = options.offsets
        if segment.first_offset >= end:
            return True
        if segment.count is not None and segment.first_offset + segment.count <= start:
            return True
    meta = segment.meta
    if options.times_ms and meta is not None and meta.last_ms is not None:
        start, end = options.times_ms
        return meta.last_ms < start - CLOCK_STEP_MS or meta.first_ms >= end + CLOCK_STEP_MS
    return False
