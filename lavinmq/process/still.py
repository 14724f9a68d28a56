"""An event loop that keeps what it is told to call, and calls nothing before it is let go.

What stands ready has to rest: whatever a broker sets in motion while it is loaded comes here, and
begins in its order once the broker serves. Source: decision 0149.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

Call = Callable[..., object]
NOT_YET: Final = "it stands still, and is to begin nothing that cannot be kept"


TIDIED: Final = 64
"""Calls above which those that were cancelled are let go of, when they are most of all."""


class _Kept:
    """A call that waits until its loop is let go; a handle to cancel it by."""

    __slots__ = ("_callback", "_handle", "_is_cancelled", "_when")

    def __init__(self, callback: Callable[[], object], when: float | None) -> None:
        self._callback: Callable[[], object] | None = callback
        self._when = when
        self._handle: asyncio.Handle | None = None
        self._is_cancelled = False

    def begin(self, events: asyncio.AbstractEventLoop) -> None:
        """It is let go."""
        callback, self._callback = self._callback, None
        if callback is None:
            return
        if self._when is None:
            self._handle = events.call_soon(callback)
        else:
            self._handle = events.call_at(self._when, callback)

    def cancel(self) -> None:
        """It is not called any more. Idempotent."""
        self._is_cancelled = True
        self._callback = None
        if self._handle is not None:
            self._handle.cancel()

    def cancelled(self) -> bool:
        """Whether that was asked for."""
        return self._is_cancelled

    def when(self) -> float:
        """When it is called, by the loop's clock."""
        return self._when or 0.0


class StillEvents:
    """Stands for an event loop. What sets nothing in motion is that loop's own.

    Args: events: the loop itself, which calls everything once it is let go.
    """

    def __init__(self, events: asyncio.AbstractEventLoop) -> None:
        self._events = events
        self._kept: list[_Kept] = []
        self._tidy_at = TIDIED
        self._watches: dict[tuple[bool, int], tuple[Call, tuple[object, ...]]] = {}
        """Readers and writers, by whether it writes and the descriptor."""
        self._is_still = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)

    def call_soon(self, callback: Call, *args: object, context: Any = None) -> Any:
        """As the loop's."""
        if not self._is_still:
            return self._events.call_soon(callback, *args, context=context)
        return self._keep(callback, args, None)

    def call_later(self, delay: float, callback: Call, *args: object, context: Any = None) -> Any:
        """As the loop's; its time passes, and what was due meanwhile is called at once."""
        if not self._is_still:
            return self._events.call_later(delay, callback, *args, context=context)
        return self._keep(callback, args, self._events.time() + delay)

    def call_at(self, when: float, callback: Call, *args: object, context: Any = None) -> Any:
        """As the loop's."""
        if not self._is_still:
            return self._events.call_at(when, callback, *args, context=context)
        return self._keep(callback, args, when)

    def _keep(self, callback: Call, args: tuple[object, ...], when: float | None) -> _Kept:
        kept = _Kept((lambda: callback(*args)) if args else callback, when)
        if len(self._kept) >= self._tidy_at:
            self._kept = [each for each in self._kept if not each.cancelled()]
            self._tidy_at = max(TIDIED, 2 * len(self._kept))
        self._kept.append(kept)
        return kept

    def call_soon_threadsafe(self, callback: Call, *args: object, context: Any = None) -> Any:
        """As the loop's. Raises: RuntimeError while it stands still: no thread is to have
        worked."""
        if self._is_still:
            raise RuntimeError(NOT_YET)
        return self._events.call_soon_threadsafe(callback, *args, context=context)

    def create_task(self, coroutine: Any, **options: Any) -> Any:
        """As the loop's. Raises: RuntimeError while it stands still."""
        if self._is_still:
            coroutine.close()
            raise RuntimeError(NOT_YET)
        return self._events.create_task(coroutine, **options)

    def add_reader(self, fd: int, callback: Call, *args: object) -> None:
        """As the loop's."""
        self._watch(False, fd, callback, args)

    def add_writer(self, fd: int, callback: Call, *args: object) -> None:
        """As the loop's."""
        self._watch(True, fd, callback, args)

    def _watch(self, writes: bool, fd: int, callback: Call, args: tuple[object, ...]) -> None:
        if self._is_still:
            self._watches[writes, fd] = callback, args
        elif writes:
            self._events.add_writer(fd, callback, *args)
        else:
            self._events.add_reader(fd, callback, *args)

    def remove_reader(self, fd: int) -> bool:
        """As the loop's."""
        if self._is_still:
            return self._watches.pop((False, fd), None) is not None
        return self._events.remove_reader(fd)

    def remove_writer(self, fd: int) -> bool:
        """As the loop's."""
        if self._is_still:
            return self._watches.pop((True, fd), None) is not None
        return self._events.remove_writer(fd)

    def let_go(self) -> None:
        """Have the loop do all that was kept, and what comes from now on. Idempotent."""
        self._is_still = False
        # The loop's own from here on, for who asks each time.
        for name in ("call_soon", "call_later", "call_at", "call_soon_threadsafe"):
            setattr(self, name, getattr(self._events, name))
        kept, self._kept = self._kept, []
        for each in kept:
            each.begin(self._events)
        watches, self._watches = self._watches, {}
        for (writes, fd), (callback, args) in watches.items():
            self._watch(writes, fd, callback, args)
