"""Slow hashes in a few threads, fair between those who ask.

Jobs wait here, on the loop, and not in the threads' own queue: each origin (an address) has its
turn, so one that asks much makes itself wait and not the others. How many may wait is bounded.
Owned by the chain; called on the loop's thread.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MAX_THREADS: Final = 4  # scrypt takes 16 MiB in each
MAX_WAITING: Final = 2048
MAX_WAITING_OF_ORIGIN: Final = 512

T = TypeVar("T")


class HashingBusy(Exception):
    """Too many hashes are being waited for, by one origin or by all."""


class Hashing:
    """The threads and who waits for them. The threads start when they are first needed."""

    def __init__(self, events: asyncio.AbstractEventLoop, threads: int = 0) -> None:
        self._events = events
        self._threads = self._free = threads or _threads()
        self._executor: ThreadPoolExecutor | None = None
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._waiting_count = 0

    async def run(self, origin: str, work: Callable[[], T]) -> T:
        """Run a function in a thread, when it is this origin's turn.

        A caller who is cancelled no longer waits; what runs already runs to its end.
        Raises: HashingBusy, and what the function raises.
        """
        await self._turn(origin)
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self._threads, "hashing")
        job = self._events.run_in_executor(self._executor, work)
        # The thread is free when the job is over, not when nobody waits for it any more.
        job.add_done_callback(lambda _: self._release())
        return await asyncio.shield(job)

    def close(self) -> None:
        """Let go of the threads; they end with what they are doing."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, origin: str) -> None:
        """Wait until a thread is free for us."""
        if self._free:
            self._free -= 1
            return
        line = self._waiting.get(origin, ())
        if self._waiting_count >= MAX_WAITING or len(line) >= MAX_WAITING_OF_ORIGIN:
            raise HashingBusy("too many passwords wait to be hashed")
        turn: asyncio.Future[None] = self._events.create_future()
        self._waiting.setdefault(origin, deque()).append(turn)
        self._waiting_count += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # ours, and nobody uses it
                self._release()
            else:
                self._leave(origin, turn)
            raise

    def _leave(self, origin: str, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(origin)
        if line is None or turn not in line:  # its turn came just now
            return
        line.remove(turn)
        self._waiting_count -= 1
        if not line:
            del self._waiting[origin]

    def _release(self) -> None:
        """A thread is free: it goes to the first of the origin whose turn it is."""
        while self._waiting:
            origin, line = next(iter(self._waiting.items()))
            turn = line.popleft()
            self._waiting_count -= 1
            del self._waiting[origin]
            if line:
                self._waiting[origin] = line  # behind the others
            if not turn.done():  # else it was cancelled, and is just leaving
                turn.set_result(None)
                return
        self._free += 1


def _threads() -> int:
    """Half the processors: the loop needs one."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // 2))
