"""Tab walks over every page, forth and back: all that can be used is reached, seen, and left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit, log_in, opened
from tests.browser.test_every_page import LISTS, OPEN
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.raw_connection import Address, Connection, Properties

WATCH = """
(root) => {
  const usable = 'a[href], button, input, select, textarea, summary, [tabindex]';
  globalThis.wanted = [...root.querySelectorAll(usable)].filter((each) =>
    each.tabIndex >= 0 && !each.disabled && each.type !== 'hidden'
    && each.checkVisibility({ visibilityProperty: true }));
  globalThis.walked = [];
  const start = document.createElement('span');
  start.tabIndex = -1;
  root.prepend(start);
  start.focus();
  start.remove();
  const isCovered = (element) => {
    const { left, right, top, bottom } = element.getBoundingClientRect();
    const within = (at, most) => Math.min(Math.max(at, 0), most - 1);
    // A long name in a wide table may be seen in part.
    const region = element.parentElement.closest('.table-scroll') ?? document.documentElement;
    const seen = region.getBoundingClientRect();
    const x = within((Math.max(left, seen.left) + Math.min(right, seen.right)) / 2, innerWidth);
    const y = within((Math.max(top, 0) + Math.min(bottom, innerHeight)) / 2, innerHeight);
    const above = document.elementFromPoint(x, y);
    return !above || !(element.contains(above) || above.contains(element));
  };
  document.addEventListener('focusin', ({ target }) => {
    const { outlineStyle, outlineWidth } = getComputedStyle(target);
    const isMarked = outlineStyle !== 'none' && parseFloat(outlineWidth) >= 1;
    globalThis.walked.push({ target, isMarked, isCovered: isCovered(target) });
  });
  return wanted.length;
}
"""
"""Notes what can be used, in its order on the page, and what has the focus, as one goes from the
beginning."""
SAID = """
(() => {
  const named = (each) => each.getAttribute('aria-label') ?? each.textContent.trim().slice(0, 30);
  const said = (each) => `${each.localName}#${each.id} ${named(each)} ${each.name ?? ''}`;
  return {
    wanted: wanted.map(said), walked: walked.map(({ target }) => said(target)),
    unmarked: walked.filter((each) => !each.isMarked).map(({ target }) => said(target)),
    covered: walked.filter((each) => each.isCovered).map(({ target }) => said(target)),
  };
})()
"""
ABOUT = (
    *(f"/queue#vhost=%2F&name=walked&tab={tab}"
      for tab in ("overview", "consumers", "bindings", "messages")),
    "/stream#vhost=%2F&name=walked-stream", "/exchange#vhost=%2F&name=amq.topic",
    "/unacked#vhost=%2F&name=walked", "/vhost#name=%2F", "/user#name=guest",
)  # fmt: skip


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[str]:
    """What there is to see: queues, a consumer, messages, a shovel. Yields: the connection."""
    api = Api(broker)
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    shovel = {"src-uri": "amqp://", "dest-uri": "amqp://"}
    shovel |= {"src-queue": "walked", "dest-queue": "walked"}
    for path, body in (
        ("queues/%2F/walked", {}), ("queues/%2F/walked-stream", stream),
        ("policies/%2F/walked", {"pattern": "^walked", "definition": {"max-length": 999}}),
        ("parameters/shovel/%2F/walked", {"value": shovel}),
        ("parameters/federation-upstream/%2F/walked", {"value": {"uri": "amqp://"}}),
    ):  # fmt: skip
        assert api("PUT", f"/api/{path}", body).status in (201, 204), path
    bound = {"routing_key": "walked"}
    for kind, name in (("q", "walked"), ("q", "walked-stream")):
        assert api("POST", f"/api/bindings/%2F/e/amq.topic/{kind}/{name}", bound).status == 201
    with Connection.open(Address(broker.host, broker.port), name="walker") as connection:
        channel = connection.channel()
        channel.qos(1)
        channel.consume("walked", "walker")
        for _ in range(3):
            channel.publish("amq.topic", "walked", b"{}", Properties())
        channel.receive(5)
        [found] = [
            each["name"]
            for each in api("GET", "/api/connections").json
            if each["client_properties"].get("connection_name") == "walker"
        ]
        yield found
    for path in ("queues/%2F/walked", "queues/%2F/walked-stream", "policies/%2F/walked",
                 "parameters/shovel/%2F/walked",
                 "parameters/federation-upstream/%2F/walked"):  # fmt: skip
        api("DELETE", f"/api/{path}")


@pytest.fixture(scope="module")
def walker(browser: Any, broker: Broker, client: str) -> Iterator[Any]:
    """A page of guest in which nothing changes by itself, for all walks."""
    with opened(browser, broker) as page:
        log_in(page)
        page.add_init_script("localStorage.setItem('lmq.rate', '60000')")
        page.route("**/api/live?*", lambda route: route.abort())
        yield page


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(address, marks=[pytest.mark.nightly] if number % 3 else [])
        for number, address in enumerate([*LISTS, *ABOUT, "/connection", "/channel", *OPEN])
    ],
)
def test_everything_is_reached_in_its_order_and_seen(
    walker: Any, client: str, address: str
) -> None:
    """Forth with Tab and back with Shift+Tab; what all pages have around them once."""
    if address in ("/connection", "/channel"):
        name = client if address == "/connection" else f"{client.partition(' -> ')[0]}[1]"
        address += f"#name={name}"
    Visit(walker)(address)
    if address.endswith("messages"):
        walker.get_by_role("button", name="Browse messages").click()
        walker.locator("#browsed article").first.wait_for()
    if address == "/docs/":
        walker.get_by_label("Find").fill("definitions")  # there are hundreds, all alike
        expect(walker.locator(".method").filter(visible=True).first).to_contain_text("GET")
    expect(walker.locator("#page-error:not([hidden])")).to_have_count(0)
    n = walker.locator("body" if address == "/" else "main").evaluate(WATCH)
    assert n > 0

    for _ in range(n):
        walker.keyboard.press("Tab")
    for _ in range(n - 1):
        walker.keyboard.press("Shift+Tab")

    said = walker.evaluate(SAID)
    assert said["walked"][:n] == said["wanted"]
    assert said["walked"][n:] == said["wanted"][-2::-1]
    assert said["unmarked"] == []
    assert said["covered"] == []
