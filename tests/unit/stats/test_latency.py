"""Quantiles of what histograms have counted between two samples."""

from __future__ import annotations

import pytest

from lavinmq._core import DURATION_BOUNDS
from lavinmq.stats.histogram import Histogram
from lavinmq.stats.latency import Latency


def test_a_sample_tells_of_what_came_since_the_last_one() -> None:
    times = Histogram()
    times.add(5.0)
    latency = Latency({"http": times.values})
    for _ in range(99):
        times.add(0.002)
    times.add(0.2)

    latency.sample(1)
    latency.sample(2)

    shown = latency.stats(2)["http"]
    assert shown["count"] == 101
    assert shown["mean"] == pytest.approx(1000 * (5 + 99 * 0.002 + 0.2) / 101, abs=0.001)
    assert 1 < shown["p50_log"][0] < 2.5
    assert shown["p50_log"][0] < shown["p99_log"][0] <= 250
    assert (shown["p50_log"][1], shown["p99_log"][1]) == (0, 0)


def test_what_is_longer_than_all_steps_counts_as_the_last() -> None:
    times = Histogram()
    latency = Latency({"sync": times.values})
    times.add(1000.0)

    latency.sample(1)

    assert latency.stats(1)["sync"]["p99_log"] == [DURATION_BOUNDS[-1] * 1000]


def test_nothing_is_no_time() -> None:
    latency = Latency({"sync": Histogram().values})

    latency.sample(1)

    assert latency.stats(1) == {"sync": {"count": 0, "mean": 0, "p50_log": [0], "p99_log": [0]}}
