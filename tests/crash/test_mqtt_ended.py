"""What a member of a shared subscription was being sent ends with its session, whatever a kill or a
loss of power takes.

A member receives a message of QoS 2 and does not answer; then its session ends. From the log of the
disk the directory is rebuilt as it may be after any call from then on. Another member, who comes
then, does not get that message: it has ended with the session, or is still the first one's.
Source: MQTT 5.0, section 4.8.2.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.mqtt_lives import BrokerFactory, recorded
from tests.crash.test_mqtt_shared import SHARED
from tests.crash.test_mqtt_twice import KEPT
from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Record
from tests.support.mqtt_bytes import V5
from tests.support.mqtt_peer import Peer
from tests.support.power_loss import Reading, Survivors

SHORT_CUTS = 3
RESUMED = {"clean": False, "properties": mqtt_bytes.block(b"\x11\0\0\0\0")}
"""It was kept, and is to end with this connection."""

pytestmark = pytest.mark.crash


def goes(_broker: Broker, one: Peer) -> None:
    """The member says that it goes."""
    one.disconnect(b"\0")


def begins_anew(broker: Broker, _one: Peer) -> None:
    """It comes again with a clean start."""
    with Peer(broker.mqtt_port, V5) as again:
        again.connect("one", **KEPT | {"clean": True})


def is_killed(broker: Broker, one: Peer) -> None:
    """The broker ends, and the next start ends the session."""
    broker.kill()
    one.socket.close()
    broker.start()


def is_taken_away(broker: Broker, one: Peer) -> None:
    """An operator deletes the session, which closes its client."""
    assert Api(broker)("DELETE", "/api/queues/%2F/mqtt.one").status == 204
    while one.read() is not None:
        pass


WAYS = {each.__name__: each for each in (goes, begins_anew, is_killed, is_taken_away)}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


class Story:
    """A session that ends in some way, and when its member had the message."""

    def __init__(self, way: Callable[[Broker, Peer], None]) -> None:
        self._way = way
        self.received_ns = 0

    def run(self, broker: Broker) -> None:
        """Have two members, one of them there."""
        for name in ("one", "two"):
            with Peer(broker.mqtt_port, V5) as member:
                member.connect(name, **KEPT)
                assert member.subscribe((SHARED, 2)) == [2]
                member.disconnect(b"\0")
        with Peer(broker.mqtt_port, V5) as one:
            one.connect("one", **RESUMED)
            publish(broker, b"1")
            assert one.message(is_acked=False).payload == b"1"
            self.received_ns = time.monotonic_ns()
            self._way(broker, one)
            publish(broker, b"0", topic="other")  # what has ended is on disk by then


def publish(broker: Broker, body: bytes, topic: str = "t") -> None:
    with Peer(broker.mqtt_port, V5) as writer:
        writer.connect("writer")
        writer.publish(topic, body, 2)


def cuts(story: Story, records: list[Record], is_long: bool) -> list[int]:
    """Calls before which it ends."""
    first = next(i for i, each in enumerate(records) if each.time_ns > story.received_ns)
    everything = range(first, len(records))
    return [*everything] if is_long else sorted(random.sample(everything, SHORT_CUTS))


def check(broker: Broker) -> None:
    """What the other member gets is not the message of the first one."""
    broker.start()
    with Peer(broker.mqtt_port, V5) as two:
        assert two.connect("two", **KEPT)[0] == 1
        publish(broker, b"2")
        assert two.message().payload == b"2"
    broker.kill()


@EVERY_WAY
def test_nobody_else_gets_it_after_a_kill(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool, way: str
) -> None:
    """5.0 [MQTT-4.8.2-5]."""
    story = Story(WAYS[way])
    records = recorded(on_disk, story, http=way == is_taken_away.__name__)
    for cut in cuts(story, records, is_long):
        print(f"killed before call {cut}")
        root = tmp_path / f"cut-{cut}"
        Survivors(records[:cut]).write_all(root)
        check(broker_factory(data_dir=root, start=False, mqtt=True))


@EVERY_READING
@EVERY_WAY
def test_nobody_else_gets_it_after_a_loss_of_power(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool,
    reading: Reading, way: str,
) -> None:  # fmt: skip
    """5.0 [MQTT-4.8.2-5]."""
    story = Story(WAYS[way])
    records = recorded(on_disk, story, http=way == is_taken_away.__name__)
    for cut in cuts(story, records, is_long):
        seed = random.randrange(1 << 30)
        print(f"power lost before call {cut}, seed {seed}")
        root = tmp_path / f"cut-{cut}"
        Survivors(records[:cut], reading=reading).write(root, random.Random(seed))
        check(broker_factory(data_dir=root, start=False, mqtt=True))
