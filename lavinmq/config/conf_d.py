"""Reads the directory `conf.d` beside the ini file: further ini files, in the order of their names.

Called by ``config.load``. It judges who may write there and which files count, and knows no
setting. Nothing is printed: what is left out is handed back, to be told.
Source: docs/decisions/0050.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import NamedTuple

from lavinmq.config.settings import ConfigError

NAME = "conf.d"
SUFFIX = ".ini"
MAX_ENTRIES = 256
_HOW = os.O_RDONLY | os.O_CLOEXEC


class Part(NamedTuple):
    """One file of the directory."""

    path: str
    content: bytes


class Parts(NamedTuple):
    """What the directory holds."""

    read: list[Part]
    """In the order in which they count; the last one wins."""
    ignored: list[str]
    """One line for each entry that is not read, with the reason."""


def read_parts(ini_path: str, max_bytes: int) -> Parts:
    """Read the directory beside an ini file, which itself need not be there.

    Args: max_bytes: of all files together.
    Raises: ``ConfigError`` for a directory that strangers may write to, for one with too many
        entries, and for a file that cannot be read; it names the directory or file.
    """
    directory = os.path.join(os.path.dirname(ini_path), NAME)
    try:
        descriptor = os.open(directory, _HOW | os.O_DIRECTORY)
    except FileNotFoundError:
        return Parts([], [])
    except OSError as error:
        raise _unusable(directory, f"could not be read: {error.strerror}") from None
    try:
        _refuse_strangers(directory, descriptor, ini_path)
        return _read(directory, descriptor, max_bytes)
    finally:
        os.close(descriptor)


def _read(directory: str, descriptor: int, max_bytes: int) -> Parts:
    found = Parts([], [])
    for name in _names(directory, descriptor):
        path = os.path.join(directory, name)
        # A file README is for people, and expected.
        if name.startswith(".") or not name.endswith(SUFFIX):
            reason = "is hidden" if name.startswith(".") else f"does not end in {SUFFIX}"
            if name != "README":
                found.ignored.append(f"Not read: {path!r}: its name {reason}")
            continue
        if not name.isprintable():
            raise _unusable(path, "has a name that cannot be shown")
        with _failing_as(path):
            content = _content(path, name, descriptor, max_bytes)
        max_bytes -= len(content)
        found.read.append(Part(path, content))
    return found


def _names(directory: str, descriptor: int) -> list[str]:
    with os.scandir(descriptor) as entries:
        names = sorted(entry.name for entry in islice(entries, MAX_ENTRIES + 1))
    if len(names) > MAX_ENTRIES:
        raise _unusable(directory, f"holds more than {MAX_ENTRIES} files")
    return names


def _content(path: str, name: str, directory: int, max_bytes: int) -> bytes:
    """Return the bytes of a regular file. Raises: OSError, ``ConfigError``."""
    # Not blocking: a pipe without a writer would hold the whole broker up at a reload.
    with open(os.open(name, _HOW | os.O_NONBLOCK, dir_fd=directory), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _unusable(path, "is no regular file")
        if _is_open_to_others(file.fileno()):
            raise _unusable(path, f"may be written by everybody: chmod o-w {path!r}")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _unusable(path, "makes the configuration larger than allowed, 1 MiB in all")
    return content


def _refuse_strangers(directory: str, descriptor: int, ini_path: str) -> None:
    """Who can add a file here decides what the broker does: that is for its operator alone."""
    if _is_open_to_others(descriptor):
        raise _unusable(directory, f"may be written by everybody: chmod o-w {directory!r}")
    trusted = {0, os.geteuid()}
    with suppress(OSError):
        trusted.add(os.stat(ini_path).st_uid)
    owner = os.fstat(descriptor).st_uid
    if owner not in trusted:
        raise _unusable(
            directory,
            f"belongs to user {owner}, who is neither root nor the broker's user nor the owner of"
            " the ini file",
        )


def _is_open_to_others(descriptor: int) -> bool:
    """Whether everybody may write; not through a mount that nobody can write through."""
    if not os.fstat(descriptor).st_mode & stat.S_IWOTH:
        return False
    return not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY


@contextmanager
def _failing_as(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unusable(path, f"could not be read: {error.strerror}") from None


def _unusable(path: str, reason: str) -> ConfigError:
    return ConfigError(f"Config {path!r} {reason}")
