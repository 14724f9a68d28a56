"""Browsing on the page of a queue, with a real broker and hostile names and bodies behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.support.api import Api
from tests.support.broker import Broker

HOSTILE = "<img src=x onerror=\"document.title='owned'\">'\"&{{assets}}"
DEATH = {"queue": HOSTILE, "reason": "rejected", "count": 3, "exchange": "", "routing-keys": ["a"]}


class Queue:
    """A queue with a hostile name, a JSON message, one of bytes, and one that died."""

    def __init__(self, api: Api) -> None:
        self.api, self.path = api, f"/api/queues/%2F/{quote(HOSTILE, safe='')}"
        assert api("PUT", self.path, {"durable": True}).status == 201
        self.send('{"a": [1, "<b>"]}')
        self.send("AAEC/w==", "base64")
        self.send(HOSTILE, headers={"x-death": [DEATH], HOSTILE: HOSTILE})

    def send(self, payload: str, encoding: str = "string", **properties: Any) -> None:
        """Publish to it."""
        body = {
            "properties": properties, "routing_key": HOSTILE, "payload": payload,
            "payload_encoding": encoding,
        }  # fmt: skip
        assert self.api("POST", "/api/exchanges/%2F/amq.default/publish", body).status == 200

    @property
    def ready(self) -> int:
        """Messages in it."""
        found: int = self.api("GET", self.path).json["messages_ready"]
        return found


@pytest.fixture
def queue(broker: Broker) -> Iterator[Queue]:
    """It, for one test."""
    made = Queue(Api(broker))
    yield made
    made.api("DELETE", made.path)


@pytest.fixture
def browsed(page: Any, queue: Queue) -> Any:
    """The page after "Browse messages"."""
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"/queue#vhost=%2F&name={quote(HOSTILE, safe='')}&tab=messages")
    page.get_by_role("button", name="Browse messages").click()
    expect(page.locator("#browsed article")).to_have_count(3)
    return page


def test_messages_are_shown_as_what_they_are_and_stay(browsed: Any, queue: Queue) -> None:
    cards = browsed.locator("#browsed article")
    expect(cards.nth(0).locator("pre")).to_contain_text('"<b>"')
    expect(cards.nth(1).locator("pre")).to_contain_text("00000000  00 01 02 ff")
    expect(cards.nth(2).locator("pre")).to_have_text(HOSTILE)
    expect(cards.nth(2).locator("tbody td").first).to_have_text(HOSTILE)
    cards.nth(0).get_by_label("Show the payload as").select_option("Hex")
    expect(cards.nth(0).locator("pre")).to_contain_text("7b 22 61 22")
    expect(cards.nth(1).locator("h4")).to_contain_text("Stored ")
    expect(cards.nth(1).locator("dt", has_text="Redelivered")).to_have_count(1)
    assert browsed.locator("#browsed img").count() == 0
    assert "owned" not in browsed.title() or HOSTILE in browsed.title()
    assert queue.ready == 3


def test_what_is_looked_for_is_shown_alone(browsed: Any) -> None:
    browsed.get_by_label("Body has").fill("onerror")
    browsed.get_by_role("button", name="Browse messages").click()
    expect(browsed.locator("#browsed article")).to_have_count(1)
    expect(browsed.locator("#browse-said")).to_contain_text("3 looked at")


def test_chosen_messages_are_deleted(browsed: Any, queue: Queue) -> None:
    browsed.locator("#browsed input").nth(1).check()
    browsed.locator("#chosenMessages select").select_option("delete")
    browsed.get_by_role("button", name="Do it").click()
    expect(browsed.locator("#browsed article")).to_have_count(2)
    assert queue.ready == 2
