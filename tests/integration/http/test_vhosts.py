"""Virtual hosts over HTTP: what is shown, who may do what, and what deleting one means."""

from __future__ import annotations

from urllib.parse import quote

import pika
import pytest
from pika.exceptions import AMQPError

from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker


def path_of(vhost: str) -> str:
    return f"/api/vhosts/{quote(vhost, safe='')}"


@pytest.mark.parametrize("name", ["plain", "a/b", "..", "%2F", "spaces and > <", "Ærø ☃", "api"])
def test_any_name_is_made_shown_listed_and_deleted(api: Api, unique: UniqueName, name: str) -> None:
    vhost = f"{name} {unique('v')}"

    assert api("PUT", path_of(vhost), {"description": "d", "tags": "a, b"}).status == 201
    shown = api.get(path_of(vhost))
    assert (shown["name"], shown["description"], shown["tags"]) == (vhost, "d", ["a", "b"])
    assert shown["messages"] == shown["message_stats"]["publish"] == 0
    assert vhost in [row["name"] for row in api.get("/api/vhosts")]
    assert api("DELETE", path_of(vhost)).status == 204
    assert api("GET", path_of(vhost)).status == 403


def test_whoever_makes_one_has_all_permissions_in_it(api: Api, unique: UniqueName) -> None:
    """edge-cases.md 310"""
    vhost, user = unique("v"), unique("u")
    maker = api.as_user(user, "administrator")

    assert maker("PUT", path_of(vhost)).status == 201

    granted = {"user": user, "vhost": vhost, "configure": ".*", "read": ".*", "write": ".*"}
    assert granted in api.get(f"{path_of(vhost)}/permissions")


def test_what_is_left_out_of_a_change_stays(api: Api, unique: UniqueName) -> None:
    path = path_of(unique("v"))
    api("PUT", path, {"description": "d", "tags": ["a"]})

    assert api("PUT", path, {"tags": ["b", "c"], "tracing": False}).status == 204
    assert api("PUT", path).status == 204

    shown = api.get(path)
    assert (shown["description"], shown["tags"]) == ("d", ["b", "c"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"description": 5}, "Field 'description' must be a string"),
        ({"tags": 5}, "Field 'tags' must be a string or an array of strings"),
        ({"tags": [5]}, "Field 'tags' must be a string or an array of strings"),
        ({"descripton": "d"}, "did you mean 'description'"),
        ([], "Request body has to be a JSON object"),
    ],
)
def test_a_bad_body_makes_no_vhost(api: Api, unique: UniqueName, body: object, reason: str) -> None:
    path = path_of(unique("v"))

    answer = api("PUT", path, body)

    assert answer.status == 400
    assert reason in answer.json["reason"]
    assert api("GET", path).status == 403


@pytest.mark.parametrize(
    ("name", "status"), [("n" * 256, 400), ("%FF", 400), ("", 404), ("%2", 201), ("/", 404)]
)
def test_names_that_cannot_be_one(api: Api, name: str, status: int) -> None:
    answer = api("PUT", f"/api/vhosts/{name}")

    assert answer.status == status
    if status == 201:
        assert api("DELETE", f"/api/vhosts/{name}").status == 204


def test_whoever_makes_a_vhost_may_use_it(api: Api, unique: UniqueName) -> None:
    vhost = unique("v")
    maker = api.as_user(unique("u"), "administrator")

    assert maker("PUT", path_of(vhost)).status == 201

    rights = {row["user"]: row["configure"] for row in maker.get(f"{path_of(vhost)}/permissions")}
    assert list(rights.values()) == [".*"]


@pytest.mark.parametrize("tags", ["management", "monitoring", "policymaker", "impersonator"])
def test_only_administrators_make_and_delete(api: Api, unique: UniqueName, tags: str) -> None:
    vhost = unique("v")
    api("PUT", path_of(vhost))
    other = api.as_user(unique("u"), tags, **{vhost: (".*", ".*", ".*")})

    for method, path in (("PUT", path_of(unique("w"))), ("DELETE", path_of(vhost))):
        answer = other(method, path)
        assert answer.status == 403
        assert answer.json == {"error": "access_refused", "reason": "Access refused"}
    assert other("GET", path_of(vhost)).status == (403 if tags == "impersonator" else 200)


def test_deleting_a_vhost_closes_its_connections(
    broker: Broker, api: Api, unique: UniqueName
) -> None:
    vhost = unique("v")
    api("PUT", path_of(vhost))
    parameters = pika.ConnectionParameters(broker.host, broker.port, vhost)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"x")

    assert api("DELETE", path_of(vhost)).status == 204

    with pytest.raises(AMQPError, match="VHost deleted"):
        connection.process_data_events(time_limit=10)
    assert api("PUT", path_of(vhost)).status == 201
    assert api.get(path_of(vhost))["messages"] == 0


def test_messages_and_counters_are_shown(broker: Broker, api: Api, unique: UniqueName) -> None:
    vhost = unique("v")
    api("PUT", path_of(vhost))
    parameters = pika.ConnectionParameters(broker.host, broker.port, vhost)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        for _ in range(3):
            channel.basic_publish("", "q", b"x")
        channel.basic_get("q", auto_ack=False)

        shown = api.get(path_of(vhost))

    assert (shown["messages"], shown["messages_ready"]) == (3, 2)
    assert shown["messages_unacknowledged"] == 1
    stats = shown["message_stats"]
    assert (stats["publish"], stats["get"], stats["deliver_get"]) == (3, 1, 1)
