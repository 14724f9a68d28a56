"""Retained messages over real connections: given to who subscribes, and what a restart leaves."""

from __future__ import annotations

import pytest

from tests.integration.mqtt.conftest import NewBroker, NewPeer
from tests.support import mqtt_bytes
from tests.support.mqtt_bytes import V5, V311, block
from tests.support.mqtt_peer import Message, Peer


def send_publish(client: Peer, topic: str, payload: bytes, packet_id: int, *, dup: bool) -> None:
    """A PUBLISH of QoS 2, whose answer the test reads."""
    client.send(mqtt_bytes.publish(V311, topic, payload, qos=2, packet_id=packet_id, dup=dup))


def send_ack(client: Peer, kind: int, packet_id: int) -> None:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    client.send(mqtt_bytes.packet(kind, packet_id.to_bytes(2, "big"), 2 if kind == 6 else 0))


def messages(client: Peer, count: int) -> dict[str, Message]:
    """So many that come, by topic, and no more."""
    found = {each.topic: each for each in (client.message() for _ in range(count))}
    client.ping()
    assert client.has_silence(0.05)
    return found


@pytest.mark.parametrize("level", [V311, V5])
def test_a_new_subscription_gets_what_is_retained(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.3.1-5], [MQTT-3.3.1-6], [MQTT-3.3.1-8], 5.0 [MQTT-3.3.1-5], [MQTT-3.3.1-9]:
    with RETAIN set, and lower QoS."""
    sender, client = peer(level), peer(level)
    sender.connect(f"rs{level}")
    for qos in range(3):
        sender.publish(f"ret{level}/{qos}", b"old", qos, retain=True)
        sender.publish(f"ret{level}/{qos}", b"kept", qos, retain=True)
    client.connect(f"rc{level}")
    client.subscribe((f"ret{level}/+", 1))

    found = messages(client, 3)

    assert {each.payload for each in found.values()} == {b"kept"}
    assert [found[f"ret{level}/{qos}"].qos for qos in range(3)] == [0, 1, 1]
    assert all(each.retain for each in found.values())
    sender.publish(f"ret{level}/1", b"live", 1, retain=True)
    assert client.message()[1:4] == (b"live", 1, False)


def test_an_empty_message_ends_it(peer: NewPeer) -> None:
    """3.1.1 [MQTT-3.3.1-10], [MQTT-3.3.1-11]."""
    client = peer()
    client.connect("re")
    client.publish("end", b"x", 1, retain=True)
    client.publish("end", b"", 1, retain=True)
    client.subscribe(("end", 1))
    assert client.has_silence()


def test_the_retain_handling_of_a_subscription(peer: NewPeer) -> None:
    """5.0 [MQTT-3.3.1-9] to [MQTT-3.3.1-11]: 0 always, 1 for a new one, 2 never."""
    client = peer(V5)
    client.connect("rh")
    client.publish("handled", b"x", 1, retain=True)
    client.subscribe(("handled", 0x01 | 2 << 4))
    assert client.has_silence(0.1)
    client.subscribe(("handled", 0x01 | 1 << 4))
    assert client.has_silence(0.1)
    client.subscribe(("handled", 0x01))
    assert client.message().payload == b"x"
    client.unsubscribe("handled")
    client.subscribe(("handled", 0x01 | 1 << 4))
    assert client.message().payload == b"x"


def test_a_shared_subscription_gets_none(peer: NewPeer) -> None:
    client = peer(V5)
    client.connect("rg")
    client.publish("group/x", b"x", 1, retain=True)
    client.subscribe(("$share/g/group/#", 1))
    assert client.has_silence()


def test_a_will_may_be_retained(peer: NewPeer) -> None:
    """3.1.1 [MQTT-3.1.2-17], 5.0 [MQTT-3.1.2-15]: and goes to who is there as a message that is
    not."""
    client, watcher, later = peer(), peer(), peer()
    watcher.connect("rww")
    watcher.subscribe(("rw/will", 1))
    client.connect("rw", will=("rw/will", b"gone", 1, True))
    client.socket.close()
    assert watcher.message()[:4] == ("rw/will", b"gone", 1, False)

    later.connect("rl")
    later.subscribe(("rw/will", 1))

    assert later.message()[:4] == ("rw/will", b"gone", 1, True)


def test_properties_and_expiry_are_kept(peer: NewPeer) -> None:
    """5.0 [MQTT-3.3.2-6], [MQTT-3.3.2-20]."""
    client = peer(V5)
    client.connect("rp")
    client.publish(
        "props", b"x", 1, retain=True, properties=block(b"\x03\0\4text" + b"\x02\0\0\x03\xe8")
    )
    client.subscribe(("props", 1))
    found = client.message()
    assert b"\x03\0\4text" in found.properties
    at = found.properties.index(b"\x02\0\0\x03")
    assert 990 <= int.from_bytes(found.properties[at + 1 : at + 5], "big") <= 1000


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_a_restart_keeps_them(own: NewBroker, end: str) -> None:
    broker = own()
    with Peer(broker.mqtt_port) as client:
        client.connect("before")
        for number in range(200):
            client.publish(f"many/{number}/x", b"%d" % number, 1, retain=True)
        client.publish("many/7/x", b"", 1, retain=True)
    if end == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    with Peer(broker.mqtt_port) as client:
        client.connect("after")
        client.subscribe(("many/+/x", 1))
        found = messages(client, 199)
        assert {topic: each.payload for topic, each in found.items()} == {
            f"many/{number}/x": b"%d" % number for number in range(200) if number != 7
        }


def test_qos_2_goes_on_after_a_kill(own: NewBroker) -> None:
    """3.1.1 [MQTT-4.3.3-1], [MQTT-4.3.3-2], [MQTT-4.4.0-1], 5.0 [MQTT-4.4.0-1]: with the
    identifiers of before, in both directions."""
    broker = own()
    with Peer(broker.mqtt_port) as client:
        client.connect("twice", clean=False)
        client.subscribe(("two", 2))
        send_publish(client, "two", b"once", 9, dup=False)
        client.expect(5)
        first = client.message(is_acked=False)
    broker.kill()
    broker.start()
    with Peer(broker.mqtt_port) as client:
        assert client.connect("twice", clean=False)[0] == 1
        again = client.message(is_acked=False)
        assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"once")
        send_publish(client, "two", b"once", 9, dup=True)
        assert client.expect(5).body == b"\0\x09"
        send_ack(client, 6, 9)
        assert client.expect(7).body == b"\0\x09"
        send_ack(client, 5, again.packet_id)
        assert client.expect(6).body == again.packet_id.to_bytes(2, "big")
    broker.kill()
    broker.start()
    with Peer(broker.mqtt_port) as client:
        assert client.connect("twice", clean=False)[0] == 1
        assert client.expect(6).body == again.packet_id.to_bytes(2, "big")
        send_ack(client, 7, again.packet_id)
        client.ping()
        assert client.has_silence(0.1)


def test_a_will_is_published_after_a_kill(own: NewBroker) -> None:
    """That of a client that was there, and one that had waited for its delay."""
    broker = own()
    with Peer(broker.mqtt_port) as watcher, Peer(broker.mqtt_port) as client:
        watcher.connect("watcher", clean=False)
        watcher.subscribe(("wills/#", 1))
        client.connect("author", will=("wills/1", b"here", 1, False))
        with Peer(broker.mqtt_port, V5) as waits:
            waits.connect(
                "waits", clean=False, properties=block(b"\x11\0\0\0\x64"),
                will=("wills/2", b"waited", 1, False), will_properties=block(b"\x18\0\0\0\x01"),
            )  # fmt: skip
        broker.kill()
    broker.start()
    with Peer(broker.mqtt_port) as watcher:
        watcher.connect("watcher", clean=False)
        found = {watcher.message()[:2] for _ in range(2)}
    assert found == {("wills/1", b"here"), ("wills/2", b"waited")}


def test_a_will_that_was_taken_back_does_not_come_after_a_kill(own: NewBroker) -> None:
    broker = own()
    with Peer(broker.mqtt_port) as watcher, Peer(broker.mqtt_port) as client:
        watcher.connect("watcher", clean=False)
        watcher.subscribe(("wills/#", 1))
        client.connect("author", clean=False, will=("wills/1", b"no", 1, False))
        client.disconnect()
        watcher.ping()
        broker.kill()
    broker.start()
    with Peer(broker.mqtt_port) as watcher:
        watcher.connect("watcher", clean=False)
        watcher.ping()
        assert watcher.has_silence()
