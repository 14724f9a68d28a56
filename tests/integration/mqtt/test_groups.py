"""Permission groups, refused publishes and long requests, with a running broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V311
from tests.support.mqtt_peer import Peer

DEVICES = {
    "members": ["*"],
    "rules": [
        {"filter": "devices/{client_id}/#", "read": True, "write": True},
        {"filter": "news/+", "read": True},
    ],
}


@pytest.fixture
def vhost(mqtt: Broker) -> Iterator[str]:
    """A virtual host with a group."""
    name, api = uuid.uuid4().hex, Api(mqtt)
    api("PUT", f"/api/vhosts/{name}")
    put = api("PUT", f"/api/parameters/mqtt-permissions/{name}/devices", {"value": DEVICES})
    assert put.status in (201, 204)
    yield name
    api("DELETE", f"/api/vhosts/{name}")


@pytest.mark.parametrize("level", [V311, V5])
def test_a_client_has_what_its_groups_allow(mqtt: Broker, vhost: str, level: int) -> None:
    with Peer(mqtt.mqtt_port, level) as peer:
        peer.connect("d1", user=f"{vhost}:guest")
        refused = 0x87 if level == V5 else 0x80

        wanted = ("devices/d1/#", "news/+", "devices/d2/#", "#", "news/#", "$share/g/news/a")
        granted = peer.subscribe(*((text, 1) for text in wanted))
        peer.publish("news/a", b"refused", 1)
        peer.publish("devices/d2/x", b"refused")
        peer.publish("devices/d1/x", b"heard", 1)

        assert granted == [1, 1, refused, refused, refused, 1]
        assert peer.message().payload == b"heard"


def test_groups_that_change_count_at_once(mqtt: Broker, vhost: str) -> None:
    api = Api(mqtt)
    with Peer(mqtt.mqtt_port, V5) as peer:
        peer.connect("d1", user=f"{vhost}:guest")
        assert peer.subscribe(("devices/d1/#", 0), ("news/a", 0)) == [0, 0]

        value = {"members": ["guest"], "rules": [{"filter": "news/#", "read": True, "write": True}]}
        api("PUT", f"/api/parameters/mqtt-permissions/{vhost}/devices", {"value": value})
        until = time.monotonic() + 10
        while peer.unsubscribe("devices/d1/#") != [0x11]:  # the broker has ended it
            assert time.monotonic() < until
            peer.subscribe(("x", 0))

        peer.publish("news/a", b"now", 1)
        assert peer.message().payload == b"now"


def test_who_comes_next_has_the_rights_of_then(mqtt: Broker) -> None:
    """What one client may do is not what the next one of the same user may once groups, or
    permissions for topics, have changed; nor is it what one with another identifier may."""
    name, api = uuid.uuid4().hex, Api(mqtt)
    api("PUT", f"/api/vhosts/{name}")
    topics = f"/api/topic-permissions/{name}/guest"

    def granted(client_id: str) -> list[int]:
        with Peer(mqtt.mqtt_port, V5) as peer:
            peer.connect(client_id, user=f"{name}:guest")
            return peer.subscribe(("devices/d1/x", 0), ("other", 0))

    assert granted("d1") == [0, 0]
    put = api("PUT", f"/api/parameters/mqtt-permissions/{name}/devices", {"value": DEVICES})
    assert put.status in (201, 204)
    assert granted("d1") == [0, 0x87]
    assert granted("d2") == [0x87, 0x87]
    api("DELETE", f"/api/parameters/mqtt-permissions/{name}/devices")
    assert granted("d2") == [0, 0]
    put = api("PUT", topics, {"exchange": "mqtt.default", "read": "^devices", "write": ""})
    assert put.status in (201, 204)
    assert granted("d2") == [0, 0x87]
    api("DELETE", topics)
    assert granted("d2") == [0, 0]
    api("DELETE", f"/api/vhosts/{name}")


def test_a_group_that_is_none_is_refused(mqtt: Broker, vhost: str) -> None:
    path = f"/api/parameters/mqtt-permissions/{vhost}/x"
    answer = Api(mqtt)("PUT", path, {"value": {"members": 1}})

    assert answer.status == 400


def test_a_refused_publish_ends_the_connection_where_that_is_set(
    own: Callable[..., Broker],
) -> None:
    broker = own("[mqtt]\nrefused_publish = disconnect\n")
    Api(broker)("PUT", "/api/parameters/mqtt-permissions/%2F/g", {"value": DEVICES})
    with Peer(broker.mqtt_port, V311) as peer:
        peer.connect("d1")
        peer.publish("devices/d1/x", b"", 1)
        peer.send(b"\x32\x09\0\5other\0\7")
        assert peer.read() is None
    with Peer(broker.mqtt_port, V5) as peer:
        peer.connect("d1")
        peer.send(b"\x32\x0a\0\5other\0\7\0")
        assert peer.expect(4).body == b"\0\7\x87"


def test_thousands_of_filters_do_not_hold_up_others(mqtt: Broker) -> None:
    n = 20_000
    with Peer(mqtt.mqtt_port, V5) as many, Peer(mqtt.mqtt_port, V311) as other:
        many.connect(uuid.uuid4().hex)
        other.connect(uuid.uuid4().hex)
        filters = [f"{uuid.uuid4().hex[:8]}/{i}" for i in range(n)]
        many.send(mqtt_bytes.subscribe(V5, 9, *((text, 0) for text in filters)))
        for _ in range(20):
            other.ping()
        granted = many.expect(9).body[3:]

        assert len(granted) == n
        many.send(mqtt_bytes.unsubscribe(V5, 10, *filters))
        other.ping()
        assert set(many.expect(11).body[3:]) <= {0, 0x11}


def test_too_many_filters_in_a_packet_end_the_connection(mqtt: Broker) -> None:
    with Peer(mqtt.mqtt_port, V5) as peer:
        peer.connect(uuid.uuid4().hex)
        peer.send(mqtt_bytes.subscribe(V5, 9, *[("a", 0)] * 65_537))
        assert peer.reason_of_end() == 0x97
