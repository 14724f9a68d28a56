"""Clients of MQTT that keep books over failures of a cluster, beside those of `book.py`: each notes
what it was told, and finds out in the end whether that was true."""

from __future__ import annotations

from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.book import Producer
from tests.support.cluster import Cluster, ClusterNode
from tests.support.mqtt_bytes import V5, block
from tests.support.mqtt_peer import PUBCOMP, PUBREL, Peer
from tests.support.wire import Wire

KEPT = {"clean": False, "properties": block(b"\x11\0\0\x0e\x10")}
PUBACK, PUBREC = 4, 5
REFUSED = 0x80
TOLD = "tell"
PACE_S = 0.005
"""Between messages: processors are for the nodes."""


def accepted(peer: Peer, kind: int) -> None:
    """Wait for an answer. Raises: AssertionError when it refuses."""
    packet = peer.expect(kind)
    assert len(packet.body) < 3 or packet.body[2] < REFUSED, packet


class MqttProducer(Producer):
    """Publishes with QoS 1 to a session that is kept, one message after the other."""

    @property
    def topic(self) -> str:
        """Where to."""
        return f"book/{self.queue}"

    @property
    def reader(self) -> str:
        """Who has it in the end."""
        return f"reader-{self.queue}"

    @property
    def filter(self) -> str:
        """What the reader subscribes to."""
        return self.topic

    def declare(self, wire: Wire) -> None:
        with Peer(self.cluster.leader().mqtt_port, V5) as peer:
            peer.connect(self.reader, **KEPT)
            assert peer.subscribe((self.filter, 1)) == [1]
            peer.disconnect(b"\0")

    def attempt(self, node: ClusterNode) -> None:
        with Peer(node.mqtt_port, V5) as peer:
            assert peer.connect(self.producer, **KEPT)[1] == 0
            self.say(peer)

    def say(self, peer: Peer) -> None:
        """Publish until that fails, or it is to end."""
        while not self._is_over.is_set():
            self.published = self.confirmed + 1
            body = self.body(self.published)
            peer.send(mqtt_bytes.publish(V5, self.topic, body, qos=1, packet_id=7))
            accepted(peer, PUBACK)
            self.confirmed = self.published
            self._is_over.wait(PACE_S)

    def take_all(self, cluster: Cluster) -> list[bytes]:
        with Peer(cluster.leader().mqtt_port, V5) as peer:
            assert peer.connect(self.reader, **KEPT)[0] == 1, f"{self.reader} is gone"
            peer.subscribe((TOLD, 1))
            found: list[bytes] = []
            while True:
                peer.publish(TOLD, b"", 1)
                message = peer.message()
                if message.topic == TOLD:
                    return found
                found.append(message.payload)
                while (message := peer.message()).topic != TOLD:
                    found.append(message.payload)


class SharedProducer(MqttProducer):
    """The same, to a shared subscription."""

    @property
    def filter(self) -> str:
        return f"$share/g/{self.topic}"


class ExactProducer(MqttProducer):
    """With QoS 2: what was not answered is sent again, and comes once all the same."""

    def __init__(self, cluster: Cluster, name: str, queue: str, seed: int, size: int = 30) -> None:
        super().__init__(cluster, name, queue, seed, size)
        self._is_received = False
        self._sent = b""

    def say(self, peer: Peer) -> None:
        while not self._is_over.is_set():
            self._say(peer, is_again=bool(self._sent))
            self._is_over.wait(PACE_S)

    def _say(self, peer: Peer, *, is_again: bool) -> None:
        if not is_again:
            self.published = self.confirmed + 1
            self._sent = self.body(self.published)
        packet_id = 1 + self.published % 1000
        raw_id = packet_id.to_bytes(2, "big")
        if not self._is_received:
            peer.send(mqtt_bytes.publish(V5, self.topic, self._sent, qos=2, packet_id=packet_id,
                                         dup=is_again))  # fmt: skip
            accepted(peer, PUBREC)
            self._is_received = True  # what follows is about the identifier alone
        peer.send(mqtt_bytes.packet(PUBREL, raw_id, 2))
        assert peer.expect(PUBCOMP).body[:2] == raw_id
        self._is_received, self._sent = False, b""
        self.confirmed = self.published


class RetainedProducer(MqttProducer):
    """Sets one retained message anew again and again."""

    def declare(self, wire: Wire) -> None:
        pass

    def say(self, peer: Peer) -> None:
        while not self._is_over.is_set():
            self.published = self.confirmed + 1
            peer.send(mqtt_bytes.publish(V5, self.topic, b"%d" % self.published, qos=1,
                                         packet_id=7, retain=True))  # fmt: skip
            accepted(peer, PUBACK)
            self.confirmed = self.published
            self._is_over.wait(PACE_S)

    def take_all(self, cluster: Cluster) -> list[bytes]:
        with Peer(cluster.leader().mqtt_port, V5) as peer:
            peer.connect(f"asks-{self.queue}")
            peer.subscribe((self.topic, 1))
            last = int(peer.message().payload)
        assert self.confirmed <= last <= self.published, (self.confirmed, last, self.published)
        return [self.body(number) for number in range(1, last + 1)]


class Comer(MqttProducer):
    """Comes as another client each time, whose session is kept, and subscribes; every third one
    comes again, to have no session any more."""

    def declare(self, wire: Wire) -> None:
        self.gone: set[int] = set()
        self.doubtful: set[int] = set()

    def attempt(self, node: ClusterNode) -> None:
        while not self._is_over.is_set():
            self.published = self.confirmed + 1
            name = self._client_id(self.published)
            with Peer(node.mqtt_port, V5) as peer:
                assert peer.connect(name, **KEPT)[1] == 0
                assert peer.subscribe((f"{name}/#", 1)) == [1]
                peer.disconnect(b"\0")
            self.confirmed = self.published
            if self.confirmed % 3 == 0:
                self._end(node, self.confirmed)

    def _end(self, node: ClusterNode, number: int) -> None:
        self.doubtful.add(number)
        with Peer(node.mqtt_port, V5) as peer:
            assert peer.connect(self._client_id(number), clean=True)[1] == 0
            peer.disconnect(b"\0")
        self.gone.add(number)

    def _client_id(self, number: int) -> str:
        return f"{self.producer}-{number}"

    def take_all(self, cluster: Cluster) -> list[bytes]:
        api = Api(cluster.leader())
        sessions = {each["client_id"] for each in api.get("/api/mqtt/sessions")}
        there = {int(each.rpartition("-")[2]) for each in sessions
                 if each.startswith(f"{self.producer}-")}  # fmt: skip
        assert not there & self.gone, f"are back: {there & self.gone}"
        for number in sorted(there):
            path = f"/api/mqtt/sessions/%2F/{self._client_id(number)}/subscriptions"
            filters = [each["filter"] for each in api.get(path)]
            assert number > self.confirmed or filters == [f"{self._client_id(number)}/#"], filters
        return [self.body(number) for number in sorted(there | self.doubtful)]


def all_kinds(cluster: Cluster, name: str, size: int = 30) -> list[Producer]:
    """One of each."""
    kinds = (MqttProducer, SharedProducer, ExactProducer, RetainedProducer, Comer)
    return [
        kind(cluster, f"{name}-{number}", f"{name}-{number}", number, size)
        for number, kind in enumerate(kinds)
    ]
