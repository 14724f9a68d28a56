"""What is kept of a damaged segment are whole messages, whatever is damaged in it."""

from __future__ import annotations

import random
import struct

import pytest

from lavinmq.integrity.segment import FILLER, VERSION, Mended, mend, record_at
from lavinmq.integrity.sums import BLOCK

NOW_MS = 1_790_000_000_000


def record(number: int, body: bytes) -> bytes:
    """A message with headers and some properties."""
    key = f"key-{number}".encode()
    head = struct.pack("<Q", NOW_MS + number) + b"\2ex" + bytes([len(key)]) + key
    headers = b"\1nI" + struct.pack(">i", number)
    properties = b"\4text" + struct.pack("<I", len(headers)) + headers + b"\2"
    return head + struct.pack("<H", 0xB000) + properties + struct.pack("<Q", len(body)) + body


def segment(seed: int, size: int) -> tuple[bytes, list[tuple[int, int]]]:
    """A segment, and where its records are."""
    made = random.Random(seed)
    content, places = bytearray(VERSION), []
    while len(content) < size:
        body = made.randbytes(made.choice([0, 10, 1000, 30_000, 100_000]))
        start = len(content)
        content += record(len(places), body)
        places.append((start, len(content)))
    return bytes(content), places


def applied(content: bytes, mended: Mended) -> bytes:
    """What the file is then."""
    out = bytearray(content[: mended.size])
    out[:4] = VERSION
    for start, end in mended.fillers:
        out[start:end] = bytes(end - start)
    for start, head in mended.heads():
        out[start : start + len(head)] = head
    return bytes(out)


def records_of(content: bytes) -> list[bytes]:
    """The records of a segment that are no fillers."""
    found, pos, view = [], len(VERSION), memoryview(content)
    while pos < len(content):
        each = record_at(view, pos, len(content))
        assert each is not None, "the file does not read to its end"
        if content[pos] != 1 or any(content[pos + 1 : pos + 8]):
            found.append(content[pos : each.end])
        pos = each.end
    return found


@pytest.mark.parametrize("seed", range(30))
def test_only_whole_messages_are_kept_and_nearly_all_of_them(seed: int) -> None:
    content, places = segment(seed, 12 * BLOCK)
    made = random.Random(seed)
    damaged, bad = bytearray(content), set()
    for _ in range(made.randint(1, 3)):
        at = made.randrange(len(content))
        for each in range(at, min(at + made.choice([1, 5000]), len(content))):
            damaged[each] ^= made.randint(1, 255)
            bad.add(each // BLOCK)

    mended = mend(memoryview(damaged), bad, is_stream=False)

    kept = records_of(applied(bytes(damaged), mended))
    whole = [content[start:end] for start, end in places]
    good = [
        content[start:end]
        for start, end in places
        if not any(each in bad for each in range(start // BLOCK, -(-end // BLOCK)))
    ]
    assert len(kept) == mended.n_kept
    assert [each for each in kept if each not in whole] == [], "these were never published"
    assert kept == [each for each in whole if each in kept], "in their order"
    assert len([each for each in good if each not in kept]) <= 2 * len(bad)
    assert all(end - start >= FILLER.size for start, end in mended.fillers)


def test_a_stream_ends_where_damage_begins() -> None:
    content, places = segment(1, 8 * BLOCK)
    start, end = next(each for each in places if each[0] // BLOCK >= 3)
    damaged = bytearray(content)
    damaged[end - 1] ^= 1

    mended = mend(memoryview(damaged), {(end - 1) // BLOCK}, is_stream=True)

    kept = records_of(applied(bytes(damaged), mended))
    assert mended.fillers == []
    assert kept == [content[a:b] for a, b in places[: len(kept)]]
    assert 0 < len(kept) <= places.index((start, end))


def test_an_undamaged_segment_stays_as_it_is() -> None:
    content, places = segment(2, 3 * BLOCK)

    mended = mend(memoryview(content), set(), is_stream=False)

    assert (mended.n_kept, mended.n_lost) == (len(places), 0)
    assert applied(content, mended) == content


def test_zeros_and_what_is_behind_them_are_no_messages() -> None:
    content, places = segment(3, BLOCK)

    mended = mend(memoryview(content + bytes(100) + b"filling"), set(), is_stream=False)

    assert mended.n_kept == len(places)
    assert mended.size == len(content)
