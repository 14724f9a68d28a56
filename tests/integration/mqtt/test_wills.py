"""Wills: when they are published, when not, and after which delay."""

from __future__ import annotations

import socket
import struct
import uuid

import pytest

from tests.integration.mqtt.conftest import NewPeer
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V31, V311, block, packet
from tests.support.mqtt_peer import Peer

VERSIONS = (V31, V311, V5)


def new(word: str = "t") -> str:
    """A topic or an identifier that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


def witness(peer: NewPeer, topic: str) -> Peer:
    """A client that hears of a topic."""
    client = peer(V311)
    client.connect(new("w"))
    client.subscribe((topic, 2))
    return client


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_client_leaves_its_will(peer: NewPeer, level: int, qos: int) -> None:
    """3.1.1 [MQTT-3.1.2-8], [MQTT-3.1.2-9], [MQTT-3.1.2-16], 5.0 [MQTT-3.1.2-8], [MQTT-3.1.2-9],
    [MQTT-3.1.2-14]."""
    topic, client = new(), peer(level)
    seen = witness(peer, topic)
    client.connect(new("c"), will=(topic, b"gone", qos, False))
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    assert seen.message()[:4] == (topic, b"gone", qos, False)


@pytest.mark.parametrize("level", VERSIONS)
def test_who_says_goodbye_leaves_none(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.2-10], [MQTT-3.14.4-3], 5.0 [MQTT-3.1.2-10], [MQTT-3.14.4-3]."""
    topic, client = new(), peer(level)
    seen = witness(peer, topic)
    client.connect(new("c"), will=(topic, b"gone", 1, False))
    client.disconnect()
    seen.publish(topic, b"other", 0)
    assert seen.message().payload == b"other"


def test_who_asks_for_it_leaves_one(peer: NewPeer) -> None:
    """5.0 section 3.14.2.1: disconnect with will message."""
    topic, client = new(), peer(V5)
    seen = witness(peer, topic)
    client.connect(new("c"), will=(topic, b"gone", 1, False))
    client.disconnect(b"\x04")
    assert seen.message().payload == b"gone"


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("bad", [b"\xf0\x00", packet(8, b"\0\1", 0), b"\x30\xff\xff\xff\xff\x7f"])
def test_a_client_that_errs_leaves_its_will(peer: NewPeer, level: int, bad: bytes) -> None:
    """3.1.1 [MQTT-3.1.2-8], [MQTT-4.8.0-1], 5.0 [MQTT-4.13.1-1]."""
    topic, client = new(), peer(level)
    seen = witness(peer, topic)
    client.connect(new("c"), will=(topic, b"gone", 1, False))
    client.send(bad)
    assert seen.message().payload == b"gone"


@pytest.mark.parametrize("level", VERSIONS)
def test_a_client_that_is_closed_leaves_its_will(peer: NewPeer, mqtt: Broker, level: int) -> None:
    """By management, and by one that takes its place."""
    topic, name = new(), new("c")
    seen = witness(peer, topic)
    client = peer(level)
    client.connect(name, will=(topic, b"first", 1, False))
    api = Api(mqtt)
    shown = next(each for each in api.get("/api/connections") if each.get("client_id") == name)
    path = "/api/connections/" + shown["name"].replace(" ", "%20").replace(">", "%3E")
    assert api("DELETE", path).status == 204
    assert client.reason_of_end() == (0x98 if level == V5 else None)
    assert seen.message().payload == b"first"
    peer(level).connect(name, will=(topic, b"second", 1, False))
    peer(level).connect(name)
    assert seen.message().payload == b"second"


@pytest.mark.parametrize("level", VERSIONS)
def test_a_silent_client_leaves_its_will(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.2-24], 5.0 [MQTT-3.1.2-22]."""
    topic = new()
    seen = witness(peer, topic)
    peer(level).connect(new("c"), keep_alive=1, will=(topic, b"gone", 1, False))
    assert seen.message().payload == b"gone"


def test_a_will_waits_for_its_delay(peer: NewPeer) -> None:
    """5.0 [MQTT-3.1.3-9]: who comes back in time cancels it."""
    topic, name = new(), new("c")
    seen = witness(peer, topic)
    delay, kept = block(b"\x18\0\0\0\x01"), block(b"\x11\0\0\0\x64")
    client = peer(V5)
    client.connect(name, properties=kept, will=(topic, b"1", 1, False), will_properties=delay)
    client.socket.close()
    client = peer(V5)
    will = (topic, b"2", 1, False)
    assert (
        client.connect(name, clean=False, properties=kept, will=will, will_properties=delay)[0] == 1
    )
    client.socket.close()
    assert seen.message().payload == b"2"


def test_a_will_does_not_wait_longer_than_its_session(peer: NewPeer) -> None:
    """5.0 [MQTT-3.1.2-8]: a session that ends, here because it is not kept, or begun anew."""
    topic, name = new(), new("c")
    seen = witness(peer, topic)
    delay = block(b"\x18\0\0\x0f\xff")
    client = peer(V5)
    client.connect(name, will=(topic, b"1", 1, False), will_properties=delay)
    client.socket.close()
    assert seen.message().payload == b"1"
    client = peer(V5)
    kept = block(b"\x11\0\0\x0f\xff")
    client.connect(name, properties=kept, will=(topic, b"2", 1, False), will_properties=delay)
    client.socket.close()
    peer(V5).connect(name, clean=True)
    assert seen.message().payload == b"2"
