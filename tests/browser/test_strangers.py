"""Who should not: pages of other sites, planted cookies, a tab that was left open."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Error, expect

from lavinmq.client import Client
from tests.browser.conftest import Requests, log_in
from tests.browser.test_login import cookie, fill
from tests.support.api import Api
from tests.support.broker import Broker

EVIL = "http://evil.example/"


def test_a_planted_cookie_is_not_what_one_logs_in_with(visitor: Any, broker: Broker) -> None:
    log_in(visitor)
    planted = cookie(visitor)
    visitor.goto("/login")
    fill(visitor, "guest", "guest")
    expect(visitor).to_have_url(f"{broker.http_url}/")
    assert cookie(visitor)["value"] != planted["value"]
    visitor.context.add_cookies([planted])
    assert visitor.context.request.get("/api/whoami").status == 401


def evil(page: Any, content: str) -> None:
    """Show a page of another site to somebody who is logged in."""
    page.route(f"{EVIL}**", lambda route: route.fulfill(content_type="text/html", body=content))
    page.goto(EVIL)


def test_no_other_site_can_frame_a_page(page: Any, broker: Broker) -> None:
    evil(page, f'<iframe src="{broker.http_url}/queues"></iframe>')
    page.wait_for_load_state("networkidle")
    framed = [frame for frame in page.frames if frame is not page.main_frame]
    assert [frame.locator("#username").count() for frame in framed] == [0]


def test_a_form_without_its_script_tells_nobody_a_password(visitor: Any) -> None:
    """A browser that has not got the script yet, or never gets it, would send a form by itself: to
    the address of the page, with all that was typed behind it."""
    visitor.route("**/pages/login.js", lambda route: route.abort())
    visitor.goto("/login")
    asked: list[str] = []
    visitor.on("request", lambda request: asked.append(request.url))

    visitor.get_by_label("Username").fill("guest")
    visitor.get_by_label("Password").fill("a-secret")
    visitor.evaluate("document.querySelector('button').click()")  # does not wait for what comes
    visitor.wait_for_timeout(300)

    assert [each for each in [*asked, visitor.url] if "a-secret" in each] == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_no_other_site_can_change_anything(page: Any, broker: Broker, kind: str) -> None:
    page.goto("/")
    evil(page, "<p>Look at this</p>")
    page.evaluate(
        "([url, kind]) => fetch(url, {method: 'POST', mode: 'no-cors', credentials: 'include',"
        " headers: {'Content-Type': kind}, body: '{\"queues\": []}'}).catch(() => 0)",
        [f"{broker.http_url}/api/definitions/upload", kind],
    )
    form = "<form method=post action='{}/api/definitions'><button>Win</button></form>"
    page.unroute_all()
    evil(page, form.format(broker.http_url))
    with page.expect_response(re.compile("/api/definitions")) as answer:
        page.get_by_role("button").click()
    assert answer.value.status in (401, 403)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_leads_upwards_is_told_and_nothing_else_is_touched(
    page: Any, broker: Broker, requests: Requests, name: str
) -> None:
    """Anybody may call a queue so; a browser would ask for what is above, and delete that."""
    with Client(broker.uri) as client:
        client.queue(name, durable=False)
    page.on("dialog", lambda dialog: dialog.accept())

    page.goto(f"/queue#vhost=%2F&name={name}")
    expect(page.locator("#page-error")).to_contain_text("lavinmqctl")
    page.locator("#deleteQueue button").click()
    expect(page.locator("#deleteQueue .form-error")).to_contain_text("lavinmqctl")
    page.goto("/queues#name=^[.]%2B$&use_regex=true")
    page.locator("#multi-check-all").check()
    page.locator("#multi-delete").click()
    expect(page.locator("#toast")).to_contain_text("lavinmqctl")

    assert [each.url for each in requests.all if each.method == "DELETE"] == []
    with Client(broker.uri) as client:
        client.delete_queue(name)


def test_a_log_in_that_ends_while_a_question_is_open_ends_the_page(
    page: Any, broker: Broker
) -> None:
    """The answer to the question changes nothing any more, and the page for logging in comes."""
    api = Api(broker)
    assert api("PUT", "/api/queues/%2F/of-a-question", {}).status == 201
    asked: list[str] = []

    def on_dialog(dialog: Any) -> None:
        asked.append(dialog.message)
        api("PUT", "/api/users/asked", {"password": "another", "tags": "management"})
        dialog.accept()

    api.as_user("asked", "management", **{"/": (".*", ".*", ".*")})
    page.context.clear_cookies()
    log_in(page, "asked", "asked-pw")
    page.on("dialog", on_dialog)
    page.goto("/queue#vhost=%2F&name=of-a-question")
    page.locator("#deleteQueue button").click()

    expect(page).to_have_url(re.compile("/login$"))
    assert len(asked) == 1
    assert api("DELETE", "/api/queues/%2F/of-a-question").status == 204


def test_a_user_who_loses_the_tag_sees_and_changes_nothing_more(page: Any, broker: Broker) -> None:
    api = Api(broker)
    api.as_user("untagged", "management", **{"/": (".*", ".*", ".*")})
    page.context.clear_cookies()
    log_in(page, "untagged", "untagged-pw")
    page.goto("/queues")
    expect(page.locator("#declare")).to_be_visible()
    form = page.locator("#declare")
    expect(form.get_by_label("Virtual host").locator("option")).not_to_have_count(0)
    form.get_by_label("Name").fill("of-nobody")

    kept = api("GET", "/api/users/untagged").json
    hashed = {each: kept[each] for each in ("password_hash", "hashing_algorithm")}
    assert api("PUT", "/api/users/untagged", {**hashed, "tags": ""}).status == 204
    with suppress(Error):  # the page may be left already
        page.evaluate("document.querySelector('#declare button')?.click()")

    expect(page).to_have_url(re.compile("/login$"))
    assert api("GET", "/api/queues/%2F/of-nobody").status == 404


def test_a_tab_that_was_left_open_ends_with_the_log_in(page: Any) -> None:
    left = page.context.new_page()
    left.goto("/queues")
    expect(left.locator("#table tbody tr").first).to_be_visible()
    page.goto("/")
    page.locator("#signoutLink").click()
    expect(page).to_have_url(re.compile("/login$"))
    expect(left).to_have_url(re.compile("/login$"), timeout=15_000)  # told so, or by its clock
    page.go_back()
    expect(page).to_have_url(re.compile("/login$"))


def test_a_page_that_is_refused_all_it_asks_for_is_left_once(page: Any, requests: Requests) -> None:
    page.route("**/api/**", lambda route: route.fulfill(status=401))
    page.goto("/")
    expect(page).to_have_url(re.compile("/login$"))
    assert len([each for each in requests.all if "/api/" in each.url]) > 1
    assert len(requests.find("DELETE", "/session")) == 1
