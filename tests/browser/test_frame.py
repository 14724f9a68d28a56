"""The frame of every page: theme, version, virtual hosts, menu."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import VHOSTS, Requests, Stub, listed, until
from tests.browser.test_login import classes, fill

MENU = {
    "/": "Overview", "/nodes": "Nodes", "/logs": "Logs", "/connections": "Connections",
    "/channels": "Channels", "/consumers": "Consumers", "/mqtt": "MQTT", "/exchanges": "Exchanges",
    "/queues": "Queues", "/map": "Map", "/shovels": "Shovels", "/federation": "Federation",
    "/vhosts": "Virtual hosts", "/policies": "Policies", "/operator-policies": "Operator policies",
    "/users": "Users",
}  # fmt: skip


def test_the_overview_keeps_to_its_own_policy(page: Any) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto("/")
    expect(page.locator("#queues")).not_to_have_text("–")
    assert said == []


def test_the_theme_is_that_of_the_system_at_first(page: Any) -> None:
    page.goto("/")
    expect(page.locator("#theme-system")).to_have_class(re.compile("active"))


@pytest.mark.parametrize(("chosen", "other"), [("light", "dark"), ("dark", "light")])
def test_a_theme_can_be_chosen(page: Any, chosen: str, other: str) -> None:
    page.goto("/")
    page.locator(f"#theme-{chosen}").click()
    assert f"theme-{chosen}" in classes(page)
    assert f"theme-{other}" not in classes(page)
    expect(page.locator(f"#theme-{chosen}")).to_have_class(re.compile("active"))


def test_the_system_can_be_chosen_again(page: Any) -> None:
    page.goto("/")
    page.locator("#theme-dark").click()
    page.locator("#theme-system").click()
    assert "system" in classes(page)
    expect(page.locator("#theme-system")).to_have_class(re.compile("active"))


def test_the_theme_is_kept_on_other_pages(page: Any) -> None:
    page.goto("/")
    page.locator("#theme-dark").click()
    page.goto("/queues")
    assert "theme-dark" in classes(page)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_theme_follows_the_system(page: Any, scheme: Any) -> None:
    page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    page.goto("/")
    page.emulate_media(color_scheme=scheme)
    expect(page.locator("html")).to_have_class(re.compile(f"theme-{scheme}"))


def test_a_chosen_theme_does_not_follow_the_system(page: Any) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/")
    page.locator("#theme-light").click()
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert "theme-light" in classes(page)
    assert "theme-dark" not in classes(page)


def test_the_version_is_what_the_api_says(page: Any, stub: Stub) -> None:
    stub("/api/queues", listed([]), headers={"LavinMQ-Version": "9.9.9"})
    for path in ("/api/whoami", "/api/vhosts"):
        stub(path, {"name": "guest", "tags": ""}, headers={"LavinMQ-Version": "9.9.9"})
    page.goto("/queues")
    expect(page.locator("#version")).to_have_text("9.9.9")
    assert page.evaluate("sessionStorage.getItem('lavinmq_version')") == "9.9.9"


def test_the_version_is_there_without_an_answer(page: Any) -> None:
    page.add_init_script("sessionStorage.setItem('lavinmq_version', '8.8.8')")
    page.route("**/api/**", lambda route: route.abort())
    page.goto("/queues")
    expect(page.locator("#version")).to_have_text("8.8.8")


def test_a_broker_of_another_version_brings_its_own_pages(page: Any) -> None:
    versions = iter(["1.0.0"] + ["2.0.0"] * 100)

    def answer(route: Any) -> None:
        route.fulfill(json=listed([]), headers={"LavinMQ-Version": next(versions)})

    for path in ("whoami", "vhosts"):
        page.route(f"**/api/{path}", lambda route: route.fulfill(json={"name": "x", "tags": ""}))
    page.route("**/api/queues?*", answer)
    page.clock.install()
    page.goto("/queues")
    expect(page.locator("#version")).to_have_text("1.0.0")
    with page.expect_navigation():
        page.clock.run_for(6_000)
    expect(page.locator("#version")).to_have_text("2.0.0")


def test_each_virtual_host_can_be_chosen(page: Any, stub: Stub) -> None:
    stub("/api/vhosts", VHOSTS)
    page.goto("/queues")
    expect(page.locator("#userMenuVhost option")).to_have_text(["All", "bar", "foo"])


def test_a_chosen_virtual_host_stays_chosen(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/vhosts", VHOSTS)
    stub("/api/queues/foo", listed([]))
    page.goto("/queues")
    expect(page.locator("#userMenuVhost option")).to_have_count(3)
    with page.expect_event("load"):
        page.locator("#userMenuVhost").select_option("foo")
    expect(page.locator("#userMenuVhost")).to_have_value("foo")
    requests.wait("GET", "/api/queues/foo")


@pytest.mark.parametrize("address", MENU)
def test_the_menu_shows_where_one_is(page: Any, address: str) -> None:
    page.goto(address)
    name = address.strip("/") or "overview"
    colour = page.locator("#menu").evaluate(
        "menu => getComputedStyle(menu).getPropertyValue('--highlight-color')"
    )
    item = page.locator(f"#menu-content li.{name}")
    expect(item).to_have_text(MENU[address])
    expect(item).to_have_css("background-color", colour.strip())
    other = page.locator(f"#menu-content li.{'queues' if name != 'queues' else 'users'}")
    expect(other).not_to_have_css("background-color", colour.strip())


def test_the_menu_says_what_it_can(page: Any) -> None:
    page.goto("/")
    button = page.get_by_role("button", name="Collapse sidebar")
    button.hover()
    expect(page.get_by_text("Collapse sidebar")).to_be_visible()


def test_the_menu_can_be_small(page: Any) -> None:
    page.goto("/")
    page.get_by_role("button", name="Collapse sidebar").click()
    assert "menu-collapsed" in classes(page)
    for each in (".menu-group-label", ".menu-item-label"):
        expect(page.locator(each).first).to_be_hidden()
    expect(page.get_by_role("button", name="Expand sidebar")).to_be_visible()
    page.mouse.move(700, 700)
    page.locator("#menu-content li.queues a").hover()
    expect(page.locator("li.queues .menu-item-label")).to_be_visible()
    page.goto("/queues")
    assert "menu-collapsed" in classes(page)


def test_one_link_alone_is_called_overview(page: Any) -> None:
    page.goto("/queues")
    expect(page.get_by_role("link", name="Overview")).to_have_count(1)


def test_updates_can_be_held(page: Any, requests: Requests) -> None:
    page.clock.install()
    page.goto("/queues")
    requests.wait("GET", "/api/queues")
    expect(page.locator(".table-page-info")).not_to_be_empty()
    page.get_by_role("button", name="Hold").click()
    n = len(requests.find("GET", "/api/queues"))
    page.clock.run_for(60_000)
    page.wait_for_timeout(200)
    assert len(requests.find("GET", "/api/queues")) == n
    page.get_by_role("button", name="Go on").click()
    requests.wait("GET", "/api/queues", n + 1)


def test_a_lost_broker_is_told_and_comes_back(page: Any) -> None:
    page.clock.install()
    page.goto("/queues")
    expect(page.locator(".table-page-info")).not_to_be_empty()
    for path in ("queues", "live"):
        page.route(f"**/api/{path}?*", lambda route: route.abort())
    page.clock.run_for(6_000)
    expect(page.locator("#lost")).to_be_visible()
    page.unroute("**/api/queues?*")
    page.clock.run_for(6_000)
    expect(page.locator("#lost")).to_be_hidden()


def test_who_it_is_and_virtual_hosts_are_asked_for_until_there_is_an_answer(page: Any) -> None:
    """Without them a page would offer nothing until it is loaded anew."""
    lost: list[str] = []

    def lose_once(route: Any) -> None:
        name = route.request.url.rpartition("/")[2]
        if name in lost:
            route.continue_()
        else:
            lost.append(name)
            route.abort()

    for name in ("whoami", "vhosts"):
        page.route(f"**/api/{name}", lose_once)
    page.goto("/queues")
    expect(page.locator("#username")).to_have_text("guest")
    expect(page.locator("#vhost option")).not_to_have_count(0)
    expect(page.locator("#userMenuVhost option")).not_to_have_count(1)
    assert sorted(lost) == ["vhosts", "whoami"]


@pytest.mark.parametrize("address", ["/queues", "/login"])
def test_a_page_without_a_script_of_its_own_is_loaded_anew(page: Any, address: str) -> None:
    lost: list[str] = []

    def lose_once(route: Any) -> None:
        if lost:
            route.continue_()
        else:
            lost.append(route.request.url)
            route.abort()

    page.route("**/lib/dom.js", lose_once)
    page.goto(address)
    if address == "/login":
        until(page, "sessionStorage.getItem('lmq.anew') === null")
        fill(page, "guest", "guest")
    expect(page.locator("#username")).to_have_text("guest")
    assert len(lost) == 1
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_page_that_never_gets_its_scripts_says_so(page: Any) -> None:
    page.route("**/lib/dom.js", lambda route: route.abort())
    page.goto("/queues")
    expect(page.get_by_role("alert")).to_have_text(
        "The broker did not send all of this page. Load it anew."
    )
    page.unroute("**/lib/dom.js")
    page.reload()
    expect(page.locator("#username")).to_have_text("guest")
    until(page, "sessionStorage.getItem('lmq.anew') === null")


def test_a_small_screen_has_a_menu(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto("/users")
    page.locator("#menu-button").click()
    expect(page.locator("#menu-content li.queues a")).to_be_visible()
