"""Runs of a shovel one after the other: how long is waited between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lavinmq.shovel import runner
from lavinmq.shovel.connecting import MOST_DELAY_S, most_s
from lavinmq.shovel.endings import ended
from lavinmq.shovel.errors import Stopped

FIRST_S = 5.0


class FakeRun:
    """Confirms so many, and fails."""

    error = "it fails"
    is_running = False

    def __init__(self, confirmed: int, *, is_last: bool) -> None:
        self._confirmed, self._is_last = confirmed, is_last

    def figures(self) -> dict[str, int]:
        return {"confirmed": self._confirmed}

    async def run(self) -> None:
        raise Stopped("enough") if self._is_last else OSError("it fails")


class FakeRunner(runner.Runner):
    """Has runs that confirm so many, in turn."""

    def __init__(self, confirmed: list[int]) -> None:
        super().__init__(FIRST_S, ("confirmed", "reconnects"), is_paused=False, after=None)
        self._confirmed: Iterator[int] = iter(confirmed)

    def __str__(self) -> str:
        return "a test"

    def made(self) -> FakeRun:
        found = next(self._confirmed, None)
        return FakeRun(found or 0, is_last=found is None)


def pauses(confirmed: list[int], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The longest that each pause may take after runs that confirmed so many each."""
    found: list[float] = []

    def pause_s(first_s: float, failures: int) -> float:
        found.append(most_s(first_s, failures))
        return 0.0

    async def main() -> None:
        each = FakeRunner(confirmed)
        each.start()
        assert each._task is not None
        await each._task

    monkeypatch.setattr(runner, "pause_s", pause_s)
    asyncio.run(main())
    return found


def test_each_failure_in_a_row_doubles_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses([0] * 8, monkeypatch) == [5, 10, 20, 40, 80, 160, MOST_DELAY_S, MOST_DELAY_S]


def test_a_run_that_moved_something_ends_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses([0, 0, 3, 0, 1, 1, 0], monkeypatch) == [5, 10, 5, 10, 5, 5, 10]


class SlowRun:
    """Runs until it is cancelled; confirms one more when it may end."""

    error = ""
    is_running = True

    def __init__(self, may_end: asyncio.Event) -> None:
        self._may_end, self._confirmed = may_end, 0

    def figures(self) -> dict[str, int]:
        return {"confirmed": self._confirmed}

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ended(self._close())

    async def _close(self) -> None:
        await self._may_end.wait()
        self._confirmed = 1


class SlowRunner(FakeRunner):
    """Has such runs."""

    def __init__(self, may_end: asyncio.Event) -> None:
        super().__init__([])
        self.may_end, self.n_made = may_end, 0

    def made(self) -> SlowRun:  # type: ignore[override]
        self.n_made += 1
        return SlowRun(self.may_end)


def test_a_run_begins_when_the_one_before_has_ended_and_is_counted_however_hasty_who_asks_is() -> (
    None
):
    async def main() -> None:
        each = SlowRunner(asyncio.Event())
        each.start()
        for _ in range(3):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            each.pause()
            each.pause()
            await asyncio.sleep(0)
            each.resume()
        await asyncio.sleep(0)
        assert each.n_made == 1
        each.may_end.set()
        while each.state != "Running" or each.n_made == 1:
            await asyncio.sleep(0)
        assert each.n_made == 2
        assert each.figures() == {"confirmed": 1, "reconnects": 1}
        await each.close()
        assert each.figures()["confirmed"] == 2

    asyncio.run(main())
