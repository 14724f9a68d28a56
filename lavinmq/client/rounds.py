"""One timer for many clients that look after their connections, instead of one for each.

Who has thousands of them, as a broker with links, gives them one of these. A few are looked after
at each tick, and all within the interval. In the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

MOST_TICKS: Final = 64
"""Of an interval."""


class Watched(Protocol):
    """Who is looked after."""

    @property
    def is_over(self) -> bool:
        """Whether it is to be forgotten."""
        raise NotImplementedError

    def look(self) -> None:
        """It is its turn."""


class Rounds:
    """Args: interval_s: between two looks at the same one."""

    __slots__ = ("_interval_s", "_timer", "_waiting")

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._waiting: deque[Watched] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, who: Watched) -> None:
        """Look after it until it is over."""
        self._waiting.append(who)
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        delay = self._interval_s / min(len(self._waiting), MOST_TICKS)
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        left = -(-len(self._waiting) // MOST_TICKS)
        while left and self._waiting:
            who = self._waiting.popleft()
            if not who.is_over:
                self._waiting.append(who)
                who.look()
                left -= 1
        if self._waiting:
            self._wait()
