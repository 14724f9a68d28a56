"""An event loop that keeps what it is told to call, and calls it once it is let go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from lavinmq.process.still import StillEvents

LONG_S = 3600.0


def turned(work: Callable[[StillEvents, list[Any]], object]) -> list[Any]:
    """What was called after work with a still loop, which is let go then, and a few turns."""
    called: list[Any] = []

    async def run() -> None:
        still = StillEvents(asyncio.get_running_loop())
        work(still, called)
        for _ in range(3):
            await asyncio.sleep(0)
        assert called == []
        still.let_go()
        for _ in range(3):
            await asyncio.sleep(0.001)

    asyncio.run(run())
    return called


def test_calls_come_in_their_order_once_it_is_let_go() -> None:
    def work(still: StillEvents, called: list[Any]) -> None:
        for number in range(3):
            still.call_soon(called.append, number)

    assert turned(work) == [0, 1, 2]


def test_time_passes_while_it_stands_still() -> None:
    def work(still: StillEvents, called: list[Any]) -> None:
        still.call_later(LONG_S, called.append, "late")
        still.call_later(0.0, called.append, "due")
        still.call_at(still.time(), called.append, "at")

    assert turned(work) == ["due", "at"]


def test_what_was_cancelled_is_not_called() -> None:
    def work(still: StillEvents, called: list[Any]) -> None:
        handle = still.call_soon(called.append, "never")
        assert not handle.cancelled()
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()

    assert turned(work) == []


def test_a_timer_is_cancelled_by_its_handle_afterwards_as_well() -> None:
    async def run() -> list[str]:
        called: list[str] = []
        still = StillEvents(asyncio.get_running_loop())
        handle = still.call_later(0.0, called.append, "never")
        assert handle.when() <= still.time()
        still.let_go()
        handle.cancel()
        await asyncio.sleep(0.01)
        return called

    assert asyncio.run(run()) == []


def test_readers_and_writers_begin_with_it() -> None:
    async def run() -> list[str]:
        called: list[str] = []
        still = StillEvents(asyncio.get_running_loop())
        to_read, to_write = os.pipe()
        os.write(to_write, b"m")
        still.add_reader(to_read, called.append, "read")
        still.add_writer(to_write, called.append, "written")
        other, _ = ends = os.pipe()
        still.add_reader(other, called.append, "never")
        assert still.remove_reader(other)
        assert not still.remove_reader(other)
        assert not still.remove_writer(other)
        await asyncio.sleep(0)
        assert called == []
        still.let_go()
        await asyncio.sleep(0.01)
        assert still.remove_reader(to_read)
        assert still.remove_writer(to_write)
        for fd in (to_read, to_write, *ends):
            os.close(fd)
        return sorted(set(called))

    assert asyncio.run(run()) == ["read", "written"]


def test_what_cannot_be_kept_is_refused_until_then() -> None:
    async def run() -> None:
        still = StillEvents(asyncio.get_running_loop())
        with pytest.raises(RuntimeError, match="stands still"):
            still.create_task(asyncio.sleep(0))
        with pytest.raises(RuntimeError, match="stands still"):
            still.call_soon_threadsafe(print)
        still.let_go()
        still.let_go()
        await still.create_task(asyncio.sleep(0))
        there = asyncio.Event()
        still.call_soon_threadsafe(there.set)
        await there.wait()

    asyncio.run(run())


def test_the_rest_is_the_loops_own() -> None:
    async def run() -> None:
        events = asyncio.get_running_loop()
        still = StillEvents(events)
        assert still.is_running()
        assert not still.is_closed()
        assert await still.run_in_executor(None, lambda: 7) == 7

    asyncio.run(run())
