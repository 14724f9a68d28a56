"""Ranges become tasks: all of them, each once, whatever the cuts; filters narrow ranges."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.spark.options import SourceOptions
from lavinmq.spark.planner import needs_cuts, plan, split, task_counts
from lavinmq.spark.pushdown import Pushed
from lavinmq.spark.streams import Streams


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"url": "amqp://h", "queue": "a"} | given)


@given(
    st.integers(0, 10**9),
    st.integers(1, 3000),
    st.integers(1, 40),
    st.integers(1, 500),
    st.lists(st.integers(0, 3000), max_size=12),
)
def test_parts_are_the_range(
    start: int, size: int, count: int, max_records: int, bounds: list[int]
) -> None:
    count = min(count, size)
    cuts = sorted(start + bound for bound in bounds)

    parts = list(split(start, start + size, count, max_records, cuts))

    assert parts[0][0] == start
    assert parts[-1][1] == start + size
    assert all(left[1] == right[0] for left, right in pairwise(parts))
    assert all(0 < end - begin <= max_records for begin, end in parts)
    assert len(parts) >= count
    assert parts == list(split(start, start + size, count, max_records, cuts))


def test_a_cut_moves_to_a_segment_that_begins_near() -> None:
    assert list(split(0, 1000, 2, 1000, [480, 900])) == [(0, 480), (480, 1000)]
    assert list(split(0, 1000, 2, 1000, [100, 900])) == [(0, 500), (500, 1000)]


def test_no_task_has_more_records_than_allowed() -> None:
    assert task_counts({"a": 1000, "b": 1, "c": 0}, 300, 1) == {"a": 4, "b": 1}


def test_there_are_as_many_tasks_as_asked_for_if_there_are_offsets() -> None:
    assert sum(task_counts({"a": 1000, "b": 10}, 5000, 8).values()) >= 8
    assert task_counts({"a": 3}, 5000, 8) == {"a": 3}
    assert task_counts({}, 5000, 8) == {}


def test_a_task_has_all_it_needs() -> None:
    chosen = options(prefetch="7", filter='"x"', readTimeout="5s", failOnDataLoss="false")

    (task,) = plan(chosen, {"a": (5, 9)}, ("body",), {})

    assert (task.queue, task.start, task.end, task.columns) == ("a", 5, 9, ("body",))
    assert (task.prefetch, task.filter, task.filter_match) == (7, '"x"', "all")
    assert (task.read_timeout_s, task.fail_on_data_loss) == (5.0, False)


def test_segments_are_asked_for_only_where_something_may_be_cut() -> None:
    assert not needs_cuts(options(), [(0, 500_000)])
    assert needs_cuts(options(), [(0, 500_001)])
    assert needs_cuts(options(minPartitions="2"), [(0, 5)])


# Like those of pyspark, which are known by the names of their classes.
@dataclass
class EqualTo:
    attribute: tuple[str, ...]
    value: object


class In(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


class GreaterThanOrEqual(EqualTo):
    pass


class LessThan(EqualTo):
    pass


class LessThanOrEqual(EqualTo):
    pass


class IsNotNull(EqualTo):
    pass


class TestPushdown:
    OFFSET, TIME = ("offset",), ("timestamp",)

    @pytest.mark.parametrize(
        ("each", "bounds"),
        [
            (EqualTo(("offset",), 5), (5, 6)),
            (GreaterThan(("offset",), 5), (6, None)),
            (GreaterThanOrEqual(("offset",), 5), (5, None)),
            (LessThan(("offset",), 5), (None, 5)),
            (LessThanOrEqual(("offset",), 5), (None, 6)),
            (IsNotNull(("offset",), None), (None, None)),
            (GreaterThan(("priority",), 5), (None, None)),
            (GreaterThan(("offset",), "5"), (None, None)),
            (In(("offset",), (5, 6)), (None, None)),
        ],
    )
    def test_a_comparison_of_offsets_bounds_them(
        self, each: object, bounds: tuple[int | None, int | None]
    ) -> None:
        pushed = Pushed.of([each])

        assert (pushed.first, pushed.end) == bounds

    def test_the_narrowest_bounds_count(self) -> None:
        pushed = Pushed.of([GreaterThan(self.OFFSET, 5), GreaterThan(self.OFFSET, 9)])

        assert pushed.first == 10

    def test_queues_are_those_in_all_filters(self) -> None:
        pushed = Pushed.of([In(("queue",), ("a", "b")), EqualTo(("queue",), "b")])

        assert pushed.queues == {"b"}
        assert pushed.wants_queue("b")
        assert not pushed.wants_queue("a")
        assert Pushed().wants_queue("a")

    def test_times_are_rounded_outwards(self) -> None:
        moment = datetime(1970, 1, 1, 0, 0, 1, 500, UTC)  # half a millisecond after 1 s

        pushed = Pushed.of([GreaterThan(self.TIME, moment), LessThan(self.TIME, moment)])

        assert (pushed.from_ms, pushed.until_ms) == (1000, 1001)

    def test_a_range_is_narrowed_by_offsets_and_times(self) -> None:
        class ByTime(Streams):
            def first_since(self, queue: str, time_ms: int) -> int | None:
                return min(time_ms // 10, 90)

        streams = ByTime(options())
        assert Pushed(first=5, end=8).narrow(streams, "a", (1, 90)) == (5, 8)
        assert Pushed(from_ms=200, until_ms=300).narrow(streams, "a", (1, 90)) == (20, 30)
        assert Pushed(until_ms=950).narrow(streams, "a", (1, 90)) == (1, 90)
        start, end = Pushed(from_ms=950).narrow(streams, "a", (1, 90))
        assert start >= end
