"""Names that others rely on: ids, classes, keys of storages; and what the pages say of trouble."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import VHOSTS, Requests, Stub, listed, queue
from tests.browser.test_lists import query
from tests.browser.test_queue_page import ADDRESS, BINDINGS, CONSUMER


def test_the_tabs_of_a_queue_say_how_many_there_are(page: Any, stub: Stub) -> None:
    stub("/api/queues/foo/orders", queue(consumers=1, consumer_details=[CONSUMER]))
    stub("/api/queues/foo/orders/bindings", listed(BINDINGS))
    page.goto(ADDRESS)
    expect(page.locator(".tab[data-tab=consumers] .badge")).to_have_text("1")
    expect(page.locator(".tab[data-tab=bindings] .badge")).to_have_text("2")
    expect(page.locator("#bindings-count")).to_have_text("2")
    expect(page.locator(".tab.active")).to_have_attribute("data-tab", "overview")
    expect(page.locator("[data-tab-content=overview]")).to_be_visible()


def test_tags_of_users_are_links(page: Any) -> None:
    for address in ("/users", "/user#name=guest"):
        page.goto(address)
        for tag in ("administrator", "monitoring", "management", "policymaker", "impersonator"):
            expect(page.locator(f"#dataTags a[data-tag={tag}]")).to_have_count(1)


@pytest.mark.parametrize(
    ("address", "table"),
    [
        ("/connections", "table"), ("/channels", "table"), ("/consumers", "table"),
        ("/mqtt", "table"),
        ("/exchanges", "table"), ("/queues", "table"), ("/shovels", "table"),
        ("/vhosts", "table"), ("/users", "table"), ("/policies", "table"),
        ("/operator-policies", "table"), ("/exchange#vhost=%2F&name=amq.topic", "bindings-table"),
        ("/vhost#name=%2F", "permissions"), ("/user#name=guest", "permissions"),
    ],
)  # fmt: skip
def test_tables_have_their_names(page: Any, address: str, table: str) -> None:
    page.goto(address)
    expect(page.locator(f"table#{table}")).to_have_count(1)


def test_simple_forms_have_one_button(page: Any) -> None:
    forms = {
        "/login": ("form",),
        "/": ("#exportDefinitions",),
        "/queues": ("#declare",), "/exchanges": ("#addExchange",), "/vhosts": ("#createVhost",),
        "/policies": ("#createPolicy",), "/operator-policies": ("#createPolicy",),
        "/vhost#name=%2F": ("#setPermission", "#setLimits", "#deleteVhost"),
        "/user#name=guest": ("#setPermission", "#deleteUser"),
        "/connection#name=x": ("#closeConnection",),
    }  # fmt: skip
    for address, names in forms.items():
        page.goto(address)
        for name in names:
            buttons = page.locator(name).get_by_role("button").filter(visible=True)
            expect(buttons, f"{address} {name}").to_have_count(1)


def test_a_label_names_one_field(page: Any) -> None:
    for address in ("/queues", "/exchanges", "/policies", "/operator-policies"):
        page.goto(address)
        for label in ("Virtual host", "Name"):
            expect(page.get_by_label(label), f"{address} {label}").to_have_count(1)


def test_what_a_browser_keeps_has_known_names(page: Any, stub: Stub) -> None:
    stub("/api/vhosts", VHOSTS)
    for path in ("/api/queues", "/api/queues/foo"):
        stub(path, listed([queue()]))
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    page.wait_for_function("sessionStorage.getItem('overview')")
    page.goto("/queues#sort=name")
    page.get_by_role("button", name="Columns").click()
    page.locator(".columns-box").get_by_label("State").uncheck()
    # Not a navigation: the state of a list that goes into the address is one too.
    with page.expect_event("load"):
        page.locator("#userMenuVhost").select_option("foo")
    page.goto("/logs")
    page.locator("#to-top").click()
    kept = page.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage)]")
    assert {"lmq.whoami", "lmq.stateclasses", "lmq.logScrollMode"} <= set(kept[0])
    assert {
        "lavinmq_version", "vhost", "hiddenTableCols/queuestable", "queues-queryState", "overview",
    } <= set(kept[1])  # fmt: skip


@pytest.mark.parametrize(
    "address",
    ["/vhost#name=no-such", "/queue#vhost=%2F&name=no-such", "/exchange#vhost=%2F&name=no-such",
     "/user#name=no-such", "/connection#name=no-such", "/channel#name=no-such"],
)  # fmt: skip
def test_what_is_not_there_is_told(page: Any, address: str) -> None:
    page.goto(address)
    expect(page.locator("#page-error")).to_be_visible()
    expect(page.locator("#page-error")).not_to_be_empty()


def test_virtual_hosts_are_sorted_by_their_messages(page: Any, requests: Requests) -> None:
    page.goto("/vhosts")
    expect(page.locator("#table tbody tr").first).to_be_visible()
    page.locator("#table th", has_text="Total").get_by_role("button").click()
    expect(page.locator("#table th", has_text="Total")).to_have_class("number sorting_asc")
    asked = [query(each).get("sort") for each in requests.find("GET", "/api/vhosts")]
    assert "messages" in asked


def test_the_log_is_filtered(page: Any) -> None:
    page.goto("/logs")
    rows = page.locator("#livelog-body tr")
    expect(rows.first).to_be_attached()
    page.get_by_label("Text").fill("no line has this")
    expect(rows.filter(visible=True)).to_have_count(0)


def test_charts_have_an_alternative_in_text(page: Any) -> None:
    page.goto("/")
    chart = page.get_by_role("figure", name="Message rates")
    chart.locator("summary").click()
    expect(chart.locator("tbody th").first).to_be_visible()
