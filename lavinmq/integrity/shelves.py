"""Where sums are kept: `.sums/files` in the data directory, which mirrors its directories.

A *shelf* is a file with the sums of a directory's files; segments of 64 numbers share one. A shelf
that is damaged is thrown away, and made again: that is never an alarm. Nothing is synced: what a
loss of power leaves is an older shelf, or a damaged one. One thread at a time but for `sums_of`.
Source: docs/integrity.md.

    shelf = crc32 of the rest:8 hex digits, newline, JSON: {name: [covered, size, mtime_ns, life,
            sums: base64 of u32 each, [blocks that are not known]]}
"""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from zlib import crc32

import orjson

from lavinmq.integrity.sums import FileSums

HOME: Final = ".sums"
FILES: Final = "files"
SHELF: Final = "sums."
SEGMENTS: Final = 64
"""Numbers of segments that share a shelf."""
DIGITS: Final = 10
OPEN: Final = 32
"""Shelves that are kept in memory."""
HEAD: Final = 9

Shelf = dict[str, FileSums]
Key = tuple[str, int]
"""A directory below the data directory, and which of its shelves."""


def key_of(path: str) -> Key:
    """Where the sums of a file are kept."""
    directory, _, name = path.rpartition("/")
    return directory, number_of(name)


def number_of(name: str) -> int:
    """The shelf of a file, in its directory."""
    digits = name.rpartition(".")[2]
    is_segment = len(digits) == DIGITS and digits.isascii() and digits.isdigit()
    return int(digits) // SEGMENTS if is_segment else 0


class Shelves:
    """All sums of one data directory. Its methods raise OSError, but for `get`."""

    def __init__(self, root: str) -> None:
        self._files = os.path.join(root, HOME, FILES)
        self._open: OrderedDict[Key, Shelf] = OrderedDict()
        self._dirty: set[Key] = set()

    def get(self, key: Key) -> Shelf:
        """A shelf; changes of it have to be told, by `changed`, before another one is asked for."""
        shelf = self._open.get(key)
        if shelf is None:
            shelf = self._open[key] = _read(self._path(key))
        self._open.move_to_end(key)
        while len(self._open) > OPEN:
            self._close(next(iter(self._open)))
        return shelf

    def changed(self, key: Key) -> None:
        """What is on a shelf differs from its file."""
        self._dirty.add(key)

    def _close(self, key: Key) -> None:
        if key in self._dirty:
            self._write(key)
        del self._open[key]

    def flush(self) -> None:
        """Write what was changed."""
        for key in list(self._dirty):
            self._write(key)

    def _write(self, key: Key) -> None:
        shelf, path = self._open[key], self._path(key)
        if shelf:
            body = orjson.dumps({name: sums.to_json() for name, sums in shelf.items()})
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(f"{path}.tmp", "wb") as file:  # all of it, however little a disk takes
                file.write(b"%08x\n%b" % (crc32(body), body))
            os.rename(f"{path}.tmp", path)
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)
            with suppress(OSError):
                os.rmdir(os.path.dirname(path))
        self._dirty.discard(key)  # without room for it the disk has an older one: not before

    def drop(self, directory: str) -> None:
        """Forget a directory and all below it."""
        for key in [each for each in self._open if _is_below(each[0], directory)]:
            del self._open[key]
            self._dirty.discard(key)
        shutil.rmtree(os.path.join(self._files, directory), ignore_errors=True)

    def has(self, directory: str) -> bool:
        """Whether there are sums of a directory, or below it."""
        path = os.path.join(self._files, directory)
        return os.path.isdir(path) or any(_is_below(each, directory) for each, _ in self._open)

    def numbers(self, directory: str) -> set[int]:
        """The shelves of a directory."""
        found = {number for each, number in self._open if each == directory}
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(os.path.join(self._files, directory)):
                digits = name.removeprefix(SHELF)
                if digits != name and digits.isdigit():
                    found.add(int(digits))
        return found

    def directories(self) -> Iterator[str]:
        """Those of which there are sums."""
        self.flush()
        for path, names, files in os.walk(self._files):
            below = os.path.relpath(path, self._files)
            if any(name.startswith(SHELF) for name in files):
                yield "" if below == "." else below
            names.sort()

    def sums_of(self, path: str) -> FileSums | None:
        """What is known of a file, as it is on disk. From any thread."""
        return _read(self._path(key_of(path))).get(path.rpartition("/")[2])

    def _path(self, key: Key) -> str:
        directory, number = key
        return os.path.join(self._files, directory, f"{SHELF}{number}")


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _read(path: str) -> Shelf:
    """What is on a shelf; nothing if it is not there, or damaged."""
    try:
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        if content[:HEAD] != b"%08x\n" % crc32(memoryview(content)[HEAD:]):
            return {}
        return {
            name: FileSums.of_json(each)
            for name, each in orjson.loads(memoryview(content)[HEAD:]).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
