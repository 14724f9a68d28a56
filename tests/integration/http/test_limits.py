"""Limits of virtual hosts and users over HTTP: what is shown, and that they hold."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker


@pytest.fixture
def vhost(api: Api, unique: UniqueName) -> Iterator[str]:
    name = unique("v")
    api("PUT", f"/api/vhosts/{name}")
    yield name
    api("DELETE", f"/api/vhosts/{name}")


DELAYED = {"x-delayed-type": "direct"}


def test_a_limit_of_a_vhost_is_set_holds_and_is_taken_away(
    broker: Broker, api: Api, vhost: str
) -> None:
    path = f"/api/vhost-limits/{vhost}"
    assert api.get(path) == []

    assert api("PUT", f"{path}/max-queues", {"value": 1}).status == 204
    assert api("PUT", f"{path}/max-connections", {"value": "5"}).status == 204

    assert api.get(path) == [{"vhost": vhost, "value": {"max-queues": 1, "max-connections": 5}}]
    assert api.get(path)[0] in api.get("/api/vhost-limits")
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port, vhost)) as c:
        c.channel().queue_declare("a")
        with pytest.raises(ChannelClosedByBroker, match="queue limit"):
            c.channel().queue_declare("b")
        with pytest.raises(ChannelClosedByBroker, match="queue limit"):  # it has a queue, too
            c.channel().exchange_declare("d", "x-delayed-message", arguments=DELAYED)
        assert api("PUT", f"{path}/max-queues", {"value": -1}).status == 204
        c.channel().queue_declare("b")
    assert api("DELETE", f"{path}/max-connections").status == 204
    assert api.get(path) == []


def test_a_limit_of_a_user_is_set_holds_and_is_taken_away(
    broker: Broker, api: Api, unique: UniqueName
) -> None:
    name = unique("u")
    api.as_user(name, "", **{"/": (".*", ".*", ".*")})
    path = f"/api/user-limits/{name}"
    assert api.get(path) == []

    assert api("PUT", f"{path}/max-connections", {"value": 0}).status == 204

    assert api.get(path) == [{"user": name, "value": {"max-connections": 0}}]
    assert api.get(path)[0] in api.get("/api/user-limits")
    assert api.get(f"/api/users/{name}")["limits"] == {"max-connections": 0}
    login = pika.PlainCredentials(name, f"{name}-pw")
    parameters = pika.ConnectionParameters(broker.host, broker.port, credentials=login)
    with pytest.raises(AMQPError):
        pika.BlockingConnection(parameters)
    assert api("DELETE", f"{path}/max-connections").status == 204
    pika.BlockingConnection(parameters).close()
    api("DELETE", f"/api/users/{name}")
    assert api("GET", path).status == 404


@pytest.mark.parametrize("of", ["vhost-limits/%2F", "user-limits/guest"])
@pytest.mark.parametrize(
    ("limit", "body", "reason"),
    [
        ("max-connections", {}, "Field 'value' is required"),
        ("max-connections", {"value": 1.5}, "Field 'value' must be an integer"),
        ("max-connections", {"value": None}, "Field 'value' must be an integer"),
        ("max-connections", {"value": True}, "Field 'value' must be an integer"),
        ("max-connections", {"value": [1]}, "Field 'value' must be an integer"),
        ("nope", {"value": 1}, "Unknown limit 'nope'"),
        ("value", {"value": 1}, "Unknown limit 'value'"),
    ],
)
def test_what_is_no_limit_is_refused(
    api: Api, of: str, limit: str, body: object, reason: str
) -> None:
    answer = api("PUT", f"/api/{of}/{limit}", body)

    assert answer.status == 400
    assert reason in answer.json["reason"]
    assert api.get(f"/api/{of}") == []


def test_limits_are_for_administrators(api: Api, vhost: str, unique: UniqueName) -> None:
    other = api.as_user(unique("u"), "policymaker,management", **{vhost: (".*", ".*", ".*")})

    assert other("PUT", f"/api/vhost-limits/{vhost}/max-queues", {"value": 1}).status == 403
    assert other("DELETE", f"/api/vhost-limits/{vhost}/max-queues").status == 403
    assert other("GET", f"/api/vhost-limits/{vhost}").status == 200
    assert other("GET", "/api/user-limits").status == 403
    assert other("PUT", "/api/user-limits/guest/max-channels", {"value": 1}).status == 403
    assert api("PUT", "/api/vhost-limits/no-such/max-queues", {"value": 1}).status == 403
