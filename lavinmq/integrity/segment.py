"""What is left of a damaged segment: records whose bytes are right; the others become a filler.

Positions stay as they are, since other files name them. A stream has no fillers: its records are
counted, so it ends where damage begins, and goes on with its next segment. It reads the format of
docs/formats.md by itself, as the broker's own code does not know of sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from lavinmq.integrity.sums import BLOCK

VERSION: Final = b"\x04\x00\x00\x00"
FILLER: Final = Struct("<QBBHQ")
FILLER_MS: Final = 1
TIME: Final = b"\x01\x00\x00"
"""The last bytes of every time from 2004 to 2039, in milliseconds."""
TIME_AT: Final = 5
SIZES: Final = (
    (0x8000, "string"), (0x4000, "string"), (0x2000, "table"), (0x1000, 1), (0x0800, 1),
    (0x0400, "string"), (0x0200, "string"), (0x0100, "string"), (0x0080, "string"), (0x0040, 8),
    (0x0020, "string"), (0x0010, "string"), (0x0008, "string"), (0x0004, "string"),
)  # fmt: skip


class Record(NamedTuple):
    """One record. Args: head: where its body begins."""

    start: int
    head: int
    end: int


@dataclass(slots=True)
class Mended:
    """Args: n_kept, n_lost: messages; the latter as far as they can be counted; size: of the file;
    fillers: what is to be one, from where to where."""

    n_kept: int = 0
    n_lost: int = 0
    size: int = 0
    fillers: list[tuple[int, int]] = field(default_factory=list)

    def heads(self) -> Iterator[tuple[int, bytes]]:
        """What is to be written, and where; the rest of each filler is zeros."""
        for start, end in self.fillers:
            yield start, FILLER.pack(FILLER_MS, 0, 0, 0, end - start - FILLER.size)


def mend(content: memoryview, bad: set[int], *, is_stream: bool) -> Mended:
    """Find what is left. Args: content: of the whole file; bad: blocks that are not what was
    written."""
    mended, pos, end = Mended(size=len(VERSION)), len(VERSION), len(content)
    while pos < end:
        record = record_at(content, pos, end)
        is_known = record is not None and not _is_bad(bad, pos, record.head)
        if record is not None and is_known:
            if _is_bad(bad, record.head, record.end):
                mended.n_lost += 1
                if is_stream:
                    return mended
                mended.fillers.append((pos, record.end))
            elif content[pos : pos + 8] != FILLER_MS.to_bytes(8, "little"):
                mended.n_kept += 1
            pos = mended.size = record.end
            continue
        if not _is_bad(bad, pos, pos + 8) and not any(content[pos : pos + 8]):
            return mended  # nothing comes behind
        mended.n_lost += 1
        after = None if is_stream else _next(content, pos, end, bad)
        if after is None:
            return mended
        mended.fillers.append((pos, after))
        pos = mended.size = after
    return mended


def record_at(content: memoryview, pos: int, end: int) -> Record | None:
    """The record that begins there; None: there is no whole one."""
    at = pos + 8
    if not any(content[pos:at]):
        return None
    for _ in range(2):
        if at >= end:
            return None
        at += 1 + content[at]
    if at + 2 > end:
        return None
    flags = int.from_bytes(content[at : at + 2], "little")
    at += 2
    if flags & 3:
        return None
    for bit, size in SIZES:
        if not flags & bit:
            continue
        if isinstance(size, int):
            at += size
        elif size == "string":
            at += 1 + content[at] if at < end else 1
        else:
            at += 4 + int.from_bytes(content[at : at + 4], "little")
        if at > end:
            return None
    if at + 8 > end:
        return None
    size = int.from_bytes(content[at : at + 8], "little")
    at += 8
    return Record(pos, at, at + size) if at + size <= end else None


def _is_bad(bad: set[int], start: int, end: int) -> bool:
    return any(each in bad for each in range(start // BLOCK, -(-end // BLOCK)))


def _next(content: memoryview, pos: int, end: int, bad: set[int]) -> int | None:
    """Where the next record begins behind damage: from there one comes behind the other."""
    at = pos + FILLER.size
    while at < end:
        found = bytes(content[at : at + 2 * BLOCK]).find(TIME, TIME_AT)
        if found < 0:
            at += 2 * BLOCK - len(TIME) - TIME_AT
            continue
        start = at + found - TIME_AT
        if start // BLOCK not in bad and _leads_on(content, start, end, bad):
            return start
        at = start + 1
    return None


def _leads_on(content: memoryview, pos: int, end: int, bad: set[int]) -> bool:
    """Whether records come one behind the other, to the end or the next damage."""
    n = 0
    while pos < end:
        if not _is_bad(bad, pos, pos + 8) and not any(content[pos : pos + 8]):
            return n > 0
        record = record_at(content, pos, end)
        if record is None:
            return n > 0 and _is_bad(bad, pos, pos + 1024)
        if _is_bad(bad, pos, record.head):
            return n > 0
        n += 1
        pos = record.end
    return n > 0
