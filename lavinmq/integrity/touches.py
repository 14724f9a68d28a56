"""The broker's own changes that take something back: what they mean for the sums.

`cext/base/touches.pyx` writes the notes into `.sums/notes`; they are there after a kill. What was
taken in is given back to the disk by holes. One thread at a time. Source: docs/integrity.md.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from struct import Struct
from typing import Final

from lavinmq import _core
from lavinmq.files.changes import Change
from lavinmq.integrity.shelves import HOME, Shelves, key_of
from lavinmq.integrity.sums import ALL

NOTES: Final = "notes"
HEAD: Final = Struct("<BHHqq")
AT_ONCE: Final = 64 << 10
GIVEN_BACK: Final = 1 << 20
KINDS: Final = {Change.PATCH, Change.TRUNCATE, Change.HOLE, Change.RENAME, Change.REMOVE}
DIRECTORY: Final = re.compile(r"(?:[0-9a-f]{40}|prio\.[0-9]|migrat)")
"""How the names of directories begin that may be renamed."""


class Touches:
    """The notes of one data directory. Its methods raise OSError.

    Args: at: up to where they were taken in already.
    """

    def __init__(self, root: str, shelves: Shelves, at: int = 0) -> None:
        self._path = os.path.join(root, HOME, NOTES)
        self._shelves = shelves
        self._reader = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        """Where notes are written."""
        self.at = at
        """Up to where they were taken in."""
        self._given_back = 0

    def take_in(self) -> bool:
        """Take in some of what was noted. Returns: whether that was all. Raises: ValueError: what
        stands there is no note."""
        notes = os.pread(self._reader, AT_ONCE, self.at)
        done = 0
        while len(notes) - done >= HEAD.size:
            kind, n, n_target, start, end = HEAD.unpack_from(notes, done)
            if kind not in KINDS:
                raise ValueError(f"no note at {self.at + done}")
            size = HEAD.size + n + n_target
            if len(notes) - done < size:
                break
            path = os.fsdecode(notes[done + HEAD.size : done + HEAD.size + n])
            target = os.fsdecode(notes[done + HEAD.size + n : done + size])
            self._take_in(kind, path, target, start, end)
            done += size
        self.at += done
        return len(notes) < AT_ONCE

    def give_back(self) -> None:
        """Have the disk forget what was taken in, once the shelves are written."""
        if self.at - self._given_back > GIVEN_BACK:
            with suppress(OSError):  # a file system without holes: it is empty after a start
                _core.make_hole(self._reader, 0, self.at)
            self._given_back = self.at

    def skip(self) -> None:
        """Pass over all that was noted."""
        self.at = os.fstat(self._reader).st_size

    def restart(self) -> None:
        """Begin anew with an empty file, before anybody writes."""
        os.ftruncate(self._reader, 0)
        self.at = self._given_back = 0

    def touch(self, path: str, *, is_directory: bool = False) -> None:
        """Note that a file, or a directory with all that is in it, is about to be replaced. From
        any thread."""
        name = os.fsencode(path)
        kind = Change.RENAME if is_directory else Change.REMOVE
        note = HEAD.pack(kind, len(name), len(name) if is_directory else 0, 0, 0)
        os.write(self.fd, note + name * (2 if is_directory else 1))

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._reader)
        os.close(self.fd)

    def _take_in(self, kind: int, path: str, target: str, start: int, end: int) -> None:
        if kind == Change.RENAME:
            for each in (path, target):
                if DIRECTORY.match(each.rpartition("/")[2]) and self._shelves.has(each):
                    self._shelves.drop(each)
                self._forget(each)
            return
        if kind == Change.REMOVE:
            self._forget(path)
            return
        key, name = key_of(path), path.rpartition("/")[2]
        sums = self._shelves.get(key).get(name)
        if sums is None:
            return
        if kind == Change.TRUNCATE:
            if start != ALL and start < sums.covered:
                return  # somebody else had cut it before: that is found
            sums.cut(end)
        else:
            sums.change(start, end)
        self._shelves.changed(key)

    def _forget(self, path: str) -> None:
        key = key_of(path)
        if self._shelves.get(key).pop(path.rpartition("/")[2], None) is not None:
            self._shelves.changed(key)
