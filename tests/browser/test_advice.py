"""Advice on the overview: sentences with links, none when all is well."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from tests.browser.conftest import Requests, Stub
from tests.browser.test_every_page import HOSTILE

GROWS = {
    "kind": "growing_queue", "level": "warning", "text": "The queue orders grows",
    "page": "queue", "vhost": "foo", "name": "orders",
}  # fmt: skip


def test_advice_leads_to_the_page_that_mends_it(page: Any, stub: Stub) -> None:
    disk = {**GROWS, "level": "error", "text": "The disk", "page": "nodes",
            "vhost": "", "name": ""}  # fmt: skip
    stub("/api/advice", {"advice": [disk, GROWS], "more": 3})
    page.goto("/")
    items = page.locator("#advice-list li")
    expect(items).to_have_count(3)
    expect(items.nth(0)).to_have_text("ErrorThe disk. Open the node")
    expect(items.nth(2)).to_contain_text("3 more")
    page.get_by_role("link", name="Open the queue").click()
    expect(page).to_have_url(re.compile("/queue#vhost=foo&name=orders$"))


def test_no_advice_is_no_card(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/advice", {"advice": [], "more": 0})  # the machine's disk may fill just now
    page.goto("/")
    requests.wait("GET", "/api/advice")
    expect(page.locator("#queues")).not_to_have_text("–")
    expect(page.locator("#advice")).to_be_hidden()


def test_names_in_advice_are_text(page: Any, stub: Stub) -> None:
    one = {**GROWS, "text": f"The queue {HOSTILE} grows", "name": HOSTILE}
    stub("/api/advice", {"advice": [one], "more": 0})
    page.goto("/")
    expect(page.locator("#advice-list li")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0
