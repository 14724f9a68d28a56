"""A walk over a queue leaves a busy loop to others, and goes on at once where nobody is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.http.api import browse


class Walk:
    """Notes that it lets go of what others may change while it sleeps."""

    def __init__(self) -> None:
        self.rests = 0

    def rest(self) -> None:
        self.rests += 1


@pytest.mark.parametrize(("others_s", "share"), [(0.001, 49), (0.0001, None)])
def test_while_others_are_busy_it_sleeps_so_much_longer_than_it_works(
    monkeypatch: pytest.MonkeyPatch, others_s: float, share: int | None
) -> None:
    """So that publishers lose two hundredths."""
    now, slept = [100.0], []

    async def others_first() -> None:
        now[0] += others_s

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(browse, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(browse, "others_first", others_first)
    monkeypatch.setattr(browse, "asyncio", SimpleNamespace(sleep=sleep))
    walk: Any = Walk()

    async def work() -> None:
        pace = browse.Pace()
        for worked_s in (0.001, 0.002):
            now[0] += worked_s
            await pace.pause(walk, False)

    asyncio.run(work())

    expected = [] if share is None else [0.001 * share, 0.002 * share]
    assert slept == pytest.approx(expected)
    assert walk.rests == len(expected)
