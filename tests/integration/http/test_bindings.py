"""Bindings by HTTP: in all the ways that paths address them; and who may."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.conftest import UniqueName
from tests.support import users
from tests.support.api import Api
from tests.support.broker import Broker

PEOPLE: users.People = {
    "reader": ("management", {"/": ("", "^x$", "")}),
    "writer": ("management", {"/": ("", "", "^q$")}),
    "both": ("management", {"/": ("", "^x$", "^(q|y)$")}),
}


class Pair:
    """An exchange and a queue of one test, and the paths of their bindings."""

    def __init__(self, api: Api, exchange: str, queue: str) -> None:
        self.api, self.exchange, self.queue = api, exchange, queue
        api("PUT", f"/api/exchanges/%2F/{exchange}", {"type": "topic"})
        api("PUT", f"/api/queues/%2F/{queue}", {})
        self.path = f"/api/bindings/%2F/e/{exchange}/q/{queue}"

    def bind(self, key: str, **arguments: Any) -> str:
        """Bind; return the key by which the binding is found."""
        answer = self.api("POST", self.path, {"routing_key": key, "arguments": arguments})
        assert answer.status == 201, answer
        return answer.headers["location"].removeprefix(self.queue + "/")

    def keys(self) -> set[str]:
        """The properties keys of all bindings between the two."""
        return {row["properties_key"] for row in self.api.get(self.path)}


@pytest.fixture
def pair(api: Api, unique: UniqueName) -> Pair:
    """A topic exchange and a queue."""
    return Pair(api, unique("x"), unique("q"))


def status(api: Api, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status and reason of an answer."""
    answer = api(method, path, body)
    return answer.status, answer.json["reason"] if answer.content else ""


def test_a_binding_is_made_shown_and_removed(pair: Pair) -> None:
    location = pair.bind("a.#", z=1, a="b")

    assert location == "a.%23~YTpiLHo6MQ=="
    row = {
        "source": pair.exchange, "vhost": "/", "destination": pair.queue,
        "destination_type": "queue", "routing_key": "a.#", "arguments": {"z": 1, "a": "b"},
        "properties_key": "a.#~YTpiLHo6MQ==",
    }  # fmt: skip
    assert pair.api.get(pair.path) == [row]
    assert pair.api.get(f"{pair.path}/{location}") == row
    assert pair.api("DELETE", f"{pair.path}/{location}").status == 204
    gone = pair.api("DELETE", f"{pair.path}/{location}")
    assert (gone.status, gone.content) == (404, b"")


@pytest.mark.parametrize(
    "key", ["", "~", "a.#", "*.b", "with/slash é", "a b+c", "100%", "%23", "a~b", "new\nline"]
)
def test_routing_keys_of_all_kinds_are_found_by_what_is_told(pair: Pair, key: str) -> None:
    location = pair.bind(key)

    (row,) = pair.api.get(pair.path)

    assert row["routing_key"] == key
    assert pair.api.get(f"{pair.path}/{location}")["routing_key"] == key
    # As clients written for RabbitMQ do it: they quote what the row says.
    assert pair.api.get(f"{pair.path}/{quote(row['properties_key'], safe='')}") == row
    assert pair.api("DELETE", f"{pair.path}/{quote(row['properties_key'], safe='')}").status == 204


def test_a_key_may_be_encoded_once_more_as_rabbitmq_does(pair: Pair) -> None:
    pair.bind("a.#")

    assert pair.api.get(f"{pair.path}/a.%2523")["routing_key"] == "a.#"
    assert pair.api("DELETE", f"{pair.path}/a.%2523").status == 204


def test_a_slash_in_a_key_may_stand_as_it_is(pair: Pair) -> None:
    pair.bind("a/b/c")

    assert pair.api.get(f"{pair.path}/a/b/c")["routing_key"] == "a/b/c"
    assert pair.api("DELETE", f"{pair.path}/a/b/c").status == 204


def test_bindings_that_differ_by_arguments_are_told_apart(pair: Pair) -> None:
    keys = {pair.bind("k"), pair.bind("k", a=1), pair.bind("k", a=2), pair.bind("k", a=None)}

    assert len(keys) == 4
    assert pair.api("DELETE", f"{pair.path}/k~{'YTox'}").status == 204
    assert pair.keys() == {"k", "k~YToy", "k~YTo="}


def test_binding_twice_is_binding_once(pair: Pair) -> None:
    assert pair.bind("k") == pair.bind("k") == "k"
    assert pair.keys() == {"k"}


def test_the_key_may_be_spelt_as_older_tools_do(pair: Pair) -> None:
    assert pair.api("POST", pair.path, {"routingKey": "rk"}).status == 201
    assert pair.keys() == {"rk"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Field 'routing_key' is required"),
        ({"routing_key": 5}, "Field 'routing_key' is required"),
        ({"routing_key": "k" * 256}, "longer than 255 bytes"),
        ({"routing_key": "k", "arguments": [1]}, "Field 'arguments' must be an object"),
        ({"routing_key": "k", "arguments": {"n": 1 << 63}}, "does not fit in 64 bits"),
    ],
)
def test_bodies_that_make_no_sense(pair: Pair, body: dict[str, Any], reason: str) -> None:
    answered, text = status(pair.api, "POST", pair.path, body)

    assert answered == 400 and reason in text
    assert pair.keys() == set()


def test_exchanges_are_bound_to_exchanges(api: Api, unique: UniqueName) -> None:
    source, to, internal = (unique(word) for word in ("source", "to", "internal"))
    for name, body in ((source, {}), (to, {}), (internal, {"internal": True})):
        api("PUT", f"/api/exchanges/%2F/{name}", {"type": "fanout"} | body)
    path = f"/api/bindings/%2F/e/{source}/e/{to}"

    made = api("POST", path, {"routing_key": "k"})

    assert (made.status, made.headers["location"]) == (201, f"{path}/k")
    (row,) = api.get(path)
    assert (row["destination"], row["destination_type"]) == (to, "exchange")
    assert api.get(f"/api/exchanges/%2F/{source}/bindings/source") == [row]
    assert api.get(f"/api/exchanges/%2F/{to}/bindings/destination") == [row]
    assert api.get(f"/api/exchanges/%2F/{to}/bindings/source") == []
    to_internal = f"/api/bindings/%2F/e/{source}/e/{internal}"
    assert status(api, "POST", to_internal, {"routing_key": ""}) == (
        400, "Not allowed to bind to an internal exchange",
    )  # fmt: skip
    assert api("DELETE", f"{path}/k").status == 204
    assert api.get(path) == []


def test_the_default_exchange_is_bound_to_every_queue_and_to_nothing_else(
    api: Api, pair: Pair
) -> None:
    row = {
        "source": "", "vhost": "/", "destination": pair.queue, "destination_type": "queue",
        "routing_key": pair.queue, "arguments": None, "properties_key": pair.queue,
    }  # fmt: skip
    path = f"/api/bindings/%2F/e/amq.default/q/{pair.queue}"
    denied = (403, "Not allowed to bind to the default exchange")

    assert api.get(path) == [row]
    assert row in api.get(f"/api/queues/%2F/{pair.queue}/bindings")
    assert row in api.get("/api/exchanges/%2F/amq.default/bindings/source")
    assert row not in api.get("/api/bindings/%2F")
    assert api.get(f"{path}/{pair.queue}") == row
    assert status(api, "POST", path, {"routing_key": "k"}) == denied
    assert status(api, "DELETE", f"{path}/{pair.queue}") == denied
    to_default = f"/api/bindings/%2F/e/{pair.exchange}/e/amq.default"
    assert status(api, "POST", to_default, {"routing_key": "k"}) == denied


def test_lists_over_everything_are_searched_by_key_and_destination(api: Api, pair: Pair) -> None:
    pair.bind(f"to.{pair.queue}")
    pair.bind("other")

    assert len(api.get(f"/api/bindings?name={pair.queue}")) == 2
    assert len(api.get(f"/api/bindings/%2F?name=to.{pair.queue}")) == 1


@pytest.mark.parametrize("path", ["e/missing/q/{q}", "e/{x}/q/missing", "e/{x}/e/missing"])
def test_ends_that_are_not_there(pair: Pair, path: str) -> None:
    path = "/api/bindings/%2F/" + path.format(q=pair.queue, x=pair.exchange)
    answers = [
        status(pair.api, "GET", path),
        status(pair.api, "POST", path, {"routing_key": ""}),
        status(pair.api, "GET", f"{path}/k"),
        status(pair.api, "DELETE", f"{path}/k"),
    ]

    assert len(set(answers)) == 1
    assert answers[0][0] == 404
    assert "'missing' in vhost '/'" in answers[0][1]


def test_exchanges_have_their_say(api: Api, pair: Pair, unique: UniqueName) -> None:
    for type_ in ("headers", "x-consistent-hash"):
        api("PUT", f"/api/exchanges/%2F/{pair.exchange}-{type_}", {"type": type_})
    hashing = f"/api/bindings/%2F/e/{pair.exchange}-x-consistent-hash/q/{pair.queue}"
    headers = f"/api/bindings/%2F/e/{pair.exchange}-headers/q/{pair.queue}"

    assert status(api, "POST", hashing, {"routing_key": "x"}) == (
        400, "Routing key must to be a number",
    )  # fmt: skip
    assert api("POST", hashing, {"routing_key": "3"}).status == 201
    assert api("DELETE", f"{hashing}/x").status == 404
    bad = {"routing_key": "", "arguments": {"x-match": "bad"}}
    assert status(api, "POST", headers, bad) == (400, "x-match must be 'any' or 'all'")
    assert api("POST", headers, {"routing_key": "", "arguments": {"n": {"a": [1]}}}).status == 201
    assert api.get(headers)[0]["arguments"] == {"n": {"a": [1]}}


def test_a_binding_takes_the_right_to_read_and_to_write(staffed: Broker) -> None:
    guest = Api(staffed)
    pair = Pair(guest, "x", "q")
    pair.bind("k")
    unreadable = (403, "User doesn't have read permissions to exchange 'x'")
    unwritable = (403, "User doesn't have write permissions to queue 'q'")

    for user, answer in (("writer", unreadable), ("reader", unwritable)):
        assert status(Api(staffed, user), "POST", pair.path, {"routing_key": "n"}) == answer
        assert status(Api(staffed, user), "DELETE", f"{pair.path}/k") == answer
    both = Api(staffed, "both")
    assert both("POST", pair.path, {"routing_key": "n"}).status == 201
    assert both("DELETE", f"{pair.path}/k").status == 204


def test_an_exclusive_queue_is_bound_by_its_connection_only(
    api: Api, pair: Pair, queue: str
) -> None:
    path = f"/api/bindings/%2F/e/{pair.exchange}/q/{queue}"
    answered, reason = status(api, "POST", path, {"routing_key": "k"})
    assert answered == 400
    assert reason.startswith("Exclusive queue ")
