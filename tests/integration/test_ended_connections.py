"""What has ended is let go of at once, and not when the garbage collector looks, which is rare."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Iterator

import pika
import pytest

import lavinmq
from tests.support.mqtt_bytes import V5, V311, connect
from tests.support.ports import free_port

N = 5


def connections() -> int:
    """How many connections of clients there are, as objects."""
    names = ("lavinmq.amqp.connection", "lavinmq.mqtt.connection")
    return sum(
        type(each).__name__ == "Connection" and type(each).__module__ in names
        for each in gc.get_objects()
    )


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def gone(before: int) -> bool:
    """Wait until there are no more than before."""
    until = time.monotonic() + 20
    while connections() > before and time.monotonic() < until:
        time.sleep(0.05)
    return connections() == before


@pytest.mark.usefixtures("without_collector")
def test_clients_of_amqp_leave_nothing_for_the_garbage_collector() -> None:
    with lavinmq.run() as broker:
        before = connections()
        clients = [pika.BlockingConnection(pika.URLParameters(broker.url)) for _ in range(N)]
        for each in clients:
            each.channel().queue_declare("", exclusive=True)
        assert connections() == before + N

        for each in clients:
            each.close()

        assert gone(before)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("end", [b"\xe0\0", b"", b"\xff\xff\xff\xff\xff\xff"])
@pytest.mark.parametrize("level", [V311, V5])
def test_clients_of_mqtt_leave_nothing_for_the_garbage_collector(level: int, end: bytes) -> None:
    port = free_port()
    with lavinmq.run(mqtt_port=port):
        before = connections()
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(N)]
        for n, each in enumerate(clients):
            each.sendall(connect(level, f"ended-{n}"))
            assert each.recv(100)[:1] == b"\x20"
        assert connections() == before + N

        for each in clients:
            each.sendall(end)
            each.close()

        assert gone(before)
