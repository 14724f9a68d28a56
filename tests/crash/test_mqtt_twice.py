"""Exactly once to a client with QoS 2, whatever a loss of power takes.

A client receives as the standard says: what comes with an identifier that it holds is the message
that it has, and it holds the identifier until PUBREL. Messages end in every state. From the log of
the disk the directory is rebuilt as it may be after any call; a broker starts on it, and more is
published, which gets the next identifiers. Then the client has had every message, and none twice:
none is taken for another.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.mqtt_lives import (
    BrokerFactory,
    Publisher,
    after_kills,
    after_losses_of_power,
    recorded,
)
from tests.support import mqtt_bytes
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5
from tests.support.mqtt_peer import Packet, Peer
from tests.support.power_loss import Reading

FIRST, MORE, BURST = 12, 12, 4
KEPT = {"clean": False, "properties": mqtt_bytes.block(b"\x11\0\0\x0e\x10")}
PUBLISH, PUBREC, PUBREL, PUBCOMP, PINGRESP = 3, 5, 6, 7, 13

pytestmark = pytest.mark.crash


class Event(NamedTuple):
    """A PUBLISH or a PUBREL has come."""

    time_ns: int
    raw_id: bytes
    body: bytes | None


def body_of(packet: Packet) -> tuple[bytes, bytes]:
    """Identifier and body of a PUBLISH of QoS 2 without properties."""
    n = int.from_bytes(packet.body[:2], "big")
    assert packet.flags >> 1 & 3 == 2
    return packet.body[2 + n : 4 + n], packet.body[5 + n :]


class Receiver:
    """What a client knows of messages of QoS 2, and has handed to its program."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.taken: Counter[bytes] = Counter()

    def hear(self, raw_id: bytes, body: bytes | None) -> None:
        """A PUBLISH, or a PUBREL."""
        if body is None:
            self.held.pop(raw_id, None)
        elif raw_id in self.held:
            assert self.held[raw_id] == body, f"{body!r} is taken for {self.held[raw_id]!r}"
        else:
            self.held[raw_id] = body
            self.taken[body] += 1


class Books(Publisher):
    """What was answered and received, with the times."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.subscribed_ns = 0
        self._heard: dict[int, deque[bytes]] = {PUBLISH: deque(), PUBREL: deque()}

    def run(self, broker: Broker) -> None:
        """Every message is left in another state by its receiver."""
        with Peer(broker.mqtt_port, V5) as taker, Peer(broker.mqtt_port, V5) as writer:
            taker.connect("taker", **KEPT)
            assert taker.subscribe(("t", 2)) == [2]
            self.subscribed_ns = time.monotonic_ns()
            writer.connect("writer")
            for first in range(0, FIRST, BURST):
                self.say(writer, range(first, first + BURST))
                for number in range(first, first + BURST):
                    self._receive(taker, number)
                self.finish(writer, range(first, first + BURST))

    def _receive(self, taker: Peer, number: int) -> None:
        """Receive a message, and go on with it to a state of its own."""
        raw_id = self._hear(taker, PUBLISH)
        if number % 3:
            taker.send(mqtt_bytes.packet(PUBREC, raw_id))
        while number % 3 == 2 and self._hear(taker, PUBREL) != raw_id:
            pass
        if number % 6 == 5:
            taker.send(mqtt_bytes.packet(PUBCOMP, raw_id))

    def _hear(self, taker: Peer, kind: int) -> bytes:
        """Note what comes, until there is a packet of a type. Returns: its identifier."""
        heard = self._heard[kind]
        while not heard:
            packet = taker.read()
            assert packet is not None
            raw_id, body = body_of(packet) if packet.kind == PUBLISH else (packet.body[:2], None)
            self.events.append(Event(time.monotonic_ns(), raw_id, body))
            self._heard[packet.kind].append(raw_id)
        return heard.popleft()

    def check(self, broker: Broker, before_ns: int) -> None:
        """Go on as if everybody had lost power then."""
        receiver = Receiver()
        for event in self.events:
            if event.time_ns < before_ns:
                receiver.hear(event.raw_id, event.body)
        with Peer(broker.mqtt_port, V5) as taker, Peer(broker.mqtt_port, V5) as writer:
            taker.connect("taker", **KEPT)
            if before_ns < self.subscribed_ns:
                taker.subscribe(("t", 2))
            writer.connect("another")
            self.say(writer, range(FIRST, FIRST + MORE))
            self.finish(writer, range(FIRST, FIRST + MORE))
            answered = {body for body, at in self.answered.items() if at < before_ns}
            answered |= {b"%d" % number for number in range(FIRST, FIRST + MORE)}
            self._take_all(taker, receiver, answered)
        assert max(receiver.taken.values()) == 1, "a message came twice"

    def _take_all(self, taker: Peer, receiver: Receiver, answered: set[bytes]) -> None:
        """Receive until all has come, and nothing is left that was begun. Raises: TimeoutError:
        a message is lost, or held for ever."""
        n_pings = 0
        taker.send(b"\xc0\0")
        while n_pings < 3 or receiver.held or not answered <= receiver.taken.keys():
            packet = taker.read()
            assert packet is not None
            if packet.kind == PUBLISH:
                raw_id, body = body_of(packet)
                receiver.hear(raw_id, body)
                taker.send(mqtt_bytes.packet(PUBREC, raw_id))
            if packet.kind == PUBREL:
                receiver.hear(packet.body[:2], None)
                taker.send(mqtt_bytes.packet(PUBCOMP, packet.body[:2]))
            if packet.kind == PINGRESP:
                n_pings += 1
                taker.send(b"\xc0\0" if n_pings < 3 else b"")


@EVERY_READING
def test_a_client_has_every_message_once_after_a_loss_of_power(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-1]: its identifier stays in use until PUBCOMP."""
    books = Books()
    records = recorded(on_disk, books)
    after = after_losses_of_power(records, reading, is_long, tmp_path, broker_factory)
    for broker, before_ns in after:
        books.check(broker, before_ns)


@pytest.mark.nightly
def test_a_client_has_every_message_once_after_a_kill(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool
) -> None:
    books = Books()
    records = recorded(on_disk, books)
    for broker, before_ns in after_kills(records, is_long, tmp_path, broker_factory):
        books.check(broker, before_ns)
