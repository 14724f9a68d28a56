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
from tests.support.waiting import wait_for

VERSIONS = (V31, V311, V5)
KEPT = block(b"\x11\0\0\0\x64")
LATE = block(b"\x18\0\0\x0f\xff")


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


@pytest.mark.parametrize("is_here", [True, False])
def test_a_will_is_due_when_its_session_is_deleted(
    peer: NewPeer, mqtt: Broker, is_here: bool
) -> None:
    """5.0 [MQTT-3.1.2-8]: with its client there, or away."""
    topic, name = new(), new("c")
    seen, client = witness(peer, topic), peer(V5)
    client.connect(name, properties=KEPT, will=(topic, b"x", 1, False), will_properties=LATE)
    if not is_here:
        leave(client, mqtt, f"%2F/{name}")
    assert Api(mqtt)("DELETE", f"/api/queues/%2F/mqtt.{name}").status == 204
    assert seen.message().payload == b"x"


def test_a_will_is_due_when_its_session_expires_by_a_policy(peer: NewPeer, mqtt: Broker) -> None:
    """5.0 [MQTT-3.1.2-8]: sooner than the client has asked for."""
    topic, name = new(), new("c")
    body = {"pattern": f"mqtt.{name}", "apply-to": "queues", "definition": {"expires": 200}}
    assert Api(mqtt)("PUT", f"/api/policies/%2F/{name}", body).status in (201, 204)
    seen, client = witness(peer, topic), peer(V5)
    client.connect(name, properties=KEPT, will=(topic, b"x", 1, False), will_properties=LATE)
    client.socket.close()
    assert seen.message().payload == b"x"
    Api(mqtt)("DELETE", f"/api/policies/%2F/{name}")


@pytest.mark.parametrize("what", ["topics", "groups", "permissions", "user", "another user"])
def test_a_will_needs_the_rights_of_when_it_is_published(
    peer: NewPeer, mqtt: Broker, home: str, what: str
) -> None:
    """They are taken while it waits. One with rights that is due later comes."""
    if what == "groups":
        group(Api(mqtt), home, "guest", home)
    seen = peer(V311)
    seen.connect(new("w"), user=f"{home}:guest")
    seen.subscribe(("gone", 1))
    for name, delay in ((home, b"\x01"), ("guest", b"\x02")):
        client = peer(V5)
        client.connect(
            name, user=f"{home}:{name}", password=name, properties=KEPT,
            will=("gone", name.encode(), 1, False), will_properties=block(b"\x18\0\0\0" + delay),
        )  # fmt: skip
        leave(client, mqtt, f"{home}/{name}")

    take(Api(mqtt), home, what)

    assert seen.message().payload == b"guest"
    seen.ping()


def test_the_will_of_a_deleted_user_is_not_published(
    peer: NewPeer, mqtt: Broker, home: str
) -> None:
    """Its client is closed with it."""
    seen, client = peer(V311), peer(V5)
    seen.connect(new("w"), user=f"{home}:guest")
    seen.subscribe(("gone", 1))
    will = ("gone", b"no", 1, False)
    client.connect("c", user=f"{home}:{home}", password=home, will=will)

    assert Api(mqtt)("DELETE", f"/api/users/{home}").status == 204

    assert client.reason_of_end() == 0x98
    seen.publish("gone", b"other", 1)
    assert seen.message().payload == b"other"


def leave(client: Peer, mqtt: Broker, session: str) -> None:
    """Go without a word; the broker has seen it."""
    client.socket.close()
    path = f"/api/mqtt/sessions/{session}"
    wait_for(lambda: not Api(mqtt).get(path)["connected"], "the client is still there")


def take(api: Api, vhost: str, what: str) -> None:
    """Have the user of a virtual host no longer publish anything."""
    if what == "topics":
        nothing = {"exchange": "mqtt.default", "read": "^$", "write": "^$"}
        assert api("PUT", f"/api/topic-permissions/{vhost}/{vhost}", nothing).status in (201, 204)
    elif what == "groups":
        group(api, vhost, "guest")
    elif what == "permissions":
        assert api("DELETE", f"/api/permissions/{vhost}/{vhost}").status == 204
    else:
        assert api("DELETE", f"/api/users/{vhost}").status == 204
    if what == "another user":
        api("PUT", f"/api/users/{vhost}", {"password": "x", "tags": ""})


def group(api: Api, vhost: str, *members: str) -> None:
    """Have these do everything in a virtual host, and others nothing."""
    value = {"members": members, "rules": [{"filter": "#", "read": True, "write": True}]}
    path = f"/api/parameters/mqtt-permissions/{vhost}/x"
    assert api("PUT", path, {"value": value}).status in (201, 204)
