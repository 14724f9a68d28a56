"""Connections that never log in keep nobody out who does."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from tests.support.broker import Broker
from tests.support.ports import HOST
from tests.support.process import Process
from tests.support.waiting import wait_for
from tests.support.wire import PROTOCOL_HEADER, Wire

DESCRIPTORS = 400
PLACES = DESCRIPTORS // 4


def is_closed(client: socket.socket) -> bool:
    """Whether the broker has closed it; what it has said is read."""
    client.setblocking(False)
    try:
        return client.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def come(stack: ExitStack, broker: Broker, host: str, n: int) -> list[socket.socket]:
    """So many connections of an address that say only the header."""
    clients = []
    for _ in range(n):
        client = stack.enter_context(socket.socket())
        client.bind((host, 0))
        client.connect((HOST, broker.port))
        client.sendall(PROTOCOL_HEADER)
        clients.append(client)
    return clients


def test_an_address_that_never_logs_in_has_a_share_and_the_oldest_goes(
    own_broker: Broker,
) -> None:
    broker = own_broker
    with ExitStack() as stack:
        Process(broker.pid).limit_descriptors(DESCRIPTORS)
        known = stack.enter_context(Wire.open(broker.port))

        greedy = come(stack, broker, "127.0.0.2", PLACES)

        wait_for(lambda: sum(map(is_closed, greedy)) == PLACES // 2, "half are closed")
        others = [come(stack, broker, f"127.0.0.{3 + n}", 1)[0] for n in range(PLACES // 2)]
        wait_for(lambda: not any(map(is_closed, others)), "those of others stay")
        Wire.open(broker.port).close()
        wait_for(lambda: is_closed(greedy[0]), "the oldest has gone")
        known.open_channel(2)
