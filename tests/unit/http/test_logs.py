"""A reader of the live log: bounded, told of its loss, woken from any thread."""

from __future__ import annotations

import asyncio
import threading

from lavinmq.http.api.logs import MAX_WAITING, Reader, _newer
from lavinmq.process.log import Entry


def entry(number: int, level: str = "info") -> Entry:
    return Entry(0.0, level, "lmq.x", "", str(number), number)


def test_entries_come_in_order_from_another_thread() -> None:
    async def run() -> list[Entry]:
        reader = Reader(asyncio.get_running_loop(), "trace", bool, bool)

        def work() -> None:
            for number in range(100):
                reader.take(entry(number))

        thread = threading.Thread(target=work)
        thread.start()
        got: list[Entry] = []
        while len(got) < 100:
            entries, n_lost = await reader.wait(10)
            assert n_lost == 0
            got += entries
        thread.join()
        return got

    assert [each.id for each in asyncio.run(run())] == list(range(100))


def test_the_oldest_are_lost_and_counted() -> None:
    async def run() -> tuple[list[Entry], int]:
        reader = Reader(asyncio.get_running_loop(), "trace", bool, bool)
        for number in range(MAX_WAITING + 7):
            reader.take(entry(number))
        return await reader.wait(10)

    entries, n_lost = asyncio.run(run())
    assert n_lost == 7
    assert [each.id for each in entries] == list(range(7, MAX_WAITING + 7))


def test_what_is_not_severe_enough_does_not_wait() -> None:
    async def run() -> list[Entry]:
        reader = Reader(asyncio.get_running_loop(), "warn", bool, bool)
        for number, level in enumerate(("debug", "info", "notice", "warn", "error", "fatal")):
            reader.take(entry(number, level))
        return (await reader.wait(10))[0]

    assert [each.level for each in asyncio.run(run())] == ["warn", "error", "fatal"]


def test_a_quiet_time_and_an_end_both_wake_it() -> None:
    async def run() -> None:
        reader = Reader(asyncio.get_running_loop(), "trace", bool, bool)
        assert await reader.wait(0.001) == ([], 0)
        reader.close()
        assert await reader.wait(10) == ([], 0)
        assert reader.is_closed

    asyncio.run(run())


def test_a_loop_that_has_ended_closes_its_readers() -> None:
    async def run() -> Reader:
        return Reader(asyncio.get_running_loop(), "trace", bool, bool)

    reader = asyncio.run(run())

    reader.take(entry(1))

    assert reader.is_closed


def test_a_reader_who_comes_back_gets_what_is_newer() -> None:
    entries = [entry(number) for number in (5, 6, 9)]

    assert _newer(entries, "6") == entries[2:]
    assert _newer(entries, "7") == entries[2:]
    assert _newer(entries, "9") == []
    for unknown in ("", "10", "x", "-6", "²", "1" * 30):
        assert _newer(entries, unknown) == entries
    assert _newer([], "6") == []
