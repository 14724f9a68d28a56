"""Permission groups, refused publishes and long requests, with a running broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.integration.mqtt.conftest import NewBroker
from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V311
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for

KEPT = {"clean": False, "properties": mqtt_bytes.block(b"\x11\0\0\0\x64")}
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


def filters(api: Api, vhost: str) -> list[str]:
    """Those of the session of the client `d1`."""
    rows = api.get(f"/api/mqtt/sessions/{vhost}/d1/subscriptions")
    return sorted(each["filter"] for each in rows)


@pytest.mark.parametrize("what", ["topics", "groups", "permissions", "user"])
def test_rights_that_are_taken_end_subscriptions_of_who_is_away(
    mqtt: Broker, home: str, what: str
) -> None:
    """What is published from then on does not wait for the client. Other subscriptions stay, and
    those of other users."""
    api, wanted = Api(mqtt), (("secret/#", 1), ("news/a", 1), ("$share/g/secret/x", 1))
    with Peer(mqtt.mqtt_port, V5) as peer, Peer(mqtt.mqtt_port, V5) as other:
        peer.connect("d1", user=f"{home}:{home}", password=home, **KEPT)
        other.connect("d2", user=f"{home}:guest", **KEPT)
        assert peer.subscribe(*wanted) == other.subscribe(*wanted) == [1, 1, 1]
        peer.disconnect()
        other.disconnect()

    left = ["news/a"] if what == "topics" else []
    if what == "topics":
        news = {"exchange": "mqtt.default", "read": "^news", "write": ""}
        assert api("PUT", f"/api/topic-permissions/{home}/{home}", news).status in (201, 204)
    elif what == "groups":
        path = f"/api/parameters/mqtt-permissions/{home}/x"
        everything = {"members": ["guest"], "rules": [{"filter": "#", "read": True, "write": True}]}
        assert api("PUT", path, {"value": everything}).status in (201, 204)
    elif what == "permissions":
        assert api("DELETE", f"/api/permissions/{home}/{home}").status == 204
    else:
        assert api("DELETE", f"/api/users/{home}").status == 204

    wait_for(lambda: filters(api, home) == left, "the subscriptions stay")
    with Peer(mqtt.mqtt_port, V5) as sender:
        sender.connect("s", user=f"{home}:guest")
        sender.publish("secret/1", b"later", 1)
        assert api.get(f"/api/queues/{home}/mqtt.d1")["messages"] == 0
        assert api.get(f"/api/queues/{home}/mqtt.d2")["messages"] == 1


def test_a_session_is_not_handed_to_another_user(mqtt: Broker, home: str) -> None:
    """What waits in it is its user's: another one with that client identifier begins anew."""
    with Peer(mqtt.mqtt_port, V5) as peer:
        peer.connect("d1", user=f"{home}:guest", **KEPT)
        peer.subscribe(("secret", 1))
        peer.disconnect()
    with Peer(mqtt.mqtt_port, V5) as peer:
        peer.connect("s", user=f"{home}:guest")
        peer.publish("secret", b"waits", 1)
    with Peer(mqtt.mqtt_port, V5) as peer:
        assert peer.connect("d1", user=f"{home}:{home}", password=home, **KEPT)[0] == 0
        peer.publish("secret", b"not heard", 1)
        peer.ping()
        assert not peer.early_messages()
        peer.disconnect()
    with Peer(mqtt.mqtt_port, V5) as peer:
        assert peer.connect("d1", user=f"{home}:{home}", password=home, **KEPT)[0] == 1


def test_whose_a_session_is_outlives_a_kill(own: NewBroker) -> None:
    """It is told from another user's, and goes on for its own."""
    broker = own()
    api, everything = Api(broker), {"configure": ".*", "read": ".*", "write": ".*"}
    api("PUT", "/api/users/u", {"password": "u", "tags": ""})
    assert api("PUT", "/api/permissions/%2F/u", everything).status in (201, 204)
    for name in ("mine", "yours"):
        with Peer(broker.mqtt_port, V5) as peer:
            peer.connect(name, **KEPT)
            peer.subscribe(("t", 1))
            peer.disconnect()
    broker.kill()
    broker.start()
    with Peer(broker.mqtt_port, V5) as peer:
        assert peer.connect("mine", **KEPT)[0] == 1
    with Peer(broker.mqtt_port, V5) as peer:
        assert peer.connect("yours", user="u", password="u", **KEPT)[0] == 0


def test_who_comes_back_with_fewer_rights_gets_nothing_first(own: NewBroker) -> None:
    """Permissions are asked from this start on. What may not be any more ends before a message is
    sent, however many subscriptions there are."""
    broker = own()
    api, nothing = Api(broker), {"configure": "", "read": "", "write": ""}
    api("PUT", "/api/users/u", {"password": "u", "tags": ""})
    assert api("PUT", "/api/permissions/%2F/u", nothing).status in (201, 204)
    with Peer(broker.mqtt_port, V5) as peer:
        peer.connect("c", user="u", password="u", **KEPT)
        many = [(f"many/{n}", 1) for n in range(3000)]
        assert set(peer.subscribe(*many, ("$share/g/secret", 1))) == {1}
        peer.disconnect()
    with Peer(broker.mqtt_port, V5) as peer:
        peer.connect("s")
        peer.publish("secret", b"waits", 1)
    broker.stop()
    broker = own("[mqtt]\npermission_check_enabled = true\n")
    with Peer(broker.mqtt_port, V5) as peer:
        assert peer.connect("c", user="u", password="u", **KEPT)[0] == 1
        peer.ping()
        assert not peer.early_messages()
        assert peer.unsubscribe("many/0", "$share/g/secret") == [0x11, 0x11]


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
