"""Attempts to log in take turns, so that many at once get no more guesses than one."""

from __future__ import annotations

import asyncio

import pytest

from lavinmq.auth import turns as module
from lavinmq.auth.turns import LaneFull, Turns


class Attempts:
    """Attempts of one lane, each of which is over when it is told."""

    def __init__(self, room: int = 2) -> None:
        self.turns = Turns()
        self.room = room
        self.begun: list[int] = []
        self._ends: dict[int, asyncio.Event] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def start(self, *numbers: int, lane: str = "a") -> None:
        for number in numbers:
            self._ends[number] = asyncio.Event()
            self._tasks[number] = asyncio.create_task(self._attempt(number, lane))
        await settled()

    async def end(self, *numbers: int) -> None:
        for number in numbers:
            self._ends[number].set()
        await settled()

    async def cancel(self, *numbers: int) -> None:
        for number in numbers:
            self._tasks[number].cancel()
        await settled()

    def error(self, number: int) -> BaseException | None:
        return self._tasks[number].exception()

    async def _attempt(self, number: int, lane: str) -> None:
        async with self.turns.turn(lane, lambda: self.room):
            self.begun.append(number)
            await self._ends[number].wait()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_so_many_are_looked_at_as_there_is_room_for_and_the_next_in_their_order() -> None:
    async def scenario() -> None:
        attempts = Attempts(room=2)
        await attempts.start(1, 2, 3, 4)
        assert attempts.begun == [1, 2]
        await attempts.end(2)
        assert attempts.begun == [1, 2, 3]
        await attempts.end(1, 3, 4)
        assert attempts.begun == [1, 2, 3, 4]
        assert not attempts.turns

    asyncio.run(scenario())


def test_room_that_shrinks_meanwhile_counts() -> None:
    async def scenario() -> None:
        attempts = Attempts(room=3)
        await attempts.start(1, 2, 3, 4, 5)
        attempts.room = 1
        await attempts.end(1, 2)
        assert attempts.begun == [1, 2, 3]
        await attempts.end(3)
        assert attempts.begun == [1, 2, 3, 4]

        await attempts.end(4, 5)

    asyncio.run(scenario())


def test_lanes_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        attempts = Attempts(room=1)
        await attempts.start(1, 2)
        await attempts.start(3, lane="b")
        assert attempts.begun == [1, 3]
        assert not attempts.turns.is_free("a", 5)
        assert attempts.turns.is_free("b", 2)
        assert attempts.turns.is_free("c", 1)
        await attempts.end(1, 2, 3)

    asyncio.run(scenario())


def test_who_hangs_up_gives_the_turn_to_the_next() -> None:
    async def scenario() -> None:
        attempts = Attempts(room=1)
        await attempts.start(1, 2, 3, 4)
        await attempts.cancel(2, 1)
        assert attempts.begun == [1, 3]
        await attempts.cancel(3, 4)
        assert attempts.begun == [1, 3]
        assert not attempts.turns

    asyncio.run(scenario())


def test_a_turn_given_to_who_hangs_up_at_that_moment_goes_on() -> None:
    async def scenario() -> None:
        attempts = Attempts(room=1)
        await attempts.start(1, 2, 3)
        attempts._ends[1].set()
        for _ in range(2):  # 2 has its turn, and has not noticed yet
            await asyncio.sleep(0)
        await attempts.cancel(2)
        assert attempts.begun[-1] == 3
        await attempts.end(3)
        assert not attempts.turns

    asyncio.run(scenario())


def test_a_full_lane_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)

    async def scenario() -> None:
        attempts = Attempts(room=1)
        await attempts.start(1, 2, 3, 4)
        assert isinstance(attempts.error(4), LaneFull)
        await attempts.end(1, 2, 3)
        assert attempts.begun == [1, 2, 3]

    asyncio.run(scenario())
