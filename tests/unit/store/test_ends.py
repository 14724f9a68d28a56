"""The ends of segments: cut short, one byte too long, empty, gone, or left by all messages."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, Got, publish, settle
from tests.support.segments import read_meta, segment_numbers, segment_path

NAME = "q"
SEGMENT_SIZE = 4096
ACK, NACK, REQUEUE = 80, 120, 2
MakeBench = Callable[[], Bench]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    """Call it to get a bench on the directory of this test; it is closed at the end."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Bench(tmp_path)))


def take(bench: Bench, queue: _core.Queue, no_ack: bool = True) -> Got | None:
    """Get a message."""
    if not bench.link.get(1, queue, no_ack):
        return None
    bench.link.flush()
    (got,) = bench.receive()
    bench.run()
    return got


def drain(bench: Bench, queue: _core.Queue) -> list[bytes]:
    """Take everything."""
    return [got.body for got in iter(lambda: take(bench, queue), None)]


def fill(bench: Bench, queue: _core.Queue, count: int, size: int = 100) -> list[bytes]:
    """Publish numbered messages of a size and have them written; return them."""
    bodies = [b"%06d" % number + bytes(size - 6) for number in range(count)]
    for body in bodies:
        bench.send(publish(NAME.encode(), body))
        bench.run()
    assert queue.ready >= count
    return bodies


def test_bytes_cut_off_the_end_cost_the_last_message_only(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    """edge-cases.md 315"""
    bench = make_bench()
    queue = bench.queue(NAME)
    bodies = fill(bench, queue, 20)
    queue.close()
    path = segment_path(tmp_path / NAME)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 3)

    again = make_bench()

    assert drain(again, again.queue(NAME)) == bodies[:-1]


def test_a_zero_byte_behind_a_full_segment_is_passed_over(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    """edge-cases.md 317"""
    bench = make_bench()
    queue = bench.queue(NAME, SEGMENT_SIZE)
    bodies = fill(bench, queue, 100)
    queue.close()
    for number in segment_numbers(tmp_path / NAME):
        with segment_path(tmp_path / NAME, number).open("ab") as file:
            file.write(b"\0")
    again = make_bench()
    queue = again.queue(NAME, SEGMENT_SIZE)

    assert queue.ready == 100
    assert drain(again, queue) == bodies


@pytest.mark.parametrize("content", [b"", struct.pack("<i", 4)], ids=["empty", "header-only"])
def test_a_segment_without_messages_gives_nothing(
    tmp_path: Path, make_bench: MakeBench, content: bytes
) -> None:
    """edge-cases.md 320"""
    (tmp_path / NAME).mkdir()
    segment_path(tmp_path / NAME).write_bytes(content)
    bench = make_bench()
    queue = bench.queue(NAME)

    assert queue.ready == 0
    assert take(bench, queue) is None
    assert drain(bench, queue) == []
    fill(bench, queue, 1)
    assert len(drain(bench, queue)) == 1


def test_acked_segments_are_removed_while_running_and_at_the_start(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    """edge-cases.md 318, 319, 321, 322"""
    bench = make_bench()
    queue = bench.queue(NAME, SEGMENT_SIZE)
    bodies = fill(bench, queue, 10, SEGMENT_SIZE)
    assert len(segment_numbers(tmp_path / NAME)) >= 10
    queue.close()
    again = make_bench()
    queue = again.queue(NAME, SEGMENT_SIZE)
    assert not list((tmp_path / NAME).glob("acks.*"))

    for body in bodies:
        got = take(again, queue, no_ack=False)
        assert got is not None and got.body == body
        again.send(settle(ACK, got.tag, 0))
        again.run()

    assert len(segment_numbers(tmp_path / NAME)) <= 2
    queue.close()
    last = make_bench()
    assert last.queue(NAME, SEGMENT_SIZE).ready == 0
    assert len(segment_numbers(tmp_path / NAME)) <= 1


@pytest.mark.parametrize("size", [SEGMENT_SIZE // 2, SEGMENT_SIZE - 40, 3 * SEGMENT_SIZE])
def test_messages_of_any_size_find_a_segment(
    tmp_path: Path, make_bench: MakeBench, size: int
) -> None:
    """edge-cases.md 327"""
    bench = make_bench()
    queue = bench.queue(NAME, SEGMENT_SIZE)

    bodies = fill(bench, queue, 7, size)

    queue.close()
    again = make_bench()
    assert drain(again, again.queue(NAME, SEGMENT_SIZE)) == bodies
    assert not bench.failures


def test_every_segment_but_the_last_has_its_count_while_it_exists(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    """edge-cases.md 332"""
    directory = tmp_path / NAME

    def metas() -> dict[int, int]:
        return {int(path.suffix[1:]): read_meta(path) for path in directory.glob("meta.*")}

    bench = make_bench()
    queue = bench.queue(NAME, SEGMENT_SIZE)
    fill(bench, queue, 100)
    finished = segment_numbers(directory)[:-1]
    counts = metas()
    assert sorted(counts) == finished
    (directory / f"meta.{finished[0]:010}").unlink()
    queue.close()

    again = make_bench()
    queue = again.queue(NAME, SEGMENT_SIZE)

    assert metas() == counts
    queue.purge()
    again.run()
    assert metas() == {}


@pytest.mark.parametrize("is_open", [True, False], ids=["running", "started-anew"])
def test_segments_that_vanish_break_neither_acks_nor_counters(
    tmp_path: Path, make_bench: MakeBench, is_open: bool
) -> None:
    """edge-cases.md 328, 330"""
    bench = make_bench()
    queue = bench.queue(NAME, SEGMENT_SIZE)
    fill(bench, queue, 100)
    if not is_open:
        queue.close()
        bench = make_bench()
        queue = bench.queue(NAME, SEGMENT_SIZE)
    held = [take(bench, queue, no_ack=False) for _ in range(60)]
    for path in (tmp_path / NAME).glob("msgs.*"):
        if path != segment_path(tmp_path / NAME, segment_numbers(tmp_path / NAME)[-1]):
            path.unlink()

    for got in held[:30]:
        assert got is not None
        bench.send(settle(ACK, got.tag, 0))
    for got in held[30:]:
        assert got is not None
        bench.send(settle(NACK, got.tag, REQUEUE))
    bench.run()

    # Messages that cannot be read stay, and count, until the broker starts again.
    drain(bench, queue)
    record_size = queue.ready_bytes // queue.ready
    assert record_size > 100
    assert (queue.ready, queue.unacked, queue.ready_bytes) == (70, 0, 70 * record_size)
    assert queue.purge() == 70
    bench.run()
    assert (queue.ready, queue.ready_bytes) == (0, 0)
    fill(bench, queue, 1)
    assert len(drain(bench, queue)) == 1


def test_a_purge_leaves_all_counters_at_zero(tmp_path: Path, make_bench: MakeBench) -> None:
    """With acks in old segments, messages in flight, and requeued ones. edge-cases.md 329"""
    bench = make_bench()
    queue = bench.queue(NAME, SEGMENT_SIZE)
    fill(bench, queue, 100)
    held = [take(bench, queue, no_ack=False) for _ in range(40)]
    for got in held[:30:2]:
        assert got is not None
        bench.send(settle(ACK, got.tag, 0))
    for got in held[30:]:
        assert got is not None
        bench.send(settle(NACK, got.tag, REQUEUE))
    bench.run()

    assert queue.purge() == 70
    bench.run()
    assert (queue.ready, queue.ready_bytes, queue.unacked) == (0, 0, 15)
    for got in held[1:30:2]:
        assert got is not None
        bench.send(settle(ACK, got.tag, 0))
    bench.run()

    assert (queue.ready, queue.ready_bytes, queue.unacked) == (0, 0, 0)
    assert take(bench, queue) is None
    queue.close()
    again = make_bench()
    assert again.queue(NAME, SEGMENT_SIZE).ready == 0


@pytest.mark.parametrize("end", ["broken", "deleted"])
def test_settling_on_a_queue_that_has_just_gone_does_nothing(
    tmp_path: Path, make_bench: MakeBench, end: str
) -> None:
    """edge-cases.md 132, 213, 342 and amqp.md 22.23"""
    bench = make_bench()
    queue = bench.queue(NAME, SEGMENT_SIZE)
    fill(bench, queue, 10)
    held = [take(bench, queue, no_ack=False) for _ in range(3)]
    shutil.rmtree(tmp_path / NAME)
    if end == "deleted":
        bench.exchange.unbind(NAME.encode(), b"", queue)
        queue.delete()
    else:
        (tmp_path / NAME).write_bytes(b"no directory any more")
        bench.send(publish(NAME.encode(), bytes(2 * SEGMENT_SIZE)))
        bench.run()
        assert queue.is_closed

    for got, method in zip(held, (ACK, NACK, NACK), strict=True):
        assert got is not None
        bench.send(settle(method, got.tag, REQUEUE * (method == NACK)))
    bench.send(publish(NAME.encode(), b"dropped"))
    bench.run()

    assert take(bench, queue) is None
    assert queue.ready == 0
    assert not bench.failures
    assert not bench.session.events
