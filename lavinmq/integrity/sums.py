"""The checksums of one file: one for each block of 64 KiB, as far as the file was at rest.

What is appended leaves them right. A block of which only a part was there has the sum of that part.
They are CRC-32 of zlib, which the interpreter is not held for. It knows nothing of where they are
kept. Blocking; in threads. Source: docs/integrity.md.
"""

from __future__ import annotations

import os
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

BLOCK: Final = 64 << 10
PIECE: Final = 16 * BLOCK
ALL: Final = (1 << 63) - 1
"""The end of a change that may be anywhere in a file."""

Pace = Callable[[int], object]
"""Is told of bytes that were read, and may wait."""


def _sums() -> array[int]:
    return array("I")


@dataclass(slots=True)
class FileSums:
    """What is known of one file.

    Args: covered: bytes from its beginning that the sums are of; size, mtime_ns: as the file had
    them when it was summed; life: of the broker, in which it was looked at last; unknown: blocks
    that the broker has changed since.
    """

    covered: int = 0
    size: int = 0
    mtime_ns: int = 0
    life: int = 0
    sums: array[int] = field(default_factory=_sums)
    unknown: set[int] = field(default_factory=set)

    def cut(self, size: int) -> None:
        """The file was cut."""
        if size >= self.covered:
            return
        self.covered = size
        n_blocks = -(-size // BLOCK)
        del self.sums[n_blocks:]
        self.unknown = {each for each in self.unknown if each < n_blocks}
        if size % BLOCK:
            self.unknown.add(n_blocks - 1)

    def change(self, start: int, end: int) -> None:
        """Bytes of it were changed."""
        if end == ALL:
            self.cut(0)
        elif start < (end := min(end, self.covered)):
            self.unknown.update(range(start // BLOCK, -(-end // BLOCK)))

    def to_json(self) -> list[Any]:
        """As `of_json` reads it."""
        sums = self.sums
        if sys.byteorder == "big":
            sums = array("I", sums)
            sums.byteswap()
        return [
            self.covered, self.size, self.mtime_ns, self.life, b64encode(sums.tobytes()).decode(),
            sorted(self.unknown),
        ]  # fmt: skip

    @classmethod
    def of_json(cls, value: Any) -> FileSums:
        """Raises: ValueError, TypeError: it makes no sense."""
        covered, size, mtime_ns, life, text, unknown = value
        sums = _sums()
        sums.frombytes(b64decode(text, validate=True))
        if sys.byteorder == "big":
            sums.byteswap()
        if len(sums) != -(-covered // BLOCK):
            raise ValueError("as many sums as blocks are needed")
        return cls(covered, size, mtime_ns, life, sums, set(map(int, unknown)))


def is_older(known: FileSums, found: os.stat_result) -> bool:
    """Whether a file was changed last before it was as its sums say: that is no disk's doing."""
    return found.st_mtime_ns < known.mtime_ns


def check(fd: int, known: FileSums | None, end: int, pace: Pace) -> tuple[list[int], FileSums]:
    """Read a file up to `end`, and compare it with what is known.

    Returns: the blocks that differ, and what is known then; that is as before if any differ.
    Raises: OSError.
    """
    known = FileSums() if known is None else known
    end = max(end, known.covered)
    fresh = FileSums(end, known.size, known.mtime_ns, known.life)
    bad: list[int] = []
    for at in range(0, end, PIECE):
        piece = memoryview(_read(fd, min(PIECE, end - at), at))
        pace(len(piece))
        for begin in range(0, min(PIECE, end - at), BLOCK):
            number = (at + begin) // BLOCK
            content = piece[begin : begin + BLOCK]
            have = min(BLOCK, known.covered - number * BLOCK)
            value = 0
            if have > 0 and number not in known.unknown:
                value = crc32(content[:have])
                if len(content) < have or value != known.sums[number]:
                    bad.append(number)
            else:
                have = 0
            fresh.sums.append(crc32(content[have : end - at - begin], value))
        if len(piece) < min(PIECE, end - at):
            return bad, known  # it became shorter meanwhile: its end tells, when it is looked at
    return bad, known if bad else fresh


def _read(fd: int, n: int, at: int) -> bytes:
    parts = []
    while n:
        part = os.pread(fd, n, at)
        if not part:
            break
        parts.append(part)
        n, at = n - len(part), at + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
