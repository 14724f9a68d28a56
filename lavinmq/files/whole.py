"""Small files as a whole: read, and replaced so that a crash leaves the old one or the new one.

Source: docs/formats.md.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from lavinmq.files.changes import Changes


def read_regular(path: str) -> bytes:
    """The content of a file; a pipe or a socket of that name is an error, where it would block.

    Raises: ``OSError`` naming the path.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):  # open() would name the number of the descriptor
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, "Not a regular file", path)
    with open(fd, "rb") as file:
        return file.read()


class UnsureError(OSError):
    """A file has been replaced, and nobody knows whether that is on disk."""


def write_atomic(path: str, content: bytes, changes: Changes) -> None:
    """Save ``content`` by way of ``<path>.tmp``, synced and renamed, with its directory synced.

    Raises: ``OSError`` with the name of a file; the old file is in place then, unless it is an
        ``UnsureError``.
    """
    replace_files([(path, (content,))], changes)


def replace_files(files: Sequence[tuple[str, Sequence[bytes]]], changes: Changes) -> None:
    """The same for several files of one directory, which are replaced in their order.

    Args: files: paths and contents, in pieces: who joined megabytes would hold the interpreter.
    All are written aside before the first is replaced. Raises: as ``write_atomic``.
    """
    written: list[str] = []
    path = ""
    try:
        directory = os.open(os.path.dirname(files[0][0]) or ".", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, error.strerror, files[0][0]) from error
    kind: type[OSError] = OSError
    try:
        for path, content in files:
            written.append(f"{path}.tmp")
            _write_aside(written[-1], content, changes)
        for path, _ in files:
            changes.rename(f"{path}.tmp", path)
            kind = UnsureError
        os.fsync(directory)
    except OSError as error:
        for each in written:
            with suppress(OSError):
                changes.unlink(each)  # gives the space back when the disk is full
        raise kind(error.errno, error.strerror, path) from error
    finally:
        os.close(directory)


def _write_aside(path: str, content: Sequence[bytes], changes: Changes) -> None:
    # Truncated, not appended to: a crash may have left one behind.
    fd = changes.open(path, os.O_CREAT | os.O_TRUNC)
    try:
        at = 0
        for piece in content:
            changes.write(path, fd, piece, at)
            at += len(piece)
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Bring what was created, renamed or removed in a directory to the disk. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
