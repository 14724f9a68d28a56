"""Files of a stream: stored offsets, meta files and markers, as written and in any state."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.streams import ACK, NAME, StreamBench, stored_offsets

MakeStream = Callable[..., StreamBench]
MOST = 64 << 20
ENTRY_MAX = 264


@pytest.fixture
def make_stream(tmp_path: Path) -> Iterator[MakeStream]:
    """Call it with a segment size; what it makes is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda size=4096: stack.enter_context(closing(StreamBench(tmp_path / "data", size)))


def fill(bench: StreamBench, n: int, size: int = 1000) -> None:
    for _ in range(n):
        bench.publish(struct.pack(">Q", bench.core.next_offset) + bytes(size))
    bench.run()


def offsets_file(bench: StreamBench) -> Path:
    return bench.directory / NAME / "consumer_offsets"


def entry(tag: bytes, offset: int) -> bytes:
    return bytes([len(tag)]) + tag + struct.pack("<q", offset)


def parse(data: bytes) -> list[tuple[bytes, int]]:
    """Entries as the format says, up to a zero or to one that is not whole."""
    found, at = [], 0
    while at < len(data) and data[at] and at + 9 + data[at] <= len(data):
        tag = data[at + 1 : at + 1 + data[at]]
        at += 9 + len(tag)
        found.append((tag, struct.unpack_from("<q", data, at - 8)[0]))
    return found


def replace(bench: StreamBench, data: bytes) -> None:
    """Reopen with other bytes in the file of offsets."""
    bench.shut()
    offsets_file(bench).write_bytes(data)
    bench.open()


def read_all(bench: StreamBench) -> list[tuple[int, bytes]]:
    channel = bench.consume({"x-stream-offset": "first"}, tag="all", prefetch=10_000)
    found = [(d.offset, d.body) for d in bench.deliveries()]
    bench.cancel(channel)
    bench.link.close_channel(channel, False)
    return found


# --- stored offsets -------------------------------------------------------------------------------


def temporary_file(bench: StreamBench) -> Path:
    return bench.directory / NAME / "consumer_offsets.tmp"


def rewrite(bench: StreamBench) -> None:
    """What a thread and the loop do when the file is due."""
    text = bench.core.begin_offsets()
    temporary_file(bench).write_bytes(text)
    bench.core.end_offsets(len(text))


def test_one_entry_is_written_for_each_tick_and_tag(make_stream: MakeStream) -> None:
    """edge-cases.md 262, 263: the newest entry of a tag counts; reopening keeps only that."""
    bench = make_stream()
    fill(bench, 20, 10)
    one, two = bench.consume(tag="one"), bench.consume(tag="two")
    bench.deliveries()

    for tag in (1, 2, 3):
        bench.settle(one, tag)
        bench.settle(two, tag)
        bench.settle(two, 3 + tag)
        bench.run()

    assert parse(offsets_file(bench).read_bytes())[-2:] in (
        [(b"one", 4), (b"two", 7)], [(b"two", 7), (b"one", 4)]
    )  # fmt: skip
    assert len(parse(offsets_file(bench).read_bytes())) == 6
    bench.reopen(crash=True)
    assert stored_offsets(bench.core) == {b"one": 4, b"two": 7}
    assert sorted(parse(offsets_file(bench).read_bytes())) == [(b"one", 4), (b"two", 7)]


def test_a_full_file_is_rewritten_with_the_entry_that_filled_it(make_stream: MakeStream) -> None:
    """edge-cases.md 264."""
    bench = make_stream(1 << 20)
    fill(bench, 1500, 0)
    replace(bench, entry(b"a", 1))
    other, channel = (bench.consume(tag=tag, prefetch=2000) for tag in ("other", "tag"))
    bench.deliveries()
    bench.settle(other, 5, ACK, True)
    bench.run()
    sizes = []

    for tag in range(1, 1001):
        bench.settle(channel, tag)
        bench.run()
        if bench.core.is_offsets_due:
            rewrite(bench)
        sizes.append(offsets_file(bench).stat().st_size)

    assert max(sizes) < 15_000
    assert sizes.count(sizes[0]) < 20
    rewritten = next(n for n, size in enumerate(sizes) if n and size < sizes[n - 1])
    assert sizes[rewritten] == len(entry(b"a", 1) + entry(b"other", 6) + entry(b"tag", 1))
    assert stored_offsets(bench.core) == {b"a": 1, b"other": 6, b"tag": 1001}


def test_more_tags_than_fit_into_a_segment(make_stream: MakeStream) -> None:
    """edge-cases.md 265."""
    bench = make_stream(4096)
    fill(bench, 2, 10)
    wanted = {}
    for number in range(60):
        tag = f"{number}" * 60
        wanted[tag.encode()] = 2
        channel = bench.consume(tag=tag, prefetch=2)
        bench.deliveries()
        bench.settle(channel, 1)
        bench.run()

    bench.reopen(crash=True)

    assert stored_offsets(bench.core) == wanted
    assert offsets_file(bench).stat().st_size > 4096


def test_offsets_of_messages_that_are_gone_are_dropped(make_stream: MakeStream) -> None:
    """edge-cases.md 266: at start, and when retention removes segments."""
    bench = make_stream()
    fill(bench, 12)
    replace(bench, entry(b"low", 2) + entry(b"high", 12) + entry(b"zero", 0) + entry(b"neg", -5))
    assert stored_offsets(bench.core) == {b"low": 2, b"high": 12}

    bench.core.set_stream_limits(max_length=4)

    assert stored_offsets(bench.core) == {b"high": 12}
    assert bench.core.is_offsets_due
    rewrite(bench)
    assert not bench.core.is_offsets_due
    assert parse(offsets_file(bench).read_bytes()) == [(b"high", 12)]
    replace(bench, entry(b"low", 2) + entry(b"high", 12))
    assert stored_offsets(bench.core) == {b"high": 12}


@pytest.mark.parametrize("is_purged", [False, True])
def test_very_many_offsets_are_dropped_some_at_a_time(
    make_stream: MakeStream, is_purged: bool
) -> None:
    """Whoever stores one while they are gone through, or forgets the next one, changes nothing."""
    bench = make_stream()
    fill(bench, 12)
    low = [b"low%d" % number for number in range(200)]
    replace(bench, b"".join(entry(tag, 2) for tag in low) + entry(b"high", 12))
    bench.loop.portion_units = 1

    if is_purged:
        next(_core.Purge(bench.core, portion_ns=1 << 40))
    else:
        bench.core.set_stream_limits(max_length=4)

    left = list(stored_offsets(bench.core))
    assert len(left) == 137
    assert bench.core.store_offset(left[0], 12)
    bench.core.store_offset(left[1], 0)
    bench.run()
    assert stored_offsets(bench.core) == {left[0]: 12, b"high": 12}
    bench.loop.portion_units = 0
    rewrite(bench)
    assert parse(offsets_file(bench).read_bytes()) == [(b"high", 12), (left[0], 12)]


def test_what_is_stored_while_the_file_is_copied_comes_behind_the_copy(
    make_stream: MakeStream,
) -> None:
    bench = make_stream()
    fill(bench, 20)
    replace(bench, entry(b"gone", 3) + entry(b"one", 5))
    bench.core.store_offset(b"gone", 0)
    channel = bench.consume(tag="two")
    bench.deliveries()

    text = bench.core.begin_offsets()
    assert not bench.core.is_offsets_due
    with pytest.raises(ValueError):
        bench.core.begin_offsets()
    for tag in (1, 2):
        bench.settle(channel, tag)
        bench.run()
    bench.core.store_offset(b"late", 9)
    bench.run()
    bench.core.store_offset(b"one", 0)
    temporary_file(bench).write_bytes(text)
    bench.core.end_offsets(len(text))

    assert parse(text) == [(b"one", 5)]
    assert parse(offsets_file(bench).read_bytes()) == [
        (b"one", 5), (b"two", 2), (b"two", 3), (b"late", 9)
    ]  # fmt: skip
    assert bench.core.is_offsets_due  # "one" was forgotten since
    rewrite(bench)
    bench.settle(channel, 3)
    bench.run()
    bench.reopen(crash=True)
    assert stored_offsets(bench.core) == {b"two": 4, b"late": 9}


def test_a_copy_that_could_not_be_written_is_made_again(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 20)
    replace(bench, entry(b"gone", 3) + entry(b"one", 5))
    bench.core.store_offset(b"gone", 0)

    bench.core.begin_offsets()
    bench.core.end_offsets(-1)
    assert bench.core.is_offsets_due
    text = bench.core.begin_offsets()
    with pytest.raises(OSError, match="consumer_offsets"):
        bench.core.end_offsets(len(text))

    assert parse(offsets_file(bench).read_bytes()) == [(b"gone", 3), (b"one", 5)]
    rewrite(bench)
    assert parse(offsets_file(bench).read_bytes()) == [(b"one", 5)]
    bench.core.store_offset(b"one", 0)
    rewrite(bench)
    assert offsets_file(bench).read_bytes() == b""
    bench.core.end_offsets(5)
    assert stored_offsets(bench.core) == {}


def test_a_file_that_has_no_room_left_is_not_written_by_two_at_once(
    make_stream: MakeStream,
) -> None:
    """The thread went on to write into what had taken the place of the file meanwhile."""
    bench = make_stream()
    fill(bench, 20)
    bench.core.store_offset(b"gone", 3)
    tags = [b"%0255d" % number for number in range(16384)]
    for tag in tags:
        bench.core.store_offset(tag, 1)
    bench.run()
    bench.core.store_offset(b"gone", 0)
    text = bench.core.begin_offsets()

    with temporary_file(bench).open("wb") as thread:
        thread.write(text[:5])
        thread.flush()
        n, size = 1, 0
        while offsets_file(bench).stat().st_size > size:
            size = offsets_file(bench).stat().st_size
            n += 1
            for tag in tags:
                bench.core.store_offset(tag, n)
            bench.run()
        thread.write(text[5:])
    bench.core.end_offsets(len(text))

    assert size > 2 * MOST
    found = parse(offsets_file(bench).read_bytes())
    assert len(found) == len(tags) and {offset for _, offset in found} == {n}


def test_an_offset_behind_the_end_becomes_the_end(make_stream: MakeStream) -> None:
    """A loss of power has taken messages that were delivered: those to come have to be read."""
    bench = make_stream()
    fill(bench, 3)

    replace(bench, entry(b"far", 1000))

    assert stored_offsets(bench.core) == {b"far": 4}
    fill(bench, 1)
    bench.consume(tag="far")
    assert [delivery.offset for delivery in bench.deliveries()] == [4]


def test_too_many_tags_drop_those_committed_longest_ago(make_stream: MakeStream) -> None:
    """edge-cases.md 267, 268: a file of more than 64 MiB becomes less than that."""
    bench = make_stream(1 << 20)
    fill(bench, 3, 10)
    n = MOST // ENTRY_MAX + 500
    tags = [b"%0255d" % number for number in range(n)]

    replace(bench, b"".join(entry(tag, 1 + n_ % 3) for n_, tag in enumerate(tags)) + b"\0")

    size = offsets_file(bench).stat().st_size
    assert MOST - 2 * ENTRY_MAX - 1 <= size < MOST - ENTRY_MAX
    stored = stored_offsets(bench.core)
    assert list(stored) == tags[n - size // ENTRY_MAX :]


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_in_the_file_of_offsets_can_be_loaded(make_stream: MakeStream, seed: int) -> None:
    random_ = random.Random(seed)
    bench = make_stream()
    fill(bench, 40)
    good = b"".join(entry(b"tag%d" % n, 1 + n) for n in range(30))
    for _ in range(60):
        data = bytearray(good)
        for _ in range(random_.randrange(4)):
            at = random_.randrange(len(data))
            data[at : at + random_.randrange(9)] = random_.randbytes(random_.randrange(9))
        del data[random_.randrange(len(data) + 1) :]
        data += bytes(random_.choice((0, 0, 1, 5000)))

        replace(bench, bytes(data))

        newest = dict(parse(bytes(data)))
        assert stored_offsets(bench.core) == {
            tag: min(offset, 41) for tag, offset in newest.items() if offset >= 1
        }
        assert not bench.core.is_closed
    assert len(read_all(bench)) == 40


# --- meta files and markers -----------------------------------------------------------------------


def meta(bench: StreamBench, number: int) -> Path:
    return bench.directory / NAME / f"meta.{number:010}"


def test_meta_files_have_28_bytes(make_stream: MakeStream) -> None:
    """edge-cases.md 333"""
    bench = make_stream()
    fill(bench, 9)

    found = bench.core.segments()
    for number, count, _, first, first_ms, last_ms in found[:-1]:
        facts = struct.pack("<Iqqq", count, first, first_ms, last_ms)
        assert meta(bench, number).read_bytes() == facts
    assert not meta(bench, found[-1][0]).exists()


@pytest.mark.parametrize("damage", ["missing", "20 bytes", "short", "zeros", "wild"])
def test_damaged_meta_files_are_written_again(make_stream: MakeStream, damage: str) -> None:
    bench = make_stream()
    fill(bench, 12)
    before, messages = bench.core.segments(), read_all(bench)
    whole = [meta(bench, s[0]).read_bytes() for s in before[:-1]]
    bench.shut()
    for segment in before[:-1]:
        path = meta(bench, segment[0])
        data = path.read_bytes()
        path.unlink()
        if damage != "missing":
            path.write_bytes({"20 bytes": data[:20], "short": data[:3], "zeros": bytes(28),
                              "wild": b"\xff" * 28}[damage])  # fmt: skip

    bench.open()

    assert bench.core.segments() == before
    assert read_all(bench) == messages
    assert [meta(bench, s[0]).read_bytes() for s in before[:-1]] == whole


def test_a_missing_segment_does_not_shift_the_others(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 15)
    messages = read_all(bench)
    bench.shut()
    (bench.directory / NAME / "msgs.0000000002").unlink()

    bench.open()

    assert read_all(bench) == [m for m in messages if not 4 <= m[0] <= 6]
    assert (bench.core.first_offset, bench.core.next_offset) == (1, 16)


def test_a_stream_that_ends_in_an_empty_segment_goes_on_there(make_stream: MakeStream) -> None:
    """edge-cases.md 275."""
    bench = make_stream()
    fill(bench, 6)
    bench.shut()
    (bench.directory / NAME / "msgs.0000000003").write_bytes(b"\x04\0\0\0")

    bench.open()
    fill(bench, 1)

    assert bench.core.segments()[-1][:2] == (3, 1)
    assert [offset for offset, _ in read_all(bench)] == list(range(1, 8))


def test_a_segment_that_is_lost_with_what_follows_takes_its_offsets_along(
    make_stream: MakeStream,
) -> None:
    """amqp.md 22.38: a loss of power may take the newest segment and the end of the one before."""
    bench = make_stream()
    fill(bench, 7)
    bench.shut()
    (bench.directory / NAME / "msgs.0000000003").unlink()
    path = bench.directory / NAME / "msgs.0000000002"
    path.write_bytes(path.read_bytes()[:-10])
    meta(bench, 2).unlink()

    bench.open()

    assert "offsets 6 to 6 are lost" in bench.notes[-1]
    fill(bench, 1)
    for _ in range(2):
        assert [offset for offset, _ in read_all(bench)] == [1, 2, 3, 4, 5, 7]
        bench.reopen(crash=True)


def test_a_segment_that_is_the_newest_again_is_counted_anew(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 10)
    bench.core.purge()
    fill(bench, 3)
    first, last = bench.core.segments()[0], bench.core.segments()[-1]
    bench.shut()
    (bench.directory / NAME / f"msgs.{last[0]:010}").unlink()
    for path in (bench.directory / NAME).glob("first.*"):
        path.unlink()

    bench.open()
    fill(bench, 1, 10)
    bench.reopen(crash=True)

    assert not meta(bench, first[0]).exists()
    assert bench.core.first_offset == first[3]
    assert [offset for offset, _ in read_all(bench)] == list(range(first[3], last[3] + 1))


def test_junk_in_the_middle_loses_only_what_it_covers(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 16)
    fill(bench, 100)
    messages = read_all(bench)
    bench.shut()
    path = bench.directory / NAME / "msgs.0000000001"
    data = bytearray(path.read_bytes())
    at = data.index(messages[10][1]) - 20
    data[at : at + 40] = b"\xff" * 40
    path.write_bytes(data)

    bench.open()
    found = read_all(bench)

    assert [m for m in messages if m not in found] == [messages[10]]
    assert found == [m for m in messages if m != messages[10]]
    fill(bench, 1)
    assert read_all(bench)[:-1] == found
    assert bench.core.take_damage()


@pytest.mark.parametrize("seed", range(6))
def test_any_damage_to_files_leaves_a_stream_that_works(
    make_stream: MakeStream, tmp_path: Path, seed: int
) -> None:
    """What is found is in order and as it was written; what comes next is found, too."""
    random_ = random.Random(seed)
    bench = make_stream()
    fill(bench, 40, 300)
    messages = dict(read_all(bench))
    bench.core.purge() if seed % 2 else None
    fill(bench, 40, 300)
    messages |= dict(read_all(bench))
    bench.shut()
    good = tmp_path / "good"
    shutil.copytree(bench.directory / NAME, good)
    for _ in range(12):
        shutil.rmtree(bench.directory / NAME)
        shutil.copytree(good, bench.directory / NAME)
        for _ in range(random_.randrange(1, 3)):
            scramble(random_, random_.choice(sorted((bench.directory / NAME).iterdir())))
        bench.open()
        before = bench.core.next_offset
        found = read_all(bench)
        numbers = [offset for offset, _ in found]
        assert numbers == sorted(set(numbers))
        bodies = [body for _, body in found if body in messages.values()]
        assert bodies == sorted(bodies)
        assert all(messages[n] == body for n, body in found if body == messages.get(n))
        fill(bench, 1, 5)
        assert [offset for offset, _ in read_all(bench)][-1:] == [before]
        bench.shut()
    bench.open()


def scramble(random_: random.Random, path: Path) -> None:
    """Cut, zero, change or delete a part of a file, or all of it."""
    data = bytearray(path.read_bytes())
    at = random_.randrange(len(data) + 1)
    kind = random_.randrange(4)
    if kind == 0:
        del data[at:]
    elif kind == 1:
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif kind == 2:
        data[at : at + 16] = random_.randbytes(len(data[at : at + 16]))
    else:
        path.unlink()
        return
    path.write_bytes(data)
