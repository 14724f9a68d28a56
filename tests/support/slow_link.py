"""A TCP connection of this process with itself by a network that carries so much and no more: the
kernel's own, shaped by `tc`, in a namespace that goes with its sockets. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from functools import cache

CLONE_NEWNET = 0x40000000
BURST_BYTES = 131072


def pair(rate: int) -> tuple[socket.socket, socket.socket]:
    """Both ends. Args: rate: bytes per second, both ways together. Raises: OSError."""
    made: list[tuple[socket.socket, socket.socket] | OSError] = []

    def work() -> None:
        try:
            made.append(_pair(rate))
        except (OSError, subprocess.CalledProcessError) as error:
            made.append(OSError(str(error)))

    # The namespace is that of one thread, and of what it makes.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _pair(rate: int) -> tuple[socket.socket, socket.socket]:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a network of its own cannot be had")
    for command in (
        "ip link set lo up",
        f"tc qdisc add dev lo root tbf rate {8 * rate} burst {BURST_BYTES} latency 50ms",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other = server.accept()[0]
    for each in (one, other):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


@cache
def why_not() -> str:
    """Why there can be none; empty if there can."""
    if os.geteuid() != 0 or shutil.which("tc") is None:
        return "needs root and tc: links that are slow as the kernel knows it are NOT tested"
    try:
        for each in pair(10_000_000):
            each.close()
    except OSError as error:
        return f"{error}: links that are slow as the kernel knows it are NOT tested"
    return ""
