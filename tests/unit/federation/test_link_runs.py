"""How a run of a link ends: what is lost begins another one, whoever pauses or deletes ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from lavinmq.client.errors import ConnectionLost, Error
from lavinmq.federation.link import LinkRun

Work = Callable[[], Coroutine[None, None, None]]


class FakeRun(LinkRun):
    """Does what it is given, without connections."""

    error = ""

    def __init__(self, work: Work) -> None:
        self._task: asyncio.Task[None] | None = None
        self._is_lost = False
        self._work = work  # type: ignore[method-assign]
        self.n_closed = 0

    async def _close(self) -> None:
        await asyncio.sleep(0)
        self.lose()  # as its connections do, which it closes
        self.n_closed += 1


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def fails_when_it_ends() -> None:
    try:
        await forever()
    finally:
        raise Error("the consumer cannot be closed")


async def begun(run: FakeRun) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(run.run())
    await asyncio.sleep(0)
    return task


def test_what_is_lost_ends_a_run_and_not_its_link() -> None:
    async def main() -> None:
        run = FakeRun(forever)
        task = await begun(run)
        run.lose()
        run.lose()
        with pytest.raises(ConnectionLost):
            await task
        assert not task.cancelled() and run.n_closed == 1

    asyncio.run(main())


@pytest.mark.parametrize("is_first", [True, False])
def test_who_ends_a_link_that_has_just_lost_something_ends_it(is_first: bool) -> None:
    async def main() -> None:
        run = FakeRun(forever)
        task = await begun(run)
        for end in (task.cancel, run.lose) if is_first else (run.lose, task.cancel):
            end()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.n_closed == 1

    asyncio.run(main())


def test_one_that_ends_badly_leaves_nothing_to_the_next() -> None:
    """Runs of a link have one task: the next loss is no end of the link either."""

    async def main() -> None:
        async def link() -> list[str]:
            seen = []
            for work in (fails_when_it_ends, forever, forever):
                run = FakeRun(work)
                asyncio.get_running_loop().call_later(0.001, run.lose)
                try:
                    await run.run()
                except Error as error:
                    seen.append(type(error).__name__)
                async with asyncio.timeout(5):
                    await asyncio.sleep(0)
            return seen

        task = asyncio.get_running_loop().create_task(link())
        assert await task == ["Error", "ConnectionLost", "ConnectionLost"]

    asyncio.run(main())
