"""Threads for slow hashes: fairness between origins, bounds, cancelling."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from lavinmq.auth import hashing
from lavinmq.auth.hashing import Hashing, HashingBusy


class Gate:
    """Work that ends when it is told to, and writes down in which order it ran."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.ran: list[str] = []

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            assert self.opened.wait(10)
            self.ran.append(name)
            return name

        return run


@asynccontextmanager
async def one_thread() -> AsyncIterator[tuple[Hashing, Gate]]:
    """Hashing with a single thread, which a first job holds until the gate is opened."""
    pool, gate = Hashing(asyncio.get_running_loop(), threads=1), Gate()
    first = asyncio.ensure_future(pool.run("first", gate.work("first")))
    await asyncio.sleep(0)
    try:
        yield pool, gate
    finally:
        gate.opened.set()
        await first
        pool.close()


def test_the_loop_goes_on_meanwhile_and_results_and_errors_come_back() -> None:
    async def scenario() -> None:
        async with one_thread() as (pool, gate):
            waiting = asyncio.ensure_future(pool.run("a", gate.work("x")))
            failing = asyncio.ensure_future(pool.run("a", lambda: 1 // 0))
            await asyncio.sleep(0)  # we are not held up
            gate.opened.set()
            assert await waiting == "x"
            with pytest.raises(ZeroDivisionError):
                await failing
            assert await pool.run("a", gate.work("y")) == "y"

    asyncio.run(scenario())


def test_origins_take_turns() -> None:
    async def scenario() -> None:
        async with one_thread() as (pool, gate):
            jobs = [pool.run("greedy", gate.work(f"greedy {number}")) for number in range(4)]
            jobs += [pool.run("other", gate.work("other"))]
            all_done = asyncio.gather(*jobs)
            await asyncio.sleep(0)
            gate.opened.set()
            await all_done
            assert gate.ran.index("other") <= 2
            assert len(gate.ran) == 6

    asyncio.run(scenario())


def test_the_number_that_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "MAX_WAITING_OF_ORIGIN", 2)
    monkeypatch.setattr(hashing, "MAX_WAITING", 3)

    async def refused(awaitable: Awaitable[str]) -> None:
        with pytest.raises(HashingBusy):
            await awaitable

    async def scenario() -> None:
        async with one_thread() as (pool, gate):
            jobs = [asyncio.ensure_future(pool.run("a", gate.work("a"))) for _ in range(2)]
            await asyncio.sleep(0)
            await refused(pool.run("a", gate.work("a")))
            jobs.append(asyncio.ensure_future(pool.run("b", gate.work("b"))))
            await asyncio.sleep(0)
            await refused(pool.run("c", gate.work("c")))
            gate.opened.set()
            await asyncio.gather(*jobs)
            assert await pool.run("c", gate.work("c")) == "c"

    asyncio.run(scenario())


def test_who_gives_up_frees_its_place_and_loses_no_thread() -> None:
    async def scenario() -> None:
        async with one_thread() as (pool, gate):
            jobs = [asyncio.ensure_future(pool.run("a", gate.work("a"))) for _ in range(3)]
            await asyncio.sleep(0)
            jobs[0].cancel()
            jobs[1].cancel()
            gate.opened.set()
            assert await jobs[2] == "a"
            running = asyncio.ensure_future(pool.run("a", gate.work("b")))
            await asyncio.sleep(0)
            running.cancel()  # its thread goes on; the next one waits for it
            assert await pool.run("a", gate.work("c")) == "c"
            assert gate.ran == ["first", "a", "b", "c"]
            assert pool._free == 1 and not pool._waiting and not pool._waiting_count

    asyncio.run(scenario())


def test_who_gives_up_waits_no_longer_and_lets_others_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "MAX_WAITING", 2)

    async def scenario() -> None:
        async with one_thread() as (pool, gate):
            jobs = [asyncio.ensure_future(pool.run(name, gate.work(name))) for name in "ab"]
            await asyncio.sleep(0)
            jobs[0].cancel()
            await asyncio.sleep(0)
            jobs.append(asyncio.ensure_future(pool.run("c", gate.work("c"))))
            await asyncio.sleep(0)
            jobs[1].cancel()
            pool._release()  # at the same moment a thread is free
            gate.opened.set()
            assert await jobs[2] == "c"
            assert not pool._waiting and not pool._waiting_count

    asyncio.run(scenario())


def test_where_no_thread_can_be_started_the_loop_hashes_and_no_turn_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a full cgroup of processes each log-in failed, and took a thread's turn with it: once
    there were threads again, everybody waited for ever."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        pool = Hashing(asyncio.get_running_loop(), threads=2)
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refuse)
            async with asyncio.timeout(20):
                names = await asyncio.gather(
                    *(pool.run("a", lambda: threading.current_thread().name) for _ in range(5))
                )
        assert set(names) == {threading.current_thread().name}
        async with asyncio.timeout(20):
            names = await asyncio.gather(
                *(pool.run("a", lambda: threading.current_thread().name) for _ in range(5))
            )
        assert set(names) == {"hashing"}
        assert pool._free == 2 and not pool._waiting
        pool.close()

    asyncio.run(scenario())


def test_work_that_cannot_be_handed_on_loses_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    async def scenario() -> None:
        pool = Hashing(asyncio.get_running_loop(), threads=1)
        with monkeypatch.context() as failing:
            failing.setattr(hashing.Worker, "submit", fail)
            for _ in range(3):
                with pytest.raises(MemoryError):
                    await pool.run("a", lambda: 1)
        async with asyncio.timeout(20):
            assert await pool.run("a", lambda: 2) == 2
        pool.close()

    asyncio.run(scenario())
