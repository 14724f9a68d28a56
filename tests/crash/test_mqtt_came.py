"""Messages of QoS 2 that were on their way to the broker when it ended come once, and none is lost.

A client publishes them and does not say PUBREL. From the log of the disk the directory is rebuilt
as it may be when a sync begins: with what was written to the log of sessions and not to the queues,
the other way round, and with both, as after a kill. Then the client sends again what it has heard
no PUBREC of, and all come to who has subscribed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.mqtt_lives import BrokerFactory, after_losses_of_power, recorded
from tests.support import mqtt_bytes
from tests.support.broker import Broker
from tests.support.disk import Call, Record
from tests.support.mqtt_bytes import V5
from tests.support.mqtt_peer import Peer
from tests.support.power_loss import Reading, Survivors

N, BURST = 12, 3
SHORT_CUTS = 2
KEPT = {"clean": False, "properties": mqtt_bytes.block(b"\x11\0\0\x0e\x10")}
PUBREC, PUBREL, PUBCOMP = 5, 6, 7
READERS = {"one": "a/#", "two": "a/+/x"}
"""Sessions by the filter that each has: of three messages the last goes to both."""

pytestmark = pytest.mark.crash


def topic_of(number: int) -> str:
    """Where a message goes: to the first session, or to both."""
    return "a/b/x" if number % 3 == 2 else "a/b"


class Books:
    """What was sent and answered, each with the time."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}
        self.answered: dict[int, int] = {}

    def run(self, broker: Broker) -> None:
        """Publish to sessions whose clients are away, and hear PUBREC."""
        for name, filter_ in READERS.items():
            with Peer(broker.mqtt_port, V5) as reader:
                reader.connect(name, **KEPT)
                reader.subscribe((filter_, 2))
                reader.disconnect(b"\0")
        with Peer(broker.mqtt_port, V5) as writer:
            writer.connect("writer", **KEPT)
            for first in range(0, N, BURST):
                for number in range(first, first + BURST):
                    self.sent[number] = time.monotonic_ns()
                    self._say(writer, number)
                for number in range(first, first + BURST):
                    assert int.from_bytes(writer.expect(PUBREC).body[:2], "big") == number + 1
                    self.answered[number] = time.monotonic_ns()

    def _say(self, writer: Peer, number: int, *, dup: bool = False) -> None:
        body, topic = b"%d" % number, topic_of(number)
        writer.send(mqtt_bytes.publish(V5, topic, body, qos=2, packet_id=number + 1, dup=dup))

    def received(self, broker: Broker, before_ns: int) -> dict[str, Counter[int]]:
        """Go on as if both had ended then. Returns: what the sessions have got."""
        sent = [number for number, at in self.sent.items() if at < before_ns]
        with Peer(broker.mqtt_port, V5) as writer:
            writer.connect("writer", **KEPT)
            for number in sent:
                if self.answered.get(number, before_ns) >= before_ns:
                    self._say(writer, number, dup=True)
                    assert writer.expect(PUBREC).body[2:3] in (b"", b"\0")
                writer.send(mqtt_bytes.packet(PUBREL, (number + 1).to_bytes(2, "big"), 2))
                writer.expect(PUBCOMP)
        found: dict[str, Counter[int]] = {}
        for name in READERS:
            found[name] = Counter()
            with Peer(broker.mqtt_port, V5) as reader:
                reader.connect(name, **KEPT)
                expected = {each for each in sent if name == "one" or each % 3 == 2}
                while not expected <= found[name].keys():
                    found[name][int(reader.message().payload)] += 1
                reader.send(b"\xc0\0")
                while (packet := reader.read()) is not None and packet.kind != 13:
                    if packet.kind == 3:
                        found[name][int(packet.body[-2:].lstrip(b"\0x"))] += 1
            assert set(found[name]) <= set(self.sent)
        return found


def syncs(records: list[Record], books: Books, is_long: bool) -> Iterator[int]:
    """Cuts just before the syncs that answers have waited for."""
    starts = [
        number for number, record in enumerate(records)
        if record.kind is Call.SYNC and books.sent[0] < record.time_ns < books.answered[N - 1]
    ]  # fmt: skip
    yield from starts if is_long else sorted(random.Random().sample(starts, SHORT_CUTS))


def after_syncs(
    records: list[Record], books: Books, is_long: bool, directory: Path,
    broker_factory: BrokerFactory, is_whole: Callable[[str], bool],
) -> Iterator[tuple[Broker, int]]:  # fmt: skip
    """The broker after it has ended when a sync was about to begin, and when that was, ns."""
    for cut in syncs(records, books, is_long):
        print(f"ended before call {cut}")
        root = directory / f"cut-{cut}"
        Survivors(records[:cut]).write_chosen(root, is_whole)
        broker = broker_factory(data_dir=root, start=False, mqtt=True).start()
        yield broker, records[cut].time_ns
        broker.kill()


def of_sessions(path: str) -> bool:
    """Whether a file is one of the log of sessions."""
    return "mqtt_sessions." in path


def test_nothing_is_lost_when_the_disk_has_the_ids_and_not_the_messages(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool
) -> None:
    books = Books()
    records = recorded(on_disk, books)
    for broker, at in after_syncs(records, books, is_long, tmp_path, broker_factory, of_sessions):
        for name, found in books.received(broker, at).items():
            assert max(found.values(), default=1) == 1, f"a message came twice to {name}: {found}"


def test_nothing_comes_twice_after_a_kill_before_a_sync(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool
) -> None:
    books = Books()
    records = recorded(on_disk, books)
    n = 0
    for broker, at in after_syncs(
        records, books, is_long, tmp_path, broker_factory, lambda _path: True
    ):
        for name, found in books.received(broker, at).items():  # the first sync may be before all
            assert max(found.values(), default=1) == 1, f"a message came twice to {name}: {found}"
            n += len(found)
    assert n


def test_what_goes_to_one_session_comes_once_after_a_kill_at_any_call(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool
) -> None:
    """Its identifier is written first, and is believed when the message is there. What goes to two
    may come twice to the first one, when the kill came before it was written for the other."""
    books = Books()
    records = recorded(on_disk, books)
    first = next(i for i, record in enumerate(records) if record.time_ns > books.sent[0])
    cuts = range(first, len(records))
    for cut in cuts if is_long else sorted(random.Random().sample(cuts, SHORT_CUTS)):
        print(f"killed before call {cut}")
        root = tmp_path / f"cut-{cut}"
        Survivors(records[:cut]).write_all(root)
        broker = broker_factory(data_dir=root, start=False, mqtt=True).start()
        found = books.received(broker, records[cut].time_ns)
        assert all(n == 1 for each, n in found["one"].items() if each % 3 != 2), found["one"]
        assert max(found["two"].values(), default=1) == 1, found["two"]
        broker.kill()


@EVERY_READING
def test_nothing_is_lost_after_a_loss_of_power_at_any_call(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """It may come twice: where the disk has a message and not its id, or only one of two copies."""
    books = Books()
    records = recorded(on_disk, books)
    for broker, at in after_losses_of_power(records, reading, is_long, tmp_path, broker_factory):
        if books.sent and min(books.sent.values()) < at:
            books.received(broker, at)
