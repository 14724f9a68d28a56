"""Other file systems that hold parts of the data directory, by mounts and links.

A sync of a whole file system covers the one of the data directory alone, so the start has to know.
Links inside the directory of a queue are not looked for. Source: docs/durability.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

MOUNTS: Final = "/proc/self/mountinfo"
_HASHED: Final = re.compile(r"[0-9a-f]{40}")
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


def others(data_dir: str, mounts: str = MOUNTS) -> list[str]:
    """A directory of each other file system that holds a part of it.

    Raises: OSError when a part cannot be looked at: what is in it might not be on disk.
    """
    own = os.stat(data_dir).st_dev
    found: dict[int, str] = {}
    for path in (*_mounted(os.path.realpath(data_dir), mounts), *_linked(data_dir)):
        try:
            found.setdefault(os.stat(path).st_dev, path)
        except FileNotFoundError:
            continue  # a link to nowhere, which closes its queue
    found.pop(own, None)
    return list(found.values())


def _mounted(data_dir: str, mounts: str) -> Iterator[str]:
    """What is mounted below."""
    try:
        with open(mounts, "rb") as file:
            lines = file.readlines()
    except FileNotFoundError:  # no /proc: nobody can tell
        return
    below = os.path.join(os.fsencode(data_dir), b"")
    for line in lines:
        raw = line.split(b" ")[4]
        path = _OCTAL.sub(lambda octal: bytes((int(octal[1], 8),)), raw)
        if path.startswith(below):
            yield os.fsdecode(path)


def _linked(data_dir: str) -> Iterator[str]:
    """The directories of virtual hosts and queues that are links."""
    for vhost in _hashed(data_dir):
        if vhost.is_symlink():
            yield vhost.path
        if vhost.is_dir():
            yield from (queue.path for queue in _hashed(vhost.path) if queue.is_symlink())


def _hashed(directory: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        yield from (entry for entry in entries if _HASHED.fullmatch(entry.name))
