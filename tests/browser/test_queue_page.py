"""The page of a queue: its tabs, and what is done on them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Requests, Stub, listed, queue

ADDRESS = "/queue#vhost=foo&name=orders"
CONSUMER = {
    "consumer_tag": "tag1", "ack_required": True, "exclusive": False, "prefetch_count": 10,
    "queue": {"name": "orders", "vhost": "foo"},
    "channel_details": {"name": "c[1]", "connection_name": "c", "number": 1, "user": "guest"},
}  # fmt: skip
BINDINGS = [
    {"source": "", "vhost": "foo", "destination": "orders", "destination_type": "queue",
     "routing_key": "orders", "properties_key": "orders", "arguments": {}},
    {"source": "events", "vhost": "foo", "destination": "orders", "destination_type": "queue",
     "routing_key": "a.#", "properties_key": "a.#", "arguments": {}},
]  # fmt: skip
PANES = ("overview", "consumers", "bindings", "messages")


@pytest.fixture
def stubbed(page: Any, stub: Stub) -> Any:
    """The page with a queue that has a consumer and two bindings."""
    stub("/api/queues/foo/orders", queue(consumers=1, consumer_details=[CONSUMER]))
    stub("/api/queues/foo/orders/bindings", listed(BINDINGS))
    for kind in ("queues", "exchanges"):
        stub(f"/api/{kind}/foo", listed([]))
    page.on("dialog", lambda dialog: dialog.accept())
    return page


def active(page: Any) -> list[str]:
    return [tab.get_attribute("data-tab") for tab in page.locator(".tab.active").all()]


def visible(page: Any) -> list[str]:
    return [name for name in PANES if page.locator(f"[data-tab-content={name}]").is_visible()]


def test_it_says_which_queue_of_which_virtual_host(stubbed: Any) -> None:
    stubbed.goto(ADDRESS)
    expect(stubbed.locator("#pagename-label")).to_have_text("orders in virtual host foo")
    expect(stubbed.locator("#consumer-count")).to_have_text("1")


def test_a_consumer_is_cancelled(stubbed: Any, requests: Requests, stub: Stub) -> None:
    stub("/api/consumers/foo/c/1/tag1", status=204)
    stubbed.goto(ADDRESS + "&tab=consumers")
    stubbed.get_by_role("button", name="Cancel").click()
    requests.wait("DELETE", "/api/consumers/foo/c/1/tag1")


def test_bindings_are_counted_and_taken_away(stubbed: Any, requests: Requests, stub: Stub) -> None:
    stub("/api/bindings/foo/e/events/q/orders/a.%23", status=204)
    stubbed.goto(ADDRESS + "&tab=bindings")
    expect(stubbed.locator("#bindings-count")).to_have_text("2")
    expect(stubbed.locator(".tab[data-tab=bindings] .badge")).to_have_text("2")
    stubbed.get_by_role("button", name="Unbind").click()
    requests.wait("DELETE", "/api/bindings/foo/e/events/q/orders/a.%23")


def test_messages_can_be_moved(stubbed: Any) -> None:
    stubbed.goto(ADDRESS + "&tab=messages")
    expect(stubbed.locator("#moveMessages")).to_be_visible()


def test_the_overview_is_shown_at_first(stubbed: Any) -> None:
    stubbed.goto(ADDRESS)
    expect(stubbed.locator(".tab[data-tab=overview]")).to_have_class(re.compile("active"))
    assert (active(stubbed), visible(stubbed)) == (["overview"], ["overview"])


@pytest.mark.parametrize("name", PANES[1:])
def test_a_tab_shows_its_pane_alone(stubbed: Any, name: str) -> None:
    stubbed.goto(ADDRESS)
    stubbed.locator(f".tab[data-tab={name}]").click()
    expect(stubbed.locator(f"[data-tab-content={name}]")).to_be_visible()
    assert (active(stubbed), visible(stubbed)) == ([name], [name])
    assert f"tab={name}" in stubbed.url
    assert "vhost=foo&name=orders" in stubbed.url


def test_the_tab_is_read_from_the_address(stubbed: Any) -> None:
    stubbed.goto(ADDRESS + "&tab=bindings")
    expect(stubbed.locator("[data-tab-content=bindings]")).to_be_visible()
    stubbed.evaluate("location.hash = 'vhost=foo&name=orders&tab=messages'")
    expect(stubbed.locator("[data-tab-content=messages]")).to_be_visible()
    assert visible(stubbed) == ["messages"]


def test_an_unknown_tab_is_the_overview(stubbed: Any) -> None:
    stubbed.goto(ADDRESS + "&tab=nonsense")
    expect(stubbed.locator("[data-tab-content=overview]")).to_be_visible()


def test_tabs_are_reached_with_the_keyboard(stubbed: Any) -> None:
    stubbed.goto(ADDRESS)
    stubbed.locator(".tab[data-tab=overview]").focus()
    stubbed.keyboard.press("ArrowRight")
    expect(stubbed.locator("[data-tab-content=consumers]")).to_be_visible()
    expect(stubbed.locator(".tab[data-tab=consumers]")).to_be_focused()


def test_unacknowledged_messages_have_a_page(
    page: Any, refreshes: Callable[[str, str], None], stub: Stub
) -> None:
    row = {"delivery_tag": 7, "consumer_tag": "t", "unacked_for_seconds": 3, "channel_name": "c[1]"}
    stub("/api/queues/foo/orders/unacked", listed([row]))
    refreshes("/unacked#name=orders&vhost=foo", "/api/queues/foo/orders/unacked")
    expect(page.locator("#unacked-count")).to_have_text("1")


@pytest.fixture
def real(page: Any, request: Any) -> str:
    """A queue of the broker, of this test alone."""
    name = f"page-{request.node.name}"[:80]
    assert page.context.request.put(f"/api/queues/%2F/{name}", data={"durable": True}).ok
    page.on("dialog", lambda dialog: dialog.accept())
    return name


def test_a_message_is_published_looked_at_moved_and_purged(page: Any, real: str) -> None:
    other = f"{real}-other"
    assert page.context.request.put(f"/api/queues/%2F/{other}", data={"durable": True}).ok
    page.goto(f"/queue#vhost=%2F&name={real}&tab=messages")
    page.get_by_label("Payload", exact=True).fill("<b>häll\u202eo</b>")
    page.get_by_label("Headers").fill('{"kind": "<i>x</i>"}')
    page.get_by_role("button", name="Publish message").click()
    expect(page.locator("#toast")).to_have_text("Published")

    page.get_by_role("button", name="Get messages").click()
    expect(page.locator("#messages pre")).to_have_text("<b>häll\u202eo</b>")
    expect(page.locator("#messages")).to_contain_text('{"kind":"<i>x</i>"}')

    page.get_by_label("Destination queue").fill(other)
    page.get_by_role("button", name="Move messages").click()
    expect(page.locator("#toast")).to_have_text("Moved 1")

    page.goto(f"/queue#vhost=%2F&name={other}")
    expect(page.locator("#q-ready")).to_have_text("1")
    page.get_by_role("button", name="Purge queue").click()
    expect(page.locator("#q-ready")).to_have_text("0")


def test_a_queue_is_paused_and_resumed(page: Any, real: str) -> None:
    page.goto(f"/queue#vhost=%2F&name={real}")
    page.get_by_role("button", name="Pause queue").click()
    expect(page.locator("#details")).to_contain_text("paused")
    page.get_by_role("button", name="Resume queue").click()
    expect(page.locator("#details")).to_contain_text("running")


def test_a_queue_is_deleted(page: Any, real: str) -> None:
    page.goto(f"/queue#vhost=%2F&name={real}")
    expect(page.locator("#q-ready")).to_have_text("0")
    page.get_by_role("button", name="Delete queue").click()
    expect(page).to_have_url(re.compile("/queues"))
    assert page.context.request.get(f"/api/queues/%2F/{real}").status == 404


def test_a_refusal_is_told_in_the_form(page: Any, real: str) -> None:
    page.goto(f"/queue#vhost=%2F&name={real}&tab=messages")
    page.get_by_label("Destination queue").fill("nowhere")
    page.get_by_role("button", name="Move messages").click()
    expect(page.locator("#moveForm .form-error")).to_contain_text("nowhere")


def test_the_recorded_lag_of_a_stream_is_drawn_at_once(page: Any, stub: Stub) -> None:
    arguments = {"x-queue-type": "stream"}
    body: dict[str, Any] = {"durable": True, "arguments": arguments}
    assert page.context.request.put("/api/queues/%2F/lagging", data=body).ok
    page.goto("/stream#vhost=%2F&name=lagging")
    chart = page.locator("#lag-chart")
    expect(chart.get_by_text("Nobody has stored an offset")).to_be_visible()
    expect(chart.locator(".chart-box")).to_be_hidden()

    row = {"name": "late", "offset": 5, "lag": 7}
    rows = [row | {"lag_log": [1, 2, 7]}, row | {"name": "other", "lag_log": []}]
    stub("/api/queues/%2F/lagging/stream/consumers", listed(rows))
    page.reload()

    expect(chart.get_by_role("button", name="late")).to_contain_text("7")
    expect(chart.get_by_role("button", name="other")).to_have_count(0)
    expect(chart.locator(".u-over")).to_be_visible()
    chart.locator("summary").press("Enter")
    expect(chart.locator("tbody tr").first.locator("td")).to_have_text(["7", "1", "3.3", "7"])


def test_a_name_is_no_formula_for_a_spreadsheet(page: Any, stub: Stub, tmp_path: Path) -> None:
    """Whoever stores an offset names a line of the chart, which an operator opens as a table."""
    body: dict[str, Any] = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert page.context.request.put("/api/queues/%2F/formulas", data=body).ok
    names = ['=HYPERLINK("http://evil.example")', "+1", "@x", "-1", "good=1"]
    rows = [{"name": name, "offset": 5, "lag": 7, "lag_log": [1, 2]} for name in names]
    stub("/api/queues/%2F/formulas/stream/consumers", listed(rows))
    page.goto("/stream#vhost=%2F&name=formulas")
    expect(page.locator("#lag-chart .chart-legend button")).to_have_count(len(names))

    with page.expect_download() as download:
        page.locator("#lag-chart").get_by_role("button", name="CSV").click()
    download.value.save_as(tmp_path / "saved.csv")

    [head, *_] = csv.reader((tmp_path / "saved.csv").read_text().splitlines())
    assert head == ["time", *(f"'{name}" for name in names[:4]), "good=1"]


def test_a_stream_is_read_from_an_offset(page: Any) -> None:
    name = "page-stream"
    arguments = {"x-queue-type": "stream"}
    body: dict[str, Any] = {"durable": True, "arguments": arguments}
    made = page.context.request.put(f"/api/queues/%2F/{name}", data=body)
    assert made.ok, made.text()
    for number in range(3):
        body = {
            "properties": {}, "routing_key": name, "payload": f"entry {number}",
            "payload_encoding": "string",
        }  # fmt: skip
        assert page.context.request.post("/api/exchanges/%2F/amq.default/publish", data=body).ok
    page.goto(f"/stream#vhost=%2F&name={name}")
    page.get_by_label("Offset", exact=True).fill("2")
    page.get_by_label("Count", exact=True).fill("5")
    page.get_by_role("button", name="Get messages").click()
    expect(page.locator("#messages h3")).to_have_text(["Offset 2", "Offset 3"])
    expect(page.locator("#messages pre").first).to_have_text("entry 1")
