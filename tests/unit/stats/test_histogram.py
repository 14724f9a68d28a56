"""Counting durations in steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lavinmq._core import DURATION_BOUNDS
from lavinmq.stats.histogram import Histogram


def test_a_duration_on_a_bound_belongs_to_the_step_below() -> None:
    histogram = Histogram()

    histogram.add(DURATION_BOUNDS[3])

    counts, sum_s = histogram.values()
    assert counts[3] == sum(counts) == 1
    assert sum_s == DURATION_BOUNDS[3]


def test_what_is_longer_than_all_bounds_is_counted_too() -> None:
    histogram = Histogram()

    histogram.add(1e9)

    assert histogram.values()[0][-1] == 1


def test_values_do_not_change_afterwards() -> None:
    histogram = Histogram()
    before = histogram.values()

    histogram.add(1.0)

    assert sum(before[0]) == 0


@given(st.lists(st.floats(0, 100), max_size=50))
def test_every_duration_is_in_the_first_step_that_holds_it(durations: list[float]) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)

    counts, _ = histogram.values()
    for at, bound in enumerate(DURATION_BOUNDS):
        assert sum(counts[: at + 1]) == sum(duration <= bound for duration in durations)
