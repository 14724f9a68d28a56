"""From ranges of offsets to tasks: how many, and where one ends and the next begins.

Spark plans a batch again after a restart: other cuts are fine then, other rows are not. So tasks
follow from their range alone. Pure: nothing of pyspark, no broker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lavinmq.spark.options import ConnectionOptions, SourceOptions


@dataclass(frozen=True, slots=True)
class RangeTask:
    """All that one task needs to read the offsets [start, end) of one stream. Picklable.

    `columns` are names of `schema.COLUMNS`, in the order of the batches' schema; whether headers
    are read, and how, follows from `headers` and `headers_json` being among them. `filter` is the
    JSON of the option, `filter_match` `all` or `any`; both None without a filter. `transport` is
    `amqp` or `http`. With `fail_on_data_loss` a range whose first offsets are gone fails.
    """

    connection: ConnectionOptions
    queue: str
    start: int
    end: int
    columns: tuple[str, ...]
    prefetch: int = 2000
    batch_rows: int = 10_000
    read_timeout_s: float = 30.0
    filter: str | None = None
    filter_match: str | None = None
    transport: str = "amqp"
    client_name: str = "spark"
    fail_on_data_loss: bool = True


def task_counts(sizes: Mapping[str, int], max_records: int, min_partitions: int) -> dict[str, int]:
    """Return into how many tasks each range of that many offsets is cut.

    At least as many as keep each below `max_records`; all together at least `min_partitions`, if
    there are that many offsets, the larger ranges being cut further.
    """
    counts = {queue: -(-size // max_records) for queue, size in sizes.items() if size > 0}
    total = sum(sizes[queue] for queue in counts)
    if 0 < sum(counts.values()) < min_partitions:
        for queue, count in counts.items():
            wanted = -(-min_partitions * sizes[queue] // total)
            counts[queue] = min(sizes[queue], max(count, wanted))
    return counts


def split(
    start: int, end: int, count: int, max_records: int, bounds: Sequence[int] = ()
) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges that together are [start, end): `count` of them, or a few more.

    None is longer than `max_records`. `bounds` are first offsets of segments, ascending; a cut
    moves to one that is near, since a reader that begins within a segment has the broker walk
    what is before.
    """
    position = start
    for left in range(count, 0, -1):
        size = -(-(end - position) // left)
        ideal = position + size
        lowest, highest = position + 1, min(position + max_records, end - left + 1)
        cut = min(ideal, highest)
        near = _nearest(bounds, ideal)
        if left > 1 and near is not None and abs(near - ideal) <= size // 2:
            cut = near if lowest <= near <= highest else cut
        yield position, cut
        position = cut
    while position < end:
        cut = min(position + max_records, end)
        yield position, cut
        position = cut


def plan(
    options: SourceOptions,
    ranges: Mapping[str, tuple[int, int]],
    columns: tuple[str, ...],
    bounds: Mapping[str, Sequence[int]],
) -> list[RangeTask]:
    """Return the tasks that read the ranges; `bounds` has first offsets of segments, if known."""
    sizes = {queue: end - start for queue, (start, end) in ranges.items()}
    counts = task_counts(sizes, options.max_records, options.min_partitions)
    return [
        _task(options, queue, part, columns)
        for queue, (start, end) in ranges.items()
        if queue in counts
        for part in split(start, end, counts[queue], options.max_records, bounds.get(queue, ()))
    ]


def needs_cuts(options: SourceOptions, ranges: Iterable[tuple[int, int]]) -> bool:
    """Tell whether any range may be cut, so that the bounds of segments are worth asking for."""
    return options.min_partitions > 1 or any(
        end - start > options.max_records for start, end in ranges
    )


def _task(
    options: SourceOptions, queue: str, part: tuple[int, int], columns: tuple[str, ...]
) -> RangeTask:
    return RangeTask(
        connection=options.connection,
        queue=queue,
        start=part[0],
        end=part[1],
        columns=columns,
        prefetch=options.prefetch,
        batch_rows=options.batch_rows,
        read_timeout_s=options.read_timeout_s,
        filter=options.filter,
        filter_match=options.filter_match,
        transport=options.transport,
        client_name=options.connection.client_name,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def _nearest(bounds: Sequence[int], offset: int) -> int | None:
    index = bisect_left(bounds, offset)
    return min(
        bounds[max(0, index - 1) : index + 1], key=lambda each: abs(each - offset), default=None
    )
