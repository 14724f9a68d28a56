"""Damaged queue directories: what is read, kept, reported, and what a second start finds.

Every case is checked with an independent reader of the files (`tests/support/segments.py`). The
random rounds hold one rule: a record is delivered when it lies wholly outside the damaged bytes,
and outside what a damaged length makes of them.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
import struct
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, TimedEvents, publish, settle
from tests.support.segments import (
    Record,
    read_acks,
    read_segment,
    readable_end,
    segment_numbers,
    segment_path,
)
from tests.unit.store.conftest import MakeBench, fill

NAME = "q"
SEGMENT_SIZE = 4096
MESSAGES = 150
HEADER = struct.pack("<i", 4)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a queue of several segments, without acks."""
    directory = tmp_path_factory.mktemp("intact")
    fill(directory, NAME, SEGMENT_SIZE, MESSAGES, 120)
    return directory / NAME


@pytest.fixture
def damaged(intact: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    shutil.copytree(intact, tmp_path / NAME)
    return tmp_path / NAME


def opened(bench: Bench) -> _core.Queue:
    queue = bench.queue(NAME, SEGMENT_SIZE)
    return queue


def drain(bench: Bench, queue: _core.Queue, no_ack: bool = True) -> list[bytes]:
    """Take everything, as a client does."""
    bodies = []
    while bench.link.get(1, queue, no_ack):
        bench.link.flush()
        bodies += [got.body for got in bench.receive()]
        bench.run()
    return bodies


def bodies_of(directory: Path, number: int) -> list[bytes]:
    return [record.body for record in read_segment(segment_path(directory, number))]


def all_bodies(directory: Path) -> list[bytes]:
    return [body for number in segment_numbers(directory) for body in bodies_of(directory, number)]


def records(directory: Path, number: int) -> list[Record]:
    return read_segment(segment_path(directory, number))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


# --- damage inside a segment ------------------------------------------------------------------

TIMESTAMP_ZERO = (0, bytes(8))
TIMESTAMP_ABSURD = (0, b"\xff" * 8)
NAMES_TOO_LONG = (8, b"\xff\xff")
FLAGS_ILLEGAL = (11, b"\xff\xff")
BODY_TOO_LONG = (14, b"\0\0\0\0\0\1\0\0")
BODY_BEHIND_THE_END = (14, b"\0\0\1\0")


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize(
    ("offset", "junk"),
    [TIMESTAMP_ZERO, TIMESTAMP_ABSURD, NAMES_TOO_LONG, FLAGS_ILLEGAL, BODY_TOO_LONG,
     BODY_BEHIND_THE_END],
)  # fmt: skip
def test_one_bad_record_costs_itself_only(
    damaged: Path, make_bench: MakeBench, where: str, offset: int, junk: bytes
) -> None:
    number = {"first": 1, "middle": 2, "last": segment_numbers(damaged)[-1]}[where]
    wanted = all_bodies(damaged)
    victim = records(damaged, number)[3]
    wanted.remove(victim.body)
    overwrite(segment_path(damaged, number), victim.position + offset, junk)
    bench = make_bench(damaged.parent)
    queue = opened(bench)
    found_at_start = queue.take_damage()

    found = drain(bench, queue)

    assert found == wanted
    assert queue.ready == queue.ready_bytes == 0
    path = str(segment_path(damaged, number))
    noted = (found_at_start + queue.take_damage())[0]
    assert noted == (path, victim.position, victim.position + len(victim.raw))


def test_a_damaged_segment_is_kept_when_its_messages_are_gone(
    damaged: Path, make_bench: MakeBench
) -> None:
    path = segment_path(damaged, 2)
    overwrite(path, records(damaged, 2)[3].position, bytes(8))
    content = path.read_bytes()
    bench = make_bench(damaged.parent)

    drain(bench, opened(bench))

    assert not path.exists()
    assert path.with_name(path.name + ".damaged").read_bytes() == content
    assert not segment_path(damaged, 1).exists()
    assert not segment_path(damaged, 1).with_name("msgs.0000000001.damaged").exists()


def test_a_kept_file_is_never_replaced(damaged: Path, make_bench: MakeBench) -> None:
    path = segment_path(damaged, 2)
    path.with_name(path.name + ".damaged").write_bytes(b"of an earlier damage")
    overwrite(path, records(damaged, 2)[3].position, bytes(8))
    bench = make_bench(damaged.parent)

    drain(bench, opened(bench))

    assert path.with_name(path.name + ".damaged").read_bytes() == b"of an earlier damage"
    assert path.with_name(path.name + ".damaged.1").exists()


@pytest.mark.parametrize("with_meta", [True, False])
def test_a_body_that_looks_like_records_is_not_taken_for_messages(
    tmp_path: Path, make_bench: MakeBench, with_meta: bool
) -> None:
    """What is inside a damaged record's body is not a message, even if it was one elsewhere."""
    bench = make_bench(tmp_path)
    queue = opened(bench)
    for body in (b"one", b"two"):
        bench.send(publish(NAME.encode(), body))
    bench.run()
    inner = segment_path(tmp_path / NAME).read_bytes()[4:]
    bench.send(publish(NAME.encode(), inner) + publish(NAME.encode(), b"last"))
    bench.send(publish(NAME.encode(), b"x" * SEGMENT_SIZE))
    bench.run()
    queue.close()
    first = segment_path(tmp_path / NAME)
    if not with_meta:
        (tmp_path / NAME / "meta.0000000001").unlink()
    overwrite(first, records(tmp_path / NAME, 1)[2].position, bytes(8))
    again = make_bench(tmp_path)

    assert drain(again, opened(again)) == [b"one", b"two", b"last", b"x" * SEGMENT_SIZE]


def test_the_count_of_the_meta_file_bounds_what_is_believed(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    """The whole head of a record is gone, and its body is made of records: no more are taken for
    messages than the segment had, which is one too many, for the bad one itself is not known."""
    bench = make_bench(tmp_path)
    queue = opened(bench)
    bench.send(publish(NAME.encode(), b"one") + publish(NAME.encode(), b"two"))
    bench.run()
    inner = segment_path(tmp_path / NAME).read_bytes()[4:]
    bench.send(publish(NAME.encode(), inner) + publish(NAME.encode(), b"last"))
    bench.send(publish(NAME.encode(), b"x" * SEGMENT_SIZE))
    bench.run()
    queue.close()
    position = records(tmp_path / NAME, 1)[2].position
    overwrite(segment_path(tmp_path / NAME), position, b"\xff" * 20)
    again = make_bench(tmp_path)
    queue = opened(again)

    assert queue.ready == 5
    assert drain(again, queue) == [b"one", b"two", b"two", b"last", b"x" * SEGMENT_SIZE]


def test_acks_behind_damage_hold(damaged: Path, make_bench: MakeBench) -> None:
    number = 2
    wanted = all_bodies(damaged)
    found = records(damaged, number)
    deleted = [found[1], found[-1], found[5]]
    acks = b"".join(struct.pack("<I", record.position) for record in deleted)
    (damaged / "acks.0000000002").write_bytes(acks)
    overwrite(segment_path(damaged, number), found[3].position, bytes(8))
    for record in (*deleted, found[3]):
        wanted.remove(record.body)
    bench = make_bench(damaged.parent)
    queue = opened(bench)

    assert queue.ready == len(wanted)
    assert queue.lost == 1
    assert drain(bench, queue) == wanted


def test_a_newest_segment_damaged_in_the_middle_is_not_written_to(
    damaged: Path, make_bench: MakeBench
) -> None:
    number = segment_numbers(damaged)[-1]
    path = segment_path(damaged, number)
    victim = records(damaged, number)[2]
    wanted = all_bodies(damaged)
    wanted.remove(victim.body)
    overwrite(path, victim.position, bytes(8))
    content = path.read_bytes()
    bench = make_bench(damaged.parent)
    queue = opened(bench)
    bench.send(publish(NAME.encode(), b"new"))
    bench.run()
    queue.close()

    assert path.read_bytes() == content
    assert bodies_of(damaged, number + 1) == [b"new"]
    again = make_bench(damaged.parent)
    assert drain(again, opened(again)) == [*wanted, b"new"]


@pytest.mark.parametrize("tail", [b"\x01", b"\xff" * 300, bytes(50) + b"x" + bytes(50)])
def test_junk_at_the_end_of_the_newest_segment_is_moved_away(
    damaged: Path, make_bench: MakeBench, tail: bytes
) -> None:
    path = segment_path(damaged, segment_numbers(damaged)[-1])
    content = path.read_bytes()
    wanted = all_bodies(damaged)
    path.write_bytes(content + tail)
    bench = make_bench(damaged.parent)
    queue = opened(bench)

    end = len(content) + len(tail.rstrip(b"\0"))
    assert queue.take_damage() == [(str(path), len(content), end)]
    assert path.read_bytes() == content
    kept = path.with_name(path.name + ".damaged").read_bytes()
    assert kept == bytes(len(content)) + tail
    bench.send(publish(NAME.encode(), b"new"))
    bench.run()
    queue.close()
    again = make_bench(damaged.parent)
    second = opened(again)
    assert second.take_damage() == []
    assert drain(again, second) == [*wanted, b"new"]


def test_zeros_at_the_end_are_no_damage(damaged: Path, make_bench: MakeBench) -> None:
    """edge-cases.md 316"""
    wanted = all_bodies(damaged)
    for number in segment_numbers(damaged):
        with segment_path(damaged, number).open("ab") as file:
            file.write(bytes(5000))
    bench = make_bench(damaged.parent)
    queue = opened(bench)

    assert drain(bench, queue) == wanted
    assert queue.take_damage() == []
    assert queue.lost == 0
    assert not list(damaged.glob("*.damaged*"))


def test_a_preallocated_tail_is_not_read(damaged: Path, make_bench: MakeBench) -> None:
    """Its size is up to whoever configured the original. edge-cases.md 316"""
    wanted = all_bodies(damaged)
    path = segment_path(damaged, segment_numbers(damaged)[-1])
    size = path.stat().st_size
    os.truncate(path, 0xFFFFFFF0)
    bench = make_bench(damaged.parent)
    queue = opened(bench)

    assert queue.take_damage() == []
    bench.send(publish(NAME.encode(), b"new"))
    bench.run()
    queue.close()
    assert path.stat().st_size < size + 100
    again = make_bench(damaged.parent)
    assert drain(again, opened(again)) == [*wanted, b"new"]


def test_purging_a_damaged_queue_leaves_no_message(damaged: Path, make_bench: MakeBench) -> None:
    overwrite(segment_path(damaged, 1), records(damaged, 1)[3].position, bytes(8))
    bench = make_bench(damaged.parent)
    queue = opened(bench)

    queue.purge()
    bench.run()

    assert drain(bench, queue) == []
    assert queue.ready == 0


# --- whole files ------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\4\0", bytes(4), bytes(9), bytes(4096)])
@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_segment_that_holds_nothing_is_removed(
    damaged: Path, make_bench: MakeBench, content: bytes, number: int
) -> None:
    """edge-cases.md 320, 325"""
    wanted = [body for n in segment_numbers(damaged) if n != number
              for body in bodies_of(damaged, n)]  # fmt: skip
    path = segment_path(damaged, number)
    path.write_bytes(content)
    bench = make_bench(damaged.parent)
    queue = _core.Queue(bench.loop, str(damaged), SEGMENT_SIZE, True)

    notes = queue.load()

    assert any(note == f"{path} held nothing and was removed" for note in notes)
    assert not path.exists()
    assert drain(bench, queue) == wanted


def test_a_segment_that_only_begins_with_zeros_is_not_removed(
    damaged: Path, make_bench: MakeBench
) -> None:
    wanted = all_bodies(damaged)
    first = records(damaged, 2)
    overwrite(segment_path(damaged, 2), 0, bytes(first[1].position - 2))
    wanted.remove(first[0].body)
    bench = make_bench(damaged.parent)

    assert drain(bench, opened(bench)) == wanted


@pytest.mark.parametrize("kind", ["directory", "link", "pipe", "socket"])
@pytest.mark.parametrize("name", ["msgs.0000000002", "acks.0000000001", "meta.0000000001"])
def test_what_is_no_file_closes_the_queue_and_changes_nothing(
    damaged: Path, make_bench: MakeBench, kind: str, name: str
) -> None:
    path = damaged / name
    path.unlink(missing_ok=True)
    (damaged / "tmp.acks.0000000001").write_bytes(b"left")
    {"directory": path.mkdir, "link": lambda: path.symlink_to("nowhere"),
     "pipe": lambda: os.mkfifo(path), "socket": lambda: bind_socket(path)}[kind]()  # fmt: skip
    before = sorted(damaged.iterdir())
    bench = make_bench(damaged.parent)
    queue = _core.Queue(bench.loop, str(damaged), SEGMENT_SIZE, True)

    with pytest.raises((OSError, ValueError), match=name):
        queue.load()

    assert_closed_and_harmless(bench, queue)
    assert sorted(damaged.iterdir()) == before


def bind_socket(path: Path) -> None:
    """Make a socket in the file system; its path may be longer than an address holds."""
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


@pytest.mark.parametrize(
    ("name", "content", "size"),
    [
        ("msgs.0000000001", b"\x63\0\0\0", 0),
        ("msgs.0000000002", b"\x63\0\0\0", 0),
        ("msgs.0000000009", b"\3\0\0\0", 0),
        ("msgs.0000000009", HEADER, (4 << 30) + 1),
        ("msgs.4294967295", HEADER, 0),
        ("msgs.9999999999", HEADER, 0),
    ],
)
def test_what_is_no_segment_of_ours_closes_the_queue_and_changes_nothing(
    damaged: Path, make_bench: MakeBench, name: str, content: bytes, size: int
) -> None:
    """edge-cases.md 132, 326"""
    (damaged / name).write_bytes(content)
    if size:
        os.truncate(damaged / name, size)
    before = [(path, path.stat().st_size) for path in sorted(damaged.iterdir())]
    bench = make_bench(damaged.parent)
    queue = _core.Queue(bench.loop, str(damaged), SEGMENT_SIZE, True)

    with pytest.raises(ValueError, match=name):
        queue.load()

    assert_closed_and_harmless(bench, queue)
    assert [(path, path.stat().st_size) for path in sorted(damaged.iterdir())] == before


def assert_closed_and_harmless(bench: Bench, queue: _core.Queue) -> None:
    """Whatever a client does with a closed queue, nothing happens, and nothing is written."""
    bench.exchange.bind(NAME.encode(), b"", queue)
    assert queue.is_closed
    assert queue.ready == queue.ready_bytes == 0
    bench.send(publish(NAME.encode(), b"dropped"))
    bench.run()
    assert not bench.link.get(1, queue, True)
    assert queue.purge() == 0
    consumer = bench.link.add_consumer(1, queue, b"c", True)
    consumer.start()
    bench.run()
    assert bench.receive() == []
    consumer.cancel()
    queue.close()
    assert not bench.failures


@pytest.mark.parametrize("count", [0, 1, 3, 1000, 0xFFFFFFFF])
def test_a_wrong_count_loses_nothing(damaged: Path, make_bench: MakeBench, count: int) -> None:
    wanted = all_bodies(damaged)
    (damaged / "meta.0000000001").write_bytes(struct.pack("<I", count))
    bench = make_bench(damaged.parent)
    queue = opened(bench)

    assert drain(bench, queue) == wanted
    assert queue.ready == 0


@pytest.mark.parametrize("content", [b"", b"\1\0\0", struct.pack("<I", 7) + bytes(24), None])
def test_a_short_long_or_missing_count_loses_nothing(
    damaged: Path, make_bench: MakeBench, content: bytes | None
) -> None:
    """edge-cases.md 332"""
    wanted = all_bodies(damaged)
    path = damaged / "meta.0000000001"
    path.unlink() if content is None else path.write_bytes(content)
    bench = make_bench(damaged.parent)

    assert drain(bench, opened(bench)) == wanted


def test_deleted_positions_behind_the_data_do_not_delete_later_messages(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    """A loss of power can keep acks of messages that it took: others come to stand there.
    edge-cases.md 324
    """
    bench = make_bench(tmp_path)
    queue = opened(bench)
    bench.send(publish(NAME.encode(), b"01") * 3)
    bench.run()
    queue.close()
    path = tmp_path / NAME / "acks.0000000001"
    first, second, third = (record.position for record in records(tmp_path / NAME, 1))
    step = third - second
    path.write_bytes(struct.pack("<5I", third + step, 7, third + 2 * step, first, first))
    again = make_bench(tmp_path)
    queue = _core.Queue(again.loop, str(tmp_path / NAME), SEGMENT_SIZE, True)
    assert queue.load() == [f"{path}: 4 of 5 positions belong to no message and were dropped"]
    again.exchange.bind(NAME.encode(), b"", queue)
    again.send(publish(NAME.encode(), b"34") * 2)
    again.run()
    queue.close()
    assert read_acks(path) == [first]
    last = make_bench(tmp_path)

    assert drain(last, opened(last)) == [b"01", b"01", b"34", b"34"]


def test_leftovers_go_and_strangers_stay(damaged: Path, make_bench: MakeBench) -> None:
    """edge-cases.md 323"""
    wanted = all_bodies(damaged)
    leftovers = ["acks.0000000077", "meta.0000000077", "tmp.acks.0000000001"]
    strangers = ["msgs.1", "msgs.00000000001", "msgs.0000000001.damaged", "acks.x", "enq", "paused",
                 "msgs.\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661"]  # fmt: skip
    for name in [*leftovers, *strangers]:
        (damaged / name).write_bytes(b"1234")
    (damaged / "tmp.acks.0000000002").mkdir()
    bench = make_bench(damaged.parent)
    queue = _core.Queue(bench.loop, str(damaged), SEGMENT_SIZE, True)

    notes = queue.load()

    assert len(notes) == len(leftovers)
    assert drain(bench, queue) == wanted
    there = {path.name for path in damaged.iterdir()}
    assert there >= {*strangers, "tmp.acks.0000000002"}
    assert not there & set(leftovers)


def test_a_missing_segment_costs_itself_only(damaged: Path, make_bench: MakeBench) -> None:
    numbers = segment_numbers(damaged)
    wanted = [body for n in numbers if n != 2 for body in bodies_of(damaged, n)]
    segment_path(damaged, 2).unlink()
    bench = make_bench(damaged.parent)

    assert drain(bench, opened(bench)) == wanted


# --- random damage ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_every_record_outside_the_damaged_bytes_is_delivered(
    intact: Path, tmp_path: Path, make_bench: MakeBench, seed: int
) -> None:
    random_ = random.Random(seed)
    for round_ in range(6):
        directory = tmp_path / f"{round_}" / NAME
        shutil.copytree(intact, directory)
        number = random_.choice(segment_numbers(directory))
        path = segment_path(directory, number)
        size = path.stat().st_size
        start = random_.randrange(4, size)
        end = min(size, start + random_.choice((1, 4, 20, 300)))
        known = {record.position: record for record in records(directory, number)}
        wanted = all_bodies(directory)
        zeros = random_.random() < 0.4
        junk = bytes(end - start) if zeros else random_.randbytes(end - start)
        overwrite(path, start, junk)
        # A bad length may still make a record, of the wrong size: what it covers is lost too.
        end = max(end, readable_end(path)) if readable_end(path) < size else end
        for record in known.values():
            if record.position < end and start < record.position + len(record.raw):
                wanted.remove(record.body)
        if random_.random() < 0.3:
            (directory / f"meta.{number:010}").unlink(missing_ok=True)
        check_round(make_bench, directory, wanted)


def check_round(make_bench: MakeBench, directory: Path, wanted: list[bytes]) -> None:
    """Start, take half, restart, take the rest: all wanted are there, in order, once."""
    bench = make_bench(directory.parent)
    queue = opened(bench)
    bodies = []
    for _ in range(len(wanted) // 2):
        assert bench.link.get(1, queue, False)
        bench.link.flush()
        (got,) = bench.receive()
        bodies.append(got.body)
        bench.send(settle(80, got.tag, 0))
    bench.run()
    bench.link.close_channel(1, False)
    queue.close()

    again = make_bench(directory.parent)
    queue = opened(again)
    bodies += drain(again, queue)
    assert [body for body in bodies if body in set(wanted)] == wanted, directory
    assert len(bodies) <= len(wanted) + 12  # bad ones that still look like messages
    assert queue.ready == 0
    again.send(publish(NAME.encode(), b"after the damage"))
    assert drain(again, queue) == [b"after the damage"]
    again.run()
    assert not again.failures
    assert not bench.failures


# --- deadlines and damage ---------------------------------------------------------------------


@pytest.mark.parametrize("where", ["first", "all"])
@pytest.mark.parametrize("max_priority", [-1, 2])
def test_junk_at_the_head_does_not_keep_others_from_expiring(
    tmp_path: Path, where: str, max_priority: int
) -> None:
    """Nobody takes from the queue: the messages behind the damage died only when somebody did."""
    with closing(Bench(tmp_path / "data", TimedEvents())) as bench:
        queue = bench.queue("q", SEGMENT_SIZE, max_priority=max_priority)
        for number in range(MESSAGES):
            bench.send(publish(b"q", b"%0100d" % number))
        bench.run()
        queue.close()
    directory = tmp_path / "data" / "q"
    if max_priority >= 0:
        directory /= "prio.000"
    for number in segment_numbers(directory)[: 1 if where == "first" else -1]:
        overwrite(segment_path(directory, number), 4, b"\xff" * 200)

    with closing(Bench(tmp_path / "data", TimedEvents())) as bench:
        queue = bench.queue("q", SEGMENT_SIZE, max_priority=max_priority, ttl_ms=1000)
        bench.run()
        assert queue.ready > MESSAGES - 30
        bench.advance(2000)

        assert queue.ready == queue.ready_bytes == 0
        assert queue.lost > 0


def test_a_head_that_cannot_be_read_for_now_is_looked_at_again(tmp_path: Path) -> None:
    """The file has another name for a while, as if there were no descriptors."""
    with closing(Bench(tmp_path / "data", TimedEvents())) as bench:
        queue = bench.queue("q", SEGMENT_SIZE)
        for number in range(MESSAGES):
            bench.send(publish(b"q", b"%0100d" % number))
        bench.run()
        queue.close()
    path = segment_path(tmp_path / "data" / "q", 1)

    with closing(Bench(tmp_path / "data", TimedEvents())) as bench:
        queue = bench.queue("q", SEGMENT_SIZE, ttl_ms=1000)
        path.rename(path.with_suffix(".away"))
        bench.advance(2000)
        assert queue.ready == MESSAGES
        assert queue.read_error == errno.ENOENT
        path.with_suffix(".away").rename(path)
        bench.advance(1000)

        assert queue.ready == 0


@pytest.mark.parametrize("levels", [{}, {"max_priority": 3}])
def test_bytes_that_are_no_message_are_not_counted_once_all_are_taken(
    tmp_path: Path, levels: dict[str, int]
) -> None:
    """What a finished segment has behind its messages, as a loss of power may leave it."""
    with closing(Bench(tmp_path)) as bench:
        queue = bench.queue("q", 4096, **levels)
        for _ in range(30):
            bench.send(publish(b"q", b"x" * 500))
        bench.run()
        queue.close()
    *_, finished, last = sorted(tmp_path.rglob("msgs.*"))
    finished.write_bytes(finished.read_bytes() + bytes(1443))
    last.write_bytes(HEADER)

    with closing(Bench(tmp_path)) as bench:
        queue = bench.queue("q", 4096, **levels)
        while bench.get(queue):
            pass

        assert (queue.ready, queue.ready_bytes) == (0, 0)
        queue.close()
