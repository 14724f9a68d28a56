"""Charts of a page: the numbers beside the lines are those of the last sample."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from tests.browser.conftest import Requests, Stub


def depth(*ready: int) -> dict[str, Any]:
    """What the API says of the broker, with so many messages at each sample."""
    totals = {"messages_ready_log": list(ready), "messages_unacknowledged_log": [0] * len(ready)}
    return {"object_totals": {}, "queue_totals": totals, "message_stats": {}}


def test_the_legend_follows_the_last_sample(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/overview", depth(1, 2))
    page.clock.install()
    page.goto("/")
    ready = page.locator("#depth-chart").get_by_role("button", name="Ready")
    expect(ready).to_contain_text("2")

    stub("/api/overview", depth(1, 2, 731))
    page.wait_for_timeout(100)
    page.clock.run_for(10_000)
    requests.wait("GET", "/api/overview", 2)

    expect(ready).to_contain_text("731")
