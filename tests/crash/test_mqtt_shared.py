"""Exactly once to one member of a shared subscription, whatever a loss of power or a kill takes.

Two members receive with QoS 2 as the standard says, each leaves its messages in every state, and
one of them is cut off and comes back. From the log of the disk the directory is rebuilt as it may
be after any call; a broker starts on it, more is published, and both members go on. Then each
message that was answered has come to one of them, once.
"""

from __future__ import annotations

import time
from collections import Counter
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
from tests.crash.test_mqtt_twice import (
    KEPT,
    PINGRESP,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Receiver,
    body_of,
)
from tests.support import mqtt_bytes
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5
from tests.support.mqtt_peer import Packet, Peer
from tests.support.power_loss import Reading

FIRST, MORE, BURST = 24, 6, 6
GOES_AT = 3
MEMBERS = ("one", "two")
SHARED = "$share/g/t"
SILENCE_S = 0.05
QUIET_PINGS = 3

pytestmark = pytest.mark.crash


class Event(NamedTuple):
    """A PUBLISH or a PUBREL has come to a member."""

    time_ns: int
    member: str
    raw_id: bytes
    body: bytes | None


class Books(Publisher):
    """What was answered and received, with the times."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def run(self, broker: Broker) -> None:
        """Publish in bursts, between which members receive."""
        members = {name: self._member(broker, name) for name in MEMBERS}
        with Peer(broker.mqtt_port, V5) as writer:
            writer.connect("writer")
            for first in range(0, FIRST, BURST):
                self.say(writer, range(first, first + BURST))
                for name, each in members.items():
                    self._receive(name, each)
                self.finish(writer, range(first, first + BURST))
                if first // BURST == GOES_AT - 1:
                    members["one"].socket.close()
                    members["one"] = self._member(broker, "one")
        for name, each in members.items():
            self._receive(name, each)
            each.socket.close()

    def _member(self, broker: Broker, name: str) -> Peer:
        peer = Peer(broker.mqtt_port, V5)
        is_back = peer.connect(name, **KEPT)[0]
        if not is_back:
            assert peer.subscribe((SHARED, 2)) == [2]
        return peer

    def _receive(self, name: str, peer: Peer) -> None:
        """Take what comes until it is quiet, and go on with each message to a state of its own."""
        peer.socket.settimeout(SILENCE_S)
        while True:
            try:
                packet = peer.read()
            except TimeoutError:
                return
            assert packet is not None
            if packet.kind == PUBLISH:
                raw_id, body = body_of(packet)
                self.events.append(Event(time.monotonic_ns(), name, raw_id, body))
                if int(body) % 3:
                    peer.send(mqtt_bytes.packet(PUBREC, raw_id))
            if packet.kind == PUBREL:
                raw_id = packet.body[:2]
                self.events.append(Event(time.monotonic_ns(), name, raw_id, None))
                if raw_id[1] % 2:
                    peer.send(mqtt_bytes.packet(PUBCOMP, raw_id))

    def check(self, broker: Broker, before_ns: int) -> None:
        """Go on as if everybody had lost power then."""
        receivers = {name: Receiver() for name in MEMBERS}
        for event in self.events:
            if event.time_ns < before_ns:
                receivers[event.member].hear(event.raw_id, event.body)
        peers = {name: self._member(broker, name) for name in MEMBERS}
        with Peer(broker.mqtt_port, V5) as writer:
            writer.connect("another")
            self.say(writer, range(FIRST, FIRST + MORE))
            self.finish(writer, range(FIRST, FIRST + MORE))
        answered = {body for body, at in self.answered.items() if at < before_ns}
        answered |= {b"%d" % number for number in range(FIRST, FIRST + MORE)}
        self._take_all(peers, receivers, answered)
        taken: Counter[bytes] = Counter()
        for name, each in receivers.items():
            print(name, dict(each.taken))
            taken += each.taken
            peers[name].socket.close()
        assert max(taken.values()) == 1, "a message came twice"

    def _take_all(
        self, peers: dict[str, Peer], receivers: dict[str, Receiver], answered: set[bytes]
    ) -> None:
        """Receive until all has come, and nothing is left that was begun."""
        until_s = time.monotonic() + 20
        quiet = Counter[str]()
        while min(quiet[name] for name in peers) < QUIET_PINGS or any(
            each.held for each in receivers.values()
        ) or not answered <= set().union(*(each.taken for each in receivers.values())):  # fmt: skip
            held = {name: each.held for name, each in receivers.items()}
            assert time.monotonic() < until_s, f"lost, or held for ever: {held}"
            for name, peer in peers.items():
                peer.send(b"\xc0\0")
                while (packet := peer.read()) is not None and packet.kind != PINGRESP:
                    self._take(peer, receivers[name], packet)
                    quiet.clear()
                quiet[name] += 1

    def _take(self, peer: Peer, receiver: Receiver, packet: Packet) -> None:
        if packet.kind == PUBLISH:
            raw_id, body = body_of(packet)
            receiver.hear(raw_id, body)
            peer.send(mqtt_bytes.packet(PUBREC, raw_id))
        if packet.kind == PUBREL:
            receiver.hear(packet.body[:2], None)
            peer.send(mqtt_bytes.packet(PUBCOMP, packet.body[:2]))


@EVERY_READING
def test_one_member_has_every_message_once_after_a_loss_of_power(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """5.0 [MQTT-4.8.2-4], [MQTT-4.3.3-1]."""
    books = Books()
    records = recorded(on_disk, books)
    after = after_losses_of_power(records, reading, is_long, tmp_path, broker_factory)
    for broker, before_ns in after:
        books.check(broker, before_ns)


def test_one_member_has_every_message_once_after_a_kill(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool
) -> None:
    """5.0 [MQTT-4.8.2-4]."""
    books = Books()
    records = recorded(on_disk, books)
    for broker, before_ns in after_kills(records, is_long, tmp_path, broker_factory):
        books.check(broker, before_ns)
