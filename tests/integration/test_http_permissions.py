"""Permissions over HTTP: they act at once, on open connections, and are refused when bad."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker

ALL = {"configure": ".*", "read": ".*", "write": ".*"}


@pytest.fixture
def api(broker: Broker) -> Api:
    return Api(broker)


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
        with pytest.raises(ChannelClosedByBroker) as refused:
            connection.channel().queue_delete(queue)
        assert refused.value.reply_code == 403
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
        (ALL | {"write": "["}, "Permissions must be valid Regex"),
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


def test_permissions_by_topic_are_none_and_refused(api: Api) -> None:
    of = ("topic-permissions", "topic-permissions/%2F/guest", "vhosts/%2F/topic-permissions",
          "users/guest/topic-permissions")  # fmt: skip
    assert [api.get(f"/api/{path}") for path in of] == [[], [], [], []]
    body = {"exchange": "amq.topic", "read": ".*", "write": ".*"}
    answer = api("PUT", "/api/topic-permissions/%2F/guest", body)
    assert (answer.status, answer.json["reason"]) == (400, "Topic permissions are not supported")
    assert api("GET", "/api/users/nobody-there/topic-permissions").status == 404
