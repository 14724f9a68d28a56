"""Who publishes to a broker of MQTT, its life, and what comes of it when it ends at any call."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Protocol

from tests.crash.conftest import DiskFactory
from tests.support import mqtt_bytes
from tests.support.broker import Broker
from tests.support.disk import Record
from tests.support.mqtt_bytes import V5
from tests.support.mqtt_peer import Peer
from tests.support.power_loss import Reading, Survivors

SHORT_CUTS, LONG_CUTS = 3, 60
PUBREC, PUBREL, PUBCOMP = 5, 6, 7

BrokerFactory = Callable[..., Broker]


class Story(Protocol):
    """What clients do, and note."""

    def run(self, broker: Broker) -> None:
        """Do it."""


class Publisher:
    """Publishes numbers to the topic t with QoS 2, and notes when each was answered."""

    def __init__(self) -> None:
        self.answered: dict[bytes, int] = {}

    def say(self, writer: Peer, numbers: range) -> None:
        """Publish, one packet behind the other: some come while there is a sync."""
        for number in numbers:
            body, packet_id = b"%d" % number, number + 1
            writer.send(mqtt_bytes.publish(V5, "t", body, qos=2, packet_id=packet_id))

    def finish(self, writer: Peer, numbers: range) -> None:
        """Hear that they are safe, and let go of them."""
        for number in numbers:
            raw_id = (number + 1).to_bytes(2, "big")
            assert writer.expect(PUBREC).body[:2] == raw_id
            self.answered.setdefault(b"%d" % number, time.monotonic_ns())
        for number in numbers:
            raw_id = (number + 1).to_bytes(2, "big")
            writer.send(mqtt_bytes.packet(PUBREL, raw_id, 2))
            assert writer.expect(PUBCOMP).body[:2] == raw_id


def recorded(
    on_disk: DiskFactory, story: Story, *, program: ModuleType | None = None, http: bool = False
) -> list[Record]:
    """The file calls of a broker, or a program that is one, that ends with a kill."""
    broker, disk = on_disk(log=True, mqtt=True, program=program, http=http)
    broker.start()
    story.run(broker)
    broker.kill()
    return disk.records()


def cuts(records: list[Record], is_long: bool, chance: random.Random) -> list[int]:
    """Calls before which it ends: the last one, and any of those of a broker that listened."""
    first, last = len(records) // 4, len(records) - 1
    count = LONG_CUTS if is_long else SHORT_CUTS
    return [*sorted(chance.sample(range(first, last), min(count, last - first) - 1)), last]


def after_losses_of_power(
    records: list[Record], reading: Reading, is_long: bool, directory: Path,
    broker_factory: BrokerFactory,
) -> Iterator[tuple[Broker, int]]:  # fmt: skip
    """The broker after each loss of power, until the next one, and when that was, ns."""
    chance = random.Random()
    for cut in cuts(records, is_long, chance):
        seed = chance.randrange(1 << 30)
        print(f"power lost before call {cut}, seed {seed}")
        root = directory / f"cut-{cut}"
        Survivors(records[:cut], reading=reading).write(root, random.Random(seed))
        broker = broker_factory(data_dir=root, start=False, mqtt=True).start()
        yield broker, records[cut].time_ns
        broker.kill()


def after_kills(
    records: list[Record], is_long: bool, directory: Path, broker_factory: BrokerFactory
) -> Iterator[tuple[Broker, int]]:
    """The broker after each kill, until the next one, and when that was, ns."""
    for cut in cuts(records, is_long, random.Random()):
        print(f"killed before call {cut}")
        root = directory / f"cut-{cut}"
        Survivors(records[:cut]).write_all(root)
        broker = broker_factory(data_dir=root, start=False, mqtt=True).start()
        yield broker, records[cut].time_ns
        broker.kill()
