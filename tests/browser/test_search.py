"""Ctrl-K: a search in the names of everything, with the keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from lavinmq.client import Client
from tests.browser.conftest import Requests, log_in
from tests.browser.test_every_page import AXE, HOSTILE, hostile, watched
from tests.browser.test_lists import query
from tests.support.api import Api
from tests.support.broker import Broker

__all__ = ["hostile", "watched"]


@pytest.fixture(scope="module")
def things(broker: Broker) -> Iterator[None]:
    """One of everything with the same word in its name; more queues than are shown."""
    api = Api(broker)
    shovel = dict.fromkeys(("src-uri", "dest-uri"), "amqp://127.0.0.1:1")
    shovel |= {"src-queue": "findling-q0", "dest-queue": "findling-q1"}
    policy = {"pattern": "^none$", "definition": {"max-length": 1}}
    for method, path, body in (
        ("PUT", "vhosts/Findling-v", {}),
        ("PUT", "users/findling-u", {"password": "x", "tags": ""}),
        ("PUT", "exchanges/%2F/findling-x", {"type": "topic"}),
        ("PUT", "policies/%2F/findling-p", policy),
        ("PUT", "operator-policies/%2F/findling-o", policy),
        ("PUT", "parameters/shovel/%2F/findling-s", {"value": shovel}),
        ("PUT", "parameters/federation-upstream/%2F/findling-f", {"value": {"uri": "amqp://"}}),
        *(("PUT", f"queues/%2F/findling-q{n}", {"durable": True}) for n in range(9)),
    ):
        answer = api(method, f"/api/{path}", body)
        assert answer.status in (201, 204), answer
    with Client(broker.uri, name="findling-c") as client:
        client.channel().basic_consume("findling-q0", print, consumer_tag="findling-t")
        yield


def search(page: Any, text: str) -> None:
    """Search with the keyboard."""
    page.keyboard.press("Control+k")
    expect(page.locator("#search-field")).to_be_focused()
    page.keyboard.type(text)


def test_everything_is_found_by_its_name(page: Any, things: None, requests: Requests) -> None:
    page.goto("/nodes")
    expect(page.locator("#username")).to_have_text("guest")
    search(page, "FINDling")
    groups = page.locator(".search-group")
    expect(groups).to_have_text(
        [
            "Queues, 6 of 9", "Exchanges", "Connections", "Consumers", "Virtual hosts", "Policies",
            "Operator policies", "Shovels", "Upstreams", "Users",
        ]
    )  # fmt: skip
    hits = page.locator("#search [role=option]")
    expect(hits).to_have_count(15)
    expect(hits.filter(has_text="findling-c")).to_have_text(re.compile("findling-c127.0.0.1:"))
    expect(hits.filter(has_text="findling-t")).to_have_text("findling-tfindling-q0")
    asked = query(requests.wait("GET", "/api/queues"))
    assert (asked["page"], asked["page_size"]) == ("1", "6")


def test_the_keyboard_alone_leads_there(page: Any, things: None) -> None:
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    search(page, "findling-q")
    expect(page.locator("#search [role=option]")).to_have_count(6)
    page.keyboard.press("ArrowDown")
    expect(page.locator("#search [role=option][aria-selected=true]")).to_contain_text("findling-q1")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/queue#vhost=%2F&name=findling-q1$"))
    expect(page.locator("#pagename-label")).to_contain_text("findling-q1")


def test_escape_closes_it_and_gives_the_focus_back(page: Any) -> None:
    page.goto("/")
    page.locator("#search-button").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#search-field")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#search")).to_be_hidden()
    expect(page.locator("#search-button")).to_be_focused()


def test_pages_are_found(page: Any) -> None:
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    search(page, "operator pol")
    expect(page.locator("#search [role=option]")).to_have_text(["Operator policies"])
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/operator-policies$"))


@pytest.mark.parametrize("text", [HOSTILE[:40], "(x", ".*", "\\"])
def test_what_is_typed_is_no_pattern_and_no_markup(
    watched: Any, hostile: list[str], text: str
) -> None:
    watched.goto("/")
    expect(watched.locator("#username")).to_have_text("guest")
    watched.keyboard.press("Control+k")
    watched.locator("#search-field").fill(text)
    if text in HOSTILE:
        expect(watched.locator("#search [role=option]").first).to_contain_text(HOSTILE[:30])
        watched.keyboard.press("Enter")
        expect(watched).to_have_url(re.compile(re.escape(quote("<img", safe=""))))
    else:
        expect(watched.locator("#search-said")).to_have_text("Nothing has such a name")


def test_a_user_is_asked_nothing_that_would_be_refused(
    visitor: Any, broker: Broker, things: None, requests: Requests
) -> None:
    Api(broker).as_user("seeker", "management", **{"/": (".*", ".*", ".*")})
    log_in(visitor, "seeker", "seeker-pw")
    visitor.goto("/")
    expect(visitor.locator("#username")).to_have_text("seeker")
    search(visitor, "findling")
    expect(visitor.locator(".search-group")).to_have_text(
        ["Queues, 6 of 9", "Exchanges", "Connections", "Consumers"]
    )
    for path in ("users", "policies", "operator-policies", "parameters/shovel"):
        assert requests.find("GET", f"/api/{path}") == []
    visitor.locator("#search-field").fill("users")
    expect(visitor.locator("#search-said")).to_have_text("Nothing has such a name")


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: `make test` installs it")
def test_everybody_can_search(page: Any, things: None) -> None:
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    search(page, "findling")
    expect(page.locator("#search [role=option]")).to_have_count(15)
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run('#search').then(said => said.violations.map(each => each.id))")
    assert found == []
