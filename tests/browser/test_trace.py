"""Following an exchange or a queue: messages appear as they pass, readable, and none is taken."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Requests, log_in
from tests.support.api import Api
from tests.support.broker import Broker

HOSTILE = "<img src=x onerror=document.title=1>"


def publish(broker: Broker, exchange: str, key: str, payload: str) -> None:
    body = {
        "routing_key": key, "payload": payload, "payload_encoding": "string",
        "properties": {"headers": {"of": HOSTILE}},
    }  # fmt: skip
    assert Api(broker)("POST", f"/api/exchanges/%2F/{exchange}/publish", body).status == 200


@pytest.mark.parametrize(
    ("address", "exchange"),
    [
        ("/exchange#vhost=%2F&name=amq.direct", "amq.direct"),
        ("/queue#vhost=%2F&name=traced&tab=messages", "amq.default"),
    ],
)
def test_messages_are_shown_as_they_pass(
    page: Any, broker: Broker, requests: Requests, address: str, exchange: str
) -> None:
    Api(broker)("PUT", "/api/queues/%2F/traced", {})
    page.goto(address)
    page.locator("#trace-toggle").click()
    expect(page.locator("#trace-said")).to_have_text("0 passed, 0 shown")

    publish(broker, exchange, "traced", '{"n": 17}')

    message = page.locator("#traced article").first
    expect(message).to_contain_text('"n": 17')
    expect(message).to_contain_text(HOSTILE)
    expect(page.locator("#trace-said")).to_have_text("1 passed, 1 shown")
    page.locator("#trace-toggle").click()
    expect(page.locator("#trace-toggle")).to_have_text("Follow for a minute")


def test_a_refusal_is_told(page: Any, broker: Broker) -> None:
    page.goto("/exchange#vhost=%2F&name=")

    page.locator("#trace-toggle").click()

    expect(page.locator("#trace-said")).to_contain_text("default exchange")


def test_who_only_looks_is_not_offered_it(visitor: Any, broker: Broker) -> None:
    Api(broker).as_user("onlooker", "monitoring", **{"/": (".*", ".*", ".*")})
    log_in(visitor, "onlooker", "onlooker-pw")
    visitor.goto("/exchange#vhost=%2F&name=amq.direct")

    expect(visitor.locator("#details")).to_contain_text("direct")
    expect(visitor.locator("#trace")).to_be_hidden()
