"""Directories of virtual hosts and queues: their names, and making and removing what is in them.

Called by `vhost/vhost.py`. Source: docs/formats.md.
"""

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from lavinmq.files.changes import Changes, Name
from lavinmq.files.whole import read_regular, sync_directory

TRANSIENT: Final = "transient"
"""In the directory of a virtual host: that of queues which end with the broker."""


def hashed(name: str) -> str:
    """The directory of a virtual host or queue: SHA-1 of its name, lower-case hex."""
    raw = name.encode("utf-8", "surrogateescape")
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()


def make_directory(path: Path, changes: Changes) -> None:
    """Make a directory, unless it is there, so that a power cut cannot take it with all in it."""
    if path.is_dir():
        return
    changes.make_directory(path)
    sync_directory(path.parent)


def is_empty(path: str) -> bool:
    """Whether there is a directory with nothing in it."""
    try:
        with os.scandir(path) as entries:
            return not os.path.islink(path) and next(entries, None) is None
    except OSError:
        return False


def matching(directory: Path, names: re.Pattern[str]) -> list[Path]:
    """What has such a name in a directory, which may hold very many others."""
    try:
        return [directory / name for name in filter(names.fullmatch, os.listdir(directory))]
    except FileNotFoundError:
        return []


def write_text(path: Name, text: str, changes: Changes) -> None:
    """Write a file that is there for humans and tools, unless it is right already.

    Something else of that name is left alone: nothing depends on this file."""
    raw = text.encode("utf-8", "surrogateescape")
    try:
        fd = changes.open(path, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        if not os.path.isfile(path) or read_regular(os.fspath(path)) == raw:
            return
        fd = changes.open(path, os.O_TRUNC)
    try:
        changes.write(path, fd, raw, 0)
    finally:
        os.close(fd)


def set_aside(path: Path, changes: Changes) -> Path | None:
    """Give a directory, if there is one, another name: its messages must not appear in what is to
    be made in its place, and are not ours to throw away.

    Returns: where it is now. Raises: OSError, also for a link to nowhere: its disk may come back.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        return None
    if not path.exists():
        raise FileExistsError(f"{path} is a link to nowhere")
    aside = path.with_name(f"{path.name}.left-{time.time_ns()}")
    changes.rename(path, aside)
    return aside


def remove_tree(path: Path, changes: Changes) -> None:
    """Remove a directory with all that is in it; one that is missing is no error, nor is a file
    that goes meanwhile: a large message may have been on its way into it.

    A file, or a link to elsewhere, goes without what it leads to."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        changes.unlink(path)
        return
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path), changes)
        else:
            with suppress(FileNotFoundError):
                changes.unlink(entry.path)
    changes.remove_directory(path)
