"""What is read of a segment is compared with its sums: nobody gets other bytes than were written,
and all that shares no block with damage is delivered.

Sums are made here by zlib; files are changed by plain writes.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lavinmq import _core
from tests.support.core import Bench, FakeEvents, publish, settle
from tests.support.damage import flip
from tests.support.segments import Record, read_segment, segment_numbers, segment_path
from tests.support.streams import NAME as STREAM
from tests.support.streams import StreamBench
from tests.support.sums import BLOCK, know, know_all
from tests.unit.store.conftest import MakeBench, fill

NAME = "q"
SEGMENT_SIZE = 300_000
MESSAGES = 250
LARGE = 1 << 20


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a queue of a few segments."""
    root = tmp_path_factory.mktemp("intact")
    fill(root, NAME, SEGMENT_SIZE, MESSAGES, 6000)
    return root


@pytest.fixture
def root(intact: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(intact, tmp_path / "data"))


def knowing(bench: Bench, covered: int = 1 << 62) -> Bench:
    """Have a broker know the sums of all segments, as they are now."""
    know_all(bench, covered)
    return bench


def drain(bench: Bench, queue: _core.Queue) -> list[bytes]:
    """Take everything, as a client does."""
    found = []
    while (got := bench.get(queue)) is not None:
        found.append(got.body)
    return found


def records(root: Path) -> list[tuple[int, Record]]:
    """All messages, each with the number of its segment."""
    directory = root / NAME
    return [
        (number, each)
        for number in segment_numbers(directory)
        for each in read_segment(segment_path(directory, number))
    ]


def outside(root: Path, number: int, blocks: set[int]) -> list[bytes]:
    """Messages that have no part in some blocks of a segment."""
    return [
        each.body
        for segment, each in records(root)
        if segment != number
        or blocks.isdisjoint(
            range(each.position // BLOCK, (each.position + len(each.raw) - 1) // BLOCK + 1)
        )
    ]


@pytest.mark.parametrize("seed", range(12))
def test_messages_that_share_no_block_with_a_changed_byte_are_delivered(
    root: Path, make_bench: MakeBench, seed: int
) -> None:
    """Also where it makes another length."""
    chance = random.Random(seed)
    bench = knowing(make_bench(root))
    there = segment_numbers(root / NAME)
    number = chance.choice(there)
    path = segment_path(root / NAME, number)
    at = chance.randrange(4, path.stat().st_size)
    wanted = outside(root, number, {at // BLOCK})
    flip(path, at, keeps_time=True)

    queue = bench.queue(NAME, SEGMENT_SIZE)

    assert drain(bench, queue) == wanted
    assert queue.ready == 0
    if number != there[-1]:  # of which nobody knows how many it had
        assert queue.lost == MESSAGES - len(wanted)
    assert _core.take_spoiled(bench.loop) == [f"{NAME}/{path.name}"]
    assert _core.take_spoiled(bench.loop) == []


@pytest.mark.parametrize("seed", range(6))
def test_of_several_damaged_blocks_nothing_is_delivered(
    root: Path, make_bench: MakeBench, seed: int
) -> None:
    chance = random.Random(seed)
    bench = knowing(make_bench(root))
    number = segment_numbers(root / NAME)[0]
    path = segment_path(root / NAME, number)
    places = [chance.randrange(4, path.stat().st_size) for _ in range(3)]
    blocks = {at // BLOCK for at in places}
    good = outside(root, number, blocks)
    sure = outside(root, number, set(range(min(blocks), max(blocks) + 1)))
    for at in places:
        flip(path, at, keeps_time=True)

    found = drain(bench, bench.queue(NAME, SEGMENT_SIZE))

    assert set(sure) <= set(found) <= set(good)
    assert found == [body for body in good if body in set(found)]


def test_a_segment_that_was_cut_gives_what_is_left_in_whole_blocks(
    root: Path, make_bench: MakeBench
) -> None:
    bench = knowing(make_bench(root))
    path = segment_path(root / NAME, 1)
    wanted = outside(root, 1, set(range(2, 9)))
    os.truncate(path, 2 * BLOCK + 17)

    assert drain(bench, bench.queue(NAME, SEGMENT_SIZE)) == wanted


def test_a_node_with_peers_gives_nothing_up(root: Path, make_bench: MakeBench) -> None:
    """It delivers what comes before, and the rest when the file is right again."""
    bench = knowing(make_bench(root))
    _core.await_peers(bench.loop, True)
    wanted = [each.body for _, each in records(root)]
    path = segment_path(root / NAME, 1)
    at = BLOCK + 100
    before = [each.body for number, each in records(root)
              if number == 1 and each.position + len(each.raw) <= BLOCK]  # fmt: skip
    queue = bench.queue(NAME, SEGMENT_SIZE)
    flip(path, at, keeps_time=True)

    found = drain(bench, queue)

    assert found == before
    assert queue.ready == MESSAGES - len(before)
    assert queue.lost == 0
    assert queue.read_error == errno.EBADMSG
    flip(path, at, keeps_time=True)
    assert drain(bench, queue) == [], "it was found to be bad"
    assert know(bench, path)
    assert found + drain(bench, queue) == wanted


def test_what_is_given_up_can_be_decided_later(root: Path, make_bench: MakeBench) -> None:
    bench = knowing(make_bench(root))
    _core.await_peers(bench.loop, True)
    queue = bench.queue(NAME, SEGMENT_SIZE)
    wanted = outside(root, 1, {1})
    flip(segment_path(root / NAME, 1), BLOCK + 100, keeps_time=True)
    found = drain(bench, queue)

    _core.await_peers(bench.loop, False)

    assert found + drain(bench, queue) == wanted


def test_requeued_messages_are_compared(root: Path, make_bench: MakeBench) -> None:
    bench = knowing(make_bench(root))
    queue = bench.queue(NAME, SEGMENT_SIZE)
    wanted = outside(root, 1, {0})
    tags = []
    for _ in range(MESSAGES):
        got = bench.get(queue, no_ack=False)
        assert got is not None
        tags.append(got.tag)
    bench.send(settle(120, tags[-1], 0b11))  # nack, all of them, requeued
    bench.run()
    assert queue.ready == MESSAGES
    flip(segment_path(root / NAME, 1), 5000, keeps_time=True)

    assert drain(bench, queue) == wanted


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(covered=st.integers(1, SEGMENT_SIZE))
def test_sums_of_a_beginning_are_those_of_zlib(
    intact: Path, tmp_path_factory: pytest.TempPathFactory, covered: int
) -> None:
    """What is behind it has none."""
    root = Path(shutil.copytree(intact, tmp_path_factory.mktemp("begun") / "data"))
    with closing(knowing(Bench(root), covered)) as bench:
        queue = bench.queue(NAME, SEGMENT_SIZE)
        assert len(drain(bench, queue)) == MESSAGES
        assert _core.take_spoiled(bench.loop) == []
    shutil.rmtree(root)


def test_what_is_behind_the_sums_is_delivered_as_it_is(root: Path, make_bench: MakeBench) -> None:
    bench = knowing(make_bench(root), BLOCK)
    flip(segment_path(root / NAME, 1), BLOCK + 100, keeps_time=True)

    assert len(drain(bench, bench.queue(NAME, SEGMENT_SIZE))) == MESSAGES


@pytest.mark.parametrize("change", ["remove", "hole", "cut", "rename", "directory"])
def test_what_the_broker_changes_is_not_compared(
    root: Path, make_bench: MakeBench, change: str
) -> None:
    bench = knowing(make_bench(root))
    name = f"{NAME}/msgs.0000000001"
    kinds = _core.CHANGE_KINDS
    path, target, start, end = name, "", 0, 0
    if change == "rename":
        path, target = f"{NAME}/other", name
    elif change == "directory":
        path, target = NAME, "gone"
    elif change == "hole":
        start, end = BLOCK + 1, BLOCK + 2
    elif change == "cut":
        end = BLOCK + 50
    kind = {"remove": "REMOVE", "hole": "HOLE", "cut": "TRUNCATE"}.get(change, "RENAME")
    flip(segment_path(root / NAME, 1), BLOCK + 1000, keeps_time=True)

    _core.note_change(bench.loop, kinds[kind], f"{root}/{path}",
                      f"{root}/{target}" if target else "", -1, start, end)  # fmt: skip

    assert len(drain(bench, bench.queue(NAME, SEGMENT_SIZE))) == MESSAGES
    assert _core.take_spoiled(bench.loop) == []


def test_sums_of_what_was_changed_meanwhile_are_refused(root: Path, make_bench: MakeBench) -> None:
    bench = knowing(make_bench(root))
    name = f"{NAME}/msgs.0000000001"
    note = _core.CHANGE_KINDS["HOLE"]
    _core.watch_sums(bench.loop, name)
    _core.note_change(bench.loop, note, f"{root}/{NAME}/msgs.0000000002", "", -1, 0, 1)
    assert _core.know_sums(bench.loop, name, 5, bytes(4), [0])
    _core.watch_sums(bench.loop, name)
    _core.note_change(bench.loop, note, f"{root}/{name}", "", -1, 0, 1)
    assert not _core.know_sums(bench.loop, name, 5, bytes(4), [0])
    assert not _core.know_sums(bench.loop, f"{NAME}/other", 5, bytes(4), [0]), "it is not watched"
    with pytest.raises(ValueError, match="as many sums as blocks"):
        _core.know_sums(bench.loop, name, BLOCK + 1, bytes(4), [])


def test_segments_that_are_removed_leave_nothing(root: Path, make_bench: MakeBench) -> None:
    """Others come to have their names, and are compared with nothing."""
    bench = knowing(make_bench(root))
    queue = bench.queue(NAME, SEGMENT_SIZE)
    assert len(drain(bench, queue)) == MESSAGES
    bench.run()
    number = segment_numbers(root / NAME)[0]
    for _ in range(50):
        bench.send(publish(NAME.encode(), bytes(9000), b"\x10\0\x02"))
        bench.run()
    flip(segment_path(root / NAME, number), 100_000, keeps_time=True)
    assert len(drain(bench, queue)) == 50
    assert _core.take_spoiled(bench.loop) == []


@pytest.mark.parametrize("has_peers", [False, True])
def test_a_large_message_ends_before_its_damage(
    tmp_path: Path, make_bench: MakeBench, *, has_peers: bool
) -> None:
    """Its client is told nothing more."""
    root, body = tmp_path / "data", random.Random(3).randbytes(LARGE + 500_000)
    with closing(Bench(root)) as writer:
        queue = writer.queue(NAME, 1 << 23)
        for each in (b"before", body, b"behind"):
            writer.send(publish(NAME.encode(), each, b"\x10\0\x02"))
            while writer.events.ready:
                writer.run()
        queue.close()
    bench = knowing(make_bench(root))
    _core.await_peers(bench.loop, has_peers)
    queue = bench.queue(NAME, 1 << 23)
    path = max((root / NAME).glob("msgs.*"), key=lambda each: each.stat().st_size)
    flip(path, 1_000_000, keeps_time=True)

    got = bench.get(queue)
    assert got is not None
    assert got.body == b"before"
    assert bench.link.get(1, queue, False)
    for _ in range(100):
        bench.link.on_writable()
        bench.run()
        assert bench.receive() == []

    assert queue.read_error == errno.EBADMSG
    assert not queue.is_closed
    assert _core.take_spoiled(bench.loop) == [f"{NAME}/{path.name}"]


@pytest.mark.parametrize("has_peers", [False, True])
def test_a_stream_goes_on_behind_damage_or_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_peers: bool
) -> None:
    """A node with peers does not close it: it is published to meanwhile, and read again once
    somebody has looked at the file, not each millisecond."""
    timers: list[Callable[[], object]] = []
    monkeypatch.setattr(FakeEvents, "call_later", lambda _, __, then: timers.append(then))
    with closing(StreamBench(tmp_path / "data", SEGMENT_SIZE)) as bench:
        for number in range(150):
            bench.publish(b"%06d" % number + bytes(4000))
        bench.run()
        know_all(bench)
        _core.await_peers(bench.loop, has_peers)
        path = segment_path(bench.directory / STREAM, 1)
        flip(path, BLOCK + 100, keeps_time=True)

        bench.consume({"x-stream-offset": "first"}, prefetch=1000)
        found = [int(each.body[:6]) for each in bench.deliveries()]

        assert not bench.core.is_closed
        if not has_peers:
            lost = [each for each in range(150) if each not in found]
            assert 16 <= len(lost) <= 18
            assert found == [each for each in range(150) if each not in lost]
            return
        assert found == list(range(16))
        flip(path, BLOCK + 100, keeps_time=True)
        assert know(bench, path)
        for timer in timers:
            timer()
        assert bench.deliveries() == []
        bench.core.is_paused = False
        found += [int(each.body[:6]) for each in bench.deliveries()]
        assert found == list(range(150))
