"""One stream of changes drives a page: numbers, tables and charts."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Requests
from tests.support.api import Api
from tests.support.broker import Broker

FAST = "localStorage.setItem('lmq.rate', '1000')"


@pytest.fixture
def fast(page: Any) -> Any:
    """A page that is told each second."""
    page.add_init_script(FAST)
    return page


def told(request: Any) -> list[str]:
    """What a stream is asked to tell."""
    return parse_qs(urlsplit(request.url).query)["view"]


def n_live(requests: Requests) -> int:
    return len(requests.find("GET", "/api/live"))


def test_a_list_follows_without_asking(fast: Any, requests: Requests, broker: Broker) -> None:
    fast.goto("/queues")
    assert told(requests.wait("GET", "/api/live")) == ["queues?page=1&page_size=100"]

    Api(broker)("PUT", "/api/queues/%2F/told-by-the-stream", {})

    expect(fast.locator("#table")).to_contain_text("told-by-the-stream")
    fast.route("**/api/queues?*", lambda route: route.abort())
    Api(broker)("DELETE", "/api/queues/%2F/told-by-the-stream")
    expect(fast.locator("#table")).not_to_contain_text("told-by-the-stream")
    assert n_live(requests) == 1


def test_all_that_a_page_shows_is_told_by_one_stream(fast: Any, requests: Requests) -> None:
    fast.goto("/")

    assert told(requests.wait("GET", "/api/live")) == ["overview", "advice"]
    expect(fast.locator("#uptime")).not_to_be_empty()
    before = fast.locator("#uptime").inner_text()
    expect(fast.locator("#uptime")).not_to_have_text(before)
    assert n_live(requests) == 1


def test_the_stream_tells_what_the_address_says(fast: Any, requests: Requests) -> None:
    fast.goto("/queues#name=^x&use_regex=true")
    assert told(requests.wait("GET", "/api/live")) == [
        "queues?page=1&page_size=100&name=%5Ex&use_regex=true"
    ]

    fast.locator(".filter-table").fill("^y")

    assert told(requests.wait("GET", "/api/live", 2)) == [
        "queues?page=1&page_size=100&name=%5Ey&use_regex=true"
    ]


def test_holding_and_going_on_close_and_open_the_stream(fast: Any, requests: Requests) -> None:
    fast.goto("/queues")
    requests.wait("GET", "/api/live")
    with fast.expect_event("requestfailed", lambda request: "/api/live" in request.url):
        fast.get_by_role("button", name="Hold").click()

    fast.get_by_role("button", name="Go on").click()

    requests.wait("GET", "/api/live", 2)


def test_a_page_asks_when_it_is_told_nothing(fast: Any, requests: Requests, broker: Broker) -> None:
    """A proxy keeps the stream back, or the broker has too many."""
    fast.route("**/api/live?*", lambda route: route.fulfill(status=503, json={}))
    fast.goto("/queues")
    requests.wait("GET", "/api/live")

    Api(broker)("PUT", "/api/queues/%2F/asked-for", {})

    expect(fast.locator("#table")).to_contain_text("asked-for")
    requests.wait("GET", "/api/queues", 3)
    assert n_live(requests) == 1


def test_what_goes_is_told(fast: Any, requests: Requests, broker: Broker) -> None:
    Api(broker)("PUT", "/api/queues/%2F/going-away", {})
    fast.goto("/queue#vhost=%2F&name=going-away")
    requests.wait("GET", "/api/live")

    Api(broker)("DELETE", "/api/queues/%2F/going-away")

    expect(fast.locator("#page-error")).to_contain_text("there is no queue")
