"""Messages by HTTP: publish, get, read a stream, move, and what is unacked."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import publish, settle
from tests.support import users
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for

QUEUES, EXCHANGES = "/api/queues/%2F", "/api/exchanges/%2F"
PEOPLE: users.People = {
    "own": ("management", {"/": ("^own", "^(own|)$", "^own")}),
    "reader": ("management", {"/": ("", ".*", "")}),
    "imp": ("management,impersonator", {"/": (".*", ".*", ".*")}),
}


class Place:
    """A queue of one test."""

    def __init__(self, api: Api, name: str, **body: Any) -> None:
        self.api, self.name = api, name
        assert api("PUT", f"{QUEUES}/{name}", body).status == 201

    def send(self, payload: str, encoding: str = "string", **properties: Any) -> bool:
        """Publish to the queue; return whether it was routed."""
        answer = send(self.api, self.name, payload, encoding, **properties)
        assert answer[0] == 200, answer
        return bool(answer[1]["routed"])

    def get(self, count: int = 1, mode: str = "get", **body: Any) -> list[dict[str, Any]]:
        """What is answered to a get."""
        answer = self.ask("get", count=count, ack_mode=mode, **body)
        assert answer[0] == 200, answer
        found: list[dict[str, Any]] = answer[1]
        return found

    def ask(self, what: str, **body: Any) -> tuple[int, Any]:
        """Status and JSON of a POST."""
        answer = self.api("POST", f"{QUEUES}/{self.name}/{what}", body)
        return answer.status, answer.json

    def payloads(self, count: int = 100, mode: str = "ack_requeue_true") -> list[str]:
        """The payloads that a get answers."""
        return [row["payload"] for row in self.get(count, mode)]

    @property
    def numbers(self) -> tuple[int, int]:
        """Ready and unacked messages."""
        shown = self.api.get(f"{QUEUES}/{self.name}")
        return shown["ready"], shown["unacked"]


@pytest.fixture
def configured(broker_factory: BrokerFactory, tmp_path: Path) -> Callable[[str], Broker]:
    """Call it with the text of an ini file to get a broker."""

    def start(text: str) -> Broker:
        path = tmp_path / "lavinmq.ini"
        path.write_text(text)
        return broker_factory(["-c", str(path)], http=True)

    return start


SMALL = "[mgmt]\nmax_body_size = 20000"


def send(
    api: Api, key: str, payload: str = "", encoding: str = "string", *,
    exchange: str = "amq.default", **properties: Any,
) -> tuple[int, Any]:  # fmt: skip
    """Status and JSON of a publish."""
    body = {
        "properties": properties, "routing_key": key, "payload": payload,
        "payload_encoding": encoding,
    }  # fmt: skip
    answer = api("POST", f"{EXCHANGES}/{exchange}/publish", body)
    return answer.status, answer.json


@pytest.fixture
def place(api: Api, unique: UniqueName) -> Place:
    """An empty queue."""
    return Place(api, unique("q"))


# --- publish ----------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_published(place: Place, channel: BlockingChannel) -> None:
    headers = {"a": 1, "c": None, "d": [1, "x", {"y": True}], "big": 1 << 40}
    assert place.send(
        "grüße ✓", headers=headers, content_type="ct", delivery_mode=2, priority=5,
        expiration=600000, timestamp=1700000000, user_id="guest", reserved="z",
    )  # fmt: skip

    method, properties, body = channel.basic_get(place.name, auto_ack=True)

    assert method is not None and body == "grüße ✓".encode()
    assert properties.headers == headers
    assert (properties.expiration, properties.priority) == ("600000", 5)
    assert (properties.timestamp, properties.cluster_id) == (1700000000, "z")


def test_binary_is_base64(place: Place) -> None:
    assert place.send("AP/+//79", "base64")

    (row,) = place.get()

    assert (row["payload"], row["payload_encoding"]) == ("AP_-__79", "base64")
    assert row["payload_bytes"] == 6


def test_what_reaches_no_queue_is_not_routed(api: Api, unique: UniqueName) -> None:
    assert send(api, unique("nowhere")) == (200, {"routed": False})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Fields 'properties', 'routing_key', 'payload' and 'payload_encoding' are required"),
        ({"properties": None}, "Field 'properties' must be an object"),
        ({"properties": []}, "Field 'properties' must be an object"),
        ({"payload": 5}, "Field 'payload' must be a string"),
        ({"routing_key": 1}, "Field 'routing_key' must be a string"),
        ({"routing_key": "k" * 256}, "longer than 255 bytes"),
        ({"payload_encoding": "utf9"}, "Unknown payload_encoding utf9"),
        ({"payload_encoding": "base64", "payload": "%%%"}, "The payload is not base64"),
        ({"properties": {"priority": 300}}, "Property 'priority' must be between 0 and 255"),
        ({"properties": {"expiration": "x"}}, "Expiration not a number"),
        ({"properties": {"expiration": -1}}, "Negative expiration not allowed"),
        ({"properties": {"content_type": 5}}, "Property 'content_type' must be a string"),
        ({"properties": {"headers": {"CC": "x"}}}, "CC header not a string array"),
        ({"properties": {"headers": {"BCC": [1]}}}, "BCC header not a string array"),
        ({"properties": {"user_id": "other"}}, "'other' doesn't match actual user 'guest'"),
    ],
)
def test_publishes_that_make_no_sense(place: Place, body: dict[str, Any], reason: str) -> None:
    whole = {
        "properties": {}, "routing_key": place.name, "payload": "", "payload_encoding": "string"
    }  # fmt: skip
    answer = place.api("POST", f"{EXCHANGES}/amq.default/publish", whole | body if body else {})

    assert answer.status == 400 and reason in answer.json["reason"]
    assert place.numbers == (0, 0)


def test_an_internal_or_missing_exchange(api: Api, unique: UniqueName) -> None:
    name = unique("x")
    api("PUT", f"{EXCHANGES}/{name}", {"type": "fanout", "internal": True})

    assert (
        send(api, "", exchange=name)[1]["reason"] == "Not allowed to publish to internal exchange"
    )
    assert send(api, "", exchange=unique("no"))[0] == 404


def test_a_full_queue_that_refuses_makes_it_unrouted(api: Api, unique: UniqueName) -> None:
    """edge-cases.md 127."""
    full = Place(api, unique("q"), arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    other = Place(api, unique("other"))

    assert [full.send("1"), full.send("2")] == [True, False]
    assert full.send("3", headers={"CC": [other.name]}) is False
    assert (full.payloads(), other.payloads()) == (["1"], ["3"])


def test_rules_are_those_of_an_amqp_publish(api: Api, unique: UniqueName, place: Place) -> None:
    """CC and BCC, alternate exchanges, delays, duplicates and deaths."""
    copy, dead = Place(api, unique("copy")), Place(api, unique("dead"))
    exchange = unique("x")
    arguments = {
        "x-message-deduplication": True, "x-cache-size": 10, "x-delayed-exchange": True,
        "alternate-exchange": "amq.direct",
    }  # fmt: skip
    api("PUT", f"{EXCHANGES}/{exchange}", {"type": "direct", "arguments": arguments})
    bindings = "/api/bindings/%2F/e"
    api("POST", f"{bindings}/{exchange}/q/{place.name}", {"routing_key": "k"})
    api("POST", f"{bindings}/amq.direct/q/{copy.name}", {"routing_key": f"{exchange}-lost"})

    place.send("copied", headers={"CC": [copy.name], "BCC": [dead.name]})
    assert [each.payloads(mode="get") for each in (place, copy, dead)] == [["copied"]] * 3
    once = {"headers": {"x-deduplication-header": "1"}}
    assert [send(api, "k", exchange=exchange, **once)[1]["routed"] for _ in range(2)] == [
        True, False,
    ]  # fmt: skip
    assert send(api, f"{exchange}-lost", exchange=exchange)[1]["routed"]
    assert send(api, "k", "later", exchange=exchange, headers={"x-delay": 30})[1]["routed"]
    wait_for(lambda: place.numbers == (2, 0), "the delayed message")
    wait_for(lambda: copy.numbers == (1, 0), "what took the alternate exchange")
    death = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    place.get(9)
    place.send("mortal", headers=death, expiration="1")
    wait_for(lambda: dead.payloads() == ["mortal"], "the dead letter")


def test_a_durable_message_is_there_after_a_kill(http_broker: Broker) -> None:
    api = Api(http_broker)
    kept = Place(api, "kept", durable=True)
    for number in range(20):
        kept.send(str(number))

    http_broker.kill()
    http_broker.start()

    assert kept.payloads() == [str(number) for number in range(20)]


def test_the_broker_adds_the_time_when_told_to(configured: Callable[[str], Broker]) -> None:
    broker = configured("[main]\nset_timestamp = true")
    place = Place(Api(broker), "q")
    before = int(time.time())

    place.send("1")
    place.send("2", timestamp=7)

    first, second = (row["properties"]["timestamp"] for row in place.get(2))
    assert before <= first <= before + 60 and second == 7


def test_a_body_that_is_larger_than_a_message_may_be(configured: Callable[[str], Broker]) -> None:
    place = Place(Api(configured("[amqp]\nmax_message_size = 100")), "q")

    status, answer = send(place.api, "q", "x" * 101)

    assert (status, answer["reason"]) == (400, "message size 101 larger than max size 100")


def test_publishing_takes_the_right_to_write(staffed: Broker) -> None:
    own, guest, reader = Api(staffed, "own"), Api(staffed), Api(staffed, "reader")
    guest("PUT", f"{EXCHANGES}/own-x", {"type": "fanout"})

    assert send(own, "", exchange="own-x")[0] == 200
    refused = send(own, "", exchange="amq.fanout")
    assert refused[0] == 403
    assert refused[1]["reason"] == "User doesn't have permissions to write exchange 'amq.fanout'"
    assert send(reader, "q")[1]["reason"].endswith("to write exchange 'amq.default'")
    # Nor does it help to have a message die.
    death = {"headers": {"x-dead-letter-exchange": "amq.fanout"}}
    assert send(own, "", exchange="own-x", **death)[0] == 403
    assert send(Api(staffed, "imp"), "q", user_id="anybody")[0] == 200


# --- get --------------------------------------------------------------------------------------


def test_what_is_shown_of_a_message(place: Place) -> None:
    place.send("m0", headers={"i": 0})
    place.send("m1")

    assert place.get() == [
        {
            "payload_bytes": 2, "redelivered": False, "exchange": "", "routing_key": place.name,
            "message_count": 1, "properties": {"headers": {"i": 0}}, "payload": "m0",
            "payload_encoding": "string",
        }
    ]  # fmt: skip
    assert place.numbers == (1, 0)


@pytest.mark.parametrize("mode", ["ack_requeue_true", "reject_requeue_true"])
def test_looking_takes_nothing(place: Place, mode: str) -> None:
    for number in range(3):
        place.send(str(number))

    assert [place.payloads(2, mode) for _ in range(3)] == [["0", "1"]] * 3
    assert place.numbers == (3, 0)
    assert [row["redelivered"] for row in place.get(3)] == [True, True, False]


@pytest.mark.parametrize("mode", ["get", "ack_requeue_false"])
def test_taking_acknowledges(place: Place, mode: str) -> None:
    place.send("1")

    assert place.payloads(5, mode) == ["1"]
    assert place.numbers == (0, 0)
    stats = place.api.get(f"{QUEUES}/{place.name}")["message_stats"]
    assert (stats["get"], stats["ack"], stats["reject"]) == (1, 1, 0)


def test_rejecting_sends_to_the_dead_letters(api: Api, unique: UniqueName, place: Place) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": place.name}
    mortal = Place(api, unique("q"), arguments=arguments)
    mortal.send("1")

    assert mortal.payloads(1, "reject_requeue_false") == ["1"]
    wait_for(lambda: place.numbers == (1, 0), "the dead letter")
    assert place.get()[0]["properties"]["headers"]["x-first-death-reason"] == "rejected"


def test_looking_does_not_wear_a_message_out(api: Api, unique: UniqueName) -> None:
    limited = Place(api, unique("q"), arguments={"x-delivery-limit": 1})
    limited.send("1")

    assert [limited.payloads() for _ in range(5)] == [["1"]] * 5


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"ack_mode": "nope"}, "Field 'ack_mode' must be one of get"),
        ({"ackmode": "peek"}, "Field 'ack_mode' must be one of get"),
        ({"requeue": True}, "Cannot requeue message on get"),
        ({"ack_mode": "get", "requeue": "true"}, "Cannot requeue message on get"),
        ({"count": -1}, "Field 'count' must not be negative"),
        ({"count": "x"}, "Field 'count' must be an integer"),
        ({"truncate": -1}, "Field 'truncate' must not be negative"),
        ({"encoding": "nope"}, "Field 'encoding' must be one of auto, base64"),
    ],
)
def test_gets_that_make_no_sense_touch_nothing(
    place: Place, body: dict[str, Any], reason: str
) -> None:
    place.send("1")

    status, answer = place.ask("get", **body)

    assert status == 400 and reason in answer["reason"]
    assert [row["redelivered"] for row in place.get()] == [False]


def test_payloads_are_cut_and_encoded_as_asked(place: Place) -> None:
    place.send("grüße")

    def shown(**body: Any) -> tuple[str, str]:
        (row,) = place.get(1, "ack_requeue_true", **body)
        assert row["payload_bytes"] == 7
        return row["payload"], row["payload_encoding"]

    assert shown() == ("grüße", "string")
    assert shown(truncate="4") == ("grü", "string")
    assert shown(truncate=3) == ("Z3LD", "base64")
    assert shown(truncate=0) == ("", "string")
    assert shown(encoding="base64") == ("Z3LDvMOfZQ==", "base64")
    assert place.get(0) == []


def test_an_answer_is_bounded_and_what_does_not_fit_stays(
    configured: Callable[[str], Broker],
) -> None:
    place = Place(Api(configured(SMALL)), "q")
    for _ in range(10):
        place.send("x" * 5000)

    assert len(place.get(10, "ack_requeue_true")) == 3
    assert place.numbers == (10, 0)
    assert len(place.get(10)) == 3
    assert place.numbers == (7, 0)
    assert len(place.get(10, "ack_requeue_true", truncate=10)) == 7
    for _ in range(200):
        place.send("")
    place.get(9, truncate=0)
    assert 20 < len(place.get(1000)) < 100


def test_an_answer_is_bounded_by_what_escapes_make_of_it(
    configured: Callable[[str], Broker],
) -> None:
    place = Place(Api(configured(SMALL)), "q")
    for _ in range(10):
        place.send("\0" * 1000)  # each takes six characters

    assert len(place.get(10, "ack_requeue_true")) == 4


def test_a_message_that_does_not_fit_at_all_says_so(configured: Callable[[str], Broker]) -> None:
    broker = configured(SMALL)
    place = Place(Api(broker), "q")
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.port)) as connection:
        channel = connection.channel()
        publish(channel, "q", [b"x" * 30000])
        settle(channel)

    status, answer = place.ask("get")

    assert status == 413 and "use 'truncate'" in answer["reason"]
    assert place.numbers == (1, 0)
    assert place.get(truncate=5)[0]["payload_bytes"] == 30000


def test_large_messages_come_whole(place: Place, channel: BlockingChannel) -> None:
    body = ("ü✓x" * 700_000).encode()
    publish(channel, place.name, [body, b"\xff" * 1_000_000])
    settle(channel)

    text, binary = place.get(2)

    assert text["payload"].encode() == body
    assert (binary["payload_encoding"], len(binary["payload"])) == ("base64", 1_333_336)


def test_messages_are_put_back_when_nobody_is_there_for_the_answer(
    place: Place, channel: BlockingChannel
) -> None:
    publish(channel, place.name, [b"x" * 50_000] * 400)
    settle(channel)
    host, port = place.api.broker.host, place.api.broker.http_port
    body = b'{"count": 400}'
    login = base64.b64encode(b"guest:guest").decode()

    with socket.create_connection((host, port)) as client:
        client.sendall(
            f"POST {QUEUES}/{place.name}/get HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Basic {login}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def is_over() -> bool:
        shown = place.api.get(f"{QUEUES}/{place.name}")
        return shown["message_stats"]["get"] > 0 and shown["unacked"] == 0

    wait_for(is_over, "messages that were taken")
    assert place.numbers == (400, 0)


def test_a_consumer_gets_what_was_looked_at(place: Place, channel: BlockingChannel) -> None:
    for number in range(200):
        place.send(str(number))
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            place.get(50, "ack_requeue_true")

    looking = threading.Thread(target=look)
    looking.start()
    seen: list[bytes] = []
    for method, _, body in channel.consume(place.name, inactivity_timeout=5):
        assert method is not None, "messages are missing"
        channel.basic_ack(method.delivery_tag)
        seen.append(body)
        if len(seen) == 200:
            break
    stop.set()
    looking.join()
    channel.cancel()

    assert sorted(seen, key=int) == [str(number).encode() for number in range(200)]


def test_waiting_messages_of_a_delayed_exchange_are_left_alone(
    api: Api, unique: UniqueName
) -> None:
    name = unique("x")
    api("PUT", f"{EXCHANGES}/{name}", {"type": "direct", "delayed": True})
    waiting = f"{QUEUES}/amq.delayed-{name}"

    assert api("POST", f"{waiting}/get", {}).status == 403
    assert api("POST", f"{waiting}/move", {"destination": "x"}).status == 404
    assert api("DELETE", waiting).status == 403


# --- streams ----------------------------------------------------------------------------------


@pytest.fixture
def stream(api: Api, unique: UniqueName) -> Place:
    """A stream with five messages, m0 at offset 1."""
    place = Place(api, unique("s"), durable=True, arguments={"x-queue-type": "stream"})
    for number in range(5):
        place.send(f"m{number}", headers={"i": number})
    return place


def read(stream: Place, **body: Any) -> list[str]:
    """The payloads that a stream answers."""
    status, rows = stream.ask("stream", **body)
    assert status == 200, rows
    return [row["payload"] for row in rows]


def test_what_is_shown_of_a_message_of_a_stream(stream: Place) -> None:
    status, rows = stream.ask("stream")

    assert status == 200
    assert rows == [
        {
            "payload_bytes": 2, "redelivered": False, "exchange": "", "routing_key": stream.name,
            "message_count": 5, "properties": {"headers": {"i": 0, "x-stream-offset": 1}},
            "payload": "m0", "payload_encoding": "string",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "count", "found"),
    [
        ("first", 2, "m0 m1"), ("last", 9, "m0 m1 m2 m3 m4"), ("next", 9, ""),
        ("3", 2, "m2 m3"), (3, 2, "m2 m3"), (0, 1, "m0"), ("99", 9, ""), (1 << 62, 9, ""),
        (-2, 9, "m3 m4"), ("-2", 1, "m3"), (-99, 1, "m0"), (-(1 << 62), 1, "m0"),
        ("1h", 1, "m0"), ("2001-02-03T04:05:06Z", 1, "m0"), ("2999-01-01T00:00:00+02:00", 9, ""),
        ("first", 0, ""), ("first", -1, ""), ("first", 1 << 70, "m0 m1 m2 m3 m4"),
    ],
)  # fmt: skip
def test_reading_begins_where_it_is_told_to(
    stream: Place, offset: str | int, count: int, found: str
) -> None:
    assert read(stream, offset=offset, count=count if count < 1 << 63 else str(10**18)) == (
        found.split()
    )


@pytest.mark.parametrize("offset", ["x", "", "7Q", [], {}, 1.5, True])
def test_offsets_that_make_no_sense(stream: Place, offset: Any) -> None:
    status, answer = stream.ask("stream", offset=offset)

    assert status == 400 and answer["reason"].startswith("invalid offset")


def test_a_long_stream_is_read_over_its_segments(stream: Place, channel: BlockingChannel) -> None:
    publish(channel, stream.name, [str(number) for number in range(3000)])
    settle(channel)

    assert read(stream, count=2900, offset=106) == [str(number) for number in range(100, 3000)]
    assert read(stream, count=1, encoding="base64", truncate=1) == ["bQ=="]


def test_an_answer_of_a_stream_is_bounded(configured: Callable[[str], Broker]) -> None:
    api = Api(configured(SMALL))
    stream = Place(api, "s", durable=True, arguments={"x-queue-type": "stream"})
    for _ in range(10):
        stream.send("x" * 5000)

    assert len(read(stream, count=10)) == 3
    assert len(read(stream, count=10, truncate=1)) == 10


def test_a_stream_is_not_a_queue_and_the_other_way_round(stream: Place, place: Place) -> None:
    assert stream.get() == []
    assert place.ask("stream")[0] == 404
    assert stream.ask("move", destination=place.name)[0] == 400


def test_reading_takes_the_right_to_read(staffed: Broker) -> None:
    stream = Place(Api(staffed), "s", durable=True, arguments={"x-queue-type": "stream"})
    stream.api = Api(staffed, "own")

    status, answer = stream.ask("stream")

    assert status == 403
    assert answer["reason"] == "User doesn't have permissions to read stream 's'"


# --- move -------------------------------------------------------------------------------------


def test_messages_are_moved_in_order(api: Api, place: Place, unique: UniqueName) -> None:
    to = Place(api, unique("to"), durable=True)
    for number in range(100):
        place.send(str(number), priority=3)

    assert place.ask("move", destination=to.name, count="3") == (200, {"moved": 3})
    assert place.ask("move", destination=to.name) == (200, {"moved": 97})

    rows = to.get(100)
    assert [row["payload"] for row in rows] == [str(number) for number in range(100)]
    assert {(row["exchange"], row["routing_key"]) for row in rows} == {("", to.name)}
    assert rows[0]["properties"] == {"priority": 3}
    assert place.numbers == (0, 0)


def test_moved_messages_are_there_after_a_kill(http_broker: Broker) -> None:
    api = Api(http_broker)
    source, to = Place(api, "source", durable=True), Place(api, "to", durable=True)
    for number in range(30):
        source.send(str(number))
    assert source.ask("move", destination="to", count=20) == (200, {"moved": 20})

    http_broker.kill()
    http_broker.start()

    assert to.payloads() == [str(number) for number in range(20)]
    left = source.payloads()
    assert left[-10:] == [str(number) for number in range(20, 30)]


def test_moving_ends_when_the_other_queue_is_full(
    api: Api, place: Place, unique: UniqueName
) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    to = Place(api, unique("to"), arguments=arguments)
    for number in range(5):
        place.send(str(number))

    assert place.ask("move", destination=to.name) == (200, {"moved": 2})
    assert place.payloads() == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"destination": "no such queue"}, 404), ({"destination": 5}, 400)],
)
def test_moves_that_make_no_sense(place: Place, body: dict[str, Any], status: int) -> None:
    place.send("1")

    assert place.ask("move", **body)[0] == status
    assert place.ask("move", destination=place.name)[0] == 400
    assert place.ask("move", destination=place.name, count=-1)[0] == 400
    assert place.payloads() == ["1"]


def test_moving_takes_the_right_to_read_and_to_publish(staffed: Broker) -> None:
    api = Api(staffed)
    Place(api, "own-q").send("1")
    Place(api, "own-to")
    source = Place(api, "source")

    source.api = Api(staffed, "own")
    assert source.ask("move", destination="own-to")[0] == 403
    source.name = "own-q"
    assert source.ask("move", destination="own-to")[0] == 403


# --- unacked ----------------------------------------------------------------------------------


def test_unacked_messages_are_listed_with_who_has_them(
    place: Place, channel: BlockingChannel
) -> None:
    """edge-cases.md 160."""
    publish(channel, place.name, [str(number) for number in range(300)])
    channel.basic_get(place.name)
    channel.basic_qos(prefetch_count=280)
    channel.basic_consume(place.name, lambda *_: None, consumer_tag="tag")
    channel.connection.process_data_events(time_limit=0)
    wait_for(lambda: place.numbers == (19, 281), "deliveries")

    rows = place.api.get(f"{QUEUES}/{place.name}/unacked?sort=delivery_tag")

    assert [row["delivery_tag"] for row in rows] == list(range(1, 282))
    assert [row["consumer_tag"] for row in rows] == ["Basic get"] + ["tag"] * 280
    assert rows[0]["channel_name"].endswith("[1]") and rows[0]["channel_name"].count(":") == 1
    assert rows[0]["unacked_for_seconds"] in range(30)
    path = f"{QUEUES}/{place.name}/unacked?page=2&page_size=100&name=7"
    assert place.api.get(path)["filtered_count"] == 1
    channel.basic_ack(1)
    channel.basic_reject(2, requeue=False)
    settle(channel)
    rows = place.api.get(f"{QUEUES}/{place.name}/unacked")
    assert {row["delivery_tag"] for row in rows} & {1, 2, 3} == {3}
    channel.close()
    assert place.api.get(f"{QUEUES}/{place.name}/unacked") == []
