"""Queues by HTTP: list, show, create, delete, purge, pause, restart; and who may."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import get, publish, settle
from tests.support import users
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for

VHOST = "/api/queues/%2F"
PEOPLE: users.People = {
    "own": ("management", {"/": ("^own", "^own", "^own")}),
    "mon": ("monitoring", {}),
    "imp": ("impersonator", {"/": (".*", ".*", ".*")}),
    "untagged": ("", {"/": (".*", ".*", ".*")}),
    "elsewhere": ("management", {"other": (".*", ".*", ".*")}),
}


def at(name: str, *more: str) -> str:
    """The path of a queue of the default virtual host."""
    return "/".join([VHOST, quote(name, safe=""), *more])


def status(api: Api, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, str]:
    """Status and reason of an answer."""
    answer = api(method, path, body, **options)
    return answer.status, answer.json["reason"] if answer.content else ""


# --- create and show --------------------------------------------------------------------------


def test_a_queue_is_created_once(api: Api, unique: UniqueName) -> None:
    name = unique("q")
    body = {"durable": True, "arguments": {"x-max-length": 5, "x-text": "ü", "nested": {"a": [1]}}}

    assert [api("PUT", at(name), body).status for _ in range(2)] == [201, 204]

    shown = api.get(at(name))
    assert shown["arguments"] == body["arguments"]
    assert (shown["durable"], shown["auto_delete"], shown["exclusive"]) == (True, False, False)
    assert shown["effective_arguments"] == ["x-max-length"]


def test_what_is_shown_of_an_empty_queue(api: Api, unique: UniqueName) -> None:
    name = unique("q")
    api("PUT", at(name), {})

    shown = api.get(at(name))

    log = shown["message_stats"].pop("publish_details").pop("log")
    assert isinstance(log, list)
    zeros = (
        "consumers", "messages", "messages_persistent", "total_bytes", "ready", "messages_ready",
        "ready_bytes", "message_bytes_ready", "ready_avg_bytes", "unacked", "unacked_bytes",
        "messages_unacknowledged", "message_bytes_unacknowledged", "unacked_avg_bytes",
    )  # fmt: skip
    assert {key: shown[key] for key in zeros} == dict.fromkeys(zeros, 0)
    assert (shown["state"], shown["internal"], shown["vhost"]) == ("running", False, "/")
    assert shown["consumer_details"] == []
    # A single object leaves out what is null, a row has it.
    assert "policy" not in shown
    (listed,) = api.get(f"{VHOST}?name={name}")
    assert listed["policy"] is listed["single_active_consumer_tag"] is None
    assert "log" not in listed["message_stats"]["publish_details"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"durable": 1}, "Field 'durable' must be a boolean"),
        ({"arguments": [1]}, "Field 'arguments' must be an object"),
        ({"arguments": {"x-max-length": "5"}}, "x-max-length header not an integer"),
        ({"arguments": {"x-max-priority": 256}}, "greater than maximum value 255"),
        ({"arguments": {"k" * 256: 1}}, "Field table key is longer than 255 bytes"),
        ({"arguments": {"n": 1 << 63}}, "does not fit in 64 bits"),
        ({"arguments": {"x-queue-type": "stream"}}, "A stream cannot be non-durable"),
        ({"auto_delet": True}, "did you mean 'auto_delete'?"),
    ],
)
def test_bodies_that_make_no_sense(
    api: Api, unique: UniqueName, body: dict[str, Any], reason: str
) -> None:
    name = unique("q")

    answered, text = status(api, "PUT", at(name), body)

    assert answered == 400 and reason in text
    assert api("GET", at(name)).status == 404


def test_arguments_that_are_nested_too_deeply_are_refused(api: Api, unique: UniqueName) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]

    answered, text = status(api, "PUT", at(unique("q")), {"arguments": {"deep": deep}})

    assert answered == 400 and "nested deeper" in text


@pytest.mark.parametrize("name", ["grüße ✓", "with space/slash", "a%2Fb", "x?y#z&w=1", "a>b"])
def test_names_of_all_kinds(api: Api, unique: UniqueName, name: str) -> None:
    name += unique("")
    assert api("PUT", at(name), {}).status == 201

    assert api.get(at(name))["name"] == name
    assert [row["name"] for row in api.get(f"{VHOST}?name={quote(name)}")] == [name]
    assert api("DELETE", at(name)).status == 204


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("amq.x", "forbidden"),
        ("mqtt.x", "forbidden"),
        ("n" * 256, "Queue name too long, can't exceed 255 characters"),
        ("new\nline", "Queue name isn't valid"),
        ("ü" * 128, "Queue name too long"),
    ],
)
def test_names_that_are_refused(api: Api, name: str, reason: str) -> None:
    answered, text = status(api, "PUT", at(name), {})

    assert answered == 400 and reason in text


def test_an_empty_list_of_arguments_is_an_empty_object(api: Api, unique: UniqueName) -> None:
    """PHP writes an empty array of either kind as a list."""
    q, x = unique("q"), unique("x")
    binding = f"/api/bindings/%2F/e/{x}/q/{q}"

    assert api("PUT", at(q), {"arguments": []}).status == 201
    assert api("PUT", f"/api/exchanges/%2F/{x}", {"type": "topic", "arguments": []}).status == 201
    assert api("POST", binding, {"routing_key": "k", "arguments": []}).status == 201
    document = {"queues": [{"name": unique("q"), "vhost": "/", "arguments": []}]}
    assert api("POST", "/api/definitions", document).status == 200
    assert api.get(at(q))["arguments"] == {}
    assert api("PUT", at(q), {"arguments": [1]}).status == 400


def test_another_declaration_than_the_first_is_refused(api: Api, unique: UniqueName) -> None:
    name = unique("q")
    api("PUT", at(name), {"arguments": {"x-queue-type": "classic"}})

    assert api("PUT", at(name), {}).status == 204
    answered, reason = status(api, "PUT", at(name), {"durable": True})
    assert answered == 400
    assert reason.startswith("Existing queue declared with other arguments arg")


def test_a_durable_queue_is_there_after_a_kill(http_broker: Broker) -> None:
    api = Api(http_broker)
    api("PUT", at("kept"), {"durable": "true", "arguments": {"x-max-priority": 3}})
    api("PUT", at("gone"), {})

    http_broker.kill()
    http_broker.start()

    assert [row["name"] for row in api.get(VHOST)] == ["kept"]
    assert api.get(at("kept"))["arguments"] == {"x-max-priority": 3}


def test_lists_are_paged_searched_and_sorted(api: Api, unique: UniqueName) -> None:
    word = unique("list")
    for number in (2, 0, 1):
        api("PUT", at(f"{word}-{number}"), {})

    page = api.get(f"/api/queues?name={word}&page=1&page_size=2&sort=name&sort_reverse=true")

    assert [row["name"][-1] for row in page["items"]] == ["2", "1"]
    assert (page["filtered_count"], page["page_count"]) == (3, 2)
    assert api.get(f"/api/queues?name={word}&columns=name&sort=name")[0] == {"name": f"{word}-0"}


# --- numbers ----------------------------------------------------------------------------------


def test_numbers_follow_the_messages(
    api: Api, channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 159."""
    name = unique("q")
    api("PUT", at(name), {"durable": True})
    publish(channel, name, [b"12345"] * 3)
    settle(channel)
    channel.basic_get(name)
    channel.basic_get(name, auto_ack=True)

    shown = api.get(at(name))

    per_message = shown["ready_bytes"]
    assert per_message > 5 and shown["unacked_bytes"] == per_message
    assert (shown["messages"], shown["ready"], shown["unacked"]) == (2, 1, 1)
    assert (shown["total_bytes"], shown["messages_persistent"]) == (2 * per_message, 2)
    assert (shown["ready_avg_bytes"], shown["unacked_avg_bytes"]) == (per_message,) * 2
    stats = {key: value for key, value in shown["message_stats"].items() if isinstance(value, int)}
    assert stats == {
        "publish": 3, "get": 1, "get_no_ack": 1, "deliver_get": 2, "ack": 0, "deliver": 0,
        "deliver_no_ack": 0, "confirm": 0, "redeliver": 0, "reject": 0, "return_unroutable": 0,
        "dedup": 0,
    }  # fmt: skip
    channel.basic_ack(1)
    settle(channel)
    assert api.get(at(name))["unacked_bytes"] == 0


def test_consumers_are_shown_with_the_queue(
    api: Api, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("q")
    channel.queue_declare(name, arguments={"x-single-active-consumer": True})
    channel.basic_qos(prefetch_count=7)
    for tag in ("first", "second"):
        channel.basic_consume(name, print, consumer_tag=tag, arguments={"x-priority": 3})

    shown = api.get(at(name))

    assert (shown["consumers"], shown["single_active_consumer_tag"]) == (2, "first")
    details = shown["consumer_details"]
    assert [each["consumer_tag"] for each in details] == ["first", "second"]
    one = details[0]
    assert one["queue"] == {"name": name, "vhost": "/"}
    assert (one["prefetch_count"], one["priority"], one["ack_required"]) == (7, 3, True)
    assert one["channel_details"]["user"] == "guest" and one["channel_details"]["number"] == 1
    for most, shown_ in ((1, 1), (2, 2), (0, 2)):
        few = api.get(at(name) + f"?consumer_list_length={most}")
        assert len(few["consumer_details"]) == shown_
    assert status(api, "GET", at(name) + "?consumer_list_length=-1")[0] == 400
    assert status(api, "GET", at(name) + "?consumer_list_length=x")[0] == 400
    assert status(api, "GET", at(name) + f"?consumer_list_length={2**63}")[0] == 400


def test_a_stream_is_shown_with_its_offsets(
    api: Api, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("stream")
    api("PUT", at(name), {"durable": True, "arguments": {"x-queue-type": "stream"}})
    publish(channel, name, [b"x"] * 4)
    settle(channel)
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(name, lambda *_: None, arguments={"x-stream-offset": "first"})
    channel.connection.process_data_events(time_limit=0)
    wait_for(lambda: api.get(at(name))["message_stats"]["deliver"] == 4, "four deliveries")

    shown = api.get(at(name))

    # What is delivered stays where it is.
    assert (shown["messages"], shown["ready"], shown["unacked"]) == (4, 4, 0)
    assert (shown["first_offset"], shown["next_offset"], shown["segments"]) == (1, 5, 1)
    assert len(api.get(at(name, "unacked"))) == 4


# --- delete and purge -------------------------------------------------------------------------


def test_a_deleted_queue_tells_its_consumers(
    api: Api, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("q")
    channel.queue_declare(name)
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume(name, print)

    assert api("DELETE", at(name)).status == 204

    wait_for(lambda: bool(channel.connection.process_data_events(0) or cancelled), "a cancel")
    assert status(api, "DELETE", at(name))[0] == 404


def test_deletion_can_ask_for_an_empty_or_unused_queue(
    api: Api, channel: BlockingChannel, unique: UniqueName
) -> None:
    """With `?if-empty` or another word than true it was deleted with its messages."""
    name = unique("q")
    channel.queue_declare(name)
    publish(channel, name, [b"1"])
    settle(channel)

    for flag in ("if-empty", "if-empty=", "if-empty=y", "if-unused=-1"):
        assert status(api, "DELETE", f"{at(name)}?{flag}") == (
            400, f"Parameter '{flag.partition('=')[0]}' must be a boolean",
        )  # fmt: skip
    assert status(api, "DELETE", at(name) + "?if-empty=true") == (
        400, f"Queue {name} in vhost / is not empty",
    )  # fmt: skip
    assert status(api, "DELETE", at(name) + "?if-unused=true")[0] == 400
    channel.basic_get(name)
    assert status(api, "DELETE", at(name) + "?if-empty=true")[0] == 400
    channel.basic_ack(1)
    wait_for(lambda: api.get(at(name))["messages"] == 0, "an ack")
    channel.basic_consume(name, print)
    assert status(api, "DELETE", at(name) + "?if-unused=true") == (
        400, f"Queue {name} in vhost / in use",
    )  # fmt: skip
    assert api("DELETE", at(name) + "?if-empty=true&if-unused=false").status == 204


def test_an_exclusive_queue_is_its_connections(
    api: Api, connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    name = unique("q")
    connection.channel().queue_declare(name, exclusive=True)

    assert api.get(at(name))["exclusive"] is True
    refused = ("PUT", "pause"), ("PUT", "resume"), ("PUT", "restart"), ("DELETE", "contents")
    for method, *more in (*refused, ("PUT",), ("DELETE",), ("POST", "get")):
        assert status(api, method, at(name, *more), {}) == (400, f"Queue '{name}' is exclusive")


def test_purging_leaves_what_is_unacked(
    api: Api, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("q")
    channel.queue_declare(name)
    publish(channel, name, [str(number) for number in range(5)])
    settle(channel)
    channel.basic_get(name)

    assert api("DELETE", at(name, "contents?count=2")).status == 204
    assert api.get(at(name))["messages"] == 3
    assert get(channel, name).body == b"3"
    assert api("DELETE", at(name, "contents")).status == 204
    shown = api.get(at(name))
    assert (shown["ready"], shown["unacked"]) == (0, 2)


@pytest.mark.parametrize(
    ("count", "reason"),
    [("x", "Count must be a number"), ("0", "Count must be greater than 0"), ("-1", "greater")],
)
def test_a_count_to_purge_is_positive(
    api: Api, unique: UniqueName, count: str, reason: str
) -> None:
    name = unique("q")
    api("PUT", at(name), {})

    answered, text = status(api, "DELETE", at(name, f"contents?count={count}"))

    assert answered == 400 and reason in text


def test_a_stream_is_purged_as_a_whole(api: Api, unique: UniqueName) -> None:
    name = unique("stream")
    api("PUT", at(name), {"durable": True, "arguments": {"x-queue-type": "stream"}})

    assert status(api, "DELETE", at(name, "contents?count=1"))[0] == 400
    assert api("DELETE", at(name, "contents")).status == 204


# --- operators --------------------------------------------------------------------------------


def test_a_paused_queue_delivers_after_it_is_resumed(
    api: Api, channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 340."""
    name = unique("q")
    channel.queue_declare(name)
    assert [api("PUT", at(name, "pause")).status for _ in range(2)] == [204, 204]
    publish(channel, name, [b"1"])
    settle(channel)

    assert api.get(at(name))["state"] == "paused"
    assert channel.basic_get(name)[0] is None
    looked = api("POST", at(name, "get"), {"ack_mode": "ack_requeue_true"})
    assert [row["payload"] for row in looked.json] == ["1"]
    assert api("PUT", at(name, "resume")).status == 204
    assert get(channel, name).body == b"1"


def test_a_running_queue_is_not_restarted(api: Api, unique: UniqueName) -> None:
    name = unique("q")
    api("PUT", at(name), {})

    assert status(api, "PUT", at(name, "restart")) == (400, "Queue was not restarted")


def test_a_closed_queue_is_restarted(http_broker: Broker) -> None:
    api = Api(http_broker)
    api("PUT", at("q"), {"durable": True})
    body = {"properties": {}, "routing_key": "q", "payload": "1", "payload_encoding": "string"}
    api("POST", "/api/exchanges/%2F/amq.default/publish", body)
    (segment,) = http_broker.data_dir.rglob("msgs.*")
    http_broker.stop()
    content = segment.read_bytes()
    segment.write_bytes(b"\x09" + content[1:])
    http_broker.start()

    assert api.get(at("q"))["state"] == "closed"
    assert status(api, "POST", at("q", "get"), {})[0] == 403
    assert status(api, "PUT", at("q", "restart"))[0] == 400
    segment.write_bytes(content)
    assert api("PUT", at("q", "restart")).status == 204
    assert api.get(at("q"))["messages"] == 1


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("GET", ""), ("DELETE", ""), ("DELETE", "/contents"), ("GET", "/bindings"),
        ("GET", "/unacked"), ("PUT", "/pause"), ("PUT", "/resume"), ("PUT", "/restart"),
        ("POST", "/get"), ("POST", "/stream"),
    ],
)  # fmt: skip
def test_a_queue_that_is_not_there(api: Api, method: str, more: str) -> None:
    body = {} if method == "POST" else None
    reason = "Not Found: there is no queue 'missing' in vhost '/'"
    assert status(api, method, at("missing") + more, body) == (404, reason)


# --- who may ----------------------------------------------------------------------------------


def test_permissions_are_those_of_amqp(staffed: Broker) -> None:
    own, guest = Api(staffed, "own"), Api(staffed)
    assert own("PUT", at("own-1"), {}).status == 201
    guest("PUT", at("other-1"), {})

    dead = {"arguments": {"x-dead-letter-exchange": "elsewhere"}}
    assert status(own, "PUT", at("other"), {}) == (
        403, "User doesn't have permissions to declare queue 'other'",
    )  # fmt: skip
    assert status(own, "PUT", at("own-2"), dead)[0] == 403
    assert status(own, "DELETE", at("other-1")) == (
        403, "User doesn't have permissions to delete queue 'other-1'",
    )  # fmt: skip
    for method, more in (("DELETE", "contents"), ("POST", "get")):
        assert status(own, method, at("other-1", more), {}) == (
            403, "User doesn't have permissions to read queue 'other-1'",
        )  # fmt: skip
    assert own("GET", at("other-1")).status == 200
    assert own("POST", at("own-1", "get"), {}).status == 200
    assert own("DELETE", at("own-1")).status == 204


@pytest.mark.parametrize(
    ("user", "one", "everything"),
    [("own", 200, 200), ("mon", 403, 200), ("imp", 403, 200), ("elsewhere", 403, 200),
     ("untagged", 401, 401)],
)  # fmt: skip
def test_roles(staffed: Broker, user: str, one: int, everything: int) -> None:
    Api(staffed)("PUT", at("seen"), {})
    api = Api(staffed, user)

    assert api("GET", at("seen")).status == one
    assert api("GET", VHOST).status == one
    listed = api("GET", "/api/queues")
    assert listed.status == everything
    sees_all = user in ("own", "mon", "imp")
    if everything == 200:
        assert ("seen" in [row["name"] for row in listed.json]) == sees_all


def test_an_unknown_virtual_host_is_refused(api: Api) -> None:
    refused = (403, "Access refused: there is no vhost 'nope'")
    assert status(api, "PUT", "/api/queues/nope/q", {}) == refused
    assert status(api, "GET", "/api/queues/nope") == refused


def test_a_list_of_many_queues_does_not_hold_up_others(
    http_broker: Broker, broker_factory: BrokerFactory
) -> None:
    """Rows are made in portions: a short request is answered while a long one is worked on."""
    import threading

    api = Api(http_broker)
    with pika.BlockingConnection(pika.ConnectionParameters(port=http_broker.port)) as connection:
        channel = connection.channel()
        for number in range(2000):
            channel.queue_declare(f"many-{number}")
        done: list[str] = []

        def long() -> None:
            assert len(api.get("/api/queues?sort=message_stats.publish")) == 2000
            done.append("long")

        several = [threading.Thread(target=long) for _ in range(4)]
        for each in several:
            each.start()
        time.sleep(0.05)
        channel.queue_declare("many-0")
        done.append("short")
        for each in several:
            each.join()
    assert done.index("short") < 4
