"""Files of a data directory, for reading only: local ones, or of any store that fsspec knows.

Nothing is locked, created or mapped: what is read may be cut by the broker at any moment, and then
there are fewer bytes. Errors are those of the operating system; FileNotFoundError means it is gone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from glob import glob, has_magic
from typing import TYPE_CHECKING, Protocol

from lavinmq.spark.option_values import OptionError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

DIRECTORY = -1
SMALL_MOST = 1 << 26
"""Bytes that are read of a file that is taken whole: acks, names, definitions."""


class OpenFile(Protocol):
    """A file to read pieces of."""

    def read(self, position: int, size: int) -> bytes | memoryview:
        """Return the bytes from there on, fewer only at the end; valid until the next `read`."""

    def again(self, position: int, size: int) -> bytes:
        """Return a copy of the bytes that are there now."""

    def changed(self) -> bool:
        """Return whether it was written to since it was opened, or since this was asked."""

    def close(self) -> None:
        """Give it back."""


class Files(Protocol):
    """Where files are."""

    window: int
    """Bytes worth reading at once."""

    def paths(self, path: str) -> list[str]:
        """Return the paths that a path with wildcards stands for, sorted."""

    def names(self, directory: str) -> Mapping[str, int]:
        """Return the names in a directory, with their sizes; DIRECTORY for one that is one."""

    def small(self, path: str) -> bytes:
        """Return a small file; one that is not is an error, since a part of it tells nothing."""

    def open(self, path: str) -> OpenFile:
        """Open a file."""


def files_of(path: str) -> tuple[Files, str]:
    """Return who reads a path or URL, and the path there. Raises OptionError."""
    for prefix in ("file://", "file:"):
        if path.startswith(prefix):
            return LocalFiles(), path.removeprefix(prefix)
    if "://" not in path:
        return LocalFiles(), path
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise OptionError(f"option path is {path!r}; URLs need the package fsspec") from None
    try:
        system, inner = url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise OptionError(f"option path is {path!r}: {error}") from None
    return RemoteFiles(system), inner


def reason(error: OSError) -> str:
    """Return why a file cannot be read, in a line; stores have no words of the system's."""
    return error.strerror or str(error).partition("\n")[0] or type(error).__name__


class LocalFiles:
    """Files of this machine, or of anything mounted here."""

    # It stays in the processor's cache while its records are taken apart.
    window = 1 << 20

    def paths(self, path: str) -> list[str]:
        """See `Files`."""
        return sorted(glob(path)) if has_magic(path) else [path]

    def names(self, directory: str) -> dict[str, int]:
        """See `Files`."""
        found = {}
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    found[entry.name] = DIRECTORY if entry.is_dir() else entry.stat().st_size
                except FileNotFoundError:
                    continue  # removed since
        return found

    def small(self, path: str) -> bytes:
        """See `Files`."""
        file = self.open(path)
        try:
            return _whole(bytes(file.read(0, SMALL_MOST + 1)), path)
        finally:
            file.close()

    def open(self, path: str) -> LocalFile:
        """See `Files`."""
        # What is no regular file must not block.
        return LocalFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), path)


class LocalFile:
    """An open file, and one buffer that all reads use."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self._size = status.st_size
        self._state = _state(status)

    def read(self, position: int, size: int) -> memoryview:
        """See `OpenFile`."""
        size = max(0, min(size, self._size - position))
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view, done = memoryview(self._buffer), 0
        while done < size:
            got = os.preadv(self._descriptor, [view[done:size]], position + done)
            if got == 0:
                break
            done += got
        return view[:done]

    def again(self, position: int, size: int) -> bytes:
        """See `OpenFile`."""
        return os.pread(self._descriptor, size, position)

    def changed(self) -> bool:
        """See `OpenFile`."""
        before, self._state = self._state, _state(os.fstat(self._descriptor))
        return self._state != before

    def close(self) -> None:
        """See `OpenFile`."""
        os.close(self._descriptor)


def _whole(data: bytes, path: str) -> bytes:
    """What was read, if it is all. Raises: OSError."""
    if len(data) > SMALL_MOST:
        raise OSError(errno.EFBIG, f"larger than {SMALL_MOST} bytes", path)
    return data


def _state(status: os.stat_result) -> tuple[int, int]:
    """What is another after a write, or after a hole was made."""
    return status.st_mtime_ns, status.st_blocks


class RemoteFiles:
    """Files of a store that fsspec knows; each read is a request."""

    window = 8 << 20

    def __init__(self, system: AbstractFileSystem) -> None:
        self._system = system

    def paths(self, path: str) -> list[str]:
        """See `Files`."""
        return sorted(self._system.glob(path)) if has_magic(path) else [path]

    def names(self, directory: str) -> dict[str, int]:
        """See `Files`."""
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: (
                DIRECTORY if entry["type"] == "directory" else int(entry["size"])
            )
            for entry in self._system.ls(directory, detail=True)
        }

    def small(self, path: str) -> bytes:
        """See `Files`."""
        return _whole(bytes(self._system.cat_file(path, start=0, end=SMALL_MOST + 1)), path)

    def open(self, path: str) -> RemoteFile:
        """See `Files`."""
        return RemoteFile(self._system, path, int(self._system.info(path)["size"]))


class RemoteFile:
    """A file that is read by requests for ranges."""

    def __init__(self, system: AbstractFileSystem, path: str, size: int) -> None:
        self._system = system
        self._path = path
        self._size = size

    def read(self, position: int, size: int) -> bytes:
        """See `OpenFile`."""
        end = min(position + size, self._size)
        if position >= end:
            return b""
        return bytes(self._system.cat_file(self._path, start=position, end=end))

    again = read

    def changed(self) -> bool:
        """See `OpenFile`. Stores have copies, which nobody writes to."""
        return False

    def close(self) -> None:
        """See `OpenFile`."""
