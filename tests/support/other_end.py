"""What the other end of a connection has done, on this machine, as the kernel shows it.

For tests whose next step, by another way, takes for granted that the broker has come so far.
Source: the kernel's proc_net_tcp.rst.
"""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.waiting import wait_for


def wait_until_read(sock: socket.socket) -> None:
    """Wait until the other end has read all that was sent."""
    if sock.fileno() >= 0:
        ports = sock.getpeername()[1], sock.getsockname()[1]
        wait_for(lambda: _unread(*ports) in (None, 0), "the broker does not read")


def wait_until_closed(here: int, there: int) -> None:
    """Wait until the other end of a connection that has ended is closed, too. Args: both ports."""
    wait_for(lambda: _unread(there, here) is None, "the broker does not close")


def _unread(local: int, remote: int) -> int | None:
    """Bytes that a socket has not read; None: it is closed."""
    for row in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:]):
        if (row[1][9:], row[2][9:]) == (f"{local:04X}", f"{remote:04X}"):
            return int(row[4].partition(":")[2], 16) if row[9] != "0" else None
    return None
