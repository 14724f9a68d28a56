"""Wills, and deliveries of QoS 2, over a kill or a loss of power at any file call.

A will is on disk before its author hears CONNACK. Whenever the broker ends after that, the will is
published, by the broker that ends or by the next one: it may come twice, and never not at all.
After a kill, one whose author has said goodbye does not come, and what a client has answered with
PUBCOMP does not come again.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.mqtt_lives import BrokerFactory, after_losses_of_power, cuts, recorded
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, block, packet
from tests.support.mqtt_peer import Peer
from tests.support.power_loss import Reading, Survivors
from tests.support.waiting import wait_for

ROUNDS = 9
KEPT = {"clean": False, "properties": block(b"\x11\0\0\x0e\x10")}
DELAY = block(b"\x18\0\0\0\x01")
NEVER_NS = 1 << 62

pytestmark = pytest.mark.crash


class Books:
    """Whose will is known since when, and who has taken it back; what was delivered for good."""

    def __init__(self) -> None:
        self.left: dict[bytes, int] = {}
        self.goodbye: dict[bytes, int] = {}
        self.completed: dict[bytes, int] = {}

    def run(self, broker: Broker) -> None:
        """Clients come with wills, and go in every way, while others publish."""
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("watch", **KEPT)
            client.subscribe(("w/#", 1))
            client.disconnect(b"\0")
        with Peer(broker.mqtt_port, V5) as reader, Peer(broker.mqtt_port, V5) as sender:
            reader.connect("reader", **KEPT)
            reader.subscribe(("m", 2))
            sender.connect("sender")
            for number in range(ROUNDS):
                is_leaving = self._author(broker, number)
                sender.publish("m", b"m%d" % number, 2)
                message = reader.message(is_acked=False)
                id = message.packet_id.to_bytes(2, "big")
                reader.send(packet(5, id))
                assert reader.expect(6).body == id
                reader.send(packet(7, id))
                reader.ping()
                self.completed[message.payload] = time.monotonic_ns()
                if is_leaving:
                    # Nothing acknowledges a goodbye; what is acknowledged behind it is in the log
                    # behind it.
                    self.goodbye[b"w%d" % number] = self.completed[message.payload]

    def _author(self, broker: Broker, number: int) -> bool:
        """One with a will: lost, waiting for its delay, or with a goodbye. Whether with one."""
        body = b"w%d" % number
        options = {**KEPT, "will_properties": DELAY} if number % 3 == 1 else {}
        with Peer(broker.mqtt_port, V5) as client:
            client.connect(f"author-{number}", will=(f"w/{number}", body, 1, False), **options)
            self.left[body] = time.monotonic_ns()
            if number % 3 == 2:
                del self.left[body]
                client.disconnect(b"\0")
                return True
        return False

    def check(self, broker: Broker, before_ns: int, *, is_kill: bool) -> None:
        """Every will that counts has come, or comes."""
        due = {body for body, at in self.left.items() if at < before_ns}
        found: Counter[bytes] = Counter()
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("watch", **KEPT)
            client.subscribe(("w/#", 1))

            def have_come() -> bool:
                client.ping()
                found.update(each.payload for each in client.early_messages())
                return due <= found.keys()

            wait_for(have_come, f"a will is lost: {due} and {found}")
        said = {body for body, at in self.goodbye.items() if at < before_ns}
        assert found.keys() <= self.left.keys() | self.goodbye.keys()
        if is_kill:
            assert not said & found.keys(), "who has said goodbye leaves no will"
        with Peer(broker.mqtt_port, V5, completes=True) as client:
            client.connect("reader", **KEPT)
            client.subscribe(("m", 2))
            client.publish("m", b"end", 1)
            again = []
            while (message := client.message()).payload != b"end":
                again.append(message.payload)
        assert len(again) == len(set(again))
        done = {body for body, at in self.completed.items() if at < before_ns}
        assert not (is_kill and done & set(again)), "a message of QoS 2 came twice"


@EVERY_READING
def test_wills_survive_a_loss_of_power(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """3.1.1 [MQTT-3.1.2-8], 5.0 [MQTT-3.1.2-7], [MQTT-3.1.2-8]."""
    books = Books()
    records = recorded(on_disk, books)
    after = after_losses_of_power(records, reading, is_long, tmp_path, broker_factory)
    for broker, before_ns in after:
        books.check(broker, before_ns, is_kill=False)


def test_wills_survive_a_kill_at_any_call(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool
) -> None:
    """3.1.1 [MQTT-3.1.2-8], [MQTT-3.1.2-10], 5.0 [MQTT-3.1.2-8], [MQTT-3.1.2-10]."""
    books = Books()
    records = recorded(on_disk, books)
    for cut in [*cuts(records, is_long, random.Random()), len(records)]:
        print(f"killed before call {cut}")
        root = tmp_path / f"cut-{cut}"
        Survivors(records[:cut]).write_all(root)
        broker = broker_factory(data_dir=root, start=False, mqtt=True).start()
        at = records[cut].time_ns if cut < len(records) else NEVER_NS
        books.check(broker, at, is_kill=True)
        broker.kill()
