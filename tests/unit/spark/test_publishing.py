"""The pace of a publisher with a rate, by a clock that the test moves."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")
from lavinmq.spark import publishing
from lavinmq.spark.publishing import UNLIMITED, Pace


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(publishing, "time", clock)
    return clock


def published(pace: Pace, clock: Clock, seconds: float) -> int:
    """Publish whatever may be published for so long, waiting as long as the pace says."""
    sent, end = 0, clock.now + seconds
    while clock.now < end:
        if allowed := pace.allowed():
            pace.sent(allowed)
            sent += allowed
        else:
            clock.now += max(pace.wait_s(), 1e-6)
    return sent


@pytest.mark.parametrize("rate", [1, 7, 1000, 1_000_000])
def test_a_rate_is_kept_over_time(clock: Clock, rate: int) -> None:
    sent = published(Pace(rate), clock, 10)

    assert rate * 10 * 0.98 <= sent <= rate * 10 + max(1, rate * 0.1) + 1


def test_a_pause_is_not_made_up_for(clock: Clock) -> None:
    pace = Pace(1000)
    pace.sent(pace.allowed())

    clock.now += 3600

    assert pace.allowed() == 100
    assert pace.wait_s() == 0


def test_without_a_rate_nothing_is_held_back(clock: Clock) -> None:
    pace = Pace(None)
    pace.sent(10**9)

    assert (pace.allowed(), pace.wait_s()) == (UNLIMITED, 0.0)
