"""Clients of a follower's ports are served by the leader, as who they are."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest
import uvloop

from lavinmq.cluster.proxy import Door, Proxy, Target
from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.mqtt_peer import Peer
from tests.support.ports import HOST, free_port
from tests.support.proxy import v2
from tests.support.waiting import wait_for

TIMEOUT_S = 20.0
ANOTHER = struct.pack("!4s4sHH", bytes((127, 0, 0, 9)), bytes((10, 9, 9, 9)), 4000, 5672)
"""The address of another client, as a header has it."""


@dataclass
class Follower:
    """A node without a broker: its ports, and who leads."""

    leader: Broker
    ports: dict[str, int]
    context: ssl.SSLContext
    """Trusts the leader's certificate."""
    host: str = HOST

    @property
    def http_port(self) -> int:
        return self.ports["http"]


@pytest.fixture
def follower(broker_factory: BrokerFactory, tmp_path: Path) -> Iterator[Follower]:
    """With a leader that knows its host."""
    authority = Authority(tmp_path)
    identity = authority.issue("server", ("localhost", HOST))
    amqps = free_port()
    leader = broker_factory(
        ["--amqps-port", str(amqps), "--cert", str(identity.cert), "--key", str(identity.key)],
        http=True, mqtt=True, command=[sys.executable, "-m", "tests.support.peers", HOST],
    )  # fmt: skip
    published = {
        "amqp": leader.port, "amqps": amqps, "http": leader.http_port, "mqtt": leader.mqtt_port,
    }  # fmt: skip
    ports = {protocol: free_port() for protocol in published}
    events = uvloop.new_event_loop()
    thread = threading.Thread(target=events.run_forever)
    thread.start()
    proxy = Proxy(
        events, [Door(protocol, HOST, port) for protocol, port in ports.items()],
        lambda protocol: Target(HOST, published[protocol]), most=100,
    )  # fmt: skip

    async def start() -> None:
        proxy.start()

    asyncio.run_coroutine_threadsafe(start(), events).result(TIMEOUT_S)
    yield Follower(leader, ports, authority.client_context())
    asyncio.run_coroutine_threadsafe(proxy.close(), events).result(TIMEOUT_S)
    events.call_soon_threadsafe(events.stop)
    thread.join()
    events.close()


def only_connection(follower: Follower) -> Any:
    """What the leader tells of its only client, once it has come."""
    api = Api(follower.leader)
    wait_for(lambda: len(api.get("/api/connections")) == 1, "nobody, or several")
    return api.get("/api/connections")[0]


@pytest.mark.parametrize("protocol", ["amqp", "amqps"])
def test_amqp_goes_through_and_the_leader_knows_the_client(
    follower: Follower, protocol: str
) -> None:
    options = pika.SSLOptions(follower.context, "localhost") if protocol == "amqps" else None
    parameters = pika.ConnectionParameters(
        HOST, follower.ports[protocol], ssl_options=options, connection_attempts=1
    )
    body = bytes(1 << 20)
    with closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("greetings", durable=True)
        channel.basic_publish("", "greetings", body)
        assert channel.basic_get("greetings", auto_ack=True)[2] == body
        local = connection._impl._transport._sock.getsockname()

        shown = only_connection(follower)

    assert (shown["peer_host"], shown["peer_port"]) == local
    assert (shown["host"], shown["port"]) == (HOST, follower.ports[protocol])
    assert shown["ssl"] == (protocol == "amqps")
    wait_for(lambda: Api(follower.leader).get("/api/connections") == [], "it stays")


def test_a_header_of_a_stranger_is_not_believed(follower: Follower) -> None:
    """The leader takes addresses of clients from where there are nodes, and from nowhere else."""
    source, began = ("127.0.0.2", 0), b"AMQP\0\0\x09\x01"
    where = HOST, follower.leader.port
    with socket.create_connection(where, TIMEOUT_S, source_address=source) as sock:
        sock.sendall(v2(ANOTHER) + began)
        assert not sock.recv(1000).startswith(b"\x01"), "it is taken for another client"
    with socket.create_connection(where, TIMEOUT_S, source_address=source) as sock:
        sock.sendall(began)
        assert sock.recv(1000).startswith(b"\x01"), "without a header it is served"


def test_mqtt_goes_through_and_the_leader_knows_the_client(follower: Follower) -> None:
    with Peer(follower.ports["mqtt"]) as peer:
        peer.connect()
        local = peer.socket.getsockname()

        shown = only_connection(follower)

    assert (shown["peer_host"], shown["peer_port"]) == local


def test_http_goes_through_and_clients_of_the_leader_itself_are_served(follower: Follower) -> None:
    assert Api(follower).get("/api/whoami") == Api(follower.leader).get("/api/whoami")
