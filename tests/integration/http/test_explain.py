"""What a pattern would match, and why a user may or may not."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest

from tests.support.managed import Managed, managed


@pytest.fixture(scope="module")
def broker() -> Iterator[Managed]:
    with managed() as broker:
        channel = broker.connect().channel()
        for name in ("orders", "orders.eu", "jobs"):
            channel.queue_declare(name, durable=True)
        channel.queue_declare("orders.log", durable=True, arguments={"x-queue-type": "stream"})
        channel.exchange_declare("orders", "topic")
        yield broker


def matches(broker: Managed, pattern: str, target: str = "") -> list[tuple[str, str]]:
    query = urlencode({"pattern": pattern} | ({"apply-to": target} if target else {}))
    said = broker.api.get(f"/api/policy-matches/%2F?{query}")
    assert said["queues"] + said["exchanges"] == len(said["names"])
    return sorted((each["kind"], each["name"]) for each in said["names"])


@pytest.mark.parametrize(
    ("pattern", "target", "expected"),
    [
        ("^orders", "", [("exchange", "orders"), ("queue", "orders"), ("queue", "orders.eu"),
                         ("queue", "orders.log")]),
        (r"^orders\.", "queues", [("queue", "orders.eu"), ("queue", "orders.log")]),
        ("^orders", "streams", [("queue", "orders.log")]),
        ("^orders", "exchanges", [("exchange", "orders")]),
        (r"^(?!orders)\p{L}+$", "queues", [("queue", "jobs")]),
        ("^none$", "", []),
    ],
)  # fmt: skip
def test_what_a_pattern_matches_is_shown(
    broker: Managed, pattern: str, target: str, expected: list[tuple[str, str]]
) -> None:
    assert matches(broker, pattern, target) == expected
    # And it is what a policy would apply to.
    body = {"pattern": pattern, "definition": {"max-length": 9}, "apply-to": target or "all"}
    assert broker.api("PUT", "/api/policies/%2F/tried", body).status == 201
    followed = sorted(
        (kind, row["name"])
        for kind in ("queue", "exchange")
        for row in broker.api.get(f"/api/{kind}s/%2F")
        if row.get("policy") == "tried"
    )
    assert broker.api("DELETE", "/api/policies/%2F/tried").status == 204
    assert followed == expected


@pytest.mark.parametrize(
    "query", [{"pattern": "("}, {"pattern": "a" * 5000}, {"pattern": "a", "apply-to": "users"}]
)
def test_what_is_no_pattern_is_refused(broker: Managed, query: dict[str, str]) -> None:
    assert broker.api("GET", f"/api/policy-matches/%2F?{urlencode(query)}").status == 400


def test_a_pattern_that_takes_too_long_is_refused(broker: Managed) -> None:
    channel = broker.connect().channel()
    for n in range(6):
        channel.queue_declare("a" * 60 + f"!{n}")
    answer = broker.api("GET", "/api/policy-matches/%2F?" + urlencode({"pattern": "^(a+)+$"}))
    assert answer.status == 400
    assert "too long" in answer.json["reason"]


def test_few_names_are_told_and_all_are_counted(broker: Managed) -> None:
    broker.add_vhost("many")
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    assert broker.api("PUT", "/api/permissions/many/guest", rights).status < 300
    channel = broker.connect("many").channel()
    for n in range(30):
        channel.queue_declare(f"q{n}")
    said = broker.api.get("/api/policy-matches/many?pattern=%5Eq")
    assert (said["queues"], said["exchanges"], len(said["names"])) == (30, 0, 20)


def explained(broker: Managed, user: str, name: str, key: str = "") -> dict[str, bool]:
    query = urlencode({"name": name, "routing_key": key})
    said = broker.api.get(f"/api/permissions/%2F/{user}/effective?{query}")
    allowed = {right: said[right]["allowed"] for right in ("configure", "write", "read")}
    return allowed | {"topic_write": said["topic"]["write"], "topic_read": said["topic"]["read"]}


def test_what_a_user_may_do_is_explained(broker: Managed) -> None:
    broker.user("worker", "management", vhost="/")
    rights = {"configure": "", "write": "^(orders|amq.default)$", "read": "^jobs"}
    assert broker.api("PUT", "/api/permissions/%2F/worker", rights).status == 204
    topics = {"exchange": "orders", "write": "^eu\\.", "read": "^$"}
    assert broker.api("PUT", "/api/topic-permissions/%2F/worker", topics).status == 201

    said = broker.api.get("/api/permissions/%2F/worker/effective?name=jobs")
    assert said["read"] == {"allowed": True, "why": "The permission to read, '^jobs', matches"}
    assert said["configure"]["why"] == "The permission to configure is '', which allows nothing"
    assert "does not match" in said["write"]["why"]
    assert "every routing key" in said["topic"]["why"]

    assert explained(broker, "worker", "orders", "eu.1") == {
        "configure": False, "write": True, "read": False, "topic_write": True, "topic_read": False,
    }  # fmt: skip
    assert not explained(broker, "worker", "orders", "us.1")["topic_write"]
    assert explained(broker, "worker", "")["write"]  # amq.default


def test_a_user_without_permissions_may_nothing(broker: Managed) -> None:
    broker.user("stranger", "management")
    said = broker.api.get(f"/api/permissions/{quote('/', safe='')}/stranger/effective?name=jobs")
    assert not any(said[right]["allowed"] for right in ("configure", "write", "read"))
    assert "may not connect" in said["read"]["why"]
