"""What holds on every page: for people without a mouse, for each role, with hostile names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NODE_MODULES, TWO_FRAMES, Visit, log_in, opened
from tests.browser.test_login import cookie
from tests.conftest import IS_NIGHTLY
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.raw_connection import Address, Connection

LISTS = (
    "/", "/nodes", "/logs", "/connections", "/channels", "/consumers", "/mqtt", "/exchanges",
    "/queues", "/map", "/shovels", "/federation", "/vhosts", "/policies", "/operator-policies",
    "/users",
)  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{root}}\u202e%2F/" + "é" * 60
"""Markup, quotes, words of our own templates, right-to-left text; nearly too long for a name."""


def details(name: str = HOSTILE) -> list[str]:
    """The addresses of pages about one thing."""
    there = f"vhost={quote(name, safe='')}&name={quote(name, safe='')}"
    return [
        f"/queue#{there}", f"/queue#{there}&tab=consumers", f"/queue#{there}&tab=bindings",
        f"/queue#{there}&tab=messages", f"/stream#{there.replace('&name=', '&name=s')}",
        f"/exchange#{there}", f"/unacked#{there.replace('&name=', '&name=u')}", f"/vhost#{there}",
        f"/user#{there}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def hostile(broker: Broker) -> Iterator[list[str]]:
    """A user, a virtual host, an exchange, queues, a stream, policies and bridges of that name, and
    a client that calls itself and its consumer so. Yields: the pages about them."""
    api, name = Api(broker), quote(HOSTILE, safe="")
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    policy = {"pattern": HOSTILE[:3], "definition": {"dead-letter-exchange": HOSTILE}}
    binding = {"routing_key": HOSTILE, "arguments": {HOSTILE: HOSTILE}}
    shovel = {"src-uri": "amqp://", "dest-uri": "amqp://"}
    shovel |= dict.fromkeys(("src-queue", "dest-queue"), HOSTILE)
    upstream = {"uri": "amqp://", "exchange": HOSTILE, "consumer-tag": HOSTILE}
    exchange = {"type": "topic", "arguments": {"x-" + HOSTILE: HOSTILE}}
    for method, path, body in (
        ("PUT", f"vhosts/{name}", {"description": HOSTILE}),
        ("PUT", f"users/{name}", {"password": HOSTILE, "tags": "management"}),
        ("PUT", f"permissions/{name}/guest", rights),
        ("PUT", f"permissions/{name}/{name}", {**rights, "configure": "[\"'<b>]"}),
        ("PUT", f"exchanges/{name}/{name}", exchange),
        ("PUT", f"queues/{name}/{name}", {"durable": True, "arguments": {"x-" + HOSTILE: 1}}),
        ("PUT", f"queues/{name}/s{name}", stream),
        ("PUT", f"queues/{name}/u{name}", {}),
        ("PUT", f"policies/{name}/{name}", policy),
        ("PUT", f"operator-policies/{name}/{name}", {**policy, "definition": {"expires": 10**9}}),
        ("PUT", f"parameters/shovel/{name}/{name}", {"value": shovel}),
        ("PUT", f"parameters/federation-upstream/{name}/{name}", {"value": upstream}),
        ("POST", f"bindings/{name}/e/{name}/q/{name}", binding),
    ):
        answer = api(method, f"/api/{path}", body)
        assert answer.status in (201, 204), (path, answer)
    there = Address(broker.host, broker.port, HOSTILE, HOSTILE, HOSTILE)
    with Connection.open(there, name=HOSTILE) as connection:
        channel = connection.channel()
        channel.consume(f"u{HOSTILE}", HOSTILE)
        channel.publish("", f"u{HOSTILE}", b"it is never acknowledged")
        channel.receive(5)
        about = [
            f"/{kind}#name={quote(each['name'], safe='')}"
            for kind in ("connection", "channel")
            for each in api("GET", f"/api/vhosts/{name}/{kind}s").json
        ]
        assert len(about) == 2
        yield [*details(), *about]


AXE = NODE_MODULES / "axe-core" / "axe.min.js"
OPEN = ("/login", "/401", "/404", "/docs/")
COLOURS = "{runOnly: ['color-contrast', 'link-in-text-block']}"
THEMES = (("light", ""), ("dark", COLOURS))
"""Dark pages differ in their colours alone."""
VIOLATIONS = (
    "axe.run(%s).then(said => said.violations.map(each =>"
    " each.id + ' ' + each.nodes.map(node => node.target.join(' ')).slice(0, 4)))"
)
TRANSITIONS = (
    "Promise.allSettled(document.getAnimations().filter(each =>"
    " each.effect.getComputedTiming().endTime < Infinity).map(each => each.finished))"
)
WIDE = 3840


@dataclass
class Seen:
    """What was seen on all pages."""

    dialogs: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    images: dict[str, int] = field(default_factory=dict)
    overflow: dict[tuple[str, int], int] = field(default_factory=dict)
    violations: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    kept: str = ""
    token: str = ""

    def listen(self, page: Any) -> None:
        """Note from now on what a page asks, is refused, says, and what its dialogs ask."""
        page.on("dialog", self._dismiss)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("response", self._answered)

    def measure(self, page: Any, address: str, width: int) -> None:
        """Note how far a page reaches at a width, if it is too far."""
        page.set_viewport_size({"width": width, "height": 1000})
        page.evaluate(TWO_FRAMES)
        reached = page.evaluate("document.documentElement.scrollWidth")
        if reached > width:
            self.overflow[address, width] = reached

    def examine(self, page: Any, address: str, themes: Sequence[tuple[str, str]] = THEMES) -> None:
        """Note what keeps people from using a page; nothing without a theme."""
        if not themes:
            return
        page.evaluate(AXE.read_text())
        for theme, rules in themes:
            page.emulate_media(color_scheme=theme)
            page.evaluate(TWO_FRAMES)  # a script learns of it, and colours begin to change
            page.evaluate(TRANSITIONS)
            if found := page.evaluate(VIOLATIONS % rules):
                self.violations[address[:20], theme] = found
        page.emulate_media(color_scheme="light")

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _answered(self, answer: Any) -> None:
        if answer.status in (401, 403):
            self.refused.append(answer.url)


@pytest.fixture(scope="module")
def seen(browser: Any, broker: Broker, hostile: list[str]) -> Iterator[Seen]:
    """What guest sees on every page. It is looked at once, for many questions."""
    with opened(browser, broker) as page:
        log_in(page)
        found, visit = Seen(token=cookie(page)["value"].partition(":")[2]), Visit(page)
        found.listen(page)
        page.emulate_media(color_scheme="light")
        for number, address in enumerate((*LISTS, *hostile, *OPEN)):
            visit(address)
            if address not in OPEN:
                expect(page.locator("#username")).not_to_be_empty()
                found.images[address] = page.locator("main img").count()
                expect(page.locator("#page-error"), address).to_be_hidden()
            found.measure(page, address, 1400)
            if AXE.exists():
                themes = THEMES if IS_NIGHTLY or number % 4 == 0 else THEMES[: number % 2]
                found.examine(page, address, themes)
            found.measure(page, address, WIDE)  # at last: a chart that shrinks takes a while
            page.set_viewport_size({"width": 1400, "height": 1000})
        found.kept = page.evaluate(
            "JSON.stringify([localStorage, sessionStorage, document.cookie])"
        )
        yield found


def is_of_policy(text: str) -> bool:
    """Tell whether the console says that a policy of the page kept a script or a text out."""
    return "Content Security" in text or "Trusted" in text


def test_hostile_names_are_text(seen: Seen, hostile: list[str]) -> None:
    assert len(seen.images) == len(LISTS) + len(hostile)
    assert {address: n for address, n in seen.images.items() if n} == {}
    assert seen.dialogs == []
    assert [text for text in seen.said if is_of_policy(text)] == []


def test_no_screen_scrolls_sideways(seen: Seen) -> None:
    assert seen.overflow == {}


def test_nothing_is_refused_to_an_administrator(seen: Seen, broker: Broker) -> None:
    assert f"{broker.http_url}/api/queues" in {each.partition("?")[0] for each in seen.asked}
    assert seen.refused == []


def test_no_token_is_in_an_address_a_log_or_a_storage(seen: Seen, broker: Broker) -> None:
    assert len(seen.token) > 20
    assert seen.asked
    for text in ("\n".join(seen.asked), seen.kept, broker.log_text()):
        assert seen.token not in text


def test_hostile_names_are_text_on_small_screens(
    page: Any, visit: Visit, hostile: list[str]
) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    found = Seen()
    found.listen(page)
    for address in (*LISTS, *hostile):
        visit(address)
        expect(page.locator("#username")).not_to_be_empty()
        assert page.locator("main img").count() == 0, address
        found.measure(page, address, 360)
    expect(page.locator("#page-error")).to_be_hidden()
    assert found.overflow == {}
    assert found.dialogs == []
    assert [text for text in found.said if is_of_policy(text)] == []


@pytest.fixture
def watched(page: Any) -> Iterator[Any]:
    """A page on which no script of a name may run, and no text become markup."""
    found = Seen()
    found.listen(page)
    yield page
    assert found.dialogs == []
    assert [text for text in found.said if is_of_policy(text)] == []


def test_a_hostile_name_can_be_chosen_as_virtual_host(watched: Any, hostile: list[str]) -> None:
    watched.goto("/queues")
    expect(watched.locator("#userMenuVhost option", has_text="<img")).to_have_count(1)
    with watched.expect_event("load"):
        watched.locator("#userMenuVhost").select_option(HOSTILE)
    expect(watched.locator("#table tbody tr")).to_have_count(3)
    watched.locator("#table a", has_text=HOSTILE).first.click()
    expect(watched.locator("#pagename-label")).to_have_text(f"{HOSTILE} in virtual host {HOSTILE}")
    expect(watched.locator("#q-ready")).to_have_text("0")


def test_a_hostile_user_logs_in(visitor: Any, hostile: list[str]) -> None:
    log_in(visitor, HOSTILE, HOSTILE)
    visitor.goto("/")
    expect(visitor.locator("#username")).to_have_text(HOSTILE)


# --- accessibility ----------------------------------------------------------------------------


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: `make test` installs it")
def test_everybody_can_use_every_page(seen: Seen) -> None:
    assert seen.violations == {}


def test_everything_of_the_menu_is_reached_with_the_keyboard(page: Any, visit: Visit) -> None:
    visit("/queues")
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

SOME = ("monitoring", "policymaker")
OTHERS = tuple(
    pytest.param(role, marks=pytest.mark.nightly) for role in ("management", "impersonator")
)
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


def in_menu(page: Any) -> list[str]:
    """The addresses of the pages that the menu offers, the documentation aside."""
    expect(page.locator("#username")).not_to_be_empty()
    links = page.locator("#menu-content li li a").filter(visible=True).all()
    found = [f"/{str(each.get_attribute('href')).lstrip('./')}" for each in links]
    return [each for each in found if not each.startswith("/docs")]


@pytest.mark.parametrize("role", [*SOME, *OTHERS])
def test_a_user_is_offered_what_the_api_would_do(
    visitor: Any, visit: Visit, broker: Broker, role: str
) -> None:
    name = f"page-{role}"
    Api(broker).as_user(name, role, **{"/": (".*", ".*", ".*")})
    log_in(visitor, name, f"{name}-pw")
    found = Seen()
    found.listen(visitor)
    offered: set[str] = set()
    hidden, refused = [], []
    visit("/")
    menu = in_menu(visitor)
    for address in (*LISTS, *(each for each in menu if each not in LISTS)):
        found.refused.clear()
        visit(address)
        expect(visitor.locator("#username")).to_have_text(name)
        assert not visitor.url.endswith("/login"), address
        offered |= {each for each in CHANGING if visitor.locator(each).is_visible()}
        refused += found.refused if address in menu else []
    expect(visitor.locator("#menu-content")).to_be_visible()
    for page in ("users", "logs", "policies", "shovels"):
        if not visitor.locator(f"#menu-content li.{page}").is_visible():
            hidden.append(page)
    offered -= {"#createPolicy"} if role != "policymaker" else set()
    assert offered == OFFERED[role]
    expected = ["users", "logs"] + ([] if role == "policymaker" else ["policies", "shovels"])
    assert hidden == expected
    assert "/queues" in menu
    assert refused == []


ABOUT_ONE = {
    "/queue#vhost=%2F&name=of-roles": ("#pauseQueue", "#purgeQueue", "#deleteQueue"),
    "/queue#vhost=%2F&name=of-roles&tab=bindings": ("#addBinding",),
    "/queue#vhost=%2F&name=of-roles&tab=messages": (
        "#publishMessage", "#getMessages", "#browseMessages", "#chosenMessages", "#trace-toggle",
        "#moveForm",
    ),
    "/stream#vhost=%2F&name=s-of-roles": (
        "#publishMessage", "#getMessages", "#browseMessages", "#chosenMessages", "#trace-toggle",
        "#pauseQueue", "#deleteQueue",
    ),
    "/exchange#vhost=%2F&name=amq.topic": (
        "#addBinding", "#publishMessage", "#trace-toggle", "#deleteExchange",
    ),
    "/unacked#vhost=%2F&name=of-roles": (),
}  # fmt: skip
FOR_ADMINISTRATORS = {
    "/vhost#name=%2F": ("#setPermission", "#setLimits", "#deleteVhost"),
    "/user#name=guest": ("#setPermission", "#explain", "#updateUser", "#deleteUser"),
}


READS = ("/stream#vhost=%2F&name=s-of-roles", "#getMessages")
"""What takes the right to read, and nothing else."""


@pytest.mark.parametrize("role", [*SOME, OTHERS[0], "administrator"])
def test_a_page_about_something_offers_what_the_api_would_do(
    visitor: Any, visit: Visit, broker: Broker, role: str
) -> None:
    api, name = Api(broker), f"about-{role}"
    api("PUT", "/api/queues/%2F/of-roles", {})
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    api("PUT", "/api/queues/%2F/s-of-roles", stream)
    api.as_user(name, role, **{"/": (".*", ".*", ".*")})
    log_in(visitor, name, f"{name}-pw")
    found, is_shown = Seen(), {}
    found.listen(visitor)
    changes = role in ("management", "policymaker", "administrator")
    for address, forms in (*ABOUT_ONE.items(), *FOR_ADMINISTRATORS.items()):
        found.refused.clear()
        visit(address)
        expect(visitor.locator("#username")).to_have_text(name)
        wanted = changes if address in ABOUT_ONE else role == "administrator"
        for form in forms:
            offered = wanted or (address, form) == READS
            if visitor.locator(form).is_visible() is not offered:
                is_shown[address, form] = not offered
        if not address.startswith("/user"):  # to which nothing leads
            assert found.refused == [], address
    assert is_shown == {}


@pytest.mark.parametrize("role", [*SOME, *OTHERS, "administrator"])
def test_no_page_that_is_offered_asks_what_is_refused(
    visitor: Any, visit: Visit, broker: Broker, role: str
) -> None:
    name = f"without-rights-{role}"
    Api(broker).as_user(name, role)
    log_in(visitor, name, f"{name}-pw")
    found = Seen()
    found.listen(visitor)
    visit("/")
    for address in in_menu(visitor):
        visit(address)
        expect(visitor.locator("#username")).to_have_text(name)
    assert found.refused == []


@pytest.mark.parametrize("role", [*SOME, *OTHERS])
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


def test_a_script_in_a_body_is_shown_as_text(page: Any, hostile: list[str]) -> None:
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
