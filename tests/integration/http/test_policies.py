"""Policies and operator policies over HTTP: in force when answered, refused when bad."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pika
import pytest

from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker

KINDS = ["policies", "operator-policies"]


@pytest.fixture
def vhost(api: Api, unique: UniqueName) -> Iterator[str]:
    name = unique("v")
    api("PUT", f"/api/vhosts/{name}")
    yield name
    api("DELETE", f"/api/vhosts/{name}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["p", "a/b", "..", "Ærø ☃", "x" * 255])
def test_a_policy_of_any_name_is_set_shown_and_deleted(
    api: Api, vhost: str, kind: str, name: str
) -> None:
    path = f"/api/{kind}/{vhost}/{quote(name, safe='')}"
    body = {"pattern": "^q", "definition": {"max-length": 5}, "priority": -128,
            "apply-to": "queues", "name": name, "vhost": vhost}  # fmt: skip

    assert api("PUT", path, body).status == 201
    assert api.get(path) == body
    assert api("PUT", path, body).status == 204
    assert api.get(f"/api/{kind}/{vhost}") == [body]
    assert body in api.get(f"/api/{kind}")
    assert api("DELETE", path).status == 204
    assert api("GET", path).status == 404
    assert api("DELETE", path).status == 404


def test_a_policy_is_in_force_when_its_change_is_answered(
    broker: Broker, api: Api, vhost: str
) -> None:
    parameters = pika.ConnectionParameters(broker.host, broker.port, vhost)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for number in range(300):
            channel.queue_declare(f"q{number}")
        channel.confirm_delivery()
        body = {"pattern": "^q", "definition": {"max-length": 1}}
        assert api("PUT", f"/api/policies/{vhost}/p", body).status == 201
        for _ in range(3):
            channel.basic_publish("", "q299", b"x")
        assert channel.queue_declare("q299", passive=True).method.message_count == 1
        assert api("DELETE", f"/api/policies/{vhost}/p").status == 204
        channel.basic_publish("", "q299", b"x")
        assert channel.queue_declare("q299", passive=True).method.message_count == 2


GOOD = {"pattern": "x", "definition": {"max-length": 1}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Fields 'pattern' and 'definition' are required"),
        ({"pattern": "x"}, "Fields 'pattern' and 'definition' are required"),
        (GOOD | {"pattern": 5}, "Fields 'pattern' and 'definition' are required"),
        (GOOD | {"pattern": "["}, "Invalid regular expression '['"),
        (GOOD | {"definition": []}, "Field 'definition' must be an object"),
        (GOOD | {"definition": {"max-length": "5"}}, "'max-length' should be of type Int"),
        (GOOD | {"definition": {"max-length": 1.5}}, "'max-length' should be of type Int"),
        (GOOD | {"definition": {"overflow": 5}}, "'overflow' should be of type String"),
        (GOOD | {"definition": {"max-length": -5}}, "definition 'max-length' cannot be -5"),
        (GOOD | {"priority": 128}, "Policy priority must be between -128 and 127"),
        (GOOD | {"priority": "x"}, "Field 'priority' must be an integer"),
        (GOOD | {"apply-to": "nope"}, "Field 'apply-to' must be one of all, queues"),
        (GOOD | {"apply_to": "queues"}, "did you mean 'apply-to'"),
    ],
)
def test_a_bad_policy_is_refused(
    api: Api, vhost: str, kind: str, body: object, reason: str
) -> None:
    answer = api("PUT", f"/api/{kind}/{vhost}/p", body)

    assert answer.status == 400
    assert reason in answer.json["reason"]
    assert api.get(f"/api/{kind}/{vhost}") == []


@pytest.mark.parametrize("name", ["%FF", "a%0Ab", "x" * 256])
def test_names_that_cannot_be_one(api: Api, vhost: str, name: str) -> None:
    assert api("PUT", f"/api/policies/{vhost}/{name}", GOOD).status == 400


def test_operator_policies_only_tighten_and_are_for_administrators(
    api: Api, vhost: str, unique: UniqueName
) -> None:
    path = f"/api/operator-policies/{vhost}/p"
    answer = api("PUT", path, {"pattern": "x", "definition": {"overflow": "drop-head"}})
    assert answer.status == 400
    assert "'overflow' is not supported" in answer.json["reason"]
    other = api.as_user(unique("u"), "policymaker", **{vhost: (".*", ".*", ".*")})
    assert other("PUT", path, GOOD).status == 403
    assert other("PUT", f"/api/policies/{vhost}/p", GOOD).status == 201
    api("PUT", path, GOOD)
    assert other("DELETE", path).status == 403
    assert other.get(path)["definition"] == {"max-length": 1}


@pytest.mark.parametrize("tags", ["management", "monitoring", "impersonator"])
def test_others_neither_see_nor_change_policies(
    api: Api, vhost: str, unique: UniqueName, tags: str
) -> None:
    other = api.as_user(unique("u"), tags, **{vhost: (".*", ".*", ".*")})

    assert other("GET", "/api/policies").status == 403
    assert other("PUT", f"/api/policies/{vhost}/p", GOOD).status == 403
    assert api.as_user(unique("u"), "policymaker")("GET", f"/api/policies/{vhost}").status == 403
