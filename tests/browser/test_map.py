"""The map of a virtual host: few things as they are, many in groups, and its text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Requests, Stub, listed
from tests.browser.test_every_page import AXE
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.raw_connection import Address, Connection


def test_a_few_things_are_shown_as_they_are(page: Any, broker: Broker) -> None:
    api = Api(broker)
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    for method, path, body in (
        ("PUT", "vhosts/mapped", {}),
        ("PUT", "permissions/mapped/guest", rights),
        ("PUT", "exchanges/mapped/sales", {"type": "topic"}),
        ("PUT", "queues/mapped/<b>orders", {"durable": True}),
        ("POST", "bindings/mapped/e/sales/q/<b>orders", {"routing_key": "a.#"}),
    ):
        answer = api(method, f"/api/{path.replace('<', '%3C').replace('>', '%3E')}", body)
        assert answer.status in (201, 204), answer
    page.goto("/map")
    expect(page.locator("#map-vhost option")).not_to_have_count(0)
    page.locator("#map-vhost").select_option("mapped")
    expect(page.locator("#map-queue li")).to_have_text(["<b>orders"])
    expect(page.locator("#map-exchange")).to_contain_text("sales")
    expect(page.locator("#map path")).to_have_attribute("d", re.compile("^M"))
    page.get_by_text("As a table").click()
    expect(page.locator("#map-table tbody tr")).to_have_text(["sales<b>orders1a.#"])
    page.get_by_role("link", name="<b>orders").click()
    expect(page.locator("#pagename-label")).to_have_text("<b>orders in virtual host mapped")


def test_consumers_have_the_names_that_users_know(page: Any, broker: Broker) -> None:
    """What the client calls itself, else the tags of its consumers, else its address."""
    api, to = Api(broker), Address(broker.host, broker.port, vhost="named")
    api("PUT", "/api/vhosts/named")
    api("PUT", "/api/permissions/named/guest", dict.fromkeys(("configure", "write", "read"), ".*"))
    api("PUT", "/api/queues/named/q", {})
    with (
        Connection.open(to, name="billing <b>") as named,
        Connection.open(to) as tagged,
        Connection.open(to) as plain,
    ):
        named.channel().consume("q", "tag-of-billing")
        for tag in "abcd":
            tagged.channel().consume("q", f"worker-{tag}")
        plain.channel().consume("q", "")
        page.goto("/map")
        expect(page.locator("#map-vhost option")).not_to_have_count(0)
        page.locator("#map-vhost").select_option("named")

        clients = page.locator("#map-client li")
        expect(clients).to_have_count(3)
        address, workers = r"127\.0\.0\.1:\d+", "worker-a, worker-b, worker-c and 1 more"
        expect(clients.locator("a")).to_have_text(
            [re.compile(f"^{address}$"), "billing <b>", workers]
        )
        expect(clients.nth(1).locator("small")).to_have_text(
            re.compile(f"^tag-of-billing · {address}$")
        )
        expect(clients.nth(0).locator("small")).to_have_count(0)
        page.locator("#map-text").fill("of-billing")
        expect(clients).to_have_count(1)
        clients.get_by_role("link").click()
        expect(page.locator("#client")).to_contain_text("billing <b>")


@pytest.fixture
def many(page: Any, stub: Stub) -> Any:
    """The page with ten thousand queues of twenty beginnings; each answer is a page of 1000."""
    stub("/api/vhosts", [{"name": "/"}])
    stub("/api/exchanges/%2F", listed([{"name": f"x{n}"} for n in range(5)]))
    stub("/api/consumers/%2F", listed([]))

    def answer(route: Any) -> None:
        number = int(route.request.url.partition("page=")[2].partition("&")[0]) - 1
        names = [f"team{n % 20}.q{n}" for n in range(number * 1000, number * 1000 + 1000)]
        rows: list[dict[str, Any]] = [{"name": name, "messages": 1} for name in names]
        if "/api/bindings/" in route.request.url:
            of = {"source": "x1", "destination_type": "queue", "routing_key": "k"}
            rows = [of | {"destination": name} for name in names]
        route.fulfill(json=listed(rows, page_count=10))

    for kind in ("queues", "bindings"):
        page.route(f"**/api/{kind}/%2F?*", answer)
    page.goto("/map")
    return page


def test_ten_thousand_are_shown_in_groups(many: Any, requests: Requests) -> None:
    groups = many.locator("#map-queue li")
    expect(groups).to_have_count(20, timeout=20_000)
    expect(groups.first).to_have_text("team0.… (500)500 messages")
    assert len(requests.find("GET", "/api/queues/%2F")) == 10  # a page after the other
    button = groups.first.get_by_role("button")
    button.focus()
    many.keyboard.press("Enter")
    expect(many.locator("#map-queue li.inside")).to_have_count(100)
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(button).to_be_focused()
    many.keyboard.press("Enter")
    expect(many.locator("#map-queue li.inside")).to_have_count(0)
    many.locator("#map-text").fill("q77")
    expect(many.locator("#map-queue li").first).to_be_visible()
    tall = "document.querySelector('#map').parentElement.scrollHeight"
    before = many.evaluate(tall)
    many.locator("#map-text").fill("q7777")
    expect(many.locator("#map-queue li")).to_have_count(1)
    assert many.evaluate(tall) < before, "the lines of before make the map no larger"
    many.locator("#map-text").fill("q777")
    expect(many.locator("#map-queue li")).to_have_count(11)


def test_nothing_of_the_map_scrolls_sideways_on_small_screens(many: Any) -> None:
    """Kinds stand below each other, and the lines beside them."""
    many.set_viewport_size({"width": 360, "height": 800})
    expect(many.locator("#map-queue li")).to_have_count(20, timeout=20_000)
    many.get_by_text("As a table").click()
    expect(many.locator("#map-table tbody tr")).to_have_count(20)

    wider = """[...document.querySelectorAll(".table-scroll"), document.documentElement]
        .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.outerHTML)"""
    assert many.evaluate(wider) == []
    queue, client, lines = (
        many.locator(each).bounding_box() for each in ("#map-queue", "#map-client", "#map path")
    )
    assert client["y"] >= queue["y"] + queue["height"]
    assert queue["x"] + queue["width"] <= lines["x"] + 4, "but for the width of a line"
    assert lines["x"] + lines["width"] <= 360


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: `make test` installs it")
def test_everybody_can_read_the_map(many: Any) -> None:
    expect(many.locator("#map-queue li")).to_have_count(20, timeout=20_000)
    many.get_by_text("As a table").click()
    expect(many.locator("#map-table tbody tr")).to_have_count(20)
    many.evaluate(AXE.read_text())
    found = many.evaluate("axe.run('main').then(said => said.violations.map(each => each.id))")
    assert found == []
