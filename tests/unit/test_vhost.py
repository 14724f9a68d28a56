"""A virtual host without clients: what its connections have to know of their queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq.auth.users import User, UserStore
from lavinmq.fieldtable import EMPTY
from lavinmq.queue import Queue
from lavinmq.vhost import VHost
from tests.support.core import Bench

MAX_DELETED = 5


class Client:
    """As much of a connection as the virtual host asks for; it may do everything."""

    def __init__(self, user: User) -> None:
        self.name = "client"
        self.user = user
        self.exclusive_queues: set[Queue] = set()


class Consumer:
    """A consumer of nothing."""

    tag = "c"
    exclusive = False

    def stop(self) -> None:
        """Nothing to stop."""

    def cancelled(self) -> None:
        """Nobody to tell."""


@pytest.fixture
def vhost(tmp_path: Path) -> Iterator[VHost]:
    with closing(Bench(tmp_path)) as bench:
        events = bench.loop.events
        vhost = VHost("/", tmp_path, bench.loop, 4096, MAX_DELETED, "ring", events.call_soon)
        vhost.open()
        yield vhost
        vhost.close()


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(UserStore(tmp_path, "guest", "", True).direct_user)


def declare(vhost: VHost, client: Client, *, exclusive: bool) -> Queue:
    return vhost.declare_queue(client, "q", False, False, exclusive, True, EMPTY)[0]


def test_definitions_are_compacted_after_so_many_deletions(vhost: VHost, client: Client) -> None:
    """edge-cases.md 337"""
    path = vhost.directory / "definitions.amqp"
    before = path.stat().st_size
    sizes = []
    for _ in range(MAX_DELETED + 1):
        vhost.declare_queue(client, "q", False, True, False, False, EMPTY)
        vhost.delete_queue(client, "q", False, False)
        sizes.append(path.stat().st_size)

    assert sizes[:-1] == sorted(sizes[:-1])
    assert sizes[-1] == before


def test_a_connection_knows_its_exclusive_queues_while_they_exist(
    vhost: VHost, client: Client
) -> None:
    """edge-cases.md 37"""
    declare(vhost, client, exclusive=False)
    vhost.delete_queue(client, "q", False, False)
    queue = declare(vhost, client, exclusive=True)
    assert client.exclusive_queues == {queue}
    consumer = Consumer()
    queue.add_consumer(consumer)

    vhost.consumer_left(queue, consumer)

    assert "q" not in vhost.queues
    assert client.exclusive_queues == set()


def test_a_deleted_exclusive_queue_is_forgotten(vhost: VHost, client: Client) -> None:
    """edge-cases.md 37"""
    declare(vhost, client, exclusive=True)

    vhost.delete_queue(client, "q", False, False)

    assert client.exclusive_queues == set()
