"""MQTT as operators see it: the API's lists, metrics, lavinmqctl, and what a user may see of it."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.cli.test_lavinmqctl import rows, runner
from tests.integration.mqtt.conftest import NewBroker, NewPeer
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.metrics import scrape, value
from tests.support.mqtt_bytes import V5, V31, V311, block
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for

EXPIRY = b"\x11\0\0\0\x64"
"""Of a session: 100 seconds."""


def new(word: str) -> str:
    """A name that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


def session(api: Api, client_id: str) -> Any:
    return api.get(f"/api/mqtt/sessions/%2F/{quote(client_id, safe='')}")


@pytest.mark.parametrize(
    ("level", "protocol"), [(V31, "MQTT 3.1"), (V311, "MQTT 3.1.1"), (V5, "MQTT 5.0")]
)
def test_a_connection_is_shown_with_its_version(
    mqtt: Broker, peer: NewPeer, level: int, protocol: str
) -> None:
    api, name, client = Api(mqtt), new("c"), peer(level)
    client.connect(name, keep_alive=77)
    (row,) = [each for each in api.get("/api/connections") if each.get("client_id") == name]
    assert (row["protocol"], row["keepalive"], row["timeout"]) == (protocol, 77, 77)
    assert (row["channels"], row["user"], row["vhost"]) == (0, "guest", "/")
    assert api.get(f"/api/connections/{quote(row['name'], safe='')}")["client_id"] == name


def test_a_session_is_shown_while_its_client_is_there_and_away(mqtt: Broker, peer: NewPeer) -> None:
    api, name, topic = Api(mqtt), new("ä/c"), new("t")
    with peer(V5) as client:
        client.connect(
            name, clean=True, properties=block(EXPIRY, b"\x21\0\2"), keep_alive=30,
            will=("w", b"bye", 0, False),
        )  # fmt: skip
        client.subscribe((topic, 1), (f"$share/g/{topic}", 2))
        sender = peer(V311)
        sender.connect(new("s"))
        for _ in range(5):
            sender.publish(topic, b"12345", 1)
        client.message()

        shown = session(api, name)

        assert (shown["client_id"], shown["vhost"], shown["queue"]) == (name, "/", f"mqtt.{name}")
        assert (shown["connected"], shown["protocol"], shown["user"]) == (True, "MQTT 5.0", "guest")
        assert (shown["keepalive"], shown["expiry"], shown["durable"]) == (30, 100, True)
        assert (shown["receive_maximum"], shown["in_flight"], shown["has_will"]) == (2, 2, True)
        assert shown["subscriptions"] == 2
        assert shown["connection"] in {each["name"] for each in api.get("/api/connections")}
    wait_for(lambda: not session(api, name)["connected"], "the client has gone")
    shown = session(api, name)
    assert shown["messages_ready"] == shown["messages"] == 5
    assert "protocol" not in shown and "in_flight" not in shown
    (row,) = [each for each in api.get("/api/mqtt/sessions") if each["client_id"] == name]
    assert (row["connected"], row["in_flight"], row["messages"]) == (False, None, 5)
    (found,) = api.get(f"/api/mqtt/sessions/%2F?page=1&name={quote(name)}")["items"]
    assert found["client_id"] == name


def test_subscriptions_are_listed_with_their_options(mqtt: Broker, peer: NewPeer) -> None:
    api, name, client = Api(mqtt), new("c"), peer(V5)
    client.connect(name)
    client.subscribe(("a/+", 1 | 4 | 8 | 16), ("$share/grp/b/#", 2), properties=block(b"\x0b\7"))
    path = f"/api/mqtt/sessions/%2F/{name}/subscriptions"
    found = {each["filter"]: each for each in api.get(path)}
    assert found == {
        "a/+": {"filter": "a/+", "group": None, "qos": 1, "no_local": True, "subscription_id": 7,
                "retain_as_published": True, "retain_handling": 1},
        "b/#": {"filter": "b/#", "group": "grp", "qos": 2, "no_local": False, "subscription_id": 7,
                "retain_as_published": False, "retain_handling": 0},
    }  # fmt: skip


def test_shared_subscriptions_are_listed_with_their_members(mqtt: Broker, peer: NewPeer) -> None:
    api, group, long = Api(mqtt), new("g"), "x" * 300
    clients = [peer(V5) for _ in range(2)]
    for client in clients:
        client.connect(new("c"))
        client.subscribe((f"$share/{group}/{long}", 1))
    found = [each for each in api.get("/api/mqtt/shared-subscriptions") if each["group"] == group]
    assert [(each["filter"], each["members"], each["vhost"]) for each in found] == [(long, 2, "/")]
    assert api.get(f"/api/queues/%2F/{quote(found[0]['queue'], safe='')}")["consumers"] == 2
    listed = api.get("/api/mqtt/sessions")
    assert not [each for each in listed if each["client_id"].startswith("$share/")]


def test_clients_are_consumers_of_their_sessions_and_of_what_they_share(
    mqtt: Broker, peer: NewPeer
) -> None:
    api, name, group, client = Api(mqtt), new("c"), new("g"), peer(V5)
    client.connect(name, properties=block(b"\x21\0\x0c"))
    client.subscribe((f"$share/{group}/t", 1))
    queues = {f"mqtt.{name}", f"mqtt.$share/{group}/t"}

    found = [each for each in api.get("/api/consumers/%2F") if each["consumer_tag"] == name]

    assert {each["queue"]["name"] for each in found} == queues
    for each in found:
        assert (each["ack_required"], each["exclusive"]) == (True, False)
        assert each["prefetch_count"] == 12
        assert each["channel_details"]["user"] == "guest"
    for queue in queues:
        shown = api.get(f"/api/queues/%2F/{quote(queue, safe='')}")
        (consumer,) = shown["consumer_details"]
        assert (consumer["consumer_tag"], consumer["queue"]["name"]) == (name, queue)
    connection = quote(found[0]["channel_details"]["connection_name"], safe="")
    assert api("DELETE", f"/api/consumers/%2F/{connection}/0/{name}").status == 404
    client.ping()


def test_a_virtual_host_tells_what_it_keeps(own: NewBroker) -> None:
    broker = own()
    api = Api(broker)
    with Peer(broker.mqtt_port, V5) as client:
        client.connect("c", properties=block(EXPIRY))
        client.subscribe(("t", 1), ("$share/g/t", 1))
        for at in range(3):
            client.publish(f"kept/{at}", b"body", 1, retain=True)
        (row,) = api.get("/api/mqtt")
        assert (row["vhost"], row["clients"], row["sessions"]) == ("/", 1, 1)
        assert (row["shared_subscriptions"], row["subscriptions"]) == (1, 2)
        assert (row["retained_messages"], row["is_well"]) == (3, True)
        assert row["retained_bytes"] > 3 * len("kept/0body") and row["retained_memory"] > 0
        told = scrape(broker)
        for metric, wanted in (
            ("clients", 1), ("sessions", 1), ("subscriptions", 2), ("shared_subscriptions", 1),
            ("retained_messages", 3), ("retained_bytes", row["retained_bytes"]),
            ("messages_in_flight", 0), ("wills_waiting", 0),
        ):  # fmt: skip
            assert value(told, f"mqtt_{metric}") == wanted, metric
        for protocol, n in (("mqtt310", 0), ("mqtt311", 0), ("mqtt50", 1)):
            assert value(told, "global_publishers", protocol=protocol) == n
            assert value(told, "global_consumers", protocol=protocol) == n


def test_what_a_user_may_not_see_is_not_shown(mqtt: Broker, peer: NewPeer) -> None:
    """Lists of all virtual hosts have those of the user's alone; others are refused."""
    api, name = Api(mqtt), new("c")
    peer(V311).connect(name)
    assert api("PUT", "/api/vhosts/mqtt-other").status in (201, 204)
    stranger = api.as_user("mqtt-stranger", "management", **{"mqtt-other": (".*", ".*", ".*")})
    for path in ("mqtt/sessions", "mqtt/shared-subscriptions"):
        assert stranger.get(f"/api/{path}") == []
    assert [each["vhost"] for each in stranger.get("/api/mqtt")] == ["mqtt-other"]
    for path in ("mqtt/sessions/%2F", f"mqtt/sessions/%2F/{name}"):
        assert stranger("GET", f"/api/{path}").status == 403
    assert stranger("GET", "/api/mqtt/sessions/mqtt-other/nobody").status == 404
    assert api("GET", "/api/mqtt/sessions/%2F/$share%2Fg%2Ft").status == 404
    untagged = api.as_user("mqtt-untagged", "", **{"/": (".*", ".*", ".*")})
    assert untagged("GET", "/api/mqtt").status == 401


def test_the_tool_lists_clients_and_sessions(mqtt: Broker, peer: NewPeer) -> None:
    name, client, ctl = new("c"), peer(V311), runner(mqtt)
    client.connect(name, clean=False)
    client.subscribe(("a", 0), ("b", 0))
    (connection,) = [each for each in rows(ctl("list_mqtt_connections")) if each[0] == name]
    assert connection[1].endswith(f":{mqtt.mqtt_port}")
    versions = rows(ctl("list_mqtt_connections", "client_id", "protocol", "keepalive", "-p", "/"))
    assert [name, "MQTT 3.1.1"] in [each[:2] for each in versions]
    assert [name, "true", "2", "0"] in rows(ctl("list_mqtt_sessions"))
    assert [name, f"mqtt.{name}"] in rows(
        ctl("list_mqtt_sessions", "client_id", "queue", "-p", "/")
    )


def test_log_ins_are_logged(own: NewBroker) -> None:
    """Who was let in and who was not, as for AMQP, with the client's address."""
    broker = own("[main]\nlog_level = debug\n")
    with Peer(broker.mqtt_port, V311) as client:
        assert client.connect("c", user="guest", password="wrong")[1] == 5
        refused = client.socket.getsockname()[1]
    with Peer(broker.mqtt_port, V311) as client:
        assert client.connect("c")[1] == 0
        admitted = client.socket.getsockname()[1]
    told = f"user 'guest' logged in with PLAIN from 127.0.0.1:{admitted}"
    wait_for(lambda: told in broker.log_text(), "the log-in is in the log")
    told = f"log-in of user 'guest' with PLAIN from 127.0.0.1:{refused} failed"
    assert told in broker.log_text()
