"""Permissions over HTTP: they act at once, on open connections, and are refused when bad."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker

ALL = {"configure": ".*", "read": ".*", "write": ".*"}


def test_a_change_acts_on_open_connections(broker: Broker, api: Api, unique: UniqueName) -> None:
    name, queue = unique("u"), unique("q")
    api.as_user(name, "", **{"/": (".*", ".*", ".*")})
    path = f"/api/permissions/%2F/{name}"
    login = pika.PlainCredentials(name, f"{name}-pw")
    parameters = pika.ConnectionParameters(broker.host, broker.port, credentials=login)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, auto_delete=True)
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "k", b"x")

        assert api("PUT", path, ALL | {"write": "^other$"}).status == 204

        with pytest.raises(ChannelClosedByBroker) as refused:
            channel.basic_publish("amq.topic", "k", b"x")
        assert refused.value.reply_code == 403
        assert api("DELETE", path).status == 204
        with pytest.raises(ConnectionClosedByBroker) as closed:
            connection.channel()
        assert closed.value.reply_code == 320
    api("DELETE", f"/api/users/{name}")


def test_they_are_shown_by_user_by_vhost_and_all(api: Api, unique: UniqueName) -> None:
    name = unique("u")
    api.as_user(name, "")
    path = f"/api/permissions/%2F/{name}"
    row = {"user": name, "vhost": "/", "configure": "^a", "read": "b|c", "write": ""}

    assert api("GET", path).status == 404
    assert api("PUT", path, {"configure": "^a", "read": "b|c", "write": ""}).status == 201
    assert api.get(path) == row
    assert api.get(f"/api/users/{name}/permissions") == [row]
    assert row in api.get("/api/vhosts/%2F/permissions")
    assert api.get(f"/api/permissions?name={name}") == [row]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Fields 'configure', 'read' and 'write' are required"),
        ({"configure": ".*"}, "Fields 'configure', 'read' and 'write' are required"),
        (ALL | {"read": 5}, "Fields 'configure', 'read' and 'write' are required"),
        (
            ALL | {"write": "["},
            "Permissions must be valid Regex: field 'write': Invalid regular expression '[': "
            "missing terminating ] for character class at position 1",
        ),
    ],
)
def test_a_bad_body_changes_nothing(
    api: Api, unique: UniqueName, body: object, reason: str
) -> None:
    name = unique("u")
    api.as_user(name, "", **{"/": ("c", "w", "r")})
    path = f"/api/permissions/%2F/{name}"

    answer = api("PUT", path, body)

    assert (answer.status, answer.json["reason"]) == (400, reason)
    assert (api.get(path)["configure"], api.get(path)["write"]) == ("c", "w")


def test_unknown_users_and_vhosts(api: Api, unique: UniqueName) -> None:
    for method, body in (("GET", None), ("PUT", ALL), ("DELETE", None)):
        assert api(method, f"/api/permissions/%2F/{unique('u')}", body).status == 404
        assert api(method, f"/api/permissions/{unique('v')}/guest", body).status == 403


@pytest.mark.parametrize("argument", ["alternate-exchange", "x-alternate-exchange"])
def test_an_alternate_exchange_takes_rights_on_it_in_both_spellings(
    api: Api, unique: UniqueName, argument: str
) -> None:
    name, exchange = unique("u"), f"mine-{unique('x')}"
    user = api.as_user(name, "management", **{"/": ("^mine", "^mine", "^mine")})
    path = f"/api/exchanges/%2F/{exchange}"

    answer = user("PUT", path, {"type": "direct", "arguments": {argument: "amq.fanout"}})

    assert answer.status == 403
    assert api("GET", path).status == 404
    body = {"type": "direct", "arguments": {argument: "mine-other"}}
    assert user("PUT", path, body).status == 201
    api("DELETE", path)
    api("DELETE", f"/api/users/{name}")


OWN = {"exchange": "events", "write": "^own\\.", "read": "^(own|{username})"}


def test_topic_permissions_are_set_shown_and_taken_away(api: Api, unique: UniqueName) -> None:
    name = unique("u")
    api.as_user(name, "", **{"/": (".*", ".*", ".*")})
    path = f"/api/topic-permissions/%2F/{name}"
    row = {"user": name, "vhost": "/", **OWN}
    other = row | {"exchange": "a/b"}

    assert api.get(path) == []
    assert api("PUT", path, OWN).status == 201
    assert api("PUT", path, OWN).status == 204
    assert api("PUT", path, OWN | {"exchange": "a/b"}).status == 201
    assert api.get(path) == api.get(f"/api/users/{name}/topic-permissions") == [row, other]
    for of in ("/api/topic-permissions", "/api/vhosts/%2F/topic-permissions"):
        assert [each for each in api.get(of) if each["user"] == name] == [row, other]
    assert api("DELETE", f"{path}/a%2Fb").status == 204
    assert api.get(path) == [row]
    assert api("DELETE", path).status == 204
    assert api.get(path) == []
    api("DELETE", f"/api/users/{name}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Fields 'exchange', 'write' and 'read' are required"),
        (OWN | {"read": 5}, "Field 'read' must be a string"),
        (
            OWN | {"write": "["},
            "Permissions must be valid Regex: field 'write': Invalid regular expression '[': "
            "missing terminating ] for character class at position 1",
        ),
        (OWN | {"exchange": "x" * 256}, "Field 'exchange' is longer than 255 bytes"),
    ],
)
def test_a_bad_topic_permission_changes_nothing(api: Api, body: object, reason: str) -> None:
    answer = api("PUT", "/api/topic-permissions/%2F/guest", body)

    assert answer.status == 400
    assert answer.json["reason"] == reason
    assert api.get("/api/topic-permissions/%2F/guest") == []


def test_topic_permissions_of_users_and_vhosts_that_are_not_there(
    api: Api, unique: UniqueName
) -> None:
    for method, body in (("GET", None), ("PUT", OWN), ("DELETE", None)):
        assert api(method, f"/api/topic-permissions/%2F/{unique('u')}", body).status == 404
        assert api(method, f"/api/topic-permissions/{unique('v')}/guest", body).status == 403
    assert api("GET", "/api/users/nobody-there/topic-permissions").status == 404


@pytest.mark.parametrize("headers", [{"CC": ["own.b", "secret"]}, {"BCC": ["secret"]}, {}])
def test_topic_permissions_are_in_force_for_a_publish_over_http(
    api: Api, unique: UniqueName, headers: dict[str, list[str]]
) -> None:
    name = unique("u")
    user = api.as_user(name, "management", **{"/": (".*", ".*", ".*")})
    own = OWN | {"exchange": "amq.topic"}
    assert api("PUT", f"/api/topic-permissions/%2F/{name}", own).status == 201
    path = "/api/exchanges/%2F/amq.topic/publish"

    def publish(key: str, headers: dict[str, list[str]]) -> int:
        body = {"routing_key": key, "payload": "p", "payload_encoding": "string"}
        return user("POST", path, body | {"properties": {"headers": headers}}).status

    assert publish("own.a", {"CC": ["own.b"]}) == 200
    assert publish("own.a" if headers else "secret", headers) == 403
    api("DELETE", f"/api/users/{name}")


def test_topic_permissions_are_in_force_for_a_binding_over_http(
    api: Api, unique: UniqueName
) -> None:
    name, queue = unique("u"), unique("q")
    user = api.as_user(name, "management", **{"/": (".*", ".*", ".*")})
    own = OWN | {"exchange": "amq.topic"}
    api("PUT", f"/api/topic-permissions/%2F/{name}", own)
    assert user("PUT", f"/api/queues/%2F/{queue}", {"auto_delete": True}).status == 201
    path = f"/api/bindings/%2F/e/amq.topic/q/{queue}"

    assert user("POST", path, {"routing_key": "#"}).status == 403
    assert user("POST", path, {"routing_key": "own.*"}).status == 201
    assert api("POST", path, {"routing_key": "#"}).status == 201
    assert user("DELETE", f"{path}/%23").status == 403
    assert [each["routing_key"] for each in api.get(path)] == ["own.*", "#"]
    api("DELETE", f"/api/queues/%2F/{queue}")
    api("DELETE", f"/api/users/{name}")


def test_a_pattern_for_amq_default_counts_for_the_default_exchange(
    broker: Broker, api: Api, unique: UniqueName
) -> None:
    name, queue = unique("u"), unique("q")
    api.as_user(name, "", **{"/": (f"^{queue}$", "^amq\\.default$", "^$")})
    login = pika.PlainCredentials(name, f"{name}-pw")
    parameters = pika.ConnectionParameters(broker.host, broker.port, credentials=login)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, auto_delete=True)
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"x", mandatory=True)
        channel.queue_delete(queue)
    api("DELETE", f"/api/users/{name}")
