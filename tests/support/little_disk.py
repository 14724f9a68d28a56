"""A disk that takes a part of a write, as a nearly full one does: the kernel says how much, and
refuses the rest when it is tried again. And one that refuses for another reason than want of room.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def files_of_at_most(n: int) -> Iterator[None]:
    """No file of this process grows beyond n bytes meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def broken(path: Path) -> Iterator[None]:
    """A file that this process has open cannot be written meanwhile: EBADF, which no room helps."""
    links = [(int(each.name), each) for each in Path("/proc/self/fd").iterdir()]
    fds = [fd for fd, link in links if os.path.lexists(link) and os.readlink(link) == str(path)]
    assert fds, f"{path} is not open"
    kept = [os.dup(fd) for fd in fds]
    without = os.open(path, os.O_RDONLY)
    try:
        for fd in fds:
            os.dup2(without, fd, inheritable=False)
        yield
    finally:
        for fd, before in zip(fds, kept, strict=True):
            os.dup2(before, fd, inheritable=False)
            os.close(before)
        os.close(without)
