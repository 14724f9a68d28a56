"""pika sends messages: bodies of all sizes, properties, confirms, returns, transactions."""

from __future__ import annotations

import datetime
import decimal
import hashlib

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.integration.conftest import OpenConnection, UniqueName
from tests.integration.pika_actions import (
    get,
    get_all,
    get_soon,
    publish,
    ready_count,
    serve_until,
    start_consumer,
    wait_for,
)

FRAME_MAX = 4096
MEBIBYTE = 1024 * 1024


def body_of(size_bytes: int) -> bytes:
    """Return a body in which every block differs, so that swapped frames show."""
    block_count = size_bytes // 32 + 1
    return b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(block_count))[:size_bytes]


def properties_of(channel: BlockingChannel, queue: str, **properties: object) -> dict[str, object]:
    """Return the properties that a message published with `properties` arrives with."""
    channel.basic_publish("", queue, b"", pika.BasicProperties(**properties))
    received = vars(get_soon(channel, queue).properties)
    return {name: value for name, value in received.items() if value is not None}


def test_a_message_without_a_body_is_a_message(channel: BlockingChannel, queue: str) -> None:
    received = start_consumer(channel, queue)

    publish(channel, queue, [b"", b"", b"end"])

    assert [message.body for message in wait_for(channel, received, 3)] == [b"", b"", b"end"]


@pytest.mark.parametrize(
    "size_bytes",
    [1, FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7, 2 * (FRAME_MAX - 8), 3 * FRAME_MAX],
)
def test_a_body_around_the_size_of_a_frame_arrives_whole(
    connect: OpenConnection, size_bytes: int
) -> None:
    channel = connect(frame_max=FRAME_MAX).channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    received = start_consumer(channel, queue)

    publish(channel, queue, [body_of(size_bytes), b"next"])

    first, second = wait_for(channel, received, 2)
    assert first.body == body_of(size_bytes)
    assert second.body == b"next"


@pytest.mark.parametrize("size_bytes", [MEBIBYTE, 9 * MEBIBYTE])
def test_a_body_of_many_frames_arrives_whole(
    channel: BlockingChannel, queue: str, size_bytes: int
) -> None:
    sent = body_of(size_bytes)
    publish(channel, queue, [sent, b"next"])

    large, following = get_soon(channel, queue), get_soon(channel, queue)

    assert len(large.body) == size_bytes
    assert large.body == sent
    assert following.body == b"next"


def test_large_and_small_messages_of_two_connections_do_not_mix(
    connect: OpenConnection, channel: BlockingChannel, queue: str, unique: UniqueName
) -> None:
    shared = unique("mixed")
    channel.queue_declare(shared)
    large, small = body_of(MEBIBYTE), [b"%d" % n for n in range(50)]
    other = connect().channel()

    for body in small:
        publish(channel, shared, [body])
        if int(body) % 10 == 0:
            publish(other, shared, [large])
    other.queue_declare(shared, passive=True)

    got = get_all(channel, shared)
    channel.queue_delete(shared)
    assert [body for body in got if len(body) < 10] == small
    assert [body == large for body in got if len(body) >= 10] == [True] * 5


def test_every_property_arrives_as_it_was_sent(channel: BlockingChannel, queue: str) -> None:
    sent: dict[str, object] = {
        "content_type": "application/json",
        "content_encoding": "gzip",
        "headers": {"key": "value"},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "correlation ünïcode",
        "reply_to": "somewhere",
        "expiration": "600000",
        "message_id": "m" * 255,
        "timestamp": 1_700_000_000,
        "type": "event",
        "user_id": "guest",
        "app_id": "tests",
        "cluster_id": "cluster",
    }

    assert properties_of(channel, queue, **sent) == sent


def test_a_message_without_properties_arrives_without_any(
    channel: BlockingChannel, queue: str
) -> None:
    assert properties_of(channel, queue) == {}


@pytest.mark.parametrize("timestamp", [0, 1, 2**32, 2**62, 1_700_000_000_000])
def test_a_timestamp_is_kept_even_when_it_is_no_plausible_second(
    channel: BlockingChannel, queue: str, timestamp: int
) -> None:
    assert properties_of(channel, queue, timestamp=timestamp) == {"timestamp": timestamp}


def test_headers_of_every_type_arrive_as_they_were_sent(
    channel: BlockingChannel, queue: str
) -> None:
    headers = {
        "string": "ünïcode",
        "empty": "",
        "long string": "x" * 20_000,
        "bytes": b"\x00\xff\xce",
        "true": True,
        "false": False,
        "zero": 0,
        "int32": -(2**31),
        "int64": -(2**63),
        "large": 2**62,
        "void": None,
        "decimal": decimal.Decimal("-3.14"),
        "time": datetime.datetime(2024, 2, 29, 12, 30, 15, tzinfo=datetime.UTC),
        "array": [1, "two", None, True, [3, [4]], {"five": 5}],
        "empty array": [],
        "table": {"a": {"b": {"c": [{"d": "deep"}]}}},
        "empty table": {},
        "": "empty name",
        "k" * 128: "long name",
    }

    assert properties_of(channel, queue, headers=headers) == {"headers": headers}


def test_confirmed_publishes_return_and_are_in_the_queue(
    channel: BlockingChannel, queue: str
) -> None:
    channel.confirm_delivery()

    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number)

    assert ready_count(channel, queue) == 100


def test_a_confirmed_publish_that_reaches_no_queue_returns_too(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 113"""
    channel.confirm_delivery()

    channel.basic_publish("", unique("nowhere"), b"dropped")

    assert channel.is_open


def test_a_mandatory_publish_that_reaches_no_queue_is_returned_unchanged(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 114"""
    channel.confirm_delivery()
    nowhere = unique("nowhere")
    properties = pika.BasicProperties(message_id="7", headers={"a": [1, 2]})

    with pytest.raises(UnroutableError) as unroutable:
        channel.basic_publish("", nowhere, body_of(300_000), properties, mandatory=True)

    [returned] = unroutable.value.messages
    assert returned.method.reply_code == 312
    assert returned.method.reply_text == "NO_ROUTE"
    assert (returned.method.exchange, returned.method.routing_key) == ("", nowhere)
    assert returned.properties == properties
    assert returned.body == body_of(300_000)


def test_a_mandatory_publish_that_reaches_a_queue_is_not_returned(
    channel: BlockingChannel, queue: str
) -> None:
    channel.confirm_delivery()

    channel.basic_publish("", queue, b"there", mandatory=True)

    assert get_all(channel, queue) == [b"there"]


def test_without_confirms_a_return_reaches_the_callback(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(
        lambda _channel, _method, _properties, body: returned.append(body)
    )

    channel.basic_publish("", unique("nowhere"), b"back", mandatory=True)

    assert serve_until(channel, lambda: bool(returned)), "basic.return did not arrive"
    assert returned == [b"back"]


def test_a_full_queue_that_rejects_publishes_nacks_them(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("full")
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    publish(channel, name, [b"0", b"1"])

    with pytest.raises(NackError):
        channel.basic_publish("", name, b"2")

    assert get_all(channel, name) == [b"0", b"1"]
    channel.basic_publish("", name, b"3")
    assert get_all(channel, name) == [b"3"]


def test_a_transaction_publishes_and_acks_at_commit_and_forgets_at_rollback(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, [b"old"])
    working = connection.channel()
    working.tx_select()
    message = get(working, queue)
    assert message is not None

    working.basic_ack(message.tag)
    publish(working, queue, [b"new"])
    assert ready_count(channel, queue) == 0
    working.tx_rollback()
    assert ready_count(channel, queue) == 0

    working.basic_ack(message.tag)
    publish(working, queue, [b"newer"])
    working.tx_commit()
    working.close()
    assert get_all(channel, queue) == [b"newer"]


def test_a_message_may_only_claim_the_user_who_sends_it(
    connection: pika.BlockingConnection, queue: str
) -> None:
    liar = connection.channel()
    liar.confirm_delivery()

    with pytest.raises(ChannelClosedByBroker) as refused:
        liar.basic_publish("", queue, b"", pika.BasicProperties(user_id="somebody"))

    assert refused.value.reply_code == 406
    assert connection.is_open


def test_an_expired_message_is_dead_lettered_with_its_history(
    channel: BlockingChannel, queue: str, unique: UniqueName
) -> None:
    waiting = unique("waiting")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(waiting, exclusive=True, arguments=arguments)

    channel.basic_publish("", waiting, b"late", pika.BasicProperties(expiration="50"))

    message = get_soon(channel, queue)
    assert message.body == b"late"
    [death] = message.properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (waiting, "expired", 1)
