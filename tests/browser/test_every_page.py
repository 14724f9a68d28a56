"""What holds on every page: for people without a mouse, for each role, with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NODE_MODULES, log_in
from tests.support.api import Api
from tests.support.broker import Broker

LISTS = (
    "/", "/nodes", "/logs", "/connections", "/channels", "/consumers", "/exchanges", "/queues",
    "/map", "/shovels", "/federation", "/vhosts", "/policies", "/operator-policies", "/users",
)  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{root}}\u202e%2F/" + "é" * 60
"""Markup, quotes, words of our own templates, right-to-left text; nearly too long for a name."""


def details(name: str = HOSTILE) -> list[str]:
    """The addresses of pages about one thing."""
    there = f"vhost={quote(name, safe='')}&name={quote(name, safe='')}"
    return [
        f"/queue#{there}", f"/queue#{there}&tab=consumers", f"/queue#{there}&tab=bindings",
        f"/queue#{there}&tab=messages", f"/stream#{there.replace('&name=', '&name=s')}",
        f"/exchange#{there}", f"/unacked#{there}", f"/vhost#{there}", f"/user#{there}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def hostile(broker: Broker) -> None:
    """A user, a virtual host, an exchange, a queue, a stream and policies of that name."""
    api, name = Api(broker), quote(HOSTILE, safe="")
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    policy = {"pattern": HOSTILE[:3], "definition": {"dead-letter-exchange": HOSTILE}}
    binding = {"routing_key": HOSTILE, "arguments": {HOSTILE: HOSTILE}}
    shovel = {"src-uri": "amqp://", "dest-uri": "amqp://"}
    shovel |= dict.fromkeys(("src-queue", "dest-queue"), HOSTILE)
    exchange = {"type": "topic", "arguments": {"x-" + HOSTILE: HOSTILE}}
    for method, path, body in (
        ("PUT", f"vhosts/{name}", {"description": HOSTILE}),
        ("PUT", f"users/{name}", {"password": HOSTILE, "tags": "management"}),
        ("PUT", f"permissions/{name}/guest", rights),
        ("PUT", f"permissions/{name}/{name}", {**rights, "configure": "[\"'<b>]"}),
        ("PUT", f"exchanges/{name}/{name}", exchange),
        ("PUT", f"queues/{name}/{name}", {"durable": True, "arguments": {"x-" + HOSTILE: 1}}),
        ("PUT", f"queues/{name}/s{name}", stream),
        ("PUT", f"policies/{name}/{name}", policy),
        ("PUT", f"parameters/shovel/{name}/{name}", {"value": shovel}),
        ("POST", f"bindings/{name}/e/{name}/q/{name}", binding),
    ):
        answer = api(method, f"/api/{path}", body)
        assert answer.status in (201, 204), (path, answer)


@pytest.fixture
def watched(page: Any) -> Iterator[Any]:
    """A page on which no script of a name may run, and no text become markup."""
    dialogs: list[str] = []
    said: list[str] = []

    def on_dialog(dialog: Any) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", on_dialog)
    page.on("console", lambda message: said.append(message.text))
    yield page
    assert dialogs == []
    assert [text for text in said if "Content Security" in text or "Trusted" in text] == []


def settled(page: Any) -> None:
    """Wait until what is on a page has been asked for and shown."""
    expect(page.locator("#username")).not_to_be_empty()
    page.wait_for_timeout(400)


@pytest.mark.parametrize("width", [360, 1400])
def test_hostile_names_are_text(watched: Any, hostile: None, width: int) -> None:
    watched.set_viewport_size({"width": width, "height": 800})
    for address in (*LISTS, *details()):
        watched.goto("about:blank")
        watched.goto(address)
        settled(watched)
        assert watched.locator("main img").count() == 0, address
        assert watched.evaluate("document.documentElement.scrollWidth") <= width, address
    expect(watched.locator("#page-error")).to_be_hidden()


def test_a_hostile_name_can_be_chosen_as_virtual_host(watched: Any, hostile: None) -> None:
    watched.goto("/queues")
    expect(watched.locator("#userMenuVhost option", has_text="<img")).to_have_count(1)
    with watched.expect_navigation():
        watched.locator("#userMenuVhost").select_option(HOSTILE)
    expect(watched.locator("#table tbody tr")).to_have_count(2)
    watched.locator("#table a", has_text=HOSTILE).first.click()
    expect(watched.locator("#pagename-label")).to_have_text(f"{HOSTILE} in virtual host {HOSTILE}")
    expect(watched.locator("#q-ready")).to_have_text("0")


def test_a_hostile_user_logs_in(visitor: Any, hostile: None) -> None:
    log_in(visitor, HOSTILE, HOSTILE)
    visitor.goto("/")
    expect(visitor.locator("#username")).to_have_text(HOSTILE)


# --- accessibility ----------------------------------------------------------------------------

AXE = NODE_MODULES / "axe-core" / "axe.min.js"
OPEN = ("/login", "/401", "/404", "/docs/")


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: `make test` installs it")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everybody_can_use_every_page(page: Any, hostile: None, theme: Any) -> None:
    page.emulate_media(color_scheme=theme)
    found = {}
    for address in (*LISTS, *details(), *OPEN):
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_timeout(500)
        page.evaluate(AXE.read_text())
        violations = page.evaluate(
            "axe.run().then(said => said.violations.map(each =>"
            " each.id + ' ' + each.nodes.map(node => node.target.join(' ')).slice(0, 4)))"
        )
        if violations:
            found[address[:20]] = violations
    assert found == {}


def test_everything_of_the_menu_is_reached_with_the_keyboard(page: Any) -> None:
    page.goto("/queues")
    settled(page)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.getAttribute('href')"
            )
        )
    assert {"toggle-menu", "live-toggle", "live-rate", "userMenuVhost", "theme-dark", "signoutLink",
            "nodes", "users", "docs/", "multi-check-all"} <= reached  # fmt: skip


# --- roles ------------------------------------------------------------------------------------

ROLES = ("monitoring", "management", "policymaker", "impersonator")
CHANGING = (
    "#declare", "#addExchange", "#createVhost", "#createUser", "#createPolicy", "#createShovel",
    "#createUpstream", "#importDefinitions", "#exportDefinitions", "#gc-btn", "#multi-delete",
)  # fmt: skip
OFFERED: dict[str, set[str]] = {
    "monitoring": set(),
    "management": {"#declare", "#addExchange"},
    "policymaker": {
        "#declare",
        "#addExchange",
        "#createPolicy",
        "#createShovel",
        "#createUpstream",
    },
    "impersonator": set(),
}


@pytest.mark.parametrize("role", ROLES)
def test_a_user_is_offered_what_the_api_would_do(visitor: Any, broker: Broker, role: str) -> None:
    name = f"page-{role}"
    Api(broker).as_user(name, role, **{"/": (".*", ".*", ".*")})
    log_in(visitor, name, f"{name}-pw")
    offered, hidden = set(), []
    for address in LISTS:
        visitor.goto(address)
        settled(visitor)
        assert not visitor.url.endswith("/login"), address
        offered |= {each for each in CHANGING if visitor.locator(each).is_visible()}
    expect(visitor.locator("#menu-content")).to_be_visible()
    for page in ("users", "logs", "policies", "shovels"):
        if not visitor.locator(f"#menu-content li.{page}").is_visible():
            hidden.append(page)
    offered -= {"#createPolicy"} if role != "policymaker" else set()
    assert offered == OFFERED[role]
    expected = ["users", "logs"] + ([] if role == "policymaker" else ["policies", "shovels"])
    assert hidden == expected


@pytest.mark.parametrize("role", ROLES)
def test_a_list_that_is_refused_says_so(visitor: Any, broker: Broker, role: str) -> None:
    name = f"page-refused-{role}"
    Api(broker).as_user(name, role)
    log_in(visitor, name, f"{name}-pw")
    visitor.goto("/users")
    expect(visitor.locator("#table-error")).to_contain_text("Access denied")
    visitor.goto("/logs")
    expect(visitor.locator("#log-denied")).to_be_visible()


def test_a_refusal_of_an_action_is_told_in_the_page(visitor: Any, broker: Broker) -> None:
    Api(broker).as_user("page-limited", "management", **{"/": ("^mine", ".*", ".*")})
    log_in(visitor, "page-limited", "page-limited-pw")
    visitor.goto("/queues")
    form = visitor.locator("#declare")
    expect(form.get_by_label("Virtual host").locator("option")).not_to_have_count(0)
    form.get_by_label("Name").fill("yours")
    form.get_by_role("button").click()
    expect(form.locator(".form-error")).to_contain_text("permission")


def test_a_script_in_a_body_is_shown_as_text(page: Any, hostile: None) -> None:
    path = f"/api/exchanges/{quote(HOSTILE, safe='')}/amq.default/publish"
    properties = {"headers": {HOSTILE: [HOSTILE, {HOSTILE: 1}]}, "message_id": HOSTILE}
    body = {
        "properties": properties, "routing_key": HOSTILE, "payload": HOSTILE * 9,
        "payload_encoding": "string",
    }  # fmt: skip
    assert page.context.request.post(path, data=body).ok
    page.goto(details()[3])
    page.get_by_role("button", name="Get messages").click()
    expect(page.locator("#messages pre")).to_have_text(HOSTILE * 9)
    assert page.locator("main img").count() == 0
