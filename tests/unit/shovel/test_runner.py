"""Runs of a shovel one after the other: how long is waited between them, and never two at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lavinmq.shovel import runner
from lavinmq.shovel.connecting import MOST_DELAY_S, most_s
from lavinmq.shovel.endings import Endings, whole
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
    """Runs until it is cancelled, and says goodbye for as long as `goodbye` is not set."""

    error = ""
    is_running = True

    def __init__(self, owner: SlowRunner) -> None:
        self._owner = owner

    def figures(self) -> dict[str, int]:
        return {"confirmed": 0}

    async def run(self) -> None:
        self._owner.at_once += 1
        self._owner.most_at_once = max(self._owner.most_at_once, self._owner.at_once)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await whole(self._end())

    async def _end(self) -> None:
        async with asyncio.timeout(5):
            await self._owner.goodbye.wait()
        self._owner.at_once -= 1


class SlowRunner(runner.Runner):
    """Has runs that end slowly; counts how many there are at once."""

    def __init__(self, *, is_paused: bool = False, after: asyncio.Task[None] | None = None) -> None:
        super().__init__(0, ("confirmed", "reconnects"), is_paused=is_paused, after=after)
        self.goodbye = asyncio.Event()
        self.at_once = self.most_at_once = 0

    def __str__(self) -> str:
        return "a slow test"

    def made(self) -> SlowRun:
        return SlowRun(self)


async def turns(n: int = 50) -> None:
    """Let others go on."""
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_no_run_begins_before_the_one_before_has_said_goodbye(n: int) -> None:
    """However often it is paused and resumed meanwhile."""

    async def main() -> None:
        each = SlowRunner()
        each.start()
        await turns()
        for _ in range(n):
            each.pause()
            await turns()
            each.resume()
            await turns()
        assert each.at_once == each.most_at_once == 1

        each.goodbye.set()
        await turns()
        assert each.at_once == each.most_at_once == 1 and each.state == "Running"
        await each.close()
        assert each.at_once == 0

    asyncio.run(main())


def test_who_waits_for_a_pause_waits_until_nothing_is_under_way() -> None:
    async def main() -> None:
        each = SlowRunner()
        each.start()
        await turns()
        each.pause()
        pause = asyncio.get_running_loop().create_task(each.settled())
        await turns()
        assert not pause.done()

        each.goodbye.set()
        await pause

        assert each.at_once == 0
        await each.settled()  # nothing ends any more

    asyncio.run(main())


def test_who_ends_one_that_has_not_begun_ends_nothing_that_it_waits_for() -> None:
    async def main() -> None:
        goodbye = asyncio.Event()

        async def ending() -> None:
            await goodbye.wait()

        before = asyncio.get_running_loop().create_task(ending())
        each = SlowRunner(is_paused=True, after=before)
        each.start()
        each.pause()
        closing = asyncio.get_running_loop().create_task(each.close())
        await turns()
        assert not before.done() and not closing.done()

        each.resume()
        each.pause()
        each.resume()
        await turns()
        assert each.at_once == 0
        goodbye.set()
        await turns()
        assert each.at_once == 1
        each.goodbye.set()
        await each.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_last_of_many_waits_for_all_that_end_before_it(is_paused: bool) -> None:
    """A parameter that is changed twice, while the first one still says goodbye."""

    async def main() -> None:
        endings: Endings[str] = Endings()
        first = SlowRunner()
        first.start()
        await turns()
        endings.add("s", first.close())
        second = SlowRunner(is_paused=is_paused, after=endings.of("s"))
        second.start()
        await turns()
        endings.add("s", second.close())
        third = SlowRunner(after=endings.of("s"))
        third.start()
        await turns()
        assert first.at_once == 1 and second.most_at_once == third.at_once == 0

        first.goodbye.set()
        await turns()
        assert first.at_once == 0 and second.most_at_once == 0 and third.at_once == 1
        assert not endings
        third.goodbye.set()
        await third.close()

    asyncio.run(main())


def test_what_has_to_be_whole_is_whole_and_then_the_end_counts() -> None:
    async def main() -> None:
        done = []
        goodbye = asyncio.Event()

        async def work() -> None:
            await goodbye.wait()
            done.append(1)

        task = asyncio.get_running_loop().create_task(whole(work()))
        for _ in range(3):
            await turns()
            task.cancel()
        await turns()
        assert not task.done()
        goodbye.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [1]

    asyncio.run(main())


class HastyRun:
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
            await whole(self._close())

    async def _close(self) -> None:
        await self._may_end.wait()
        self._confirmed = 1


class HastyRunner(FakeRunner):
    """Has such runs."""

    def __init__(self, may_end: asyncio.Event) -> None:
        super().__init__([])
        self.may_end, self.n_made = may_end, 0

    def made(self) -> HastyRun:  # type: ignore[override]
        self.n_made += 1
        return HastyRun(self.may_end)


def test_a_run_begins_when_the_one_before_has_ended_and_is_counted_however_hasty_who_asks_is() -> (
    None
):
    async def main() -> None:
        each = HastyRunner(asyncio.Event())
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
