"""Attempts to log in take turns: whoever opens many connections at once gets no more guesses.

Failures are known only when an attempt is over, so attempts under way count as well: those of one
*lane* (a source, see `throttle.py`) are looked at so many at a time as may still fail without cost,
then one by one, each after its wait. Attempts that succeed make room at once, so clients that come
back all together are not held up. Called on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

MAX_WAITING: Final = 4096
"""In one lane; the next is refused, its password is not looked at."""


class LaneFull(Exception):
    """Too many attempts of one source wait."""


class _Lane:
    """Attempts of one source that are under way. `n_running`: those that are looked at."""

    __slots__ = ("n_running", "waiting")

    def __init__(self) -> None:
        self.n_running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class Turns:
    """All lanes in which something is under way."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def is_free(self, key: str, room: int) -> bool:
        """Whether an attempt would be looked at without waiting for others."""
        lane = self._lanes.get(key)
        return lane is None or (not lane.waiting and lane.n_running < room)

    @asynccontextmanager
    async def turn(self, key: str, room: Callable[[], int]) -> AsyncIterator[None]:
        """Wait for the turn of an attempt, which is over when the block is left.

        Args: key: of the lane; room: how many of it may be looked at now, at least one.
        Raises: LaneFull.
        """
        lane = self._lanes.setdefault(key, _Lane())
        if not lane.waiting and lane.n_running < room():
            lane.n_running += 1
        else:
            await self._wait(key, lane, room)
        try:
            yield
        finally:
            lane.n_running -= 1
            self._go_on(key, lane, room)

    async def _wait(self, key: str, lane: _Lane, room: Callable[[], int]) -> None:
        """Until somebody gives us the turn; whoever does has counted us."""
        if len(lane.waiting) >= MAX_WAITING:
            raise LaneFull("too many log-ins from one address are waiting")
        ours: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiting.append(ours)
        try:
            await ours
        except asyncio.CancelledError:
            if ours.done() and not ours.cancelled():  # given to us, and nobody uses it
                lane.n_running -= 1
                self._go_on(key, lane, room)
            elif ours in lane.waiting:
                lane.waiting.remove(ours)
            raise

    def _go_on(self, key: str, lane: _Lane, room: Callable[[], int]) -> None:
        """Give turns to the first of those who wait, as far as there is room."""
        while lane.waiting and lane.n_running < room():
            first = lane.waiting.popleft()
            if not first.done():  # else it was cancelled, and is just leaving
                lane.n_running += 1
                first.set_result(None)
        if not lane.n_running and not lane.waiting:
            self._lanes.pop(key, None)
