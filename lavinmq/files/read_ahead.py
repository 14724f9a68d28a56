"""What the loop is going to read of a queue's files, read before by a thread, so that the disk is
waited for there.

That is what a queue reads when it is opened: its newest segments, those that nobody has counted and
those of which messages were deleted, and what it knows of deliveries or consumers. Called by
`vhost/queue_files.py`. Source: docs/formats.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PIECE: Final = 1 << 20
_BESIDE: Final = ("deliveries", "consumer_offsets")


def read_ahead(directory: Path) -> None:
    """Read it, in a thread: the kernel keeps it for who comes next. What cannot be read is left to
    that one, who says so."""
    for each in (directory, *directory.glob("prio.[0-9][0-9][0-9]")):
        for path in _wanted(each):
            _read(path)


def _wanted(directory: Path) -> Iterator[Path]:
    yield from (each for name in _BESIDE if (each := directory / name).exists())
    segments = sorted(directory.glob("msgs." + "[0-9]" * 10))
    for segment in segments:
        number = segment.name.rpartition(".")[2]
        deleted, count = directory / f"acks.{number}", directory / f"meta.{number}"
        is_walked = segment is segments[-1] or not count.exists() or deleted.exists()
        yield from (each for each in (deleted, count) if each.exists())
        if is_walked:
            yield segment


def _read(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        while os.read(fd, _PIECE):
            pass
    except OSError:
        pass
    finally:
        os.close(fd)
