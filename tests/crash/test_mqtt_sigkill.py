"""A broker of MQTT that is killed, and one whose disk loses its power: no PUBACK, PUBREC, PUBREL or
PUBCOMP lied.

A client publishes with QoS 1 and 2, retained and not, also to a queue and a stream of AMQP, and
notes what was answered; one of AMQP publishes to a session with confirms; another one takes
messages of QoS 2 as far as PUBREL. From the log of the disk the
directory is rebuilt as it may be after any call; a broker starts on it, and has all that had been
answered before that call: messages once, the identifiers of QoS 2, retained messages.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.mqtt_lives import BrokerFactory, after_kills, after_losses_of_power, recorded
from tests.support import mqtt_bytes
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5
from tests.support.mqtt_peer import Peer
from tests.support.power_loss import Reading
from tests.support.wire import Wire

ROUNDS = 25
PINGS = 5
KEPT = {"clean": False, "properties": mqtt_bytes.block(b"\x11\0\0\x0e\x10")}
TOPICS = ("r/a", "r/b", "r/c/d")
QUEUE, STREAM = "bridged", "bridged-stream"
PUBREC, PUBREL, PUBLISH = 5, 6, 3

pytestmark = pytest.mark.crash


class Books:
    """What a client has sent and heard, each with the time."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.answered: dict[bytes, int] = {}
        self.retained: list[tuple[str, bytes]] = []
        self.retained_answered: list[tuple[int, int]] = []
        self.received: dict[int, int] = {}
        self.bridged: dict[bytes, int] = {}
        self.released: dict[int, tuple[bytes, int]] = {}

    def run(self, broker: Broker) -> None:
        """Publish a number of messages to a session that nobody is connected to."""
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("reader", **KEPT)
            client.subscribe(("m/#", 2))
            client.disconnect(b"\0")
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("writer", **KEPT)
            for number in range(ROUNDS):
                body = b"m%d" % number
                self.published.append(body)
                client.publish("m/x", body, 1 + number % 2)
                self.answered[body] = time.monotonic_ns()
                topic = TOPICS[number % 3]
                payload = b"" if number % 7 == 6 else b"r%d" % number
                self.retained.append((topic, payload))
                client.publish(topic, payload, 1 + number % 2, retain=True)
                self.retained_answered.append((time.monotonic_ns(), number))
            for packet_id in range(100, 105):
                client.send(
                    mqtt_bytes.publish(V5, "m/y", b"y%d" % packet_id, qos=2, packet_id=packet_id)
                )
                self.published.append(b"y%d" % packet_id)
                client.expect(5)
                self.received[packet_id] = time.monotonic_ns()
        self._bridge(broker)
        self._take(broker)

    def _bridge(self, broker: Broker) -> None:
        """Publish to a queue and a stream of AMQP that no session stands beside, and from AMQP to a
        session that nobody is connected to."""
        with Wire.open(broker.port) as wire:
            for name, arguments in ((QUEUE, {}), (STREAM, {"x-queue-type": "stream"})):
                declare = commands.Queue.Declare(queue=name, durable=True, arguments=arguments)
                wire.call(1, declare, commands.Queue.DeclareOk)
                bind = commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key="b.#")
                wire.call(1, bind, commands.Queue.BindOk)
            wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            for number in range(ROUNDS // 2):
                body = b"a%d" % number
                self.published.append(body)
                stored = commands.Basic.Properties(delivery_mode=2)
                wire.publish(1, "amq.topic", "m.a", body, stored)
                wire.expect(commands.Basic.Ack, 1)
                self.answered[body] = time.monotonic_ns()
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("bridges")
            for number in range(ROUNDS // 2):
                body = b"b%d" % number
                client.publish("b/x", body, 1 + number % 2)
                self.bridged[body] = time.monotonic_ns()

    def _take(self, broker: Broker) -> None:
        """Receive messages of QoS 2 up to their PUBREL."""
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("taker", **KEPT)
            client.subscribe(("t/#", 2))
            for number in range(5):
                client.publish("t/x", b"t%d" % number, 2)
            for _ in range(5):
                client.publish("u/x", b"", 1)  # what follows has syncs of its own
                message = client.message(is_acked=False)
                raw_id = message.packet_id.to_bytes(2, "big")
                client.send(mqtt_bytes.packet(PUBREC, raw_id))
                assert client.expect(PUBREL).body[:2] == raw_id
                self.released[message.packet_id] = message.payload, time.monotonic_ns()

    def check(self, broker: Broker, before_ns: int) -> None:
        """All that was answered by then is there."""
        late = [packet_id for packet_id, at in self.received.items() if at < before_ns]
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("writer", **KEPT)
            for packet_id in late:
                client.send(
                    mqtt_bytes.publish(
                        V5, "m/y", b"y%d" % packet_id, qos=2, packet_id=packet_id, dup=True
                    )
                )
                assert client.expect(5).body[2:3] in (b"", b"\0")
                client.send(mqtt_bytes.packet(6, packet_id.to_bytes(2, "big"), 2))
                assert client.expect(7).body[2:3] in (b"", b"\0"), "the id was forgotten"
        found = self._messages(broker)
        assert set(found) <= set(self.published)
        assert {body for body, at in self.answered.items() if at < before_ns} <= set(found)
        assert {b"y%d" % each for each in late} <= set(found)
        assert max(found.values(), default=1) == 1, "a message came twice"
        self._check_retained(broker, before_ns)
        self._check_bridged(broker, before_ns)
        self._check_released(broker, before_ns)

    def _check_bridged(self, broker: Broker, before_ns: int) -> None:
        """The queue and the stream of AMQP have what was answered, once."""
        late = {body for body, at in self.bridged.items() if at < before_ns}
        if not late:
            return
        found: Counter[bytes] = Counter()
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("looks")
            assert client.subscribe((f"$queue/{QUEUE}", 1)) == [1]
            client.publish("b/end", b"end", 1)
            while (message := client.message()).payload != b"end":
                found[message.payload] += 1
        assert late <= set(found) <= set(self.bridged)
        assert max(found.values()) == 1, "a message came twice"
        found = Counter(self._read_stream(broker))
        assert late <= set(found) <= {*self.bridged, b"end"}
        assert max(found.values()) == 1, "a message is twice in the stream"

    def _read_stream(self, broker: Broker) -> list[bytes]:
        """What is in the stream, which ends with `end`."""
        bodies: list[bytes] = []
        with Wire.open(broker.port) as wire:
            wire.call(1, commands.Basic.Qos(prefetch_count=100), commands.Basic.QosOk)
            consume = commands.Basic.Consume(queue=STREAM, arguments={"x-stream-offset": "first"})
            wire.call(1, consume, commands.Basic.ConsumeOk)
            while b"end" not in bodies:
                bodies.append(wire.expect_unit(commands.Basic.Deliver, 1).body)
        return bodies

    def _check_released(self, broker: Broker, before_ns: int) -> None:
        """What PUBREL was said of does not come again, and waits for PUBCOMP."""
        late = {each: body for each, (body, at) in self.released.items() if at < before_ns}
        if not late:
            return
        released: set[int] = set()
        came: set[bytes] = set()
        with Peer(broker.mqtt_port, V5) as client:
            assert client.connect("taker", **KEPT)[0] == 1
            client.send(b"\xc0\0" * PINGS)
            n_pongs = 0
            while n_pongs < PINGS or not late.keys() <= released:
                packet = client.read()
                assert packet is not None
                n_pongs += packet.kind == 13
                if packet.kind == PUBREL:
                    released.add(int.from_bytes(packet.body[:2], "big"))
                if packet.kind == PUBLISH:
                    came.add(packet.body[-2:])
        assert not came & set(late.values()), "a message came again"

    def _messages(self, broker: Broker) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("reader", **KEPT)
            client.subscribe(("m/#", 2))
            client.publish("m/end", b"end", 1)
            while (message := client.message()).payload != b"end":
                found[message.payload] += 1
        return found

    def _check_retained(self, broker: Broker, before_ns: int) -> None:
        safe = max((n for at, n in self.retained_answered if at < before_ns), default=-1)
        allowed: dict[str, set[bytes]] = {topic: {b""} for topic in TOPICS}
        for number, (topic, payload) in enumerate(self.retained):
            allowed[topic] = {payload} if number <= safe else {*allowed[topic], payload}
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("looks")
            client.subscribe(("r/#", 1))
            found = dict.fromkeys(TOPICS, b"")
            for _ in range(PINGS):  # they are given in turns behind SUBACK
                client.ping()
            for message in client.early_messages():
                found[message.topic] = message.payload
        for topic, payload in found.items():
            assert payload in allowed[topic], f"{topic}: {payload!r} of {allowed[topic]}"


@EVERY_READING
def test_what_was_answered_survives_a_loss_of_power(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    books = Books()
    records = recorded(on_disk, books)
    after = after_losses_of_power(records, reading, is_long, tmp_path, broker_factory)
    for broker, before_ns in after:
        books.check(broker, before_ns)


def test_what_was_answered_survives_a_kill_at_any_call(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool
) -> None:
    books = Books()
    records = recorded(on_disk, books)
    for broker, before_ns in after_kills(records, is_long, tmp_path, broker_factory):
        books.check(broker, before_ns)
