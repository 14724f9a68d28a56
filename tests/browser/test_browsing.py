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


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"From": "1"}, [1, 2]), ({"From": "-1"}, [2]), ({"From": "1h"}, [0, 1, 2]),
        ({"From": "2999-01-01T00:00:00Z"}, []), ({"Routing key has": "onerror"}, [0, 1, 2]),
        ({"Routing key has": "elsewhere"}, []), ({"Header": HOSTILE}, [2]),
        ({"Header": HOSTILE, "Header value": "other"}, []),
    ],
)  # fmt: skip
def test_messages_are_found_by_place_age_key_and_header(
    browsed: Any, fields: dict[str, str], found: list[int]
) -> None:
    wanted = ["00000000" if n == 1 else ('"<b>"', "", HOSTILE)[n] for n in found]
    for label, text in fields.items():
        browsed.get_by_label(label, exact=True).fill(text)
    browsed.get_by_role("button", name="Browse messages").click()
    expect(browsed.locator("#browse-said")).to_contain_text(f"{len(found)} shown")
    expect(browsed.locator("#browsed article pre")).to_contain_text(wanted)


@pytest.mark.parametrize("what", ["move", "copy"])
def test_chosen_messages_go_to_another_queue(browsed: Any, queue: Queue, what: str) -> None:
    to = f"/api/queues/%2F/chosen-{what}"
    queue.api("PUT", to, {})
    for n in (0, 2):
        browsed.locator("#browsed input").nth(n).check()
    browsed.locator("#chosenMessages select").select_option(what)
    browsed.get_by_label("Queue for the chosen ones").fill(f"chosen-{what}")
    browsed.get_by_role("button", name="Do it").click()
    expect(browsed.locator("#browsed article")).to_have_count(1 if what == "move" else 3)
    expect(browsed.locator("#toast")).to_have_text("2 done, 0 were gone, 0 refused")
    assert queue.ready == (1 if what == "move" else 3)
    assert queue.api("GET", to).json["messages_ready"] == 2
    queue.api("DELETE", to)


def test_chosen_messages_are_deleted(browsed: Any, queue: Queue) -> None:
    browsed.locator("#browsed input").nth(1).check()
    browsed.locator("#chosenMessages select").select_option("delete")
    browsed.get_by_role("button", name="Do it").click()
    expect(browsed.locator("#browsed article")).to_have_count(2)
    assert queue.ready == 2


def test_nothing_is_asked_when_nothing_is_chosen(browsed: Any, queue: Queue) -> None:
    browsed.locator("#chosenMessages select").select_option("delete")
    browsed.get_by_role("button", name="Do it").click()
    expect(browsed.locator("#chosenMessages .form-error")).to_contain_text("Choose messages first")
    browsed.locator("#browsed input").first.check()
    browsed.locator("#chosenMessages select").select_option("move")
    browsed.get_by_role("button", name="Do it").click()
    expect(browsed.locator("#chosenMessages .form-error")).to_contain_text("A queue is wanted")
    assert queue.ready == 3


def test_messages_of_a_stream_are_copied_and_nothing_else_is_offered(
    page: Any, broker: Broker
) -> None:
    api, asked = Api(broker), []
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert api("PUT", "/api/queues/%2F/chosen-stream", stream).status == 201
    assert api("PUT", "/api/queues/%2F/chosen-copies", {}).status == 201
    for payload in ("first", "second", "third"):
        body = {
            "properties": {}, "routing_key": "chosen-stream", "payload": payload,
            "payload_encoding": "string",
        }  # fmt: skip
        assert api("POST", "/api/exchanges/%2F/amq.default/publish", body).status == 200
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    page.goto("/stream#vhost=%2F&name=chosen-stream")
    page.get_by_role("button", name="Browse messages").click()
    cards = page.locator("#browsed article")
    expect(cards).to_have_count(3)
    expect(cards.nth(1).locator("h4")).to_contain_text("Offset 2, stored")
    form = page.locator("#chosenMessages")
    expect(form).to_contain_text("only appended to")
    expect(form.get_by_role("combobox", name="With the chosen ones")).to_have_count(0)
    expect(page.locator("#queue-names option[value=chosen-copies]")).to_have_count(1)

    cards.nth(1).get_by_role("checkbox").check()
    form.get_by_label("Queue for the copies").fill("chosen-copies")
    form.get_by_role("button", name="Copy chosen messages").click()

    expect(page.locator("#toast")).to_have_text("1 done, 0 were gone, 0 refused")
    assert asked == ["Copy 1 chosen messages from chosen-stream to chosen-copies?"]
    expect(cards).to_have_count(3)
    copies = api("POST", "/api/queues/%2F/chosen-copies/browse", {"count": 9}).json["messages"]
    assert [each["payload"] for each in copies] == ["second"]
    for name in ("chosen-stream", "chosen-copies"):
        api("DELETE", f"/api/queues/%2F/{name}")
