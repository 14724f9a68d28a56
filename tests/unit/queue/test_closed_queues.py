"""A core queue that has been closed, deleted or broken: whatever is asked of it then is harmless.

The broker unbinds a queue before it lets go of it, and does not ask it again; but order is easily
lost where things end, and the answer must not be a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lavinmq import _core
from tests.support.core import Bench, TimedEvents, properties, publish, settle
from tests.support.streams import stored_offsets

MINUTE_MS = 60_000
STREAM_META = 28
"""Bytes of a file that counts a segment of a stream."""
KINDS: dict[str, dict[str, Any]] = {
    "durable": {},
    "transient": {"durable": False},
    "priorities": {"max_priority": 3},
    "ruled": {"ttl_ms": 1000, "max_length": 3, "target": b"", "target_key": b"other"},
    "refusing": {"max_length": 1, "overflow": _core.OVERFLOW["reject-publish-dlx"], "target": b""},
}
ENDS: dict[str, Callable[[_core.Queue], object]] = {
    "closed": _core.Queue.close,
    "deleted": _core.Queue.delete,
    "closed and deleted": lambda queue: (queue.close(), queue.delete()),
    "deleted and closed": lambda queue: (queue.delete(), queue.close()),
}

each_kind = pytest.mark.parametrize("kind", KINDS)
each_end = pytest.mark.parametrize("end", ENDS)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path / "data", TimedEvents())) as made:
        yield made


def filled(bench: Bench, kind: str) -> tuple[_core.Queue, list[int]]:
    """A queue with messages that are ready, unacked, and requeued; and tags of the unacked."""
    queue = bench.queue("q", **KINDS[kind])
    for number in range(4):
        bench.send(publish(b"q", b"%d" % number, properties(priority=number)))
    bench.run()
    tags = [got.tag for _ in range(2) if (got := bench.get(queue, no_ack=False)) is not None]
    bench.send(settle(90, tags.pop(), 1))
    bench.run()
    return queue, tags


@each_kind
@each_end
def test_nothing_is_purged(bench: Bench, kind: str, end: str) -> None:
    queue, _ = filled(bench, kind)

    ENDS[end](queue)

    assert queue.purge() == 0
    bench.run()


@each_kind
@each_end
def test_publishes_to_what_is_still_bound_are_dropped(bench: Bench, kind: str, end: str) -> None:
    queue, _ = filled(bench, kind)
    ENDS[end](queue)
    ready, published = queue.ready, queue.counters()["publish"]

    for number in range(3):
        bench.send(publish(b"q", b"late", properties(expiration="0" if number else None)))
    bench.send(publish(b"q", bytes(100_000)))
    bench.run()
    bench.advance(MINUTE_MS)

    assert queue.counters()["publish"] == published
    assert queue.ready == ready


@each_kind
@each_end
def test_nothing_is_given_out_nor_settled(bench: Bench, kind: str, end: str) -> None:
    queue, tags = filled(bench, kind)
    ENDS[end](queue)

    assert bench.get(queue) is None
    consumer = bench.link.add_consumer(1, queue, b"tag", False)
    consumer.start()
    bench.run()
    for tag in tags:
        bench.send(settle(90, tag, 1))
    bench.run()
    consumer.cancel()
    bench.advance(MINUTE_MS)

    assert bench.receive() == []


@each_kind
@each_end
def test_questions_and_rules_do_no_harm(bench: Bench, kind: str, end: str) -> None:
    queue, _ = filled(bench, kind)
    ENDS[end](queue)

    queue.set_features(ttl_ms=0, max_length=0, delivery_limit=0, target=b"")
    assert queue.release_some() is False
    queue.is_paused = True
    queue.is_paused = False
    queue.consumer_timeout_ms = 1
    bench.run()
    bench.advance(MINUTE_MS)

    assert queue.compact() is False
    assert queue.pending(10) == []
    assert queue.take_damage() == queue.segments() == []
    assert stored_offsets(queue) == {}
    assert (queue.lost, queue.read_error, queue.write_error, queue.failed_file) == (0, 0, 0, "")
    assert queue.offset_at(0) == (0, True)
    assert queue.first_offset == queue.next_offset == 0
    for _ in range(2):
        ENDS[end](queue)
    with pytest.raises(ValueError, match="is running"):
        queue.restart()


@each_end
def test_what_dies_elsewhere_does_not_come_to_it(bench: Bench, end: str) -> None:
    queue, _ = filled(bench, "durable")
    source = bench.queue("source", target=b"", target_key=b"q", max_length=0)
    ENDS[end](queue)

    bench.send(publish(b"source", b"dying"))
    bench.run()

    assert source.ready == 0
    assert queue.purge() == 0


def test_a_stream_that_has_ended_is_asked_in_vain(bench: Bench) -> None:
    for end in ENDS.values():
        queue = _core.Queue(
            bench.loop, str(bench.directory / "s"), 4096, True, name=b"s", vhost=bench.vhost,
            is_stream=True,
        )  # fmt: skip
        queue.load()
        bench.exchange.bind(b"s", b"", queue)
        bench.send(publish(b"s", b"x"))
        bench.run()

        end(queue)
        bench.send(publish(b"s", b"late"))
        bench.run()

        assert queue.purge() == 0
        assert stored_offsets(queue) == {}
        assert queue.offset_at(0) == (0, True)
        assert queue.segments() == []
        assert queue.first_offset <= queue.next_offset
        bench.exchange.unbind(b"s", b"", queue)
        for path in (bench.directory / "s").glob("*"):
            path.unlink()


def broken(bench: Bench, segments: int, **how: Any) -> _core.Queue:
    """A queue that was closed by a file that it could not read, with the messages of its segments;
    the file is as it was."""
    for _ in range(2):
        queue = bench.queue("q", **how)
        if queue.ready == 0:
            for number in range(5 * segments):
                bench.send(publish(b"q", b"%03d" % number + bytes(900)))
                bench.run()
        bench.exchange.unbind(b"q", b"", queue)
        queue.close()
    found = max(Path(bench.directory, "q").rglob("msgs.*"))
    whole = found.read_bytes()
    found.write_bytes(b"\x09\0\0\0" + whole[4:])
    queue = _core.Queue(
        bench.loop, str(bench.directory / "q"), 4096, True, name=b"q", vhost=bench.vhost,
        max_priority=how.get("max_priority", -1),
    )  # fmt: skip
    with pytest.raises(ValueError, match="schema version 9"):
        queue.load()
    found.write_bytes(whole)
    bench.exchange.bind(b"q", b"", queue)
    return queue


@pytest.mark.parametrize("levels", [-1, 3], ids=["plain", "levels"])
def test_a_restart_reads_a_segment_in_each_step(bench: Bench, levels: int) -> None:
    """All were read in one go, and nobody was served meanwhile."""
    queue = broken(bench, 8, max_priority=levels)
    steps = _core.Restart(queue)
    n_steps, counts = 0, set()
    for _ in steps:
        n_steps += 1
        counts.add(queue.ready)
        assert queue.is_closed

    assert not queue.is_closed
    assert n_steps > queue.n_segments
    assert len(counts) > 8
    assert queue.ready == 40
    bodies = [got.body[:3] for _ in range(40) if (got := bench.get(queue))]
    assert bodies == [b"%03d" % number for number in range(40)]
    queue.close()


@pytest.mark.parametrize("end", [_core.Queue.delete, _core.Queue.close, _core.Queue.restart])
def test_a_restart_ends_when_its_queue_does(
    bench: Bench, end: Callable[[_core.Queue], object]
) -> None:
    queue = broken(bench, 8)
    steps = _core.Restart(queue)
    for _ in range(4):
        next(steps)

    end(queue)

    with pytest.raises(ValueError, match="meanwhile"):
        next(steps)
    assert list(steps) == []


def test_a_restart_that_fails_leaves_an_empty_closed_queue(bench: Bench) -> None:
    queue = broken(bench, 8)
    steps = _core.Restart(queue)
    for _ in range(4):
        next(steps)
    last = max(Path(bench.directory, "q").glob("msgs.*"))
    last.unlink()

    with pytest.raises(OSError, match="No such file"):
        list(steps)

    assert queue.is_closed and queue.ready == 0
    with pytest.raises(StopIteration):
        next(steps)


def stream_of(bench: Bench) -> _core.Queue:
    return _core.Queue(
        bench.loop, str(bench.directory / "s"), 4096, True, name=b"s", vhost=bench.vhost,
        is_stream=True,
    )  # fmt: skip


def broken_stream(bench: Bench, segments: int) -> _core.Queue:
    """A stream that was closed by a file that it could not read; none of its segments is counted.
    The file is as it was."""
    queue = stream_of(bench)
    queue.load()
    bench.exchange.bind(b"s", b"", queue)
    for number in range(5 * segments):
        bench.send(publish(b"s", b"%03d" % number + bytes(900)))
        bench.run()
    bench.exchange.unbind(b"s", b"", queue)
    queue.close()
    directory = Path(bench.directory, "s")
    for meta in directory.glob("meta.*"):
        meta.unlink()
    found = max(directory.glob("msgs.*"))
    whole = found.read_bytes()
    found.write_bytes(b"\x09\0\0\0" + whole[4:])
    queue = stream_of(bench)
    with pytest.raises(ValueError, match="schema version 9"):
        queue.load()
    found.write_bytes(whole)
    bench.exchange.bind(b"s", b"", queue)
    return queue


def test_a_restart_of_a_stream_reads_a_segment_in_each_step(bench: Bench) -> None:
    """All were read in one go, and nobody was served meanwhile."""
    queue = broken_stream(bench, 8)
    steps = _core.Restart(queue)
    n_steps, counts = 0, set()
    for _ in steps:
        n_steps += 1
        counts.add(queue.ready)
        assert queue.is_closed
        assert queue.first_offset <= queue.next_offset or queue.next_offset == 0
        assert queue.offset_at(0) == (0, True)
        queue.set_stream_limits(max_length=1000)

    assert not queue.is_closed
    assert n_steps > 2 * queue.n_segments
    assert len(counts) > 8
    assert (queue.ready, queue.first_offset, queue.next_offset) == (40, 1, 41)
    assert len(list(Path(bench.directory, "s").glob("meta.*"))) == queue.n_segments - 1
    bench.send(publish(b"s", b"after"))
    bench.run()
    assert queue.next_offset == 42
    queue.close()


@pytest.mark.parametrize("end", [_core.Queue.delete, _core.Queue.close, _core.Queue.restart])
@pytest.mark.parametrize("n", [4, 10, 14])
def test_a_restart_of_a_stream_ends_when_it_does(
    bench: Bench, end: Callable[[_core.Queue], object], n: int
) -> None:
    queue = broken_stream(bench, 8)
    steps = _core.Restart(queue)
    for _ in range(n):
        next(steps)

    end(queue)

    with pytest.raises(ValueError, match="meanwhile"):
        next(steps)
    assert list(steps) == []


def test_a_restart_of_a_stream_that_fails_leaves_it_closed_and_can_be_tried_again(
    bench: Bench,
) -> None:
    queue = broken_stream(bench, 8)
    last = max(Path(bench.directory, "s").glob("msgs.*"))
    for _ in range(2):
        steps = _core.Restart(queue)
        for _ in range(4):
            next(steps)
        last.rename(last.with_name("away"))

        with pytest.raises(OSError, match="No such file"):
            list(steps)

        assert queue.is_closed and queue.ready == 0
        last.with_name("away").rename(last)
    queue.restart()
    assert (queue.ready, queue.next_offset) == (40, 41)


def entry(tag: bytes, offset: int) -> bytes:
    """Of the file of stored offsets."""
    return bytes([len(tag)]) + tag + offset.to_bytes(8, "little")


@pytest.mark.parametrize("is_held", [True, False])
def test_stored_offsets_of_a_stream_are_read_in_steps_when_it_is_restarted(
    bench: Bench, is_held: bool
) -> None:
    """All were read in one go, and written and synced anew while everybody waited."""
    queue = broken_stream(bench, 8)
    path = Path(bench.directory, "s", "consumer_offsets")
    tags = [b"%06d" % n for n in range(30_000)]
    whole = b"".join(entry(tag, 1 + n % 40) for n, tag in enumerate(tags))
    path.write_bytes(entry(b"lost", 99) + entry(tags[0], 7) + whole + b"\x20torn")
    steps = _core.Restart(queue, is_held=is_held)
    counts = set()
    for _ in steps:
        counts.add(queue.n_offsets)

    most = max(b - a for a, b in pairwise(sorted(counts)))
    assert 0 < most <= 65_536 // len(entry(tags[0], 1)) + 1
    assert queue.n_offsets == len(tags) + 1
    found = stored_offsets(queue)
    assert found == {b"lost": 41, **{tag: 1 + n % 40 for n, tag in enumerate(tags)}}
    assert len(steps.notes) == 1 and "lost" in steps.notes[0]

    text = steps.offsets()
    assert queue.is_closed == is_held == (text is not None)
    if text is not None:
        assert path.read_bytes().endswith(b"torn")
        path.with_name("consumer_offsets.tmp").write_bytes(text)
        steps.take_offsets(len(text))
    assert path.read_bytes() == entry(b"lost", 41) + whole


def test_stored_offsets_that_are_as_they_should_be_are_left_alone(bench: Bench) -> None:
    queue = broken_stream(bench, 2)
    path = Path(bench.directory, "s", "consumer_offsets")
    path.write_bytes(entry(b"one", 3) + entry(b"two", 4) + bytes(500))
    before = path.stat()
    steps = _core.Restart(queue, is_held=True)
    list(steps)

    assert steps.offsets() is None
    assert stored_offsets(queue) == {b"one": 3, b"two": 4}
    assert path.stat().st_ino == before.st_ino and path.stat().st_size == before.st_size


def broken_with_unacked(bench: Bench, count: int) -> _core.Queue:
    """A queue that its disk has closed, and has back, with deliveries that are not settled."""
    queue = bench.queue("q", 1 << 20)
    bench.send(publish(b"q", b"m") * count)
    bench.run()
    assert all(bench.link.get(1, queue, False) for _ in range(count))
    directory = bench.directory / "q"
    directory.rename(bench.directory / "away")
    directory.write_bytes(b"no directory")
    bench.send(publish(b"q", bytes(900_000)) * 2)
    bench.run()
    assert queue.is_closed
    directory.unlink()
    (bench.directory / "away").rename(directory)
    return queue


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_is_on_its_way_back_does_not_come_to_a_queue_that_was_restarted(
    bench: Bench, is_cut: bool
) -> None:
    """Its messages are ready again: none may come twice, nor may counters go below zero."""
    count = 20 if is_cut else 1100
    bench.link.start(0)
    queue = broken_with_unacked(bench, count)
    if is_cut:
        bench.link.cut()
    else:
        bench.link.close_channel(1, False)
    queue.restart()
    before = queue.ready
    if is_cut:
        bench.link.close()
    bench.run()

    assert (queue.ready, queue.unacked) == (before, 0)


def test_queues_may_be_read_again_before_anybody_has_looked_for_their_deadlines(
    bench: Bench,
) -> None:
    for name in ("q", "r"):
        queue = bench.queue(name)
        bench.send(publish(name.encode(), b"late", properties(expiration="1000")))
        bench.send(publish(name.encode(), b"stays"))
        bench.run()
        queue.close()
    queues = [bench.queue(name) for name in ("q", "r")]
    for _ in range(3):
        for queue in queues:
            queue.forget()
            assert (queue.is_closed, queue.ready) == (True, 0)
            queue.restart()
            assert (queue.is_closed, queue.ready) == (False, 2)
    bench.advance(MINUTE_MS)
    assert [queue.ready for queue in queues] == [1, 1]
    for queue in queues:
        got = bench.get(queue)
        assert got is not None
        assert got.body == b"stays"


def test_a_stream_that_was_restarted_goes_on_as_one(bench: Bench) -> None:
    """It took itself for a queue, whose counts of segments are shorter, and synced less."""
    stream = broken_stream(bench, 3)
    stream.restart()
    for number in range(30):
        bench.send(publish(b"s", b"%03d" % number + bytes(900)))
        bench.run()
    stream.close()
    sizes = {each.stat().st_size for each in Path(bench.directory, "s").glob("meta.*")}
    assert sizes == {STREAM_META}


def test_a_queue_may_be_restarted_before_anybody_has_looked_for_deadlines(bench: Bench) -> None:
    """It was on the loop's list twice then."""
    queue = broken(bench, 2)
    directory, away = bench.directory / "q", bench.directory / "away"
    for _ in range(3):
        queue.restart()
        directory.rename(away)
        directory.write_bytes(b"no directory")
        bench.send(publish(b"q", bytes(900)) * 5)
        bench.run()
        assert queue.is_closed
        directory.unlink()
        away.rename(directory)
    queue.restart()
    bench.advance(MINUTE_MS)
    bodies = []
    for _ in range(queue.ready):
        got = bench.get(queue)
        assert got is not None
        bodies.append(got.body[:3])
    assert queue.ready == 0
    assert bodies[:10] == [b"%03d" % number for number in range(10)]
