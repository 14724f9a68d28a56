"""What is ending, while something else may be waiting to take its place. On the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

K = TypeVar("K")


class Endings(Generic[K]):
    """Tasks by the keys of what they end."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def add(self, key: K, work: Coroutine[Any, Any, None]) -> None:
        """End something beside."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[key] = task
        task.add_done_callback(partial(self._ended, key))

    def of(self, key: K) -> asyncio.Task[None] | None:
        """What has to end before something else of that key begins."""
        return self._tasks.get(key)

    async def wait(self, timeout_s: float) -> None:
        """Wait until all have ended, for so long; then they are cut off."""
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks.values()), timeout=timeout_s)
            for task in late:
                task.cancel()

    def _ended(self, key: K, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]


async def whole(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, however often that is cancelled meanwhile: what comes next would
    meet it. Raises: what it raises, or CancelledError at its end."""
    task = asyncio.get_running_loop().create_task(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError
    task.result()


async def begun(beginning: Awaitable[Any], timeout_s: float) -> None:
    """Wait until something has begun; who is cancelled meanwhile waits for so long all the same, so
    that it can be ended in order. Raises: why it cannot begin, or CancelledError at its end."""
    task = asyncio.ensure_future(beginning)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await whole(_settled(task, timeout_s))
        raise


async def _settled(task: asyncio.Future[Any], timeout_s: float) -> None:
    """Wait for the end of a task, for so long; then it is cut off. How it ends is not told of."""
    await asyncio.wait([task], timeout=timeout_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
