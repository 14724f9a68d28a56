"""Looks at a file's content on its way elsewhere, to a node that joins or into a backup.

It is read from its beginning, in pieces; a block that was read to its end is compared with its sum.
In threads. Source: docs/integrity.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from lavinmq.integrity.sums import BLOCK

if TYPE_CHECKING:
    from lavinmq.integrity.keeper import Integrity


class DamagedError(Exception):
    """A file is damaged, and goes nowhere. Args: path: below the data directory."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is damaged at its source")
        self.path = path


class Guard:
    """One file as it is read. Args: integrity: None: it has no sums."""

    def __init__(self, integrity: Integrity | None, path: str) -> None:
        self._integrity = integrity
        self._path = path
        self._sums = None if integrity is None else integrity.sums_of(path)
        self._at = self._value = 0

    def look(self, piece: bytes) -> None:
        """What is read next. Raises: DamagedError."""
        known = self._sums
        if known is None or self._integrity is None:
            return
        content, begin = memoryview(piece), 0
        while begin < len(content) and self._at < known.covered:
            number, within = divmod(self._at, BLOCK)
            whole = min(BLOCK, known.covered - number * BLOCK)
            part = content[begin : begin + whole - within]
            self._value = crc32(part, self._value)
            self._at += len(part)
            begin += len(part)
            if within + len(part) == whole:
                is_right = number in known.unknown or self._value == known.sums[number]
                self._value = 0
                if not is_right:
                    self._refuse()

    def _refuse(self) -> None:
        assert self._integrity is not None
        if self._integrity.is_damaged(self._path):
            raise DamagedError(self._path)
        self._sums = None  # the broker has changed it since
