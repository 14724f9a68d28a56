"""Hands out TCP ports for brokers: to each test process its own, each one late again.

A port that was found free by binding it may be somebody else's a moment later, and then a test
talks to a broker of another test. So every process owns a block of ports below those that the
kernel gives to clients, marked by a socket that disappears with the process.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
FIRST, LAST, BLOCK = 10_240, 32_640, 200


def free_port() -> int:
    """Return a port nobody listens on, and that no other process will be given.

    Raises RuntimeError when all ports of the block are in use.
    """
    for port in itertools.islice(_ports, BLOCK):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"all {BLOCK} ports of this process are in use")


def _own_block() -> range:
    """Mark a block as this process's; nobody closes the mark before the process ends."""
    for first in range(FIRST, LAST, BLOCK):
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0lavinmq-tests-ports-{first}")
        except OSError:
            mark.close()
            continue
        mark.detach()
        return range(first, first + BLOCK)
    raise RuntimeError("every block of ports is taken by a test process")


def _all_ports() -> Iterator[int]:
    yield from itertools.cycle(_own_block())


_ports = _all_ports()
