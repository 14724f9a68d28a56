"""The disk refuses the files of MQTT: nothing is acknowledged that is not there after a restart.

Retained messages, the log of sessions, the queue of a session: their writes fail, or their syncs.
Clients of both generations publish in every way and subscribe; what they were told is noted. Then
the disk is well again, the broker is killed, and the next start has all of it, once.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.conftest import DiskFactory
from tests.support import mqtt_bytes
from tests.support.broker import Broker
from tests.support.disk import Action, Call
from tests.support.mqtt_bytes import V5, V311
from tests.support.mqtt_peer import Packet, Peer
from tests.support.segments import queue_directory
from tests.support.waiting import wait_for

KEPT = {"clean": False, "properties": mqtt_bytes.block(b"\x11\0\0\x0e\x10")}
FILES = {
    "retained": "mqtt_retained.",
    "sessions": "mqtt_sessions.",
    "queue": f"{queue_directory(Path(), 'mqtt.reader').name}/msgs.",
}
DELETIONS = f"{queue_directory(Path(), 'mqtt.reader').name}/acks."
SILENCE_S = 0.4
TWICE, RETAINED, SUBSCRIBED = 2, 3, 4  # packet identifiers
PINGS = 5

pytestmark = pytest.mark.crash


def packets(client: Peer) -> Iterator[Packet]:
    """What comes until it is quiet, or over."""
    client.socket.settimeout(SILENCE_S)
    try:
        while (each := client.read()) is not None:
            yield each
    except (TimeoutError, OSError):
        return


class Writer:
    """A client that publishes in every way, and what it was told."""

    def __init__(self, broker: Broker, level: int) -> None:
        self.level = level
        self.name = f"writer-{level}"
        self.client = Peer(broker.mqtt_port, level)
        self.client.connect(self.name, **KEPT)
        self.accepted: set[int] = set()
        self.refused: set[int] = set()

    def body(self, packet_id: int) -> bytes:
        """What it publishes with an identifier."""
        return b"%d of %d" % (packet_id, self.level)

    def publish(self, packet_id: int, *, dup: bool = False) -> bytes:
        """A PUBLISH: of QoS 2, or 1, or 1 and retained."""
        topic = "r" if packet_id == RETAINED else "m"
        return mqtt_bytes.publish(
            self.level, f"{topic}/{self.level}", self.body(packet_id),
            qos=2 if packet_id == TWICE else 1, packet_id=packet_id,
            retain=packet_id == RETAINED, dup=dup,
        )  # fmt: skip

    def say_all(self) -> None:
        """One of each, and a subscription."""
        subscribe = mqtt_bytes.subscribe(self.level, SUBSCRIBED, (f"s/{self.level}", 1))
        self.client.send(b"".join(map(self.publish, (1, TWICE, RETAINED))) + subscribe)

    def listen(self) -> None:
        """Note what is answered."""
        for each in packets(self.client):
            if each.kind in (4, 5, 9):
                packet_id = int.from_bytes(each.body[:2], "big")
                reason = each.body[-1] if each.kind == 9 or len(each.body) > 2 else 0
                (self.accepted if reason < 0x80 else self.refused).add(packet_id)


def reader_of(broker: Broker) -> None:
    """A session that waits for messages."""
    with Peer(broker.mqtt_port, V5) as client:
        client.connect("reader", **KEPT)
        client.subscribe(("m/#", 2))
        client.disconnect(b"\0")


def check(broker: Broker, writers: list[Writer]) -> None:
    """All that was accepted is there, once."""
    for writer in writers:
        with Peer(broker.mqtt_port, writer.level) as client:
            is_present = client.connect(writer.name, **KEPT)[0]
            assert is_present == 1
            if TWICE in writer.accepted:
                client.send(writer.publish(TWICE, dup=True))
                assert client.expect(5).body[2:3] in (b"", b"\0")
            if SUBSCRIBED in writer.accepted:
                client.publish(f"s/{writer.level}", b"here", 1)
                assert client.message().payload == b"here"
    found: Counter[bytes] = Counter()
    with Peer(broker.mqtt_port, V5) as client:
        client.connect("reader", **KEPT)
        client.publish("m/end", b"end", 1)
        while (message := client.message()).payload != b"end":
            found[message.payload] += 1
        client.subscribe(("r/#", 1))
        for _ in range(PINGS):  # they are given in turns behind SUBACK
            client.ping()
        found.update(each.payload for each in client.early_messages())
    for writer in writers:
        accepted = {writer.body(each) for each in writer.accepted - {SUBSCRIBED}}
        assert accepted <= found.keys()
        assert all(found[each] == 1 for each in accepted)


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        *((name, Call.WRITE, error) for name in FILES for error in (errno.EIO, errno.ENOSPC)),
        ("", Call.SYNC, errno.EIO),
    ],
)
def test_nothing_is_acknowledged_that_the_disk_did_not_take(
    on_disk: DiskFactory, name: str, kind: Call, error: int
) -> None:
    """3.1.1 [MQTT-4.8.0-2], [MQTT-4.1.0-1], 5.0 [MQTT-4.3.2-4], [MQTT-4.3.3-8]."""
    broker, disk = on_disk(mqtt=True)
    broker.start()
    reader_of(broker)
    with ExitStack() as stack:
        writers = [Writer(broker, level) for level in (V311, V5)]
        for each in writers:
            stack.enter_context(each.client)
        disk.plan(Action.FAIL, kind, f"*/{FILES[name]}*" if name else "", error=error)
        for each in writers:
            each.say_all()
        disk.wait_for_strikes()
        for each in writers:
            each.listen()
        wait_for(lambda: os.strerror(error) in broker.log_text(), "the log is silent")
        disk.heal()
        if kind is Call.SYNC:
            assert broker.wait() == 1
        else:
            assert broker.is_running()
            for each in writers:
                each.listen()
            broker.kill()
    broker.start()
    check(broker, writers)


@pytest.mark.parametrize("level", [V311, V5])
def test_a_log_of_sessions_without_room_keeps_publishers_waiting_and_nothing_comes_twice(
    on_disk: DiskFactory, level: int
) -> None:
    """3.1.1 [MQTT-4.3.3-2], 5.0 [MQTT-4.3.3-8]. The queue has room and the message. Who was refused
    published it once more, as a client does, and it came twice."""
    broker, disk = on_disk(mqtt=True)
    broker.start()
    reader_of(broker)
    writer, other = Writer(broker, level), Writer(broker, V5 if level == V311 else V311)
    with writer.client, other.client:
        disk.plan(Action.FAIL, Call.WRITE, f"*/{FILES['sessions']}*", error=errno.ENOSPC)
        writer.client.send(writer.publish(TWICE))
        disk.wait_for_strikes(2)  # it is tried again
        other.client.send(other.publish(1))
        assert writer.client.has_silence(SILENCE_S)
        assert other.client.has_silence(SILENCE_S)
        disk.heal()
        assert writer.client.expect(5).body == TWICE.to_bytes(2, "big")
        assert other.client.expect(4).body == b"\0\1"
        writer.accepted, other.accepted = {TWICE}, {1}
    broker.kill()
    broker.start()
    check(broker, [writer, other])


def test_what_is_lost_when_its_client_has_gone_is_taken_when_it_comes_again(
    on_disk: DiskFactory,
) -> None:
    """The message waits for room, its client goes, and then the queue cannot be written at all."""
    broker, disk = on_disk(mqtt=True)
    broker.start()
    reader_of(broker)
    writer = Writer(broker, V5)
    disk.plan(Action.FAIL, Call.WRITE, f"*/{FILES['queue']}*", error=errno.ENOSPC)
    writer.client.send(writer.publish(TWICE))
    disk.wait_for_strikes()
    writer.client.disconnect(b"\0")
    writer.client.socket.close()
    disk.plan(Action.FAIL, Call.WRITE, f"*/{FILES['queue']}*", error=errno.EIO)
    wait_for(lambda: os.strerror(errno.EIO) in broker.log_text(), "the log is silent")
    disk.heal()

    again = Writer(broker, V5)
    again.client.send(again.publish(TWICE, dup=True))
    assert again.client.expect(5).body[2] >= 0x80
    again.client.socket.close()
    broker.kill()
    broker.start()
    again = Writer(broker, V5)
    again.client.send(again.publish(TWICE, dup=True))
    again.listen()
    assert again.accepted == {TWICE}
    check(broker, [again])
    again.client.socket.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_pubrel_is_not_said_where_the_disk_has_not_taken_that_the_message_came(
    on_disk: DiskFactory, error: int
) -> None:
    """5.0 [MQTT-4.3.3-8]: a client forgets the identifier by it, and hears it when it is back."""
    broker, disk = on_disk(mqtt=True)
    broker.start()
    reader_of(broker)
    with Peer(broker.mqtt_port, V5) as writer:
        writer.connect("writer")
        for body in (b"1", b"2"):
            writer.publish("m/x", body, 2)
    with Peer(broker.mqtt_port, V5) as reader:
        reader.connect("reader", **KEPT)
        first, second = (reader.message(is_acked=False) for _ in range(2))
        disk.plan(Action.FAIL, Call.WRITE, f"*/{DELETIONS}*", error=error)
        reader.send(mqtt_bytes.packet(5, first.packet_id.to_bytes(2, "big")))
        disk.wait_for_strikes()
        assert 6 not in {each.kind for each in packets(reader)}
        disk.heal()
    broker.kill()
    broker.start()
    with Peer(broker.mqtt_port, V5) as reader:
        assert reader.connect("reader", **KEPT)[0] == 1
        reader.send(b"\xc0\0" * PINGS)
        came = list(packets(reader))
        # The one of PUBREC: what of it was written with what came later, or it comes again.
        released = {each.body[:2] for each in came if each.kind == 6}
        again = Counter(each.body[-1:] for each in came if each.kind == 3)
        assert again[second.payload] == 1
        assert again[first.payload] + (first.packet_id.to_bytes(2, "big") in released) == 1


@pytest.mark.parametrize("level", [V311, V5])
def test_pubcomp_waits_for_the_disk_also_for_a_client_that_says_pubrel_again(
    on_disk: DiskFactory, level: int
) -> None:
    """3.1.1 [MQTT-4.3.3-2], 5.0 [MQTT-4.3.3-12]. Else the identifier may still be taken after a
    loss of power, and what the client publishes with it next is answered and thrown away."""
    broker, disk = on_disk(mqtt=True)
    broker.start()
    with Peer(broker.mqtt_port, level) as writer:
        writer.connect("writer", **KEPT)
        writer.send(mqtt_bytes.publish(level, "m/x", b"1", qos=2, packet_id=TWICE))
        writer.expect(5)
        # After some that take long syncs are left to a thread, so that the broker goes on.
        disk.plan(Action.NOTHING, Call(0), sync_us=30_000)
        for number in range(12):
            writer.publish("r/x", b"%d" % number, 1, retain=True)
        disk.plan(Action.HOLD, Call.SYNC)
        writer.send(mqtt_bytes.packet(6, TWICE.to_bytes(2, "big"), 2))
        assert writer.has_silence(SILENCE_S)
    with Peer(broker.mqtt_port, level) as writer:
        assert writer.connect("writer", **KEPT)[0] == 1
        writer.send(mqtt_bytes.packet(6, TWICE.to_bytes(2, "big"), 2))
        assert writer.has_silence(SILENCE_S)
        disk.heal()
        assert writer.expect(7).body[:2] == TWICE.to_bytes(2, "big")


@pytest.mark.parametrize("changes", ["session", "will"])
@pytest.mark.parametrize("is_again", [False, True])
def test_a_client_is_not_told_of_its_session_before_the_log_of_sessions_is_on_disk(
    on_disk: DiskFactory, changes: str, is_again: bool
) -> None:
    """3.1.1 [MQTT-3.1.2-6], 5.0 [MQTT-3.1.2-4]. After a loss of power a new session would have the
    identifiers of the one before it, and what comes with them would be answered and thrown away; or
    a will would be published whose client has come back in time. Nor is the next client, if the
    first one has gone without having been told."""
    broker, disk = on_disk(mqtt=True)
    broker.start()
    will = {
        "will": ("w", b"gone", 1, False),
        "will_properties": mqtt_bytes.block(b"\x18\0\0\x0e\x10"),
    }
    with Peer(broker.mqtt_port, V5) as writer:
        writer.connect("writer", **KEPT, **(will if changes == "will" else {}))
        writer.send(mqtt_bytes.publish(V5, "m/x", b"1", qos=2, packet_id=TWICE))
        writer.expect(5)
    disk.plan(Action.HOLD, Call.SYNC)
    is_clean = changes == "session"
    if is_again:
        with Peer(broker.mqtt_port, V5) as writer:
            writer.send(mqtt_bytes.connect(V5, "writer", **KEPT | {"clean": is_clean}))
            assert writer.has_silence(SILENCE_S)
        is_clean = False
    with Peer(broker.mqtt_port, V5) as writer:
        writer.send(mqtt_bytes.connect(V5, "writer", **KEPT | {"clean": is_clean}))
        assert writer.has_silence(SILENCE_S)
        disk.heal()
        is_present = bool(writer.expect(2).body[0])
    # Of a new one that its first client was not told of it may say either.
    assert is_present == (changes == "will") or (is_again and changes == "session")
