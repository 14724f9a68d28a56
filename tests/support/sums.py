"""Sums for brokers of unit tests: made here by zlib, of the files as they are."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

from lavinmq import _core

BLOCK: Final = 65536


class Reads(Protocol):
    """A broker of a unit test."""

    directory: Path
    loop: _core.Loop


def know(bench: Reads, path: Path, covered: int = 1 << 62) -> bool:
    """Have it know the sums of one segment."""
    name = str(path.relative_to(bench.directory))
    _core.watch_sums(bench.loop, name)
    content = path.read_bytes()[:covered]
    sums = array("I", [crc32(content[at : at + BLOCK]) for at in range(0, len(content), BLOCK)])
    return _core.know_sums(bench.loop, name, len(content), sums.tobytes(), [])


def know_all(bench: Reads, covered: int = 1 << 62) -> None:
    """Have it know those of all segments, and what it changes itself."""
    notes = os.open(bench.directory / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    _core.touch_files(bench.loop, str(bench.directory), notes)
    for path in bench.directory.rglob("msgs.*"):
        assert know(bench, path, covered)
