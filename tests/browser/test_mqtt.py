"""The pages of MQTT: clients, their sessions and subscriptions, what is shared and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit, log_in, opened
from tests.browser.test_every_page import AXE, Seen, is_of_policy
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V311, block
from tests.support.mqtt_peer import Peer

KEPT = {"clean": True, "properties": block(b"\x11\0\0\0\x64")}
HOSTILE = "<img src=x onerror=alert(1)>\"'&"


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that listens for MQTT."""
    broker = Broker(tmp_path_factory.mktemp("mqtt") / "data", http=True, mqtt=True)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def page(browser: Any, spoken: Broker) -> Iterator[Any]:
    """A page of guest, who is an administrator; no script of it may fail."""
    with opened(browser, spoken) as page:
        log_in(page)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        assert errors == []


def row(page: Any, table: str, text: str) -> Any:
    return page.locator(f"#{table} tbody tr", has_text=text)


def cells(page: Any, table: str, text: str) -> dict[str, str]:
    """The cells of a row by the heads of their columns."""
    expect(row(page, table, text)).to_have_count(1)
    heads = page.locator(f"#{table} thead th").all_inner_texts()
    return dict(zip(heads, row(page, table, text).locator("td").all_inner_texts(), strict=True))


def test_sessions_are_shown_with_and_without_their_clients(page: Any, spoken: Broker) -> None:
    with Peer(spoken.mqtt_port, V311) as here:
        here.connect("here", clean=False, keep_alive=42)
        here.subscribe(("a", 1), ("b", 1))
        with Peer(spoken.mqtt_port, V5) as away:
            away.connect("away", **KEPT)
            away.subscribe(("a", 1))
        page.goto("/mqtt")
        expect(row(page, "table", "away").locator(".state-away")).to_be_visible()
        here.publish("a", b"12345", 1)
        found = cells(page, "table", "here")
        assert (found["State"], found["User"]) == ("connected", "guest")
        assert (found["Protocol"], found["Keep alive"]) == ("MQTT 3.1.1", "42 s")
        assert found["Subscriptions"] == "2"
        waiting = row(page, "table", "away").locator("td").nth(4)
        expect(waiting).to_have_text("1", timeout=15_000)  # it comes by itself
        assert cells(page, "table", "away")["Ends"] == "1m, 40s"


def test_what_waits_is_seen_without_scrolling_and_no_keep_alive_is_called_so(
    page: Any, spoken: Broker
) -> None:
    """A screen of usual width shows what an operator looks for first."""
    with Peer(spoken.mqtt_port, V311) as client:
        client.connect("for-ever", keep_alive=0)
        page.goto("/mqtt")
        assert cells(page, "table", "for-ever")["Keep alive"] == "none"
        box = page.locator("#table th", has_text="In flight").bounding_box()
        assert box["x"] + box["width"] <= 1400 - 60


def test_a_session_is_shown_with_its_subscriptions_and_ended(page: Any, spoken: Broker) -> None:
    with Peer(spoken.mqtt_port, V5) as client:
        client.connect(HOSTILE, **KEPT)
        client.subscribe((HOSTILE, 2), (f"$share/grp/{HOSTILE}/+", 1))
        page.goto("/mqtt")
        page.get_by_role("link", name=HOSTILE, exact=True).click()
        expect(page.locator("#pagename-label")).to_contain_text(HOSTILE)
        expect(page.locator("#details")).to_contain_text("MQTT 5.0")
        expect(page.locator("#stats")).to_contain_text("In flight")
        expect(page.locator("#table tbody tr")).to_have_count(2)
        assert cells(page, "table", "grp")["QoS"] == "1"
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="End session").click()
        page.wait_for_url("**/mqtt")
        assert client.read() is not None  # it is told
    names = [each["client_id"] for each in Api(spoken).get("/api/mqtt/sessions")]
    assert HOSTILE not in names


def test_what_is_shared_and_kept_is_shown(page: Any, spoken: Broker) -> None:
    with Peer(spoken.mqtt_port, V5) as client:
        client.connect("sharing", **KEPT)
        client.subscribe(("$share/together/x/#", 1))
        client.publish("kept", b"retained", 1, retain=True)
        page.goto("/mqtt")
        found = cells(page, "shared-table", "together")
        assert (found["Topic filter"], found["Members"]) == ("x/#", "1")
        found = cells(page, "vhosts-table", "/")
        assert found["Retained messages"] == "1"
        assert found["Retained bytes"].endswith("B") and found["Files"] == "well"


def test_a_client_is_a_consumer_that_is_not_cancelled(page: Any, spoken: Broker) -> None:
    with Peer(spoken.mqtt_port, V311) as client:
        client.connect("consuming")
        page.goto("/consumers")
        found = row(page, "table", "mqtt.consuming")
        expect(found).to_have_count(1)
        expect(found.get_by_role("button", name="Cancel")).to_have_count(0)
        found.locator("td").nth(2).get_by_role("link").click()
        expect(page.locator("#details")).to_contain_text("Client ID")
        expect(page.locator("#details")).to_contain_text("MQTT 3.1.1")
        expect(page.locator(".amqp").first).to_be_hidden()
        page.locator("#details").get_by_role("link", name="consuming").click()
        expect(page.locator("#pagename-label")).to_contain_text("consuming in virtual host /")


def test_a_session_is_found_by_the_search(page: Any, spoken: Broker) -> None:
    with Peer(spoken.mqtt_port, V311) as client:
        client.connect("find-me-please")
        page.goto("/")
        page.keyboard.press("Control+k")
        page.locator("#search-field").fill("find-me-please")
        hit = page.locator("#search-hits a[href^=mqtt-session]")
        expect(hit).to_have_count(1)


def test_who_only_looks_is_offered_no_end(browser: Any, spoken: Broker) -> None:
    Api(spoken).as_user("mqtt-onlooker", "monitoring", **{"/": (".*", ".*", ".*")})
    with Peer(spoken.mqtt_port, V311) as client, opened(browser, spoken) as page:
        client.connect("watched")
        log_in(page, "mqtt-onlooker", "mqtt-onlooker-pw")
        page.goto("/mqtt-session#vhost=%2F&client_id=watched")
        expect(page.locator("#details")).to_contain_text("connected")
        expect(page.get_by_role("button", name="End session")).to_be_hidden()


def test_everybody_can_use_the_pages_at_any_width(page: Any, spoken: Broker) -> None:
    """With hostile names in all tables: no script runs, nothing is refused or scrolls sideways."""
    found = Seen()
    found.listen(page)
    with Peer(spoken.mqtt_port, V5) as client:
        client.connect(HOSTILE * 5, **KEPT)
        client.subscribe((HOSTILE * 9, 1), (f"$share/{HOSTILE * 2}/{HOSTILE}", 1))
        client.publish(HOSTILE, HOSTILE.encode(), 1, retain=True)
        visit = Visit(page)
        session = f"/mqtt-session#vhost=%2F&client_id={quote(HOSTILE * 5, safe='')}"
        for address in ("/mqtt", session, "/consumers", "/connections"):
            visit(address)
            assert page.locator("main img").count() == 0
            for width in (360, 1400):
                found.measure(page, address, width)
            if AXE.exists():
                found.examine(page, address)
    assert (found.overflow, found.violations, found.dialogs) == ({}, {}, [])
    assert found.refused == []
    assert [text for text in found.said if is_of_policy(text)] == []
