"""What the buttons of pages do, and that what destroys something is asked for first."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from lavinmq.client import Client
from tests.browser.conftest import Requests, Stub, listed, queue
from tests.browser.test_forms import CONNECTION, IN_PATH, POLICIES, SHOVEL
from tests.browser.test_queue_page import CONSUMER
from tests.support.api import Api
from tests.support.broker import Broker

QUEUE, STREAM = "/queue#vhost=foo&name=orders", "/stream#vhost=foo&name=events"
QUESTIONS = (
    (QUEUE, "Pause queue"), (QUEUE, "Purge queue"), (QUEUE, "Delete queue"),
    (f"{QUEUE}&tab=consumers", "Cancel"), (STREAM, "Pause stream"), (STREAM, "Delete stream"),
    ("/exchange#vhost=foo&name=events", "Delete exchange"), ("/consumers", "Cancel"),
    ("/shovels", "Delete"), ("/federation", "Delete"), ("/policies", "Delete"),
    ("/operator-policies", "Delete"), ("/vhost#name=foo", "Delete virtual host"),
    ("/user#name=someone", "Delete user"),
)  # fmt: skip


def test_what_destroys_is_asked_for_and_a_no_changes_nothing(
    page: Any, stub: Stub, requests: Requests
) -> None:
    stream = queue("events", arguments={"x-queue-type": "stream"})
    upstream = {"vhost": "/", "name": "u1", "value": {"uri": "amqp://"}}
    for path, content in (
        ("queues/foo/orders", queue(consumers=1, consumer_details=[CONSUMER])),
        ("queues/foo/events", stream),
        ("exchanges/foo/events", {"name": "events", "vhost": "foo", "type": "topic"}),
        ("consumers", listed([CONSUMER])), ("parameters/shovel", listed([SHOVEL])),
        ("parameters/federation-upstream", listed([upstream])),
        ("policies", listed(POLICIES[:1])), ("operator-policies", listed(POLICIES[:1])),
        ("vhosts/foo", {"name": "foo"}), ("users/someone", {"name": "someone", "tags": ""}),
    ):  # fmt: skip
        stub(f"/api/{path}", content)
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    silent = []
    for address, button in QUESTIONS:
        page.goto("about:blank")
        page.goto(address)
        expect(page.locator("#username")).to_have_text("guest")
        asked.clear()
        page.get_by_role("button", name=button).click()
        if len(asked) != 1:
            silent.append((address, button))
    assert silent == []
    assert [f"{each.method} {each.url}" for each in requests.all if each.method != "GET"] == []


# --- clients ----------------------------------------------------------------------------------


def test_a_connection_of_mqtt_has_no_boxes_of_amqp(page: Any, stub: Stub) -> None:
    one = {"name": CONNECTION, "vhost": "/", "protocol": "MQTT 3.1.1", "client_id": "sensor-7"}
    stub(f"/api/connections/{IN_PATH}", one)
    stub(f"/api/connections/{IN_PATH}/channels", listed([]))
    page.goto(f"/connection#name={IN_PATH}")
    expect(page.locator("#pagename-label")).to_contain_text(CONNECTION)
    expect(page.locator("#client")).to_be_hidden()
    expect(page.locator("#table")).to_be_hidden()
    stub("/api/connections", listed([one]))
    page.goto("/connections")
    expect(page.locator("#table tbody tr")).to_contain_text("sensor-7")


def test_the_prefetch_of_a_channel_is_changed(page: Any, broker: Broker) -> None:
    with Client(broker.uri) as client:
        client.channel().basic_qos(7)
        [name] = [each["name"] for each in Api(broker)("GET", "/api/channels").json][-1:]
        page.goto(f"/channel#name={name}")
        field = page.get_by_label("Prefetch count")
        expect(field).to_have_value("7")
        field.fill("9")
        field.press("Enter")
        expect(page.locator("#stats")).to_contain_text("Prefetch9")
        assert Api(broker)("GET", f"/api/channels/{name}").json["prefetch_count"] == 9


def test_more_consumers_of_a_queue_are_loaded(page: Any, stub: Stub, requests: Requests) -> None:
    many = [{**CONSUMER, "consumer_tag": f"tag{n}"} for n in range(20)]
    stub("/api/queues/foo/orders", queue(consumers=33, consumer_details=many))
    page.goto(f"{QUEUE}&tab=consumers")
    more = page.get_by_role("button", name="Showing 20 of total 33 consumers, click to load more")
    more.click()
    asked = requests.wait("GET", "/api/queues/foo/orders", 2)
    assert asked.url.endswith("consumer_list_length=30")


# --- the node ---------------------------------------------------------------------------------


def test_followers_are_shown(page: Any, stub: Stub) -> None:
    follower = {
        "id": "f1", "remote_address": "10.0.0.2:5679", "sent_bytes": 2048, "acked_bytes": 1024,
        "lag_in_bytes": 1024,
    }  # fmt: skip
    stub("/api/nodes", [{"name": "n", "uptime": 1000, "followers": [follower]}])
    page.goto("/nodes")
    expect(page.locator("#followers tbody td")).to_have_text(
        ["f1", "10.0.0.2:5679", "2 KiB", "1 KiB", "1 KiB"]
    )


def test_garbage_is_collected(page: Any, requests: Requests) -> None:
    page.goto("/nodes")
    expect(page.locator("#gc")).to_contain_text("Collections")
    page.get_by_role("button", name="Collect").click()
    requests.wait("POST", "/api/nodes/gc_collect")
    expect(page.locator("#toast")).to_have_text("Collected")


# --- queues, bridges, users -------------------------------------------------------------------


def test_a_closed_queue_is_restarted(page: Any, stub: Stub, requests: Requests) -> None:
    stub("/api/queues/foo/orders", queue(state="closed"))
    stub("/api/queues/foo/orders/restart", status=204)
    page.goto(QUEUE)
    page.get_by_role("button", name="Restart queue").click()
    requests.wait("PUT", "/api/queues/foo/orders/restart")


def test_a_stream_is_read_from_a_time(page: Any, broker: Broker) -> None:
    api, name = Api(broker), "page-stream-by-time"
    body: dict[str, Any] = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert api("PUT", f"/api/queues/%2F/{name}", body).status == 201
    body = {"properties": {}, "routing_key": name, "payload": "now", "payload_encoding": "string"}
    assert api("POST", "/api/exchanges/%2F/amq.default/publish", body).status == 200
    page.goto(f"/stream#vhost=%2F&name={name}")
    page.get_by_label("Offset", exact=True).fill("1h")
    page.get_by_role("button", name="Get messages").click()
    expect(page.locator("#messages h3")).to_have_text(["Offset 1"])
    page.get_by_label("Offset", exact=True).fill("2999-01-01T00:00:00Z")
    page.get_by_role("button", name="Get messages").click()
    expect(page.locator("#messages")).to_have_text("Nothing there")
    api("DELETE", f"/api/queues/%2F/{name}")


def test_a_shovel_is_made_paused_and_resumed(page: Any, requests: Requests, stub: Stub) -> None:
    stub("/api/parameters/shovel", listed([]))
    stub("/api/parameters/shovel/%2F/s1", status=201)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/shovels")
    form = page.locator("#createShovel")
    expect(form.locator("select#vhost option")).not_to_have_count(0)
    form.get_by_label("Name", exact=True).fill("s1")
    for end, uri, name in (("Source", "amqp://a", "from"), ("Destination", "amqp://b", "to")):
        form.get_by_label(f"{end} URI").fill(uri)
        form.get_by_label(f"{end} endpoint").fill(name)
    form.get_by_role("button", name="Save shovel").click()
    sent = requests.wait("PUT", "/api/parameters/shovel/%2F/s1").post_data_json["value"]
    assert sent.items() >= {
        "src-uri": "amqp://a", "src-queue": "from", "dest-uri": "amqp://b", "dest-queue": "to",
        "src-prefetch-count": 1000, "reconnect-delay": 5, "ack-mode": "on-confirm",
        "src-delete-after": "never",
    }.items()  # fmt: skip
    for state, button, path in (("Running", "Pause", "pause"), ("Paused", "Resume", "resume")):
        stub("/api/parameters/shovel", listed([SHOVEL]))
        stub("/api/shovels", listed([{"vhost": "/", "name": "shovel1", "state": state}]))
        stub(f"/api/shovels/%2F/shovel1/{path}", status=204)
        page.reload()
        page.locator("tr[data-name='\"shovel1\"']").get_by_role("button", name=button).click()
        requests.wait("PUT", f"/api/shovels/%2F/shovel1/{path}")


def test_an_upstream_is_made(page: Any, requests: Requests, stub: Stub) -> None:
    stub("/api/parameters/federation-upstream/%2F/u1", status=201)
    page.goto("/federation")
    form = page.locator("#createUpstream")
    expect(form.locator("select#vhost option")).not_to_have_count(0)
    form.get_by_label("Name").fill("u1")
    form.get_by_label("URI").fill("amqp://there")
    form.get_by_label("Max hops").fill("2")
    form.get_by_role("button", name="Save upstream").click()
    sent = requests.wait("PUT", "/api/parameters/federation-upstream/%2F/u1").post_data_json
    assert sent == {"value": {"uri": "amqp://there", "ack-mode": "on-confirm", "max-hops": 2}}


def test_a_password_that_was_made_can_be_read(page: Any) -> None:
    page.goto("/users")
    field = page.get_by_label("Password", exact=True)
    page.get_by_role("button", name="Show it").click()
    expect(field).to_have_attribute("type", "text")
    page.get_by_role("button", name="Hide it").click()
    expect(field).to_have_attribute("type", "password")


def test_the_description_of_the_api_is_searched(page: Any) -> None:
    page.goto("/docs/")
    shown = page.locator("#endpoints details").filter(visible=True)
    page.get_by_label("Find").fill("delete operator-policies")
    expect(shown).to_have_count(1)
    expect(shown.locator("summary")).to_contain_text("/api/operator-policies/{vhost}/{name}")
    shown.locator("summary").press("Enter")
    expect(shown.locator("table")).to_contain_text("vhost")
