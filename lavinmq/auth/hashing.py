"""Slow hashes in a few threads, fair between those who ask.

Jobs wait here, on the loop, and not in the threads' own queue: each origin (an address) has its
turn, so one that asks much makes itself wait and not the others. How many may wait is bounded.
Where no thread can be started, the loop hashes: others wait meanwhile, but who logs in is answered.
Owned by the chain; called on the loop's thread.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from lavinmq.process.worker import Worker, caught, resolve

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
        self._worker: Worker | None = None
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._waiting_count = 0

    async def run(self, origin: str, work: Callable[[], T]) -> T:
        """Run a function in a thread, when it is this origin's turn; on the loop where no thread
        can be started.

        A caller who is cancelled no longer waits; what runs already runs to its end.
        Raises: HashingBusy, and what the function raises.
        """
        await self._turn(origin)
        result: asyncio.Future[T] = self._events.create_future()
        try:
            if self._worker is None:
                call = self._events.call_soon_threadsafe
                self._worker = Worker("hashing", call, n_threads=self._threads)
            self._worker.submit(partial(caught, work), partial(self._ended, result))
        except BaseException:
            self._release()
            raise
        return await result

    def _ended(self, result: asyncio.Future[T], *outcome: Any) -> None:
        # The thread is free when the job is over, not when nobody waits for it any more.
        self._release()
        resolve(result, *outcome)

    def close(self) -> None:
        """Let go of the threads, once they have done what they are doing."""
        if self._worker is not None:
            self._worker.stop()

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
