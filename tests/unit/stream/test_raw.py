"""The records of a stream in bulk: whole, in order, byte by byte those of the segment files."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.damage import flip
from tests.support.raw_blocks import Block, blocks, joined
from tests.support.segments import read_segment, segment_numbers, segment_path
from tests.support.streams import NAME, StreamBench
from tests.support.sums import BLOCK as SUM_BLOCK
from tests.support.sums import know_all

MakeStream = Callable[..., StreamBench]
BLOCK = 256 << 10
STEPS = 10_000


@pytest.fixture
def make_stream(tmp_path: Path) -> Iterator[MakeStream]:
    """Call it with a segment size; what it makes is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda size=4096: stack.enter_context(closing(StreamBench(tmp_path / "data", size)))


def fill(bench: StreamBench, n: int, seed: int = 1, most: int = 300) -> None:
    random_ = random.Random(seed)
    for _ in range(n):
        bench.publish(random_.randbytes(random_.randrange(most)))
    bench.run()


def answer(core: _core.Queue, offset: int, end: int) -> bytes:
    """What the HTTP API would send."""
    parts = []
    for _ in range(STEPS):
        if offset >= end:
            return b"".join(parts) + _core.raw_end(offset)
        block, offset, segment, position, rest = _core.raw_records(core, offset, end)
        parts.append(block)
        while rest:
            part = _core.raw_rest(core, segment, position, rest)
            assert part and len(part) <= BLOCK
            parts.append(part)
            position, rest = position + len(part), rest - len(part)
    raise AssertionError("it does not end")


def stored(bench: StreamBench) -> list[bytes]:
    """The records of all segment files."""
    directory = bench.directory / NAME
    return [
        record.raw
        for number in segment_numbers(directory)
        for record in read_segment(segment_path(directory, number))
    ]


def record(at_ms: int, body: bytes, headers: bytes = b"") -> bytes:
    flags = struct.pack("<HI", 0x2000, len(headers)) + headers if headers else bytes(2)
    return struct.pack("<qBB1s", at_ms, 0, 1, b"s") + flags + struct.pack("<Q", len(body)) + body


def write_segments(bench: StreamBench, *segments: bytes) -> None:
    """Replace the stream by one of these segments."""
    bench.shut()
    directory = bench.directory / NAME
    directory.mkdir(exist_ok=True)
    for number, data in enumerate(segments, 1):
        (directory / f"msgs.{number:010}").write_bytes(b"\x04\0\0\0" + data)
    bench.open()


# --- what is there --------------------------------------------------------------------------------


@pytest.mark.parametrize("segment_size", [4096, 1 << 22])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_any_range_is_what_the_files_hold(
    make_stream: MakeStream, segment_size: int, is_reopened: bool
) -> None:
    bench = make_stream(segment_size)
    fill(bench, 4000)
    records = stored(bench)
    assert len(records) == 4000
    if is_reopened:
        bench.reopen()  # without the marks that writing has left
    random_ = random.Random(2)
    ranges = [sorted(random_.sample(range(1, 4002), 2)) for _ in range(30)]

    for offset, end in [[1, 4001], [4000, 4001], *ranges]:
        assert joined(answer(bench.core, offset, end)) == (
            b"".join(records[offset - 1 : end - 1]), offset, end,
        )  # fmt: skip


def test_blocks_are_whole_records_of_a_segment(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 20)
    fill(bench, 9000, most=600)

    found, end = blocks(answer(bench.core, 1, 9001))

    segments = bench.core.segments()
    assert end == 9001
    assert all(len(block.records) <= BLOCK for block in found)
    assert {first for _, _, _, first, _, _ in segments} <= {block.offset for block in found}
    assert sum(block.count for block in found) == 9000


def test_messages_that_are_still_in_memory_are_there(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 22)
    fill(bench, 100)
    for number in range(50):
        bench.publish(b"new %d" % number)  # no tick writes them

    found, _, end = joined(answer(bench.core, 99, bench.core.next_offset))

    bench.run()
    assert end == 151
    assert found == b"".join(stored(bench)[98:])


def test_nothing_is_an_end(make_stream: MakeStream) -> None:
    bench = make_stream()
    assert answer(bench.core, 1, 1) == struct.pack("<qII", 1, 0, 0)
    fill(bench, 3)
    assert answer(bench.core, 4, 4) == struct.pack("<qII", 4, 0, 0)
    assert answer(bench.core, 3, 2) == struct.pack("<qII", 3, 0, 0)


def test_what_retention_has_taken_is_left_out(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 300)
    records = stored(bench)
    first = bench.core.segments()[3][3]
    bench.core.set_stream_limits(max_length=300 - first + 2)
    assert bench.core.first_offset == first

    assert joined(answer(bench.core, 1, 301)) == (b"".join(records[first - 1 :]), first, 301)


# --- large records --------------------------------------------------------------------------------


def test_a_large_record_comes_in_pieces(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 20)
    bodies = [b"small", random.Random(3).randbytes(3 << 20), b"", bytes(BLOCK), b"last"]
    for body in bodies:
        bench.publish(body)
    bench.run()
    records = stored(bench)

    assert joined(answer(bench.core, 1, 6)) == (b"".join(records), 1, 6)
    block, following, _, _, rest = _core.raw_records(bench.core, 2, 6)
    assert (following, len(block), len(block) + rest) == (3, BLOCK + 16, len(records[1]) + 16)


def test_a_large_record_in_memory_comes_in_pieces(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 24)
    bench.publish(b"x")
    bench.run()
    bench.publish(random.Random(3).randbytes(1 << 20))

    found = joined(answer(bench.core, 1, 3))

    bench.run()
    assert found == (b"".join(stored(bench)), 1, 3)


def test_properties_may_be_longer_than_a_block(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 24)
    headers = b"\x01aS" + struct.pack(">I", 2 * BLOCK) + bytes(2 * BLOCK)
    records = [record(1_700_000_000_000, body, headers) for body in (b"1", bytes(BLOCK))]
    write_segments(bench, b"".join(records))

    assert joined(answer(bench.core, 1, 3)) == (b"".join(records), 1, 3)


def test_the_rest_of_a_record_that_is_gone_is_none(make_stream: MakeStream) -> None:
    bench = make_stream()
    bench.publish(bytes(1 << 20))
    bench.publish(b"in a segment of its own")
    bench.run()
    _, _, segment, position, rest = _core.raw_records(bench.core, 1, 3)

    assert _core.raw_rest(bench.core, segment, position + rest, 1) is None
    bench.core.purge()

    assert _core.raw_rest(bench.core, segment, position, rest) is None
    assert _core.raw_rest(bench.core, 999, 4, 1) is None


# --- damage ---------------------------------------------------------------------------------------


def test_behind_damage_offsets_are_those_of_before(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 20)
    t = 1_700_000_000_000
    parts = [record(t + n, b"%03d" % n * 20) for n in range(100)]
    write_segments(bench, b"".join(parts), b"".join(parts))
    bench.shut()
    path = segment_path(bench.directory / NAME, 1)
    data = bytearray(path.read_bytes())
    size = len(parts[0])
    data[4 + 40 * size : 4 + 43 * size] = b"\xff" * 3 * size
    path.write_bytes(data)
    bench.open()

    found, end = blocks(answer(bench.core, 1, 201))

    assert end == 201
    assert found == [
        Block(1, 40, b"".join(parts[:40])),
        Block(44, 57, b"".join(parts[43:])),
        Block(101, 100, b"".join(parts)),
    ]
    assert blocks(answer(bench.core, 42, 46)) == ([Block(44, 2, b"".join(parts[43:45]))], 46)
    assert blocks(answer(bench.core, 41, 43)) == ([], 43)


@pytest.mark.parametrize("seed", range(6))
def test_damage_of_any_kind_ends_nothing_and_hides_nothing(
    make_stream: MakeStream, seed: int
) -> None:
    """What a consumer gets is what the bulk reader gets, with the same offsets."""
    bench = make_stream(1 << 16)
    random_ = random.Random(seed)
    fill(bench, 900, seed)
    for _ in range(8):
        bench.shut()
        number = random_.choice(segment_numbers(bench.directory / NAME))
        path = segment_path(bench.directory / NAME, number)
        data = bytearray(path.read_bytes())
        at = random_.randrange(4, len(data))
        data[at : at + random_.randrange(1, 60)] = random_.randbytes(random_.randrange(1, 60))
        path.write_bytes(data)
        bench.open()

        found, end = blocks(answer(bench.core, 1, bench.core.next_offset))

        assert end >= bench.core.next_offset
        at = 1
        for block in found:
            assert block.offset >= at
            at = block.offset + block.count
        channel = bench.consume({"x-stream-offset": "first"}, prefetch=10_000)
        offsets = [delivery.offset for delivery in bench.deliveries()]
        bench.cancel(channel)
        bench.link.close_channel(channel, False)
        assert offsets == [b.offset + n for b in found for n in range(b.count)]


# --- finding a place, in turns --------------------------------------------------------------------


def test_a_place_behind_any_number_of_large_or_tiny_messages_is_found(
    make_stream: MakeStream,
) -> None:
    """Who reads in turns, and is forgotten between them, gets on all the same."""
    bench = make_stream(1 << 25)
    t = 1_700_000_000_000
    tiny = struct.pack("<qBBHQ", t, 0, 0, 0, 0)
    large = record(t + 1, bytes(3 * BLOCK))
    records = [*[tiny] * 20_000, *[large] * 5, *[tiny] * 20_000, record(t + 2, b"last")]
    write_segments(bench, b"".join(records))
    random_ = random.Random(4)

    for offset in [len(records), 20_004, *random_.sample(range(1, len(records)), 20)]:
        found, first, _ = joined(answer(bench.core, offset, offset + 1))
        assert (found, first) == (records[offset - 1], offset)
        bench.reopen()  # without marks

        rows: list[object] = []
        at = offset
        for _ in range(STEPS):
            rows, at, _ = _core.read_stream(bench.core, at, 1, 1 << 30, 10)
            if rows:
                break
        assert [row[0] for row in rows] == [offset]  # type: ignore[index]
        bench.reopen()

    for at_ms, wanted in ((t + 1, 20_001), (t + 2, len(records)), (t + 3, len(records) + 1)):
        place, is_over = bench.core.offset_at(at_ms)
        for _ in range(STEPS):
            if is_over:
                break
            place, is_over = bench.core.offset_at(at_ms, place)
        assert (place, is_over) == (wanted, True)
        bench.reopen()


def test_a_time_is_found_among_many_segments(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 16)
    t = 1_700_000_000_000
    segments = [[t + 100 * n + k for k in range(50)] for n in range(40)]
    write_segments(bench, *(b"".join(record(at, b"x") for at in each) for each in segments))
    flat = [at for each in segments for at in each]

    for at_ms in [0, t, t + 1, *range(t - 7, t + 4100, 37)]:
        wanted = next((n for n, at in enumerate(flat, 1) if at >= at_ms), len(flat) + 1)
        assert bench.core.offset_at(at_ms) == (wanted, True)
    assert bench.core.span == (40, t, t + 3949)


@pytest.mark.parametrize("seed", range(4))
def test_records_in_blocks_that_a_disk_has_changed_are_left_out(
    make_stream: MakeStream, seed: int
) -> None:
    """Those behind them keep their offsets."""
    bench = make_stream(500_000)
    chance = random.Random(seed)
    fill(bench, 300, most=7000)
    know_all(bench)
    directory = bench.directory / NAME
    number = chance.choice(segment_numbers(directory)[:-1])
    path = segment_path(directory, number)
    at = chance.randrange(4, path.stat().st_size)
    wanted, offset = {}, 0
    for each in segment_numbers(directory):
        for record in read_segment(segment_path(directory, each)):
            offset += 1
            end = record.position + len(record.raw)
            block = at // SUM_BLOCK * SUM_BLOCK
            if each != number or end <= block or block + SUM_BLOCK <= record.position:
                wanted[offset] = record.raw
    flip(path, at, keeps_time=True)

    found, end = blocks(answer(bench.core, 1, 301))

    assert end == 301
    assert b"".join(each.records for each in found) == b"".join(wanted.values())
    assert sum(each.count for each in found) == len(wanted)
    assert all(each.offset in wanted for each in found)
