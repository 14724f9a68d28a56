"""How far a stream is on disk: what planning goes by, and who asks for syncs."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.streams import StreamBench, stored_offsets

MakeStream = Callable[..., StreamBench]
DEADLINE_S = 20.0


@pytest.fixture
def make_stream(tmp_path: Path) -> Iterator[MakeStream]:
    """Call it to get a stream whose confirms wait for the disk; closed at the end of the test."""
    with ExitStack() as stack:

        def make(size: int = 4096) -> StreamBench:
            bench = stack.enter_context(closing(StreamBench(tmp_path / "data", size)))
            stack.callback(bench.loop.stop)
            bench.loop.sync = True
            return bench

        yield make


def fill(bench: StreamBench, n: int, size: int = 1000) -> None:
    for _ in range(n):
        bench.publish(struct.pack(">Q", bench.core.next_offset) + bytes(size))
        bench.run()


def ask(bench: StreamBench) -> bool:
    """Ask for a sync, and wait until it is over. Returns: whether there was one."""
    told: list[int] = []
    if not bench.core.ask_sync(lambda: told.append(1)):
        return False
    deadline = time.monotonic() + DEADLINE_S
    while not told:
        assert time.monotonic() < deadline
        bench.run()
        bench.loop.on_synced()
    return True


def end(bench: StreamBench) -> int:
    return bench.core.synced[0]


def test_what_nobody_has_asked_for_is_not_known_to_be_on_disk(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 3)

    assert (end(bench), bench.core.next_offset) == (1, 4)
    assert ask(bench)
    assert end(bench) == 4
    assert not ask(bench)


def test_what_comes_while_a_sync_is_under_way_is_for_the_next_one(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 3)
    told: list[int] = []
    assert bench.core.ask_sync(lambda: told.append(end(bench)))
    assert end(bench) == 1
    bench.publish(b"late")

    deadline = time.monotonic() + DEADLINE_S
    while not told:
        assert time.monotonic() < deadline
        bench.run()
        bench.loop.on_synced()

    assert told == [4]
    assert bench.core.next_offset == 5
    assert ask(bench)
    assert end(bench) == 5


def test_what_is_staged_is_written_before_it_is_synced(make_stream: MakeStream) -> None:
    bench = make_stream()
    bench.publish(b"one")

    assert ask(bench)
    assert end(bench) == 2


@pytest.mark.parametrize("n", [5, 50, 400])
def test_finished_segments_are_synced_with_the_one_that_is_written_to(
    make_stream: MakeStream, n: int
) -> None:
    bench = make_stream()
    fill(bench, n)
    assert len(bench.core.segments()) > n // 4

    assert end(bench) == 1
    assert ask(bench)
    assert bench.core.synced == (n + 1, *_last(bench))
    fill(bench, 9)
    assert end(bench) == n + 1
    assert ask(bench)
    assert end(bench) == n + 10


def _last(bench: StreamBench) -> tuple[int, int]:
    """Number and bytes of the newest segment."""
    id_, _, n_bytes, *_rest = bench.core.segments()[-1]
    return id_, n_bytes


def test_without_syncs_it_ends_at_what_is_written(make_stream: MakeStream) -> None:
    bench = make_stream()
    bench.loop.sync = False
    bench.publish(b"one")
    assert end(bench) == 1
    bench.run()
    assert end(bench) == 2
    assert not ask(bench)

    bench.loop.sync = True
    assert end(bench) == 1
    assert ask(bench)
    assert end(bench) == 2


def test_what_retention_has_taken_needs_no_sync(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 40)
    bench.core.set_stream_limits(max_length=5)
    bench.run()  # what is much goes in portions
    first = bench.core.first_offset
    assert first > 30

    assert end(bench) == first
    assert ask(bench)
    assert end(bench) == 41


def test_after_an_end_without_order_nothing_is_known_to_be_on_disk(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 20)
    bench.reopen(crash=True)

    assert (end(bench), bench.core.next_offset) == (1, 21)
    assert ask(bench)
    assert end(bench) == 21


def test_after_an_orderly_stop_all_is_on_disk(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 20)
    bench.shut()
    bench.open(is_synced=True)

    assert (end(bench), bench.core.next_offset) == (21, 21)
    assert not ask(bench)
    fill(bench, 2)
    assert end(bench) == 21
    assert ask(bench)
    assert end(bench) == 23


def test_an_empty_stream_has_nothing_to_sync(make_stream: MakeStream) -> None:
    bench = make_stream()

    assert bench.core.synced == (1, 0, 0)
    assert not ask(bench)


def test_a_stream_that_is_held_is_closed_until_it_is_opened(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 3)
    bench.shut()
    bench.open(is_held=True)
    assert bench.core.is_closed
    assert not ask(bench)

    bench.core.open()
    assert not bench.core.is_closed
    fill(bench, 1)
    assert bench.core.next_offset == 5


# --- epochs ---------------------------------------------------------------------------------------


def headers(bench: StreamBench, **arguments: Any) -> list[dict[str, Any]]:
    wanted = {"x-stream-offset": "first"} | {
        f"x-stream-{name}": value for name, value in arguments.items()
    }
    bench.consume(wanted, prefetch=100)
    return [dict(delivery.headers) for delivery in bench.deliveries()]


def test_deliveries_say_in_which_epoch_their_offset_was_given(make_stream: MakeStream) -> None:
    bench = make_stream()
    bench.core.epochs = [(1, 1), (4, 3), (5, 3), (6, 5)]
    for _ in range(6):
        bench.publish(b"x", {"x-stream-offset": 99, "own": 1})

    plain = headers(bench)
    told = headers(bench, epoch=True)
    both = headers(bench, epoch=True, timestamp=True)

    assert [set(each) for each in plain] == [{"own", "x-stream-offset"}] * 6
    assert [each["x-stream-epoch"] for each in told] == [1, 1, 5, 5, 6, 6]
    assert [each["x-stream-offset"] for each in told] == [1, 2, 3, 4, 5, 6]
    assert [set(each) for each in told] == [{"own", "x-stream-offset", "x-stream-epoch"}] * 6
    assert [each["x-stream-epoch"] for each in both] == [1, 1, 5, 5, 6, 6]
    assert all(each["x-stream-timestamp"] > 1 << 40 for each in both)


def test_epochs_are_what_was_given(make_stream: MakeStream) -> None:
    bench = make_stream()
    assert bench.core.epochs == []
    bench.core.epochs = [(1, 1), (2, 7)]
    assert bench.core.epochs == [(1, 1), (2, 7)]
    with pytest.raises((TypeError, ValueError)):
        bench.core.epochs = [(1,)]  # type: ignore[list-item]
    assert bench.core.epochs == [(1, 1), (2, 7)]


def test_a_tag_that_points_behind_the_end_is_set_back_and_said_so(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 10, 10)
    bench.core.store_offset(b"ahead", 9)
    bench.core.store_offset(b"before", 3)
    bench.run()
    bench.shut()
    segment = bench.directory / "s" / "msgs.0000000001"
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size * 6 // 10])
    bench.open()

    last = bench.core.next_offset
    assert last < 9
    assert stored_offsets(bench.core) == {b"before": 3, b"ahead": last}
    assert any("consumer 'ahead' was at offset 9" in note for note in bench.notes)
    assert not any("before" in note for note in bench.notes)
