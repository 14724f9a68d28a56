"""Rates and histories of counters, with a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.stats import sampler as stats
from lavinmq.stats.sampler import Gauge, Sampler, Sum, summed
from lavinmq.stats.track import Track


class Thing:
    def __init__(self) -> None:
        self.track: Track | None = None
        self.count = 0
        self.other = 0

    def counters(self) -> dict[str, int]:
        return {"count": self.count, "other": self.other}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stats, "time", clock)
    return clock


def at_once(function: Callable[..., Any], *arguments: Any) -> None:
    function(*arguments)


def sampled(clock: Clock, things: list[Thing], size: int = 4) -> Callable[[], Sampler]:
    sampler = Sampler(lambda: things, at_once)

    def sample() -> Sampler:
        clock.now += 5
        sampler.sample(size)
        return sampler

    return sample


def test_a_rate_is_the_growth_per_second_and_the_history_has_the_last_ones(clock: Clock) -> None:
    thing = Thing()
    sample = sampled(clock, [thing])
    for growth in (0, 10, 20, 0, 5, 7):
        thing.count += growth
        sampler = sample()

    shown = sampler.stats(thing, ["count", "other"], with_log=True)

    assert shown == {
        "count": 42,
        "count_details": {"rate": 1.4, "log": [4.0, 0.0, 1.0, 1.4]},
        "other": 0,
        "other_details": {"rate": 0.0, "log": [0.0] * 4},
    }


def test_what_never_moved_keeps_nothing_and_shows_zeros(clock: Clock) -> None:
    thing = Thing()
    sampler = sampled(clock, [thing])()

    assert thing.track is None
    assert sampler.stats(thing, ["count"], with_log=True)["count_details"] == {
        "rate": 0.0, "log": [0.0],
    }  # fmt: skip


def test_a_history_that_is_all_still_is_given_up(clock: Clock) -> None:
    thing = Thing()
    sample = sampled(clock, [thing])
    thing.count = 5
    for _ in range(6):
        sample()

    assert thing.track is not None
    assert not thing.track._moved
    thing.count += 10
    assert sample().stats(thing, ["count"])["count_details"] == {"rate": 2.0}


def test_samples_of_what_is_still_take_no_memory(clock: Clock) -> None:
    thing = Thing()
    sample = sampled(clock, [thing], 1000)
    for _ in range(500):
        sample()
    thing.count = 10
    for _ in range(501):
        sampler = sample()

    assert thing.track is not None
    assert len(thing.track._packed) == 1 + 2 * 8 + 4
    details = sampler.stats(thing, ["count"], with_log=True)["count_details"]
    assert details == {"rate": 0.0, "log": [0.0] * 499 + [2.0] + [0.0] * 500}


def test_lists_show_no_history(clock: Clock) -> None:
    assert "log" not in sampled(clock, [])().stats(Thing(), ["count"])["count_details"]


def test_histories_of_different_length_are_summed_at_their_ends() -> None:
    assert summed([[1.0, 2.0, 3.0], [10.0], []]) == [1.0, 2.0, 13.0]
    assert summed([[1.0], [1.5, 2.5]]) == [1.5, 3.5]
    assert summed([]) == []


def test_several_things_together_have_the_sums_of_all(clock: Clock) -> None:
    things = [Thing(), Thing(), Thing()]
    sample = sampled(clock, things)
    things[0].count = 10
    sample()
    things[1].count = 20
    things[1].other = 5
    samples = sample().samples

    total = Sum(["count", "other"], samples)
    for thing in things:
        total.add(thing)

    assert total.stats(with_log=True) == {
        "count": 30, "count_details": {"rate": 4.0, "log": [2.0, 4.0]},
        "other": 5, "other_details": {"rate": 1.0, "log": [0.0, 1.0]},
    }  # fmt: skip
    assert total.stats()["count_details"] == {"rate": 4.0}


def test_a_sum_of_nothing_is_zero_with_a_whole_history() -> None:
    assert Sum(["count"], 2).stats(with_log=True) == {
        "count": 0, "count_details": {"rate": 0.0, "log": [0.0, 0.0]},
    }  # fmt: skip


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 8))
def test_a_gauge_shows_the_last_values_and_keeps_nothing_of_zeros(
    values: list[int], size: int
) -> None:
    gauge = Gauge()
    for number, value in enumerate(values, 1):
        gauge.sample(value, min(number, size))

    samples = min(len(values), size)
    last = values[len(values) - samples :]
    assert gauge.log(samples) == last
    assert gauge.is_zero == (not any(last))
