"""Shovels over HTTP: listed with their states, for those who may see them; nothing secret."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import UniqueName
from tests.support.api import Api


@pytest.fixture
def vhost(api: Api, unique: UniqueName) -> Iterator[str]:
    name = unique("v")
    api("PUT", f"/api/vhosts/{name}", {})
    yield name
    api("DELETE", f"/api/vhosts/{name}")


NOBODY = {
    "src-uri": "amqp://u:secret-1@127.0.0.1:1", "src-queue": "a",
    "dest-uri": ["amqp://u:secret-2@127.0.0.1:1"], "dest-queue": "b",
}  # fmt: skip


def put(api: Api, vhost: str, value: dict[str, Any], name: str = "s") -> int:
    return api("PUT", f"/api/parameters/shovel/{vhost}/{name}", {"value": value}).status


def why_not(api: Api, vhost: str, change: str) -> str:
    """What is the matter with a change of its state. The body was empty."""
    answer = api("PUT", f"/api/shovels/{vhost}/s/{change}")
    assert (answer.status, answer.json["error"]) == (422, "unprocessable_entity")
    return str(answer.json["reason"])


def test_a_shovel_is_listed_with_the_reason_why_it_does_not_move(api: Api, vhost: str) -> None:
    assert put(api, vhost, NOBODY) == 201
    end = time.monotonic() + 20
    while (row := api.get(f"/api/shovels/{vhost}/s"))["state"] != "Error":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert (row["name"], row["vhost"], row["message_count"]) == ("s", vhost, 0)
    assert "127.0.0.1:1" in row["error"] and "secret" not in str(row)
    assert [each["name"] for each in api.get(f"/api/shovels/{vhost}")] == ["s"]
    assert "s" in [each["name"] for each in api.get("/api/shovels")]

    for change in ("pause", "resume"):
        assert api("PUT", f"/api/shovels/{vhost}/none/{change}").status == 404
    assert why_not(api, vhost, "pause") == "Shovel 's' is not running (Error): force=true pauses it"
    assert why_not(api, vhost, "resume") == "Shovel 's' is not paused"
    assert api("PUT", f"/api/shovels/{vhost}/s/pause?force=true").status == 204
    assert api.get(f"/api/shovels/{vhost}/s")["state"] == "Paused"
    for force in ("", "?force=true"):
        assert why_not(api, vhost, "pause" + force) == "Shovel 's' is paused already"
    assert api("PUT", f"/api/shovels/{vhost}/s/resume").status == 204
    assert api("DELETE", f"/api/parameters/shovel/{vhost}/s").status == 204
    assert api.get(f"/api/shovels/{vhost}") == []


def test_what_is_secret_is_shown_to_administrators_alone(
    api: Api, vhost: str, unique: UniqueName
) -> None:
    hook = {
        "src-uri": "amqp://", "src-queue": "a", "dest-uri": "https://u:secret-3@127.0.0.1:1/x",
        "dest-secret": "secret-4", "dest-headers": {"Authorization": "secret-5"},
    }  # fmt: skip
    assert put(api, vhost, NOBODY) == put(api, vhost, hook, "hook") == 201
    policymaker = api.as_user(unique("u"), "policymaker", **{vhost: (".*", ".*", ".*")})
    for path in ("", "/shovel", f"/shovel/{vhost}", f"/shovel/{vhost}/s", f"/shovel/{vhost}/hook"):
        assert "secret-" not in str(policymaker.get(f"/api/parameters{path}"))
    assert api.get(f"/api/parameters/shovel/{vhost}/hook")["value"] == hook

    shown = policymaker.get(f"/api/parameters/shovel/{vhost}/hook")["value"]
    assert put(policymaker, vhost, shown | {"dest-in-flight": 5}, "hook") == 204
    assert api.get(f"/api/parameters/shovel/{vhost}/hook")["value"] == hook | {"dest-in-flight": 5}
    shown = policymaker.get(f"/api/parameters/shovel/{vhost}/s")["value"]
    elsewhere = shown | {"dest-uri": ["amqp://u:***@evil.example"]}
    assert put(policymaker, vhost, elsewhere) == 400
    assert put(policymaker, vhost, shown | {"dest-secret": "***"}) == 400


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("amqps://u:p@h?cacertfile=/etc/passwd", "'cacertfile' in a URI names a file"),
        ("amqp://guest:guest@localhost/other", "the user 'guest'"),
        ("amqp://localhost/other", "the user 'guest'"),
        ("http://guest:guest@localhost:15672/api/x", "the user 'guest'"),
    ],
)
def test_a_policymaker_gets_nowhere_by_the_broker(
    api: Api, vhost: str, unique: UniqueName, uri: str, why: str
) -> None:
    maker = api.as_user(unique("u"), "policymaker", **{vhost: (".*", ".*", ".*")})
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": uri, "dest-queue": "b"}
    answer = maker("PUT", f"/api/parameters/shovel/{vhost}/s", {"value": value})
    assert answer.status == 400 and why in answer.json["reason"]


def test_topic_permissions_of_the_author_count(api: Api, vhost: str, unique: UniqueName) -> None:
    name = unique("u")
    maker = api.as_user(name, "policymaker", **{vhost: (".*", ".*", ".*")})
    api("PUT", f"/api/exchanges/{vhost}/t", {"type": "topic"})
    rights = {"exchange": "t", "write": "^mine", "read": ".*"}
    assert api("PUT", f"/api/topic-permissions/{vhost}/{name}", rights).status in (201, 204)
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-exchange": "t"}
    assert put(maker, vhost, value) == 400
    assert put(maker, vhost, value | {"dest-exchange-key": "other"}) == 400
    assert put(maker, vhost, value | {"dest-exchange-key": "mine.x"}) == 201


def test_numbers_of_shovels_are_scraped(api: Api, vhost: str) -> None:
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    assert put(api, vhost, value) == 201
    wanted = f'lavinmq_detailed_shovel_running{{vhost="{vhost}", shovel="s"}} 1'
    end = time.monotonic() + 20
    while wanted not in (
        text := api("GET", "/metrics/detailed?family=shovel_metrics").content.decode()
    ):
        assert time.monotonic() < end, text
        time.sleep(0.02)
