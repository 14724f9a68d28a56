"""Lists: what they ask of the API, their state in the address, many rows at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Requests, Stub, listed, queue

TEN = [queue(f"q{number}") for number in range(10)]
HUNDRED = listed(TEN, total_count=100, filtered_count=100, page_count=10, page_size=10)


def query(request: Any) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(request.url).query))


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/", "/api/overview"),
        ("/nodes", "/api/nodes"),
        ("/connections", "/api/connections"),
        ("/channels", "/api/channels"),
        ("/consumers", "/api/consumers"),
        ("/mqtt", "/api/mqtt/sessions"),
        ("/mqtt", "/api/mqtt/shared-subscriptions"),
        ("/exchanges", "/api/exchanges"),
        ("/queues", "/api/queues"),
        ("/shovels", "/api/parameters/shovel"),
        ("/shovels", "/api/shovels"),
        ("/federation", "/api/parameters/federation-upstream"),
        ("/federation", "/api/federation-links"),
        ("/vhosts", "/api/vhosts"),
        ("/policies", "/api/policies"),
        ("/operator-policies", "/api/operator-policies"),
        ("/users", "/api/users"),
    ],
)
def test_a_list_is_asked_for_again_and_again(
    page: Any, refreshes: Callable[[str, str], None], address: str, path: str
) -> None:
    refreshes(address, path)


def test_the_log_is_followed(page: Any, requests: Requests) -> None:
    page.goto("/logs")
    requests.wait("GET", "/api/livelog")
    expect(page.locator("#livelog-body tr").first).to_contain_text("lmq")


def test_the_count_is_of_all_pages(page: Any, stub: Stub) -> None:
    stub("/api/queues", HUNDRED)
    page.goto("/queues")
    expect(page.locator("#pagename-label")).to_have_text("100")
    expect(page.locator(".table-page-info")).to_have_text("1–10 of 100")


@pytest.mark.parametrize(
    "state",
    [
        {"page": "2", "page_size": "10"},
        {"name": "^q", "use_regex": "true"},
        {"sort": "name", "sort_reverse": "true"},
        {"page": "2", "page_size": "10", "name": "^q", "use_regex": "true", "sort": "name",
         "sort_reverse": "true"},
    ],
)  # fmt: skip
def test_the_address_says_what_is_shown(
    page: Any, stub: Stub, requests: Requests, state: dict[str, str]
) -> None:
    stub("/api/queues", HUNDRED)
    page.goto("/queues#" + "&".join(f"{name}={value}" for name, value in state.items()))
    asked = query(requests.wait("GET", "/api/queues"))
    assert state.items() <= asked.items()


def test_a_heading_sorts_and_sorts_back(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/queues", HUNDRED)
    page.goto("/queues")
    heading = page.locator("#table th", has_text="Name")
    heading.get_by_role("button").click()
    expect(page).to_have_url(re.compile("sort=name"))
    expect(heading).to_have_class(re.compile("sorting_asc"))
    requests.wait("GET", "/api/queues", sort="name", sort_reverse="false")
    heading.get_by_role("button").click()
    expect(heading).to_have_class(re.compile("sorting_desc"))
    requests.wait("GET", "/api/queues", sort="name", sort_reverse="true")
    assert "sort_reverse=true" in page.url
    page.go_back()
    expect(heading).to_have_class(re.compile("sorting_asc"))


def test_pages_are_turned(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/queues", HUNDRED)
    page.goto("/queues")
    expect(page.locator(".page-item", has_text="Previous")).to_be_visible()
    page.locator(".page-item", has_text="Next").click()
    expect(page).to_have_url(re.compile("page=2"))
    requests.wait("GET", "/api/queues", page="2")


def test_a_page_behind_the_end_is_the_last_one(page: Any, requests: Requests) -> None:
    page.goto("/exchanges#page=999&page_size=2")
    requests.wait("GET", "/api/exchanges", 2)
    expect(page.locator(".page-item.active")).not_to_have_text("999")
    assert "page=999" not in page.url


def test_a_filter_is_applied_by_the_server(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/queues", HUNDRED)
    page.goto("/queues")
    requests.wait("GET", "/api/queues")
    page.locator(".filter-table").fill("ord.*")
    page.locator(".filter-table").press("Enter")
    expect(page).to_have_url(re.compile("name=ord"))
    requests.wait("GET", "/api/queues", name="ord.*", use_regex="true")
    page.locator(".filter-table").press("Escape")
    expect(page).not_to_have_url(re.compile("name="))


@pytest.mark.parametrize("numbers", ["page=0&page_size=0", "page=-1", "page=x", "page_size=10001"])
def test_numbers_that_would_be_refused_are_not_asked_for(
    page: Any, requests: Requests, numbers: str
) -> None:
    """A link has them; nothing on the page would mend it, and the next visit would have them."""
    page.goto(f"/exchanges#{numbers}")
    requests.wait("GET", "/api/exchanges", page="1", page_size="100")
    expect(page.locator("#table a", has_text="amq.topic")).to_be_visible()
    expect(page.locator("#table-error")).to_be_hidden()


def test_a_bad_pattern_is_told_above_the_table(page: Any) -> None:
    page.goto("/queues#name=(&use_regex=true")
    expect(page.locator("#table-error")).to_contain_text("Something went wrong")


def test_columns_can_be_hidden_and_stay_so(page: Any, stub: Stub) -> None:
    stub("/api/queues", HUNDRED)
    page.goto("/queues")
    page.get_by_role("button", name="Columns").click()
    page.locator(".columns-box").get_by_label("State").uncheck()
    expect(page.locator("#table th", has_text="State")).to_be_hidden()
    page.reload()
    expect(page.locator("#table tbody tr")).to_have_count(10)
    expect(page.locator("#table th", has_text="State")).to_be_hidden()


@pytest.mark.parametrize("at", ["beginning", "end"])
def test_a_small_screen_shows_that_there_is_nothing(page: Any, stub: Stub, at: str) -> None:
    """Wherever a table that is wider than the screen is scrolled to."""
    stub("/api/parameters/federation-upstream", listed([]))
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto("/federation")
    said = page.get_by_text("There are no upstreams")
    expect(said).to_be_visible()
    if at == "end":
        page.get_by_role("region", name="Table upstreamTable").evaluate(
            "element => element.scrollTo(9999, 0)"
        )
    expect(said).to_be_in_viewport(ratio=1)  # the table may be drawn anew meanwhile


def test_many_rows_are_ticked_at_once(page: Any, stub: Stub) -> None:
    stub("/api/queues", HUNDRED)
    page.goto("/queues")
    page.locator("#multi-check-all").check()
    expect(page.locator("#table tbody input:checked")).to_have_count(10)
    expect(page.locator("#multiselect-controls")).to_be_visible()
    expect(page.locator("#multi-count")).to_have_text("10 ticked")
    page.locator(".popup-close").click()
    expect(page.locator("#multiselect-controls")).to_be_hidden()
    expect(page.locator("#table tbody input:checked")).to_have_count(0)


def left(page: Any, name: str) -> int | None:
    """How many messages a queue has; None: it is not there."""
    answer = page.context.request.get(f"/api/queues/%2F/{name}")
    return answer.json()["messages"] if answer.ok else None


@pytest.mark.parametrize("what", ["delete", "purge"])
@pytest.mark.parametrize("answer", ["accept", "dismiss"])
def test_many_queues_are_emptied_only_after_a_question(page: Any, answer: str, what: str) -> None:
    names = [f"bulk-{what}-{answer}-{number}" for number in range(3)]
    for name in names:
        assert page.context.request.put(f"/api/queues/%2F/{name}", data={}).ok
        body = {
            "properties": {}, "routing_key": name, "payload": "x", "payload_encoding": "string",
        }  # fmt: skip
        assert page.context.request.post("/api/exchanges/%2F/amq.default/publish", data=body).ok
    asked: list[str] = []

    def on_dialog(dialog: Any) -> None:
        asked.append(dialog.message)
        getattr(dialog, answer)()

    page.on("dialog", on_dialog)
    page.goto(f"/queues#name=bulk-{what}-{answer}-")
    expect(page.locator("#table tbody tr")).to_have_count(3)
    page.locator("#multi-check-all").check()
    page.locator(f"#multi-{what}").click()
    if answer == "accept":
        expect(page.locator("#toast")).to_have_text(f"{what.title().removesuffix('e')}ed: 3")
    assert len(asked) == 1
    assert names[0] in asked[0] and "3 messages" in asked[0]
    gone = None if what == "delete" else 0
    assert [left(page, name) for name in names] == [gone if answer == "accept" else 1] * 3
    for name in names:
        page.context.request.delete(f"/api/queues/%2F/{name}")


def test_a_ticked_row_stays_ticked_when_the_list_is_asked_for_again(
    page: Any, stub: Stub, requests: Requests
) -> None:
    stub("/api/queues", HUNDRED)
    page.clock.install()
    page.goto("/queues")
    page.locator(".row-check").nth(3).check()
    page.clock.run_for(6_000)
    requests.wait("GET", "/api/queues", 2)
    page.wait_for_timeout(200)
    expect(page.locator("#table tbody input:checked")).to_have_count(1)


def test_the_chosen_columns_of_the_history_come_back(page: Any, stub: Stub) -> None:
    stub("/api/queues", HUNDRED)
    page.goto("/queues#sort=name&sort_reverse=true")
    expect(page.locator("#table tbody tr")).to_have_count(10)
    page.goto("/users")
    page.goto("/queues")
    expect(page).to_have_url(re.compile("sort=name"))


@pytest.mark.parametrize(
    ("address", "path", "beside", "row"),
    [
        ("/users", "/api/users", "permissions", {"name": "first", "tags": ""}),
        ("/vhosts", "/api/vhosts", "vhosts/first/permissions", {"name": "first"}),
        ("/shovels", "/api/parameters/shovel", "shovels",
         {"name": "first", "vhost": "/", "value": {}}),
    ],
)  # fmt: skip
def test_rows_do_not_wait_for_what_is_asked_beside_them(
    page: Any,
    stub: Stub,
    requests: Requests,
    address: str,
    path: str,
    beside: str,
    row: dict[str, Any],
) -> None:
    stub(path, listed([row]))
    held: list[Any] = []
    page.route(f"**/api/{beside}", lambda route: held.append(route))
    page.goto(address)
    cells = page.locator("#table tbody td", has_text="first")
    expect(cells).to_have_count(1)
    requests.wait("GET", f"/api/{beside}")
    page.wait_for_timeout(0)  # the request is handed over
    [asked] = held
    answers = {
        "/users": [{"user": "first", "vhost": "there"}], "/vhosts": [{"user": "there"}],
        "/shovels": [{"name": "first", "vhost": "/", "state": "there"}],
    }  # fmt: skip
    asked.fulfill(json=answers[address])
    expect(page.locator("#table tbody tr")).to_contain_text("there")
