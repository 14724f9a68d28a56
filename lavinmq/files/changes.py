"""Every change of a file in the data directory that Python makes, and one note of each.

Nobody else in `lavinmq/` writes, makes, renames or removes one (tests/unit/test_files.py looks). A
change is noted once it has been made, for whoever observes the files, in one order with the notes
of the message path. The node's own files (`.lock`, `clean_stop`, `schema_version`) are not noted.
It knows nothing of what the files mean. From any thread; a file is changed by one thread at a time.
Source: docs/formats.md, decision 0066.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Final

DIRECTORY_MODE: Final = 0o750
"""Of directories below the data directory."""
FILE_MODE: Final = 0o640


class Change(IntEnum):
    """What has happened. The numbers are those of `_core.CHANGE_KINDS`."""

    MAKE = 1
    APPEND = 2
    PATCH = 3
    TRUNCATE = 4
    HOLE = 5
    RENAME = 6
    REMOVE = 7
    MAKE_DIRECTORY = 8
    REMOVE_DIRECTORY = 9


Note = Callable[[int, str, str, int, int, int], object]
"""Hears of a change, as `_core.note_change` does: kind, path, target (empty:
none), descriptor, start, end."""
Name = str | os.PathLike[str]


class Changes:
    """Those of one data directory. All methods raise OSError.

    `note` is told of each from the time on when it is set.
    """

    def __init__(self) -> None:
        self.note: Note | None = None
        self.is_kept_out = False
        """Whether the files are another's to change: all of these fail with EROFS."""

    def _begin(self, path: Name) -> None:
        if self.is_kept_out:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))

    # --- names --------------------------------------------------------------------------------

    def open(self, path: Name, flags: int) -> int:
        """Open a file to write it, and to read it: whoever observes does. Returns: a descriptor."""
        self._begin(path)
        flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
        is_new = self.note is not None and flags & os.O_CREAT and not os.path.lexists(path)
        fd = os.open(path, flags, FILE_MODE)
        if is_new:
            self._noted(Change.MAKE, path, fd)
        elif flags & os.O_TRUNC:
            self._noted(Change.TRUNCATE, path, fd)
        return fd

    def touch(self, path: Name, flags: int = 0) -> None:
        """Make an empty file. Args: flags: O_EXCL, if there must be none."""
        os.close(self.open(path, os.O_CREAT | flags))

    def rename(self, path: Name, target: Name) -> None:
        """Give a file or directory another name, in the place of a file that has it."""
        self._begin(path)
        os.rename(path, target)
        self.renamed(path, target)

    def rename_unnoted(self, path: Name, target: Name) -> None:
        """The same in a thread, while others still go by the old name: `renamed` is for later."""
        self._begin(path)
        os.rename(path, target)

    def renamed(self, path: Name, target: Name) -> None:
        """Note what a thread has renamed while others still went by the old name."""
        if self.note is not None:
            self.note(Change.RENAME, os.fspath(path), os.fspath(target), -1, 0, 0)

    def unlink(self, path: Name) -> None:
        """Remove the name of a file."""
        self._begin(path)
        os.unlink(path)
        self._noted(Change.REMOVE, path)

    def make_directory(self, path: Name) -> None:
        """Make a directory, which must not be there."""
        self._begin(path)
        os.mkdir(path, DIRECTORY_MODE)
        self._noted(Change.MAKE_DIRECTORY, path)

    def remove_directory(self, path: Name) -> None:
        """Remove an empty directory."""
        self._begin(path)
        os.rmdir(path)
        self._noted(Change.REMOVE_DIRECTORY, path)

    # --- contents -----------------------------------------------------------------------------

    def write(
        self, path: Name, fd: int, data: bytes, at: int, kind: Change = Change.APPEND
    ) -> None:
        """Write all bytes at an offset, behind all that is there or, with `PATCH`, over others.

        Some may have been written when it raises.
        """
        self._begin(path)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(fd, memoryview(data)[written:], at + written)
        finally:
            self._noted(kind, path, fd, at, at + len(data))

    def append(self, path: Name, fd: int, data: bytes, at: int) -> None:
        """The same with a descriptor that was opened with O_APPEND, to a file that ends at `at`."""
        self._begin(path)
        written = 0
        try:
            while written < len(data):
                written += os.write(fd, memoryview(data)[written:])
        finally:
            self._noted(Change.APPEND, path, fd, at, at + len(data))

    def truncate(self, path: Name, fd: int, size: int) -> None:
        """Have a file end there."""
        self._begin(path)
        os.ftruncate(fd, size)
        self._noted(Change.TRUNCATE, path, fd, 0, size)

    def _noted(self, kind: Change, path: Name, fd: int = -1, start: int = 0, end: int = 0) -> None:
        if self.note is not None:
            self.note(kind, os.fspath(path), "", fd, start, end)
