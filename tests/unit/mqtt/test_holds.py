"""A PUBLISH of QoS 2 to a session that is kept leaves when its packet id is on disk."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lavinmq import _core
from tests.support.little_disk import broken
from tests.support.mqtt_bench import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Client,
    MqttBench,
    ack,
    message,
    parse,
    publish,
)
from tests.unit.mqtt.test_syncs import finish_sync

OTHERS = 4
SYNCS = 3
LINGER_S = 0.006


class Disk:
    """A bench whose syncs end when the test says so, and a log of sessions."""

    def __init__(self, directory: Path) -> None:
        self.bench = MqttBench(directory, sync=True)
        self.log = _core.SessionLog(self.bench.loop, str(directory))
        self.file = directory / "mqtt_sessions.0000000001"
        self.publisher = self.bench.client("p")
        self._last_id = 0
        self._others = [self.bench.client(f"o{n}") for n in range(OTHERS)]

    def client(self, version: int = 4, *, is_persistent: bool = True, **options: Any) -> Client:
        """The reader, subscribed to `t`."""
        if is_persistent and b"r" not in self.log:
            self.log.make(b"r")
            self.settle()
        return self.bench.client(
            "r", version, log=self.log, is_persistent=is_persistent, **options
        ).subscribe(b"t", 2)

    def publish(self, *bodies: bytes, qos: int = 2) -> None:
        """Publish while others are heard, too: then the worker gets the sync."""
        self.publisher.socket.send(b"".join(self._packet(body, qos) for body in bodies))
        for each in self._others:
            each.socket.send(b"\xc0\0")
        for each in (self.publisher, *self._others):
            each.link.on_readable()
        self.bench.events.run()

    def publish_much(self, *bodies: bytes) -> None:
        """The same of so much that it takes several reads: who syncs is left to the loop."""
        for body in bodies:
            self.publisher.send(self._packet(body, 2))

    def _packet(self, body: bytes, qos: int) -> bytes:
        self._last_id += 1
        return publish(b"t", body, qos=qos, id=self._last_id)

    def settle(self) -> None:
        """Have all that waits for the disk covered: by the sync that runs, and by the next."""
        for _ in range(SYNCS):
            ended: list[bool] = []
            self.bench.loop.after_sync(lambda told=ended: told.append(True))
            self.bench.events.run()
            while not ended:
                finish_sync(self.bench)
            readers = self.bench.events.readers
            select.select([readers["on_lingered"]], [], [], LINGER_S)
            self.bench.loop.on_lingered()


def is_silent(reader: Client) -> bool:
    """Whether nothing has come, though something may wait to be sent."""
    reader.bench.events.run()
    try:
        return reader.socket.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return True


def here(reader: Client) -> bytes:
    """What has come, while more may wait for the disk."""
    data = b""
    with suppress(BlockingIOError):
        while True:
            data += reader.socket.recv(1 << 20)
    reader.link.on_writable()
    return data


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.settle()
    made.log.close()
    made.bench.close()


def test_a_message_leaves_when_its_id_is_on_disk(disk: Disk) -> None:
    """3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-1]: the id stays its own over a loss of power."""
    reader = disk.client()

    disk.publish(b"1", b"2")

    assert is_silent(reader)
    disk.settle()
    assert [(each.id, each.body, each.dup) for each in reader.got()] == [
        (1, b"1", False), (2, b"2", False),
    ]  # fmt: skip
    reader.send(ack(PUBREC, 1) + ack(PUBREC, 2))
    disk.settle()
    assert reader.raw() == ack(PUBREL, 1) + ack(PUBREL, 2)
    reader.send(ack(PUBCOMP, 1) + ack(PUBCOMP, 2))
    assert reader.link.mqtt_counters()["in_flight"] == 0


def test_what_is_written_while_a_sync_runs_waits_for_the_next_one(disk: Disk) -> None:
    reader = disk.client()

    disk.publish(b"1")
    disk.publish(b"2")
    disk.publish(b"3")
    assert is_silent(reader)
    disk.publish(b"0", qos=0)

    disk.settle()

    assert reader.bodies() == [b"1", b"2", b"3", b"0"]


def test_what_waits_for_no_disk_is_sent_at_once(disk: Disk) -> None:
    """QoS 1, which may come twice, and a session that ends with its connection."""
    kept = disk.client()
    disk.publish(b"1", qos=1)
    assert kept.bodies() == [b"1"]
    kept.send(ack(PUBACK, 1))
    kept.close()

    other = disk.client(is_persistent=False)
    disk.publish(b"2")

    assert other.bodies() == [b"2"]


def test_what_is_held_when_the_connection_ends_is_not_sent(disk: Disk) -> None:
    """It goes back, and comes with the same id when its client does."""
    reader = disk.client(5)
    disk.publish(b"1", b"2")

    reader.link.mqtt_close()
    reader.link.write(b"\xe0\1\x8e")
    disk.settle()
    assert reader.raw() == b"\xe0\1\x8e"
    reader.close()
    again = disk.client(5)
    disk.settle()

    assert [(each.id, each.body, each.dup) for each in again.got()] == [
        (1, b"1", True), (2, b"2", True),
    ]  # fmt: skip


def test_a_client_is_let_go_when_its_ids_cannot_be_written(disk: Disk) -> None:
    """Nothing has been sent: the messages come when there is room."""
    reader = disk.client()
    disk.settle()
    with broken(disk.file):
        disk.publish(b"1")
        disk.settle()
    assert is_silent(reader)
    assert [each[0] for each in reader.session.events] == ["on_lost"]
    reader.close()

    again = disk.client()
    disk.settle()

    assert again.bodies() == [b"1"]


def test_what_fills_the_output_waits_for_the_disk_in_parts(disk: Disk) -> None:
    reader = disk.client()

    disk.publish_much(*(bytes([number]) * 60_000 for number in range(20)))

    data = b""
    while len(data) < 20 * 60_000 or reader.link.unsent_bytes:
        disk.settle()
        data += here(reader)
    assert [message(each, 4).body[0] for each in parse(data)] == list(range(20))


def test_a_large_message_waits_for_the_disk(disk: Disk) -> None:
    """Its body is sent from the file, behind what is held."""
    reader = disk.client()

    disk.publish_much(b"small", bytes(3 << 20), b"behind")

    data = b""
    while not data.endswith(b"behind"):
        disk.settle()
        data += here(reader)
    assert [len(message(each, 4).body) for each in parse(data)] == [5, 3 << 20, 6]


@pytest.mark.parametrize("qos", [1, 2])
def test_an_id_of_a_queue_of_others_is_free_once_its_client_has_let_go_of_it(
    disk: Disk, qos: int
) -> None:
    """The message goes to somebody else, and the next one with the id is not taken for it."""
    queue = disk.bench.queue("shared-with-amqp")
    reader = disk.client()
    consumer = reader.link.mqtt_take(queue, b"tag", qos)
    consumer.start()
    _core.mqtt_enqueue(queue, b"t", b"x", qos, False)
    disk.settle()
    (got,) = reader.got()
    assert (got.id, got.qos, got.dup) == (1, qos, False)

    reader.close()
    disk.settle()
    _received, sent, released = disk.log.packets(b"r")

    assert sent == []
    assert released == ([1] if qos == 2 else [])
    again = disk.client()
    disk.settle()
    assert again.raw() == (ack(PUBREL, 1) if qos == 2 else b"")
    assert queue.ready == 1
