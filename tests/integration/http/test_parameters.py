"""Parameters over HTTP, with the checks of those that make shovels and federation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.conftest import UniqueName
from tests.support.api import Api


@pytest.fixture
def vhost(api: Api, unique: UniqueName) -> Iterator[str]:
    name = unique("v")
    api("PUT", f"/api/vhosts/{name}")
    yield name
    api("DELETE", f"/api/vhosts/{name}")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [None, 5, "x", {"a": [1, None]}, [], nested(64), 1.5, True])
@pytest.mark.parametrize("name", ["p", "a/b", "Ærø ☃"])
def test_any_value_of_any_name_is_kept(api: Api, vhost: str, name: str, value: object) -> None:
    for path, row in (
        (f"/api/parameters/own/{vhost}", {"component": "own", "vhost": vhost}),
        ("/api/global-parameters", {"component": None, "vhost": None}),
    ):
        own = f"{path}/{quote(name + vhost, safe='')}"
        shown = row | {"name": name + vhost, "value": value}

        assert api("PUT", own, {"value": "other"}).status == 201
        assert api("PUT", own, {"value": value}).status == 204
        assert api.get(own) == shown
        assert shown in api.get(path)
        assert api("DELETE", own).status == 204
        assert api("DELETE", own).status == api("GET", own).status == 404


@pytest.mark.parametrize(
    ("component", "meant"),
    [("shovle", "shovel"), ("federation_upstream", "federation-upstream"), ("our own", "")],
)
def test_a_component_that_is_nearly_a_known_one_is_kept_and_told(
    api: Api, vhost: str, component: str, meant: str
) -> None:
    path = f"/api/parameters/{quote(component)}/{vhost}/p"

    answers = [api("PUT", path, {"value": {}}) for _ in range(2)]

    assert [answer.status for answer in answers] == [201, 204]
    note = f"no effect in this release: component {component}, did you mean '{meant}'?"
    for answer in answers:
        assert answer.headers.get("lavinmq-note") == (note if meant else None)


def test_another_parameter_of_mqtt_than_the_bridge_is_kept_and_told(api: Api, vhost: str) -> None:
    value = {"value": {"exchange": ""}}

    slip = api("PUT", f"/api/parameters/mqtt/{vhost}/brigde", value)
    right = api("PUT", f"/api/parameters/mqtt/{vhost}/bridge", value)

    assert (slip.status, right.status) == (201, 201)
    note = "no effect in this release: parameter brigde, component mqtt has only 'bridge'"
    assert slip.headers.get("lavinmq-note") == note
    assert right.headers.get("lavinmq-note") is None


@pytest.mark.parametrize(
    ("component", "body", "reason"),
    [
        ("own", {}, "Field 'value' is required"),
        ("own", {"valu": 1}, "Field 'value' is required"),
        ("own", {"value": nested(65)}, "nested deeper than 64"),
        ("operator_policy", {"value": {}}, "is set at /api/operator-policies"),
        ("vhost-limits", {"value": {}}, "is set at /api/vhost-limits"),
        ("federation-upstream", {"value": {}}, "requires field 'uri'"),
        ("federation-upstream", {"value": {"uri": 5}}, "requires field 'uri'"),
        ("federation-upstream", {"value": "x"}, "Field 'value' must be an object"),
        ("federation-upstream-set", {"value": {}}, "must be an array of objects"),
        ("federation-upstream-set", {"value": [{}]}, "must be an array of objects"),
        ("shovel", {"value": 5}, "Field 'value' must be an object"),
        ("shovel", {"value": {}}, "Shovel source requires a queue or an exchange"),
        ("shovel", {"value": {"src-queue": ["a"]}}, "Field 'src-queue' must be a string"),
        ("shovel", {"value": {"src-queue": "a"}}, "Shovel destination requires"),
        ("shovel", {"value": {"src-queue": "a", "dest-queue": "b"}}, "requires field 'src-uri'"),
    ],
)
def test_a_bad_parameter_is_refused(
    api: Api, vhost: str, component: str, body: object, reason: str
) -> None:
    answer = api("PUT", f"/api/parameters/{component}/{vhost}/p", body)

    assert answer.status == 400
    assert reason in answer.json["reason"]
    assert api.get(f"/api/parameters/{component}/{vhost}") == []


def test_a_shovel_to_http_needs_no_queue_to_go_to(api: Api, vhost: str) -> None:
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "https://example.com/hook"}

    assert api("PUT", f"/api/parameters/shovel/{vhost}/p", {"value": value}).status == 201


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        ({"src-queue": "mine", "dest-queue": "mine"}, True),
        ({"src-queue": "other", "dest-queue": "mine"}, False),
        ({"src-exchange": "other", "dest-queue": "mine"}, False),
        ({"src-queue": "mine", "dest-queue": "other"}, False),
        ({"src-queue": "mine", "dest-exchange": "other"}, False),
        ({"src-queue": "other", "dest-queue": "mine", "src-uri": ["amqp:///"]}, False),
        ({"src-queue": "mine", "dest-queue": "mine", "dest-uri": "amqp:///%2F"}, False),
        ({"src-queue": "other", "dest-queue": "x", "src-uri": "amqp://a:b@h",
          "dest-uri": "amqp://c:d@h"}, True),
        ({"src-queue": "mine", "dest-exchange": "mine"}, True),
    ],
)  # fmt: skip
def test_a_shovel_in_this_broker_needs_the_rights_of_who_makes_it(
    api: Api, vhost: str, unique: UniqueName, value: dict[str, Any], is_allowed: bool
) -> None:
    """It works as a user with all rights: without the check it would lend them to anybody."""
    maker = api.as_user(unique("u"), "policymaker", **{vhost: ("^mine$", "^mine$", "^mine$")})
    body = {"value": {"src-uri": "amqp://", "dest-uri": "amqp:///"} | value}

    answer = maker("PUT", f"/api/parameters/shovel/{vhost}/s", body)

    assert answer.status == (201 if is_allowed else 400)
    assert is_allowed or "can't access" in answer.json["reason"]


def test_parameters_are_for_administrators_and_policymakers(
    api: Api, vhost: str, unique: UniqueName
) -> None:
    other = api.as_user(unique("u"), "management,monitoring", **{vhost: (".*", ".*", ".*")})

    for method, path in (
        ("GET", "/api/parameters"), ("GET", "/api/global-parameters"),
        ("PUT", f"/api/parameters/own/{vhost}/p"), ("PUT", "/api/global-parameters/p"),
        ("DELETE", f"/api/parameters/own/{vhost}/p"), ("DELETE", "/api/global-parameters/p"),
    ):  # fmt: skip
        body = {"value": 1} if method == "PUT" else None
        assert other(method, path, body).status == 403, (method, path)
