"""Clients of every kind, through any node and over changes of the leader: by TLS, MQTT of QoS 1 and
2, streams. What was acknowledged to them is there, and so is what operators have set.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands
from pamqp.common import FieldTable

from tests.support.api import Api
from tests.support.book import Book, Producer
from tests.support.certificates import Authority
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.etcd import WHY_NOT
from tests.support.mqtt_peer import Peer
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_for
from tests.support.wire import Unit, Wire

DEADLINE_S = 2 * WAIT_S
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
MOST_UNACKED = 50


class Secure:
    """The ports with TLS of the nodes of a cluster."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        authority = Authority(directory)
        identity = authority.issue("server", ("localhost", HOST))
        self.context = authority.client_context()
        self.ports: dict[tuple[ClusterNode, str], int] = {}
        for node in cluster.nodes:
            node.args += ["--cert", str(identity.cert), "--key", str(identity.key)]
            for protocol in ("amqps", "mqtts", "https"):
                port = self.ports[node, protocol] = free_port()
                node.args += [f"--{protocol}-port", str(port)]

    def open(self, node: ClusterNode, protocol: str) -> ssl.SSLSocket:
        """A connection."""
        sock = socket.create_connection((HOST, self.ports[node, protocol]), 10)
        return self.context.wrap_socket(sock, server_hostname="localhost")


class SecureProducer(Producer):
    """By AMQPS."""

    secure: Secure

    def attempt(self, node: ClusterNode) -> None:
        with Wire(0, sock=self.secure.open(node, "amqps")) as wire:
            wire.login("guest", "guest", "/")
            wire.open_channel(1)
            self.publish(wire)


class MqttProducer(Producer):
    """By MQTTS, one message after the other."""

    secure: Secure
    qos = 1

    def declare(self, wire: Wire) -> None:
        super().declare(wire)
        bind = commands.Queue.Bind(
            queue=self.queue, exchange="amq.topic", routing_key=f"book.{self.queue}"
        )
        wire.call(1, bind, commands.Queue.BindOk)

    def attempt(self, node: ClusterNode) -> None:
        with Peer(0, sock=self.secure.open(node, "mqtts")) as peer:
            peer.connect(f"{self.producer}-{self._attempt}")
            while not self._is_over.is_set():
                self.published = self.confirmed + 1
                peer.publish(f"book/{self.queue}", self.body(self.published), qos=self.qos)
                self.confirmed = self.published


class ExactMqttProducer(MqttProducer):
    """The same, of QoS 2."""

    qos = 2


class StreamProducer(Producer):
    """To a stream."""

    def declare(self, wire: Wire) -> None:
        stream: FieldTable = {"x-queue-type": "stream"}
        declare = commands.Queue.Declare(queue=self.queue, durable=True, arguments=stream)
        wire.call(1, declare, commands.Queue.DeclareOk)

    def take_all(self, cluster: Cluster) -> list[bytes]:
        return [body for _, body in read_stream(cluster.leader(), self.queue)]


def read_stream(node: ClusterNode, name: str) -> list[tuple[int, bytes]]:
    """Offset and body of each message of a stream."""
    found = []
    with Wire.open(node.port) as wire:
        passive = commands.Queue.Declare(queue=name, passive=True)
        left = wire.call(1, passive, commands.Queue.DeclareOk).message_count or 0
        wire.call(1, commands.Basic.Qos(prefetch_count=MOST_UNACKED), commands.Basic.QosOk)
        consume = commands.Basic.Consume(queue=name, arguments={"x-stream-offset": "first"})
        wire.call(1, consume, commands.Basic.ConsumeOk)
        while len(found) < left:
            unit: Unit = wire.expect_unit(commands.Basic.Deliver)
            headers: Any = unit.properties.headers if unit.properties is not None else {}
            found.append((headers["x-stream-offset"], unit.body))
            tag = unit.method.delivery_tag  # type: ignore[attr-defined]
            wire.send(1, commands.Basic.Ack(delivery_tag=tag))
    return found


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with TLS."""
    directory = tmp_path_factory.mktemp("clients")
    with Cluster(directory / "cluster") as cluster:
        cluster.secure = Secure(cluster, directory)  # type: ignore[attr-defined]
        yield cluster


@pytest.fixture
def secure(cluster: Cluster) -> Secure:
    """Its ports."""
    found: Secure = cluster.secure  # type: ignore[attr-defined]
    return found


def test_clients_of_every_kind_lose_nothing_when_leaders_go(
    cluster: Cluster, secure: Secure
) -> None:
    kinds = (SecureProducer, MqttProducer, ExactMqttProducer, StreamProducer)
    producers = []
    for number, kind in enumerate(kinds):
        producer = kind(cluster, f"kind-{number}", f"kind-{number}", seed=number)
        producer.secure = secure  # type: ignore[attr-defined]
        producers.append(producer)
    with Book(cluster, name="kinds", producers=0, transactors=0, more=producers) as book:
        book.progress(10)
        before = {}
        for end in ("kill", "stop"):
            leader = cluster.leader()
            before |= dict(read_stream(leader, "kind-3")[: producers[3].confirmed])
            getattr(leader, end)()
            cluster.leader(other_than=leader)
            book.progress(10)
            leader.start()
            cluster.whole()
        after = dict(read_stream(cluster.leader(), "kind-3"))
        # What nobody had confirmed by then may have gone, and others have its offset.
        moved = [offset for offset in list(before)[: len(before) // 2]
                 if after[offset] != before[offset]]  # fmt: skip
        assert not moved
        book.check()


def test_clients_of_a_follower_by_tls_are_known_to_the_leader(
    cluster: Cluster, secure: Secure
) -> None:
    leader, follower = cluster.leader(), cluster.followers()[0]
    with secure.open(follower, "amqps") as one, secure.open(follower, "mqtts") as other:
        ports = {one.getsockname()[1], other.getsockname()[1]}
        wire, peer = Wire(0, sock=one), Peer(0, sock=other)
        wire.login("guest", "guest", "/")
        peer.connect("by-tls")

        def known() -> dict[int, bool]:
            return {each["peer_port"]: each["ssl"] for each in Api(leader).get("/api/connections")}

        wait_for(lambda: ports <= known().keys(), f"not known: {ports}", WAIT_S)
        assert all(known()[port] for port in ports)
    url = f"https://localhost:{secure.ports[follower, 'https']}/api/whoami"
    login = base64.b64encode(b"guest:guest").decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=10, context=secure.context) as answer:
        assert json.loads(answer.read())["name"] == "guest"


SET: tuple[tuple[str, str, Any], ...] = (
    ("PUT", "/api/queues/%2F/set", {"durable": True}),
    ("PUT", "/api/queues/%2F/set/pause", {}),
    ("PUT", "/api/operator-policies/%2F/op", {"pattern": "^x", "definition": {"max-length": 7}}),
    ("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 777}),
    ("PUT", "/api/users/limited", {"password": "p", "tags": "monitoring"}),
    ("PUT", "/api/user-limits/limited/max-connections", {"value": 3}),
    ("PUT", "/api/permissions/%2F/limited", {"configure": "", "write": "a", "read": "b"}),
    ("PUT", "/api/topic-permissions/%2F/limited",
     {"exchange": "amq.topic", "write": "^w", "read": "^r"}),
    ("PUT", "/api/global-parameters/of-all", {"value": {"deep": [1, 2]}}),
    ("PUT", "/api/parameters/federation-upstream/%2F/up",
     {"value": {"uri": "amqp://127.0.0.1:1", "exchange": "e"}}),
    ("PUT", "/api/parameters/shovel/%2F/carries", {"value": {
        "src-uri": "amqp://", "src-queue": "set", "dest-uri": "amqp://", "dest-queue": "carried"}}),
)  # fmt: skip
ASKED = (
    "/api/operator-policies", "/api/vhost-limits", "/api/user-limits", "/api/permissions",
    "/api/topic-permissions", "/api/global-parameters", "/api/parameters", "/api/users",
)  # fmt: skip


def test_what_operators_have_set_is_there_on_the_next_leader(cluster: Cluster) -> None:
    leader = cluster.leader()
    api = Api(leader)
    for method, path, body in SET:
        answer = api(method, path, body)
        assert answer.status < 300, (path, answer)

    def shovel(node: ClusterNode) -> str:
        shown = Api(node).get("/api/shovels")
        return str(shown[0]["state"]) if shown else ""

    wait_for(lambda: shovel(leader) == "Running", "the shovel does not run", WAIT_S)
    assert api("PUT", "/api/shovels/%2F/carries/pause").status < 300
    before = {path: api.get(path) for path in ASKED}

    leader.kill()
    new = cluster.leader(other_than=leader)

    after = {path: Api(new).get(path) for path in ASKED}
    assert after == before
    assert Api(new).get("/api/queues/%2F/set")["state"] == "paused"
    wait_for(lambda: shovel(new) == "Paused", f"the shovel is {shovel(new)}", WAIT_S)
    for method, path, _ in reversed(SET):
        if method == "PUT" and not path.endswith("pause"):
            Api(new)("DELETE", path)
