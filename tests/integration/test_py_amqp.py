"""py-amqp, the client below kombu and Celery: delivery, topology, transactions, errors, the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import amqp
import pytest
from amqp import Channel, Connection, Message

from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

WAIT_S = 10.0
REPLY_ADDRESS = "amq.rabbitmq.reply-to"

Open = Callable[..., Connection]


@pytest.fixture
def open_connection(broker: Broker) -> Iterator[Open]:
    """Call it to open a connection; keyword arguments replace parameters."""
    opened: list[Connection] = []

    def connect(**parameters: object) -> Connection:
        connection = Connection(f"{broker.host}:{broker.port}", **parameters)
        opened.append(connection)
        connection.connect()
        return connection

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def client(open_connection: Open) -> Connection:
    """An open connection of the default user."""
    return open_connection()


@pytest.fixture
def lane(client: Connection) -> Channel:
    """An open channel on `client`."""
    return client.channel()


@pytest.fixture
def line(lane: Channel) -> str:
    """Name of an empty queue that goes with `client`."""
    return temporary_queue(lane)


def temporary_queue(channel: Channel) -> str:
    return str(channel.queue_declare(exclusive=True, auto_delete=False).queue)


def publish(channel: Channel, queue: str, *bodies: str) -> None:
    for body in bodies:
        channel.basic_publish(Message(body), routing_key=queue)


def ready_count(channel: Channel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).message_count)


def start_consumer(channel: Channel, queue: str, **consume: object) -> list[Message]:
    """Start a consumer and return the list that its messages are appended to."""
    received: list[Message] = []
    channel.basic_consume(queue, callback=received.append, **consume)
    return received


def serve(channel: Channel, condition: Callable[[], bool]) -> None:
    """Handle what the broker sends until `condition` holds. Raises TimeoutError."""
    while not condition():
        channel.connection.drain_events(timeout=WAIT_S)


def take(channel: Channel, queue: str, count: int) -> list[Message]:
    """Consume and ack `count` messages."""
    received = start_consumer(channel, queue)
    serve(channel, lambda: len(received) >= count)
    for message in received:
        channel.basic_ack(message.delivery_tag)
    return received


def drain(channel: Channel, queue: str) -> list[str]:
    """Return the bodies of all ready messages, which are thereby gone."""
    messages = iter(lambda: channel.basic_get(queue, no_ack=True), None)
    return [message.body for message in messages]


def seen(message: Message) -> tuple[str, bool]:
    return message.body, message.delivery_info["redelivered"]


def test_a_thousand_messages_arrive_in_order_and_stay_acked(
    client: Connection, lane: Channel, line: str
) -> None:
    numbers = [str(number) for number in range(1000)]

    publish(lane, line, *numbers)
    received = take(lane, line, 1000)
    lane.close()

    assert [seen(message) for message in received] == [(number, False) for number in numbers]
    assert ready_count(client.channel(), line) == 0


def test_a_publish_waits_for_its_confirm(lane: Channel, line: str) -> None:
    for number in range(20):
        message = Message(str(number))
        lane.basic_publish_confirm(message, routing_key=line, confirm_timeout=WAIT_S)

        assert ready_count(lane, line) == number + 1


def test_confirms_of_many_publishes_cover_them_all(lane: Channel, line: str) -> None:
    confirmed: set[int] = set()

    def on_ack(tag: int, multiple: bool) -> None:
        confirmed.update(range(1 if multiple else tag, tag + 1))

    lane.events["basic_ack"].add(on_ack)
    lane.confirm_select()
    publish(lane, line, *map(str, range(500)))
    serve(lane, lambda: len(confirmed) >= 500)

    assert confirmed == set(range(1, 501))
    assert ready_count(lane, line) == 500


def test_an_unroutable_mandatory_message_comes_back_before_its_confirm(lane: Channel) -> None:
    events: list[object] = []

    def on_return(error: Exception, exchange: str, key: str, message: Message) -> None:
        events.append((error.reply_code, error.reply_text, exchange, key, message.body))

    lane.events["basic_return"].add(on_return)
    lane.events["basic_ack"].add(lambda tag, multiple: events.append(tag))
    lane.confirm_select()
    lane.basic_publish(Message("back"), "amq.direct", "no such key", mandatory=True)
    serve(lane, lambda: 1 in events)

    assert events == [(312, "NO_ROUTE", "amq.direct", "no such key", "back"), 1]


def test_prefetch_limits_what_a_consumer_holds(lane: Channel, line: str) -> None:
    publish(lane, line, *map(str, range(10)))
    lane.basic_qos(0, 3, a_global=False)
    received = start_consumer(lane, line)

    serve(lane, lambda: len(received) >= 3)
    before = ready_count(lane, line), len(received)
    lane.basic_ack(received[1].delivery_tag, multiple=True)
    serve(lane, lambda: len(received) >= 5)

    assert before == (7, 3)
    assert (ready_count(lane, line), len(received)) == (5, 5)


def test_a_rejected_message_comes_again_unless_it_is_dropped(lane: Channel, line: str) -> None:
    publish(lane, line, "again", "dropped")

    first = lane.basic_get(line)
    lane.basic_reject(first.delivery_tag, requeue=True)
    again, dropped = lane.basic_get(line), lane.basic_get(line)
    lane.basic_ack(again.delivery_tag)
    lane.basic_reject(dropped.delivery_tag, requeue=False)

    messages = (first, again, dropped)
    assert [seen(message) for message in messages] == [
        ("again", False),
        ("again", True),
        ("dropped", False),
    ]
    assert lane.basic_get(line) is None


def test_get_answers_for_filled_and_empty_queues(lane: Channel, line: str) -> None:
    empty = lane.basic_get(line)
    publish(lane, line, "1", "2")

    left = [lane.basic_get(line, no_ack=True).delivery_info["message_count"] for _ in range(2)]

    assert empty is None
    assert left == [1, 0]


def test_recovered_messages_come_again_to_the_consumer(lane: Channel, line: str) -> None:
    publish(lane, line, "1", "2")
    received = start_consumer(lane, line)
    serve(lane, lambda: len(received) == 2)

    lane.basic_recover(requeue=True)
    serve(lane, lambda: len(received) == 4)

    assert [seen(message) for message in received[2:]] == [("1", True), ("2", True)]


def test_no_delivery_comes_while_the_flow_is_stopped(lane: Channel, line: str) -> None:
    """edge-cases.md 33"""
    received = start_consumer(lane, line)

    lane.flow(False)
    publish(lane, line, "1", "2")
    stopped = ready_count(lane, line), len(received)
    lane.flow(True)
    serve(lane, lambda: len(received) == 2)

    assert stopped == (2, 0)


def test_direct_and_topic_exchanges_route_and_unbind(lane: Channel, unique: UniqueName) -> None:
    direct, topic = unique("direct"), unique("topic")
    queues = [temporary_queue(lane) for _ in range(3)]
    lane.exchange_declare(direct, "direct")
    lane.exchange_declare(topic, "topic")
    lane.queue_bind(queues[0], direct, "key")
    lane.queue_bind(queues[1], topic, "a.#")
    lane.queue_bind(queues[1], topic, "*.b")
    lane.exchange_bind(topic, direct, "far.*")
    lane.exchange_bind(topic, direct, "far.b")
    lane.queue_bind(queues[2], topic, "far.*")

    for key in ("key", "other", "far.b", "far.c"):
        lane.basic_publish(Message(key), direct, key)
    lane.queue_unbind(queues[0], direct, "key")
    for exchange, key in [(direct, "key"), (topic, "a"), (topic, "x.b"), (topic, "x.c")]:
        lane.basic_publish(Message(key), exchange, key)

    # A direct exchange knows no patterns.
    assert [drain(lane, queue) for queue in queues] == [["key"], ["far.b", "a", "x.b"], ["far.b"]]


WANTED: dict[str, Any] = {
    "text": "t",
    "whole": 7,
    "large": 2**40,
    "on": True,
    "price": Decimal("1.25"),
    "when": datetime(2023, 11, 14, 22, 13, 20),
    "nested": {"list": [1, "two", {"x": None}]},
}


@pytest.mark.parametrize(
    ("headers", "all_match", "any_match"),
    [
        (WANTED | {"more": 1}, True, True),
        (WANTED | {"nested": {"list": [1, "two", {"x": 0}]}}, False, True),
        ({"nested": WANTED["nested"]}, False, True),
        ({"price": Decimal("12.5"), "whole": "7", "on": 1}, False, False),
    ],
    ids=["same", "deep", "part", "none"],
)
def test_a_headers_exchange_compares_values_of_every_type(
    lane: Channel,
    unique: UniqueName,
    headers: dict[str, object],
    all_match: bool,
    any_match: bool,
) -> None:
    exchange = unique("headers")
    queues = {match: temporary_queue(lane) for match in ("all", "any")}
    lane.exchange_declare(exchange, "headers")
    for match, queue in queues.items():
        lane.queue_bind(queue, exchange, arguments={"x-match": match} | WANTED)

    lane.basic_publish(Message("m", application_headers=headers), exchange)

    matched = {match: drain(lane, queue) == ["m"] for match, queue in queues.items()}
    assert matched == {"all": all_match, "any": any_match}


def test_a_passive_declare_that_fails_closes_its_channel_only(
    client: Connection, lane: Channel, line: str, unique: UniqueName
) -> None:
    failing = client.channel()

    with pytest.raises(amqp.NotFound) as queue_error:
        failing.queue_declare(unique("missing"), passive=True)
    # The library has opened the channel again, under the same number.
    with pytest.raises(amqp.NotFound) as exchange_error:
        failing.exchange_declare(unique("missing"), "direct", passive=True)
    with pytest.raises(amqp.PreconditionFailed):
        failing.queue_declare(line, exclusive=True, auto_delete=True)
    publish(lane, line, "fine")

    assert (queue_error.value.code, exchange_error.value.code) == (404, 404)
    assert drain(lane, line) == ["fine"]
    assert drain(failing, line) == []


def test_large_bodies_arrive_as_they_were_sent(lane: Channel, line: str) -> None:
    sent = [os.urandom(size) for size in (0, 131_064, 131_065, 1024 * 1024)]

    for body in sent:
        lane.basic_publish(Message(body), routing_key=line)
    received = take(lane, line, len(sent))

    # The library decodes what happens to be text.
    bodies = [m.body if isinstance(m.body, bytes) else m.body.encode() for m in received]
    assert bodies == sent


def test_headers_and_properties_arrive_as_they_were_sent(lane: Channel, line: str) -> None:
    headers = {
        "text": "ünïcode",
        "whole": -(2**31) + 1,
        "large": -(2**63),
        "fraction": 1.5,
        "price": Decimal("-123.45"),
        "on": True,
        "off": False,
        "none": None,
        "when": datetime(2023, 11, 14, 22, 13, 20),
        "list": [1, "two", {"three": 3}, [None, False]],
        "table": {"a": {"b": {}}},
    }
    properties: dict[str, object] = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 5,
        "correlation_id": "c1",
        "reply_to": "r1",
        "expiration": "60000",
        "message_id": "m1",
        "timestamp": 1700000000,
        "type": "t1",
        "user_id": "guest",
        "app_id": "a1",
        "cluster_id": "k1",
    }

    lane.basic_publish(Message("{}", application_headers=headers, **properties), routing_key=line)

    received = lane.basic_get(line).properties
    assert received.pop("application_headers") == headers
    assert received == properties


def test_a_transaction_is_committed_or_rolled_back(
    client: Connection, lane: Channel, line: str
) -> None:
    channel = client.channel()
    channel.tx_select()

    ready = []
    for finish in (channel.tx_rollback, channel.tx_commit):
        publish(channel, line, "1", "2")
        ready.append(ready_count(lane, line))
        finish()
        ready.append(ready_count(lane, line))
    first = channel.basic_get(line)
    channel.basic_ack(first.delivery_tag)
    channel.tx_commit()
    second = channel.basic_get(line)
    channel.basic_ack(second.delivery_tag)
    channel.tx_rollback()
    channel.close()

    assert ready == [0, 0, 0, 2]
    assert [seen(message) for message in take(lane, line, 1)] == [("2", True)]


def test_a_consumer_hears_that_its_queue_was_deleted(
    client: Connection, lane: Channel, line: str
) -> None:
    cancelled: list[str] = []
    lane.basic_consume(line, "mine", on_cancel=cancelled.append)

    client.channel().queue_delete(line)
    serve(lane, lambda: bool(cancelled))

    assert cancelled == ["mine"]
    following = temporary_queue(lane)
    publish(lane, following, "after")
    assert drain(lane, following) == ["after"]


def test_a_request_is_answered_by_direct_reply(
    client: Connection, lane: Channel, line: str
) -> None:
    replies = start_consumer(lane, REPLY_ADDRESS, no_ack=True)
    question = Message("question", reply_to=REPLY_ADDRESS, correlation_id="c1")
    server = client.channel()

    lane.basic_publish(question, routing_key=line)
    request = server.basic_get(line)
    answer = Message(f"{request.body} answered", correlation_id=request.correlation_id)
    server.basic_publish(answer, routing_key=request.reply_to)
    serve(lane, lambda: bool(replies))

    assert request.reply_to != REPLY_ADDRESS
    assert (replies[0].body, replies[0].correlation_id) == ("question answered", "c1")


def test_an_exclusive_queue_goes_with_its_connection(
    open_connection: Open, client: Connection
) -> None:
    """edge-cases.md 52"""
    owner = open_connection()
    queue = temporary_queue(owner.channel())

    with pytest.raises(amqp.ResourceLocked):
        ready_count(client.channel(), queue)
    owner.close()
    with pytest.raises(amqp.NotFound):
        ready_count(client.channel(), queue)


def test_what_a_closed_connection_has_not_acked_goes_back(
    open_connection: Open, lane: Channel, unique: UniqueName
) -> None:
    """edge-cases.md 30"""
    queue = unique("close")
    lane.queue_declare(queue, durable=True, auto_delete=False)
    publish(lane, queue, "acked", "kept")
    ready_count(lane, queue)
    leaving = open_connection()
    channel = leaving.channel()
    channel.basic_ack(channel.basic_get(queue).delivery_tag)
    assert seen(channel.basic_get(queue)) == ("kept", False)

    leaving.close()

    message = lane.basic_get(queue)
    lane.queue_delete(queue)
    assert not leaving.connected
    assert seen(message) == ("kept", True)


def test_a_wrong_password_is_refused(open_connection: Open) -> None:
    with pytest.raises(amqp.AccessRefused):
        open_connection(password="wrong")


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_both_ways_to_log_in_work(open_connection: Open, method: str) -> None:
    connection = open_connection(login_method=method)

    assert connection.connected
    assert connection.channel().is_open
