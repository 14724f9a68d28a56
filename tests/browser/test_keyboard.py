"""All that pages do is done with the keyboard: the focus is where it was, or where one goes on."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Stub, listed, log_in, queue
from tests.browser.test_login import cookie
from tests.support.api import Api
from tests.support.broker import Broker


@pytest.fixture
def fast(page: Any) -> Any:
    """A page that is told each second."""
    page.add_init_script("localStorage.setItem('lmq.rate', '1000')")
    return page


@pytest.fixture
def small(page: Any) -> Any:
    """A small screen."""
    page.set_viewport_size({"width": 360, "height": 800})
    return page


def test_skipping_to_the_content_leaves_the_address(page: Any, stub: Stub) -> None:
    stub("/api/queues/foo/orders", queue(messages_ready=73))
    address = "/queue#vhost=foo&name=orders"
    page.goto(address)
    expect(page.locator("#q-ready")).to_have_text("73")

    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(page.locator("#main")).to_be_focused()
    assert page.url.endswith(address)
    page.keyboard.press("Tab")
    expect(page.get_by_role("tab", name="Overview")).to_be_focused()


def test_sorting_keeps_the_focus(page: Any) -> None:
    page.goto("/queues")
    heading = page.locator("#table th", has_text="Total").get_by_role("button")
    heading.focus()

    page.keyboard.press("Enter")
    expect(page.locator("th.sorting_asc")).to_contain_text("Total")
    page.keyboard.press("Enter")

    expect(page.locator("th.sorting_desc")).to_contain_text("Total")
    expect(heading).to_be_focused()


@pytest.mark.parametrize("pages", [2, 3])
def test_turning_pages_keeps_the_focus(page: Any, stub: Stub, pages: int) -> None:
    """At the last page there is no next one: then the numbers have it."""
    more = {"page_count": pages, "total_count": pages * 100}
    stub("/api/queues", listed([queue()], page=1, **more))
    page.goto("/queues")
    following = page.get_by_role("button", name="Next")
    following.focus()
    stub("/api/queues", listed([queue()], page=2, **more))

    page.keyboard.press("Enter")

    expect(page.locator(".page-item.active")).to_have_text("2")
    expect(page.locator(".pagination") if pages == 2 else following).to_be_focused()


def test_a_row_keeps_the_focus_when_others_come(fast: Any, broker: Broker) -> None:
    api = Api(broker)
    api("PUT", "/api/queues/%2F/focus-m", {})
    fast.goto("/queues#name=^focus-&use_regex=true&sort=name&sort_reverse=false")
    link = fast.locator("#table a", has_text="focus-m")
    link.focus()

    api("PUT", "/api/queues/%2F/focus-a", {})

    expect(fast.locator("#table tbody tr")).to_have_count(2)
    expect(link).to_be_focused()
    for name in "am":
        api("DELETE", f"/api/queues/%2F/focus-{name}")


def test_when_a_row_goes_its_table_has_the_focus(page: Any, broker: Broker) -> None:
    """And no button of another row, which the next press of Enter would take."""
    api = Api(broker)
    api("PUT", "/api/queues/%2F/focus-bound", {})
    for key in "ab":
        api("POST", "/api/bindings/%2F/e/amq.direct/q/focus-bound", {"routing_key": key})
    page.goto("/queue#vhost=%2F&name=focus-bound&tab=bindings")
    unbind = page.locator("#bindings-table").get_by_role("button", name="Unbind")
    expect(unbind).to_have_count(2)
    unbind.first.focus()

    page.keyboard.press("Enter")

    expect(unbind).to_have_count(1)
    expect(page.get_by_role("region", name="Table bindings-table")).to_be_focused()
    api("DELETE", "/api/queues/%2F/focus-bound")


def test_columns_are_chosen(page: Any) -> None:
    page.goto("/exchanges")
    page.get_by_role("button", name="Columns").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")

    page.keyboard.press("Space")

    expect(page.locator("#table th", has_text="Type")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator(".columns-box")).to_have_count(0)
    expect(page.get_by_role("button", name="Columns")).to_be_focused()


def test_rows_are_ticked_and_left(page: Any, broker: Broker) -> None:
    api = Api(broker)
    api("PUT", "/api/queues/%2F/focus-ticked", {})
    page.goto("/queues#name=^focus-ticked&use_regex=true")
    page.get_by_label("Tick focus-ticked").focus()
    page.keyboard.press("Space")
    controls = page.locator("#multiselect-controls")
    expect(controls).to_be_visible()

    controls.get_by_role("button", name="Close").focus()
    page.keyboard.press("Enter")

    expect(controls).to_be_hidden()
    expect(page.get_by_label("Tick all")).to_be_focused()
    api("DELETE", "/api/queues/%2F/focus-ticked")


@pytest.mark.parametrize(
    ("button", "first"),
    [("menu-button", "#menu .overview a"), ("usermenu-button", "#userMenuVhost")],
)
def test_a_menu_of_small_screens_has_the_focus_and_gives_it_back(
    small: Any, button: str, first: str
) -> None:
    small.goto("/exchanges")
    opener = small.locator(f"#{button}")
    opener.focus()

    small.keyboard.press("Enter")

    expect(opener).to_have_attribute("aria-expanded", "true")
    expect(small.locator(first)).to_be_focused()
    small.keyboard.press("Escape")
    expect(opener).to_be_focused()
    expect(opener).to_have_attribute("aria-expanded", "false")
    expect(small.locator(first)).to_be_hidden()


def test_a_menu_closes_when_the_focus_leaves_it(small: Any) -> None:
    small.goto("/exchanges")
    small.locator("#usermenu-button").press("Enter")
    expect(small.locator("#user-menu")).to_be_visible()

    small.locator(".filter-table").focus()

    expect(small.locator("#user-menu")).to_be_hidden()
    expect(small.locator("#usermenu-button")).to_have_attribute("aria-expanded", "false")


def test_the_search_keeps_the_focus_and_gives_it_back(page: Any) -> None:
    page.goto("/exchanges")
    page.get_by_role("button", name="Columns").focus()
    page.keyboard.press("Control+k")
    expect(page.locator("#search-field")).to_be_focused()

    for _ in range(4):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body"
                             " || document.activeElement.closest('#search') !== null")  # fmt: skip
    page.keyboard.press("Escape")

    expect(page.locator("#search")).to_be_hidden()
    expect(page.get_by_role("button", name="Columns")).to_be_focused()


def test_facts_that_change_keep_the_focus(fast: Any, broker: Broker) -> None:
    api = Api(broker)
    api(
        "PUT",
        "/api/policies/%2F/focus-policy",
        {"pattern": "^focus-fact", "definition": {"max-length": 9}},
    )
    api("PUT", "/api/queues/%2F/focus-fact", {})
    fast.goto("/queue#vhost=%2F&name=focus-fact")
    link = fast.locator("#details a", has_text="focus-policy")
    link.focus()

    api("PUT", "/api/queues/%2F/focus-fact/pause")

    expect(fast.locator("#details")).to_contain_text("paused")
    expect(link).to_be_focused()
    api("DELETE", "/api/queues/%2F/focus-fact")
    api("DELETE", "/api/policies/%2F/focus-policy")


def test_home_and_end_go_to_the_first_and_the_last_tab(page: Any, stub: Stub) -> None:
    stub("/api/queues/foo/orders", queue())
    page.goto("/queue#vhost=foo&name=orders")
    page.locator(".tab[data-tab=overview]").focus()

    page.keyboard.press("End")
    expect(page.locator(".tab[data-tab=messages]")).to_be_focused()
    expect(page.locator("[data-tab-content=messages]")).to_be_visible()
    page.keyboard.press("Home")
    expect(page.locator(".tab[data-tab=overview]")).to_be_focused()


def test_the_rest_of_what_is_browsed_has_the_focus(page: Any, broker: Broker) -> None:
    api = Api(broker)
    api("PUT", "/api/queues/%2F/focus-browsed", {"durable": True})
    for n in range(3):
        message = {"properties": {}, "routing_key": "focus-browsed", "payload": f"no {n}"}
        message |= {"payload_encoding": "string"}
        api("POST", "/api/exchanges/%2F/amq.default/publish", message)
    page.goto("/queue#vhost=%2F&name=focus-browsed&tab=messages")
    form = page.locator("#browseMessages")
    form.get_by_label("Number of messages").fill("2")
    form.get_by_label("Number of messages").press("Enter")
    expect(page.locator("#browsed article")).to_have_count(2)

    page.locator("#browse-more").press("Enter")

    expect(page.locator("#browsed article")).to_have_count(3)
    expect(page.locator("#browsed article").nth(2).get_by_role("checkbox")).to_be_focused()
    api("DELETE", "/api/queues/%2F/focus-browsed")


def test_the_theme_is_chosen_and_one_signs_out(page: Any) -> None:
    log_in(page)
    page.goto("/exchanges")
    before = cookie(page)["value"]
    page.locator("#userMenuVhost").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert "theme-dark" in page.evaluate("document.documentElement.className")

    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    with page.expect_navigation(url="**/login"):
        page.keyboard.press("Enter")

    assert before not in [each["value"] for each in page.context.cookies()]
