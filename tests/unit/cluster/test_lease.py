"""When those who follow take the time of a leader for over: not before it has ended itself. And
that a leader which loads its data keeps its lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from lavinmq.cluster import lease
from lavinmq.cluster.lease import MARGIN_S, Ending

TTL = 4
FOLLOWERS_STEP_S = 0.1


class World:
    """A clock, and an etcd that has one lease and tells whole seconds of it."""

    def __init__(self, renewals: Iterable[float]) -> None:
        self.now = 0.0
        self._renewals = list(renewals)

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return self.now

    async def time_left(self, _: int) -> tuple[int, int]:
        """As `Etcd.time_left`."""
        last = max(each for each in self._renewals if each <= self.now)
        left = last + TTL - self.now
        return (int(left) if left > -0.5 else -1), TTL  # etcd lets go of it late


def over_at(world: World, step_s: float, until: float = 60.0) -> float:
    """When somebody who asks again and again takes it for over. Raises: TimeoutError."""
    ending = Ending(world.time_left)
    while world.now < until:
        if asyncio.run(ending.is_over(7)):
            return world.now
        world.now += step_s
    raise TimeoutError


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(request.param)
    monkeypatch.setattr(lease, "time", made)
    return made


@pytest.mark.parametrize("world", [[0.0], [0.0, 0.7], [0.0, 1.33, 2.9]], indirect=True)
@pytest.mark.parametrize("step_s", [0.03, FOLLOWERS_STEP_S, 0.4, 2.0])
def test_it_is_over_when_the_leader_has_ended_by_its_own_clock(world: World, step_s: float) -> None:
    last = world._renewals[-1]
    found = over_at(world, step_s)

    assert found >= last + TTL - MARGIN_S - 1e-6
    if step_s <= FOLLOWERS_STEP_S:
        assert found <= last + TTL - MARGIN_S + 3 * step_s


@pytest.mark.parametrize("world", [[each * 3.4 for each in range(9)]], indirect=True)
@pytest.mark.parametrize("step_s", [FOLLOWERS_STEP_S, 0.7, 3.4])
def test_it_is_not_over_while_the_lease_is_renewed_now_and_then(
    world: World, step_s: float
) -> None:
    """Late, as by a leader that is busy; and whoever asks seldom sees one end of it each time."""
    world.now = 3.2
    with pytest.raises(TimeoutError):
        over_at(world, step_s, 30.0)


@pytest.mark.parametrize("world", [[-100.0]], indirect=True)
def test_a_lease_that_is_gone_is_over_at_once(world: World) -> None:
    assert over_at(world, 0.1) == 0.0


class SlowEtcd:
    """Renews a lease when it is let."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer, self.is_closed = (threading.Event() for _ in range(3))

    async def keep_alive(self, _: int) -> int:
        """As `Etcd.keep_alive`, which has a limit, too."""
        self.is_asked.set()
        for _ in range(1000):
            if self.may_answer.is_set():
                break
            await asyncio.sleep(0.002)
        return TTL

    async def close(self) -> None:
        """As `Etcd.close`."""
        self.is_closed.set()


def test_a_leader_that_has_loaded_does_not_wait_for_etcd() -> None:
    """An answer that did not come held up the loop for seconds, just when it was to serve."""
    etcd: Any = SlowEtcd()
    renewed: list[float] = []
    try:
        with lease.kept_meanwhile(lambda: etcd, 7, TTL, renewed.append):
            assert etcd.is_asked.wait(20)
        assert not etcd.is_closed.is_set(), "it has been waited for"
        assert not renewed
    finally:
        etcd.may_answer.set()
    assert etcd.is_closed.wait(20), "it ends behind its last answer"
    assert len(renewed) == 1
