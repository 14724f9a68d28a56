"""Logging in and out: the form, the cookie, what the browser keeps of a user."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Requests, Stub, log_in, until
from tests.support.api import Api
from tests.support.broker import Broker


def cookie(page: Any) -> Any:
    return next((each for each in page.context.cookies() if each["name"] == "m"), None)


def classes(page: Any) -> set[str]:
    return set(page.evaluate("document.documentElement.className").split())


def fill(page: Any, name: str, password: str) -> None:
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button").click()


def test_without_a_log_in_one_is_asked_for(visitor: Any) -> None:
    visitor.goto("/")
    expect(visitor).to_have_url(re.compile("/login$"))


def test_the_page_keeps_to_its_own_policy(visitor: Any) -> None:
    said: list[str] = []
    visitor.on("console", lambda message: said.append(message.text))
    visitor.goto("/login")
    visitor.wait_for_load_state("networkidle")
    assert said == []


def test_logging_in_leads_to_the_overview(visitor: Any, broker: Broker) -> None:
    visitor.goto("/login")
    fill(visitor, "guest", "guest")
    expect(visitor).to_have_url(f"{broker.http_url}/")
    found = cookie(visitor)
    assert found["httpOnly"] and found["sameSite"] == "Lax"
    token = found["value"].partition(":")[2]
    assert b"guest" not in base64.b64decode(token + "==", "-_")


FETCHED = """
performance.getEntriesByType('resource').filter(({ name }) => /[/](lib|pages)[/]/.test(name))
  .map(({ name, transferSize }) => [name.split('/').slice(-2).join('/'), transferSize > 0])
"""
"""The modules that a page uses, and whether they came by the network."""
AHEAD = """
[...document.querySelectorAll('link[rel=modulepreload]')]
  .every(({ href }) => performance.getEntriesByName(href).length)
"""
"""Whether all that is fetched while somebody types has come: a busy machine may rest in between."""


def test_what_the_overview_needs_comes_while_one_logs_in(visitor: Any) -> None:
    visitor.goto("/login")
    until(visitor, AHEAD)
    before = dict(visitor.evaluate(FETCHED))
    fill(visitor, "guest", "guest")
    expect(visitor.locator("#username")).to_have_text("guest")
    modules = dict(visitor.evaluate(FETCHED))
    assert "lib/chart.js" in modules
    assert modules.keys() <= before.keys()
    assert [name for name, is_new in modules.items() if is_new] == []


def test_a_wrong_password_is_told_in_the_page(visitor: Any) -> None:
    visitor.goto("/login")
    fill(visitor, "guest", "wrong")
    expect(visitor.locator("#login-error")).to_have_text("Authentication failure")
    assert cookie(visitor) is None


@pytest.mark.parametrize("password", ["päß wörd", "пароль", 'a:b"c%', "🐇"])
def test_any_name_and_password_will_do(visitor: Any, broker: Broker, password: str) -> None:
    name = f"jürgen-{ord(password[0])}"
    Api(broker)("PUT", f"/api/users/{quote(name)}", {"password": password, "tags": "management"})
    visitor.goto("/login")
    fill(visitor, name, password)
    expect(visitor.locator("#username")).to_have_text(name)


def test_name_and_password_in_the_address_log_in_and_do_not_stay(
    visitor: Any, broker: Broker
) -> None:
    visitor.goto("/login#username=guest&password=guest")
    expect(visitor).to_have_url(f"{broker.http_url}/")
    visitor.go_back()
    assert "password" not in visitor.url


def test_an_error_in_the_address_is_shown_and_taken_away(visitor: Any) -> None:
    visitor.goto("/login?error=<b>State mismatch</b>")
    expect(visitor.locator("#login-error")).to_have_text("<b>State mismatch</b>")
    assert visitor.url.endswith("/login")


def test_a_log_in_that_is_over_ends_the_page(page: Any, stub: Stub) -> None:
    stub("/api/whoami", status=401)
    page.goto("/")
    expect(page).to_have_url(re.compile("/login$"))
    assert cookie(page) is None


def test_who_am_i_is_asked_once(page: Any, requests: Requests) -> None:
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    page.goto("/queues")
    expect(page.locator("#username")).to_have_text("guest")
    assert len(requests.find("GET", "/api/whoami")) == 1


def test_who_am_i_is_asked_again_when_nobody_remembers(page: Any, requests: Requests) -> None:
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    page.evaluate("localStorage.removeItem('lmq.whoami')")
    page.goto("/queues")
    requests.wait("GET", "/api/whoami", 2)


def test_no_secret_is_remembered(page: Any, stub: Stub) -> None:
    who = {"name": "guest", "tags": "administrator", "password_hash": "x", "hashing_algorithm": "y"}
    stub("/api/whoami", who)
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    kept = page.evaluate("localStorage.getItem('lmq.whoami')")
    assert "guest" in kept
    assert "password_hash" not in kept
    assert "hashing_algorithm" not in kept


def test_signing_out_ends_the_log_in(page: Any) -> None:
    page.goto("/")
    before = cookie(page)
    page.locator("#signoutLink").click()
    expect(page).to_have_url(re.compile("/login$"))
    assert cookie(page) is None
    page.context.add_cookies([before])  # a copy that somebody has kept
    assert page.context.request.get("/api/whoami").status == 401


def test_signing_out_everywhere_ends_the_others_too(
    page: Any, browser: Any, broker: Broker
) -> None:
    other = browser.new_context(base_url=broker.http_url)
    log_in(other.new_page())
    page.goto("/")
    page.locator("#signout-everywhere").click()
    expect(page).to_have_url(re.compile("/login$"))
    assert other.request.get("/api/whoami").status == 401
    other.close()


def identity(page: Any, name: str) -> None:
    """Give the browser what a log-in at the issuer leaves behind; the token is not ours to make."""
    page.route("**/api/overview", lambda route: route.fulfill(json={}))
    page.route("**/api/vhosts", lambda route: route.fulfill(json=[]))
    value = "|oauth:" + quote(base64.b64encode(f"{name}:".encode()).decode(), safe="")
    url = page.context.request.get("/").url
    page.context.add_cookies([{"name": "m", "value": value, "url": url}])


def test_a_log_in_elsewhere_is_offered_where_there_is_one(visitor: Any, stub: Stub) -> None:
    visitor.goto("/login")
    expect(visitor.locator("#sso-btn")).to_be_hidden()
    stub("/session", {"password": True, "sso": True})
    stub("/oauth/authorize", {"reason": "OAuth authorization failed"}, status=502)
    visitor.reload()
    visitor.get_by_role("link", name="Sign in with SSO").click()
    expect(visitor.locator("#login-error")).to_have_text("OAuth authorization failed")


def test_the_name_of_an_issuer_is_shown_whole(page: Any, stub: Stub) -> None:
    stub("/api/whoami", {"name": "alice", "tags": "management"})
    identity(page, "f:realm:alice")
    page.goto("/")
    expect(page.locator("#username")).to_have_text("f:realm:alice")


def test_signing_out_at_an_issuer(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/whoami", {"name": "alice", "tags": "management"})
    stub("/oauth/logout", {})
    identity(page, "f:realm:alice")
    page.goto("/")
    expect(page.locator("#username")).to_have_text("f:realm:alice")
    page.locator("#signoutLink").click()
    requests.wait("GET", "/oauth/logout")


def test_tags_become_classes(page: Any, stub: Stub) -> None:
    stub("/api/whoami", {"name": "guest", "tags": "administrator, monitoring"})
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    assert {"user-is-administrator", "user-is-monitoring"} <= classes(page)


def test_tags_of_before_go(page: Any, stub: Stub) -> None:
    stub("/api/whoami", {"name": "guest", "tags": "monitoring"})
    page.add_init_script("localStorage.setItem('lmq.stateclasses', 'user-is-administrator')")
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    assert {name for name in classes(page) if name.startswith("user-is-")} == {"user-is-monitoring"}


def test_no_tags_are_no_classes(page: Any, stub: Stub) -> None:
    stub("/api/whoami", {"name": "guest", "tags": ""})
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    assert not [name for name in classes(page) if name.startswith("user-is-")]


def test_signing_out_forgets_the_tags(page: Any) -> None:
    page.goto("/")
    expect(page.locator("#username")).to_have_text("guest")
    page.locator("#signoutLink").click()
    expect(page).to_have_url(re.compile("/login$"))
    assert not [name for name in classes(page) if name.startswith("user-is-")]
    assert page.evaluate("[localStorage.getItem('lmq.whoami'), sessionStorage.length]") == [None, 0]
