"""Where all consumers of a stream go on reading is told some at a time, while it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq import _core
from lavinmq.http.api import streams
from tests.support.streams import NAME, StreamBench, stored_offsets

MANY = 3000
PARTS = 5
"""That so many are told in at least."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StreamBench]:
    """A stream, for which very many consumers have stored offsets."""
    with closing(StreamBench(tmp_path)) as made:
        for number in range(MANY):
            assert made.core.store_offset(tag(number), 1 + number)
        yield made


def tag(number: int) -> bytes:
    return b"c%d" % number


def told(walk: _core.StoredOffsets) -> dict[bytes, int]:
    """What comes; what comes later counts."""
    return {tag: offset for some in walk for tag, offset in some}


def test_all_are_told_in_the_order_of_their_commits_some_at_a_time(bench: StreamBench) -> None:
    parts = list(_core.StoredOffsets(bench.core))

    assert [each for part in parts for each in part] == [(tag(n), 1 + n) for n in range(MANY)]
    assert len(parts) >= PARTS


def test_what_is_committed_meanwhile_is_told_as_it_is_then(bench: StreamBench) -> None:
    walk = _core.StoredOffsets(bench.core)
    found = dict(next(walk))

    for number in (0, MANY - 1):  # one that was told, and one that was not
        bench.core.store_offset(tag(number), MANY)
    bench.core.store_offset(b"new", MANY)
    bench.run()
    found |= told(walk)

    assert found == stored_offsets(bench.core)
    assert (found[tag(0)], found[tag(MANY - 1)], found[b"new"]) == (MANY, MANY, MANY)
    assert len(found) == MANY + 1


def test_what_is_forgotten_meanwhile_is_not_told(bench: StreamBench) -> None:
    walk = _core.StoredOffsets(bench.core)
    next(walk)

    for number in range(MANY // 2, MANY):
        bench.core.store_offset(tag(number), 0)
    bench.run()

    assert not {tag(number) for number in range(MANY // 2, MANY)} & told(walk).keys()
    assert len(stored_offsets(bench.core)) == MANY // 2


def test_who_commits_all_the_while_keeps_it_busy_for_a_while(bench: StreamBench) -> None:
    for parts, _ in enumerate(_core.StoredOffsets(bench.core), 1):
        for number in range(MANY):
            bench.core.store_offset(tag(number), parts + number)
        bench.run()
        assert parts < MANY


def test_two_who_ask_and_one_who_gives_up_disturb_nobody(bench: StreamBench) -> None:
    first, second = _core.StoredOffsets(bench.core), _core.StoredOffsets(bench.core)
    found = dict(next(first))
    next(second)
    for number in range(MANY, 2 * MANY):  # their table grows
        bench.core.store_offset(tag(number), 1 + number)
    del second

    assert found | told(first) == {tag(n): 1 + n for n in range(2 * MANY)}
    assert bench.core.stored_offset(tag(7)) == 8
    assert bench.core.stored_offset(b"") == 0


def test_a_stream_that_goes_has_no_more_to_tell(bench: StreamBench) -> None:
    walk = _core.StoredOffsets(bench.core)
    next(walk)

    bench.exchange.unbind(NAME.encode(), b"", bench.core)
    bench.core.delete()
    told(walk)

    queue = bench.queue("q")
    assert list(_core.StoredOffsets(queue)) == []


def test_a_list_of_very_many_leaves_turns_to_others(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def all_synced(_: object) -> int:
        return 1

    monkeypatch.setattr(streams, "all_synced", all_synced)
    queue = SimpleNamespace(core=bench.core)
    monkeypatch.setattr(streams, "stream_of", lambda _: queue)
    call: Any = SimpleNamespace()

    async def listed() -> tuple[list[str], int]:
        loop, turns = asyncio.get_running_loop(), 0

        def other() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(other)

        other()
        listing = await streams.list_positions(call)
        return [str(listing.names(each)) for each in listing.things], turns

    names, turns = asyncio.run(listed())

    assert names == [tag(number).decode() for number in reversed(range(MANY))]
    assert turns >= PARTS
