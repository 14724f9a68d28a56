"""A coroutine in the loop's thread that another thread waits for, and a lock to wait with.

A handler of a signal runs in the main thread wherever that is, and may close the client, which
waits for the loop's thread. So the loop's thread waits for nothing that the main thread may have,
and nobody who waits for it has a lock inside that it wants: `concurrent.futures` and
`threading.Event` have one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


def acquired(lock: Any, timeout: float | None) -> bool:
    """Whether a lock could be had within the time."""
    if timeout is None:
        return bool(lock.acquire())
    return bool(lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)))


class Asked(Generic[T]):
    """A coroutine, and how it ended. Its methods belong to the loop's thread, but `wait`."""

    __slots__ = ("_came", "_error", "_has_ended", "_result", "_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._came = threading.Lock()
        self._came.acquire()
        self._has_ended = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Do it."""
        if not self._has_ended:
            self._task = asyncio.ensure_future(self._work)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.fail(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.fail(error)
        else:
            self._result = task.result()
            self._end()

    def fail(self, error: BaseException) -> None:
        """It has ended with an error, or never begins."""
        if self._task is None:
            self._work.close()
        if not self._has_ended:
            self._error = error
            self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._came.release()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        if self._task is not None:
            self._task.cancel()
        else:
            self.fail(asyncio.CancelledError())

    def wait(self, timeout: float | None) -> T:
        """Wait for the end, once. Raises: TimeoutError, and what it raised."""
        if not acquired(self._came, timeout):
            raise TimeoutError
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        return cast("T", self._result)
