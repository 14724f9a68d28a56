"""A disk that takes a part of a write, as a nearly full one does: the kernel says how much, and
refuses the rest when it is tried again.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_of_at_most(n: int) -> Iterator[None]:
    """No file of this process grows beyond n bytes meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
