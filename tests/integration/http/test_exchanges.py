"""Exchanges by HTTP: list, show, create, delete; and who may."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import settle
from tests.support import users
from tests.support.api import Api
from tests.support.broker import Broker

VHOST = "/api/exchanges/%2F"
PEOPLE: users.People = {"own": ("management", {"/": ("^own", "^own", "^own")})}


def at(name: str) -> str:
    """The path of an exchange of the default virtual host."""
    return f"{VHOST}/{quote(name, safe='')}"


def status(api: Api, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status and reason of an answer."""
    answer = api(method, path, body)
    return answer.status, answer.json["reason"] if answer.content else ""


def test_an_exchange_is_created_shown_and_deleted(api: Api, unique: UniqueName) -> None:
    name = unique("grüße/x")
    body = {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}

    assert [api("PUT", at(name), body).status for _ in range(2)] == [201, 204]

    shown = api.get(at(name))
    stats = shown.pop("message_stats")
    assert shown == {
        "name": name, "vhost": "/", "type": "topic", "durable": True, "auto_delete": False,
        "internal": False, "arguments": {"alternate-exchange": "amq.fanout"},
        "effective_policy_definition": {}, "effective_arguments": ["alternate-exchange"],
    }  # fmt: skip
    assert stats["publish_in"] == 0 and isinstance(stats["publish_in_details"]["log"], list)
    (row,) = api.get(f"{VHOST}?name={quote(name)}")
    assert row["policy"] is None and "log" not in row["message_stats"]["dedup_details"]
    assert [api("DELETE", at(name)).status for _ in range(2)] == [204, 404]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Field 'type' is required"),
        ({"type": 5}, "Field 'type' must be a string"),
        ({"type": "nope"}, "unknown exchange type 'nope'"),
        ({"type": "x-delayed-message"}, "Missing required argument 'x-delayed-type'"),
        ({"type": "headers", "arguments": {"x-match": "no"}}, "x-match must be 'any' or 'all'"),
        ({"type": "direct", "internal": "perhaps"}, "Field 'internal' must be a boolean"),
        ({"type": "direct", "arguments": "x"}, "Field 'arguments' must be an object"),
    ],
)
def test_bodies_that_make_no_sense(
    api: Api, unique: UniqueName, body: dict[str, Any], reason: str
) -> None:
    name = unique("x")

    answered, text = status(api, "PUT", at(name), body)

    assert answered == 400 and reason in text
    assert api("GET", at(name)).status == 404


@pytest.mark.parametrize(
    ("name", "reason"),
    [("amq.x", "forbidden"), ("mqtt.x", "forbidden"), ("n" * 256, "Exchange name too long")],
)
def test_names_that_are_refused(api: Api, name: str, reason: str) -> None:
    answered, text = status(api, "PUT", at(name), {"type": "direct"})

    assert answered == 400 and reason in text


@pytest.mark.parametrize(
    "body",
    [
        {"type": "direct", "delayed": True},
        {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}},
    ],
)
def test_a_delayed_exchange_has_two_spellings(
    api: Api, unique: UniqueName, body: dict[str, Any]
) -> None:
    name = unique("x")
    assert [api("PUT", at(name), body).status for _ in range(2)] == [201, 204]

    shown = api.get(at(name))

    assert (shown["type"], shown["arguments"]) == ("direct", {"x-delayed-exchange": True})
    internal = api.get(f"/api/queues/%2F/{quote('amq.delayed-' + name)}")
    assert internal["internal"] is True
    assert internal["arguments"] == {"x-dead-letter-exchange": name, "auto-delete": False}


def test_another_declaration_than_the_first_is_refused(api: Api, unique: UniqueName) -> None:
    name = unique("x")
    api("PUT", at(name), {"type": "direct"})

    answered, reason = status(api, "PUT", at(name), {"type": "fanout"})
    assert answered == 400
    assert reason.startswith("Existing exchange declared with other arguments arg")
    assert status(api, "PUT", at("amq.direct"), {"type": "direct", "durable": True})[0] == 204


@pytest.mark.parametrize("given", [{}, {"x-hash-on": "id"}])
def test_effective_arguments_of_a_hash_exchange(
    api: Api, unique: UniqueName, given: dict[str, Any]
) -> None:
    """edge-cases.md 110."""
    name = unique("x")
    api("PUT", at(name), {"type": "x-consistent-hash", "arguments": given})

    assert api.get(at(name))["effective_arguments"] == list(given)


def test_the_default_exchange_is_amq_default(api: Api) -> None:
    shown = api.get(at("amq.default"))

    assert (shown["name"], shown["type"], shown["durable"]) == ("amq.default", "direct", True)
    assert "amq.default" in [row["name"] for row in api.get(VHOST)]
    assert status(api, "PUT", at("amq.default"), {"type": "direct"})[0] == 400
    # As in LavinMQ nothing is said, and it stays.
    assert api("DELETE", at("amq.default")).status == 204
    assert api("GET", at("amq.default")).status == 200


def test_built_in_exchanges_are_not_deleted(api: Api) -> None:
    assert status(api, "DELETE", at("amq.topic")) == (
        403, 'Can not delete exchange with prefix ["mqtt.", "amq."]',
    )  # fmt: skip


def test_an_exchange_in_use_can_be_kept(
    api: Api, channel: BlockingChannel, queue: str, unique: UniqueName
) -> None:
    name = unique("x")
    api("PUT", at(name), {"type": "fanout"})
    channel.queue_bind(queue, name)

    assert status(api, "DELETE", at(name) + "?if-unused=true") == (
        400, f"Exchange {name} in vhost / in use",
    )  # fmt: skip
    channel.queue_unbind(queue, name)
    assert api("DELETE", at(name) + "?if-unused=true").status == 204


def test_numbers_follow_the_messages(
    api: Api, channel: BlockingChannel, queue: str, unique: UniqueName
) -> None:
    """edge-cases.md 111."""
    name = unique("x")
    api("PUT", at(name), {"type": "direct"})
    channel.queue_bind(queue, name, "k")
    for key in ("k", "k", "nowhere"):
        channel.basic_publish(name, key, b"")
    settle(channel)

    stats = api.get(at(name))["message_stats"]

    assert (stats["publish_in"], stats["publish_out"], stats["unroutable"]) == (3, 2, 1)


def test_durable_exchanges_and_bindings_are_there_after_a_kill(http_broker: Broker) -> None:
    api = Api(http_broker)
    api("PUT", at("kept"), {"type": "headers", "durable": True})
    api("PUT", "/api/queues/%2F/q", {"durable": True})
    path = "/api/bindings/%2F/e/kept/q/q"
    api("POST", path, {"routing_key": "", "arguments": {"x-match": "any", "a": 1}})
    api("POST", path, {"routing_key": "gone", "arguments": {}})
    assert api("DELETE", f"{path}/gone").status == 204

    http_broker.kill()
    http_broker.start()

    (binding,) = api.get(path)
    assert binding["arguments"] == {"x-match": "any", "a": 1}


def test_permissions_are_those_of_amqp(staffed: Broker) -> None:
    own, guest = Api(staffed, "own"), Api(staffed)
    guest("PUT", at("other"), {"type": "direct"})
    alternate = {"type": "direct", "arguments": {"x-alternate-exchange": "other"}}

    assert own("PUT", at("own-1"), {"type": "direct"}).status == 201
    assert status(own, "PUT", at("else"), {"type": "direct"}) == (
        403, "User doesn't have permissions to declare exchange 'else'",
    )  # fmt: skip
    assert status(own, "PUT", at("own-2"), alternate)[0] == 403
    assert status(own, "DELETE", at("other")) == (
        403, "User doesn't have permissions to delete exchange 'other'",
    )  # fmt: skip
    assert own("GET", at("other")).status == 200
    assert own("DELETE", at("own-1")).status == 204


def test_what_waits_in_a_delayed_exchange_is_listed_by_the_time_it_is_due(
    broker: Broker, api: Api, unique: UniqueName
) -> None:
    name = unique("x")
    path = f"/api/exchanges/%2F/{name}"
    assert api("PUT", path, {"type": "fanout", "delayed": True}).status == 201
    assert api.get(f"{path}/delayed") == []
    for delay in (3_600_000, 60_000, 600_000):
        body = {"properties": {"headers": {"x-delay": delay}}, "routing_key": f"in {delay}",
                "payload": "x", "payload_encoding": "string"}  # fmt: skip
        assert api("POST", f"{path}/publish", body).status == 200

    waiting = api.get(f"{path}/delayed?count=2")

    assert [each["routing_key"] for each in waiting] == ["in 60000", "in 600000"]
    assert 539_000 < waiting[1]["due_at"] - waiting[0]["due_at"] < 541_000
    assert api("GET", f"{path}/delayed?count=0").status == 400
    assert api("DELETE", path).status == 204
