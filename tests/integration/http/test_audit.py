"""The audit log: a line for each request that changes something, without its secrets."""

from __future__ import annotations

import re

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for


def audited(broker: Broker) -> list[str]:
    return re.findall(r"lmq\.http\.audit (.*)", broker.log_text())


def test_changes_are_noted_with_who_and_how_they_ended(http_broker: Broker) -> None:
    api = Api(http_broker)
    api("PUT", "/api/users/u?secret=hidden1", {"password": "hidden2", "tags": "management"})
    api("PUT", "/api/users/u", raw=b"{hidden3")
    Api(http_broker, "u", "hidden2")("DELETE", "/api/vhosts/%2F")
    api("GET", "/api/users")
    api("PUT", "/api/no/such/path")

    wait_for(lambda: len(audited(http_broker)) == 3, "the changes are not noted")
    assert audited(http_broker) == [
        "user 'guest' from 127.0.0.1: PUT /api/users/u: 201",
        "user 'guest' from 127.0.0.1: PUT /api/users/u: 400",
        "user 'u' from 127.0.0.1: DELETE /api/vhosts/%2F: 403",
    ]
    assert "hidden" not in http_broker.log_text()


def test_only_what_changes_nothing_is_noted_as_a_dry_run(http_broker: Broker) -> None:
    """An import with `dry_run=false` was noted as one, and whatever had the word somewhere."""
    api, before = Api(http_broker), len(audited(http_broker))
    for query in ("dry_run=true", "dry_run=false", "dry_run", "x=dry_run"):
        api("POST", f"/api/definitions?{query}", {"vhosts": []})

    wait_for(lambda: len(audited(http_broker)) == before + 4, "the changes are not noted")
    assert [line.partition("/api/")[2] for line in audited(http_broker)[before:]] == [
        "definitions (dry run): 200", "definitions: 200", "definitions: 400", "definitions: 200",
    ]  # fmt: skip


def test_a_change_is_noted_at_the_usual_level_only(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(["--log-level", "warn"], http=True)

    assert Api(broker)("PUT", "/api/vhosts/v").status == 201

    broker.stop()
    assert audited(broker) == []
