"""Regular expressions that would never end: in policies, permissions and searches."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from pamqp import commands

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire

ENDLESS = "^(a+)+$"
STUMBLE = "a" * 200 + ":"


@pytest.fixture
def broker(broker_factory: BrokerFactory) -> Broker:
    return broker_factory(http=True)


def declare(broker: Broker, *queues: str, durable: bool = False) -> None:
    with Wire.open(broker.port) as wire:
        for queue in queues:
            method = commands.Queue.Declare(queue=queue, durable=durable)
            wire.call(1, method, commands.Queue.DeclareOk)


def policy_of(api: Api, queue: str) -> str | None:
    found: str | None = api.get(f"/api/queues/%2F/{quote(queue, safe='')}").get("policy")
    return found


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_policy_does_not_apply_to_names_that_take_too_long_and_says_so(
    broker: Broker, kind: str
) -> None:
    api = Api(broker)
    declare(broker, STUMBLE, "aaa")
    body = {"pattern": ENDLESS, "definition": {"max-length": 5}}

    assert api("PUT", f"/api/{kind}/%2F/p", body).status == 201

    rows = {row["name"]: row for row in api.get("/api/queues")}
    field = "policy" if kind == "policies" else "operator_policy"
    assert rows["aaa"][field] == "p"
    assert not rows[STUMBLE][field]
    assert "takes too long" in api.get(f"/api/{kind}/%2F/p")["warning"]
    assert "takes too long" in api.get(f"/api/{kind}")[0]["warning"]
    assert "takes too long" not in str(api.get("/api/definitions"))
    assert "takes too long" in broker.log_text()


def test_a_start_does_not_wait_for_a_pattern_that_never_ends(broker: Broker) -> None:
    api = Api(broker)
    many = [f"{'a' * 60}:{number}" for number in range(400)]
    api("PUT", "/api/policies/%2F/p", {"pattern": ENDLESS, "definition": {"max-length": 5}})
    declare(broker, *many, "aaa", durable=True)

    broker.restart()

    wait_for(lambda: policy_of(api, "aaa") == "p", "the policy has not come to its queue")
    assert policy_of(api, many[0]) in (None, "")


def test_a_permission_that_takes_too_long_is_denied_and_says_so(broker: Broker) -> None:
    api = Api(broker)
    api.as_user("slow", "", **{"/": (ENDLESS, ".*", ".*")})
    with Wire.open(broker.port, user="slow", password="slow-pw") as wire:
        wire.call(1, commands.Queue.Declare(queue="aaa"), commands.Queue.DeclareOk)
        wire.send(1, commands.Queue.Declare(queue=STUMBLE))
        wire.expect_channel_close(1, 403)

    assert "takes too long" in api.get("/api/permissions/%2F/slow")["warning"]
    assert "takes too long" in broker.log_text()


def test_a_search_that_takes_too_long_is_refused(broker: Broker) -> None:
    api = Api(broker)
    declare(broker, STUMBLE, "aaa")
    path = f"/api/queues?name={quote(ENDLESS, safe='')}&use_regex=true"

    answer = api("GET", path)

    assert answer.status == 400
    assert "takes too long" in answer.json["reason"]
    assert [row["name"] for row in api.get("/api/queues?name=%5Ea%2B%24&use_regex=true")] == ["aaa"]
