"""A set of running tasks with an owner who ends them.

Tasks are for what waits for others: a thread that hashes, a server elsewhere. Each comes out of
the set when it is done; an exception that nobody took is a bug, and logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger("lmq.tasks")

T = TypeVar("T")


class Tasks:
    """Tasks on one loop. `stop` has to be awaited before the loop is closed."""

    def __init__(self, events: asyncio.AbstractEventLoop) -> None:
        self._events = events
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine from the next turn of the loop on."""
        task = self._events.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self) -> None:
        """Cancel everything and wait for its end."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("bug in a task", exc_info=error)
