"""Hosts without the secret that do what they can at the port for nodes: play again what they have
recorded, connect as often as they can, never come to an end. Nodes of the cluster notice nothing.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from lavinmq.cluster import frames
from tests.integration.cluster.test_strangers import connected, is_closed, secret_of
from tests.support.book import Book
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.etcd import WHY_NOT

DEADLINE_S = 2 * WAIT_S
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
HELD = 200
"""Connections that a flood has at a time."""


class Recording:
    """A socket that keeps what is sent by it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.sent: list[bytes] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        """Send it."""
        self.sent.append(bytes(data))
        self._sock.sendall(data)


def test_recorded_greeting_is_worth_nothing(cluster: Cluster) -> None:
    leader = cluster.leader()
    with connected(leader) as sock:
        recording = Recording(sock)
        frames.greet_leader(recording, secret_of(cluster))  # type: ignore[arg-type]
    with connected(leader) as sock:
        for each in recording.sent:
            sock.sendall(each)
        heard = b""
        with suppress(ConnectionResetError):
            while piece := sock.recv(65536):
                heard += piece
    assert b"it does not have the secret of this cluster" in heard


@contextmanager
def flood(node: ClusterNode) -> Iterator[list[int]]:
    """Connect as often as possible, and say nothing. Yields: how often, by thread."""
    is_over = threading.Event()
    counts: list[int] = []

    def connect(number: int) -> None:
        held: deque[socket.socket] = deque()
        while not is_over.is_set():
            with suppress(OSError):
                held.append(socket.create_connection((node.host, node.clustering_port), 1))
                counts[number] += 1
            while len(held) > HELD:
                held.popleft().close()
        for each in held:
            each.close()

    threads = []
    for number in range(2):
        counts.append(0)
        threads.append(threading.Thread(target=connect, args=(number,)))
        threads[-1].start()
    try:
        yield counts
    finally:
        is_over.set()
        for each in threads:
            each.join()


def test_flood_of_connections_keeps_nobody_out(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.followers()[0]
    follower.kill()
    with Book(cluster, name="flood", transactors=0) as book, flood(leader) as counts:
        book.progress()
        follower.start()
        cluster.whole()
        book.progress()
        book.check()
    print(f"{sum(counts)} connections")
    assert cluster.picture().epoch == 1


def test_frame_without_end_is_ended(cluster: Cluster) -> None:
    """Of one that has the secret: a hello of 4 GiB, of which no more is read than is allowed."""
    with connected(cluster.leader()) as sock:
        frames.greet_leader(sock, secret_of(cluster))
        sock.sendall(b"\xff\xff\xff\xff")
        with suppress(OSError):
            for _ in range(100):
                sock.sendall(bytes(1 << 20))
        assert is_closed(sock)
