"""How many file descriptors this process may have, and the kernel's table of them."""

import fcntl
import os
import resource
from typing import Final

TABLE: Final = 65536
"""Descriptors that the table has room for from the start: 8 bytes of the kernel's memory each."""
FEW: Final = 1025


def raise_limit() -> int | None:
    """Allow as many descriptors as we may have: one for each connection and active queue.

    Returns: how many that are, if they are few.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY and hard < FEW else None


def widen_table() -> None:
    """Give the table room for TABLE descriptors, or for as many as are allowed.

    The kernel doubles a table that is full, and a process with several threads waits meanwhile
    until no core reads the old one any more: 5 to 20 ms. A process with one thread does not wait:
    call this before there are others.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = TABLE - 1 if limit == resource.RLIM_INFINITY else min(TABLE, limit) - 1
    probe = os.eventfd(0)  # needs no file: a root directory may be without /dev
    try:
        os.close(fcntl.fcntl(probe, fcntl.F_DUPFD_CLOEXEC, last))
    except OSError:
        pass  # no room, or the last one is taken: then it is doubled when it is full
    finally:
        os.close(probe)
