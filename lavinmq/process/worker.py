"""Threads that do one thing after the other for the loop, and tell it what came of each.

What waits for the disk goes to them, and what takes the processor for long without the interpreter,
as slow hashes do. Where no thread can be started, the caller's does the work; what a coroutine
wants to have done `aside` is refused then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

log = logging.getLogger("lmq.worker")

T = TypeVar("T")
Work = Callable[[], Any]
Done = Callable[[Any, OSError | None], object]


class NoThreadError(Exception):
    """No thread can be started, and what one was wanted for would hold up the loop."""


async def aside(work: Callable[..., T], *args: Any) -> T:
    """What something returns or raises that is done in a thread of the loop's.

    Raises: NoThreadError, at a limit of processes or memory: nothing is done then.
    """
    is_wanted = True

    def do() -> T | None:
        return work(*args) if is_wanted else None

    try:
        result = asyncio.get_running_loop().run_in_executor(None, do)
    except RuntimeError as error:
        is_wanted = False  # it has it, and would do it some day
        raise NoThreadError(f"No thread can be started for this: {error}") from error
    return await result  # type: ignore[return-value]


class Worker:
    """Threads that do what they are given, in the order of its coming. They start with the first.

    An executor's futures would cost more than most of the works, and its threads cannot be done
    without: where none can be started, as while an interpreter ends, the caller's does the work.

    Args: call_threadsafe: of the event loop, which calls each `done`. n_threads: the most of them.
    """

    def __init__(
        self, name: str, call_threadsafe: Callable[..., Any], *, n_threads: int = 1
    ) -> None:
        self._name = name
        self._call = call_threadsafe
        self._n_threads = n_threads
        self._jobs: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Work, done: Done) -> None:
        """Do it. `done` is called in a later turn of the loop."""
        if len(self._threads) < self._n_threads:
            self._start()
        if self._threads:
            self._jobs.put((work, done))
        else:
            self._call(done, *outcome(work))

    async def run(self, work: Callable[[], T]) -> T:
        """What something returns or raises."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(partial(caught, work), partial(resolve, result))
        return await result

    def stop(self) -> None:
        """Finish what was given, and end. Idempotent."""
        for _ in self._threads:
            self._jobs.put(None)
        while self._threads:
            self._threads.pop().join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        with suppress(RuntimeError):  # there can be none
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            self._call(done, *outcome(work))


def outcome(work: Work) -> tuple[Any, OSError | None]:
    """What something has returned, or its error."""
    try:
        return work(), None
    except OSError as error:
        return None, error
    except Exception as error:
        log.exception("bug in a task of a thread")
        return None, OSError(0, f"Internal error: {error}")


def caught(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What something has returned or raised, whatever it was: for who waits in a coroutine."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
        return None, error


def resolve(
    result: asyncio.Future[Any], outcome: tuple[Any, Exception | None] | None, _: OSError | None
) -> None:
    """Hand on what was `caught`; nobody may be waiting any more."""
    if outcome is None or result.done():
        return
    value, error = outcome
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)
