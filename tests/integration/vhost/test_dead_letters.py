"""Where messages go that are rejected, expire or do not fit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pamqp import commands, header
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import (
    get,
    ready_count,
    settle,
    start_consumer,
    wait_for,
)
from tests.integration.rules_actions import deaths, declare, holds, send, take, taken
from tests.support.broker import Broker
from tests.support.prepare import prepare
from tests.support.wire import Wire, encode, encode_publish, raw_frame


@pytest.fixture
def dead(channel: BlockingChannel, unique: UniqueName) -> str:
    return declare(channel, unique("dead"))


@pytest.fixture
def source(channel: BlockingChannel, unique: UniqueName, dead: str) -> str:
    """A queue whose dead letters go to `dead`."""
    return declare(channel, unique("q"), dead_letter_exchange="", dead_letter_routing_key=dead)


def reject(channel: BlockingChannel, queue: str) -> None:
    channel.basic_reject(take(channel, queue).tag, requeue=False)


# --- order


def test_dead_letters_come_in_the_order_of_the_nacks(
    channel: BlockingChannel, source: str, dead: str
) -> None:
    """edge-cases.md 194"""
    send(channel, source, "1", "2", "3", "4", "5")
    tags = [take(channel, source).tag for _ in range(5)]
    for number in (3, 1):
        channel.basic_nack(tags[number], requeue=False)
    channel.basic_nack(tags[4], multiple=True, requeue=False)
    assert taken(channel, dead, 5) == ["4", "2", "1", "3", "5"]


@pytest.mark.parametrize("multiple", [False, True])
def test_a_requeue_sends_no_dead_letter(
    channel: BlockingChannel, source: str, dead: str, multiple: bool
) -> None:
    """edge-cases.md 195"""
    send(channel, source, "1", "2")
    tags = [take(channel, source).tag for _ in range(2)]
    for tag in tags[multiple:]:
        channel.basic_nack(tag, multiple=multiple, requeue=True)
    assert taken(channel, source, 2) == ["1", "2"]
    assert ready_count(channel, dead) == 0


@pytest.mark.parametrize("is_consumer", [False, True])
def test_the_message_still_held_dies_before_those_requeued(
    channel: BlockingChannel, source: str, dead: str, is_consumer: bool
) -> None:
    """edge-cases.md 196"""
    send(channel, source, "1", "2", "3")
    if is_consumer:
        received = start_consumer(channel, source)
        wait_for(channel, received, 3)
        channel.basic_nack(received[1].tag, multiple=True, requeue=True)
        last = wait_for(channel, received, 5)[-1]
    else:
        messages = [take(channel, source) for _ in range(3)]
        channel.basic_nack(messages[1].tag, multiple=True, requeue=True)
        last = [take(channel, source) for _ in range(2)][-1]
    channel.basic_nack(last.tag, multiple=True, requeue=False)
    assert taken(channel, dead, 3) == ["3", "1", "2"]


def test_many_rejects_keep_their_order(channel: BlockingChannel, source: str, dead: str) -> None:
    """edge-cases.md 197"""
    send(channel, source, *map(str, range(100)))
    for _ in range(100):
        reject(channel, source)
    assert taken(channel, dead, 100) == [str(number) for number in range(100)]


# --- addresses


def test_the_original_key_is_used_when_there_is_no_other(
    channel: BlockingChannel, unique: UniqueName, dead: str
) -> None:
    """edge-cases.md 198, 200: what meets no exchange or no queue is dropped, what comes later is
    not."""
    exchange = unique("x")
    queue = declare(channel, unique("q"), dead_letter_exchange=exchange)

    def lose(body: str) -> None:
        send(channel, queue, body)
        reject(channel, queue)
        assert ready_count(channel, queue) == 0

    lose("no exchange")
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    lose("no binding")
    channel.queue_bind(dead, exchange, queue)
    lose("routed")
    assert taken(channel, dead, 1) == ["routed"]


@pytest.mark.parametrize("has_key", [False, True])
def test_copies_are_routed_again_without_a_key(
    channel: BlockingChannel, unique: UniqueName, has_key: bool
) -> None:
    """edge-cases.md 199: CC stays in the headers, BCC in no copy that clients get."""
    exchange = unique("x")
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    queues = {key: declare(channel, unique(key)) for key in ("cc", "bcc", "key")}
    for key, queue in queues.items():
        channel.queue_bind(queue, exchange, key)
    arguments = {"dead_letter_exchange": exchange}
    if has_key:
        arguments["dead_letter_routing_key"] = "key"
    source = declare(channel, unique("q"), **arguments)
    send(channel, source, "x", headers={"CC": ["cc"], "BCC": ["bcc"]})
    reject(channel, source)
    found = {key for key, queue in queues.items() if ready_count(channel, queue)}
    assert found == ({"key"} if has_key else {"cc", "bcc"})
    message = take(channel, queues[found.pop()])
    assert message.properties.headers["CC"] == ["cc"]
    assert "BCC" not in message.properties.headers
    assert deaths(message)[0]["routing-keys"] == [source, "cc"]


def test_a_fanout_gives_each_queue_a_copy(
    connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    """edge-cases.md 211, 213: the source loses each message once."""
    channel = connection.channel()
    exchange = unique("x")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    queues = [declare(channel, unique("dead")) for _ in range(2)]
    for queue in queues:
        channel.queue_bind(queue, exchange)
    source = declare(channel, unique("q"), dead_letter_exchange=exchange)
    send(channel, source, "1", "2", "3")
    for _ in range(3):
        reject(channel, source)
    for queue in queues:
        assert taken(channel, queue, 3) == ["1", "2", "3"]
    assert ready_count(channel, source) == 0
    send(channel, source, "4")
    late = take(channel, source)
    channel.queue_delete(source)
    channel.basic_reject(late.tag, requeue=False)
    assert [ready_count(channel, queue) for queue in queues] == [0, 0]


# --- rings


def test_a_queue_may_reject_to_itself(channel: BlockingChannel, unique: UniqueName) -> None:
    """edge-cases.md 201, amqp.md 22.20: the count is 64 bits wide."""
    queue = declare(channel, unique("q"), dead_letter_exchange="")
    send(channel, queue, "x")
    for count in range(5):
        message = take(channel, queue)
        history = deaths(message) if count else []
        assert [death["count"] for death in history] == [count][: len(history)]
        assert len(history) == min(count, 1)
        channel.basic_reject(message.tag, requeue=False)


@pytest.mark.parametrize("rule", [{"message_ttl": 20}, {"max_length": 1}])
def test_a_queue_may_not_expire_or_overflow_to_itself(
    channel: BlockingChannel, unique: UniqueName, rule: dict[str, int]
) -> None:
    """edge-cases.md 188, 202, 212: the message is dropped."""
    queue = declare(channel, unique("q"), dead_letter_exchange="", **rule)
    send(channel, queue, "1", "2")
    holds(channel, queue, 1 if "max_length" in rule else 0)


def test_a_rejection_in_between_breaks_the_cycle(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 203, 209, 210"""
    names = [unique(name) for name in ("work", "wait", "again")]
    declare(channel, names[0], dead_letter_exchange="", dead_letter_routing_key=names[1])
    for name, target in ((names[1], names[2]), (names[2], names[0])):
        declare(channel, name, message_ttl=10, dead_letter_exchange="",
                dead_letter_routing_key=target)  # fmt: skip
    send(channel, names[0], "x")
    for turn in range(1, 5):
        holds(channel, names[0], 1)
        message = take(channel, names[0])
        if turn > 1:
            assert [(death["queue"], death["reason"], death["count"])
                    for death in deaths(message)] == [
                (names[2], "expired", turn - 1), (names[1], "expired", turn - 1),
                (names[0], "rejected", turn - 1),
            ]  # fmt: skip
            headers = message.properties.headers
            assert headers["x-first-death-reason"] == "rejected"
            assert headers["x-first-death-queue"] == names[0]
            assert headers["x-first-death-exchange"] == ""
        channel.basic_reject(message.tag, requeue=False)


def test_what_overflows_and_waits_comes_back_until_a_client_takes_it(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """RabbitMQ would drop it when it comes back: there any reason but a rejection closes a ring."""
    work, wait = unique("work"), unique("wait")
    declare(channel, work, max_length=1, dead_letter_exchange="", dead_letter_routing_key=wait)
    declare(channel, wait, message_ttl=10, dead_letter_exchange="", dead_letter_routing_key=work)
    send(channel, work, "1", "2", "3")
    came = set()
    while len(came) < 3:
        holds(channel, work, 1)
        message = take(channel, work)
        came.add(message.body)
        channel.basic_ack(message.tag)
    assert came == {b"1", b"2", b"3"}


@pytest.mark.parametrize("count", [2, 3])
def test_full_queues_in_a_ring(channel: BlockingChannel, unique: UniqueName, count: int) -> None:
    """edge-cases.md 204: one more message drops exactly one."""
    names = [unique(f"ring{number}") for number in range(count)]
    for number, name in enumerate(names):
        declare(channel, name, max_length=1, dead_letter_exchange="",
                dead_letter_routing_key=names[(number + 1) % count])  # fmt: skip
    for number, name in enumerate(names):
        send(channel, name, str(number))
    send(channel, names[0], "new")
    left = [taken(channel, name, 1)[0] for name in names]
    assert left == [*map(str, range(1, count)), "new"]


def test_long_chains_and_large_rings(
    broker: Broker, connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    """edge-cases.md 205"""
    channel = connection.channel()
    names = [unique(f"chain{number}") for number in range(200)]
    for number, name in enumerate(names[:-1]):
        declare(channel, name, max_length=0, dead_letter_exchange="",
                dead_letter_routing_key=names[number + 1])  # fmt: skip
    declare(channel, names[-1])
    send(channel, names[0], "x", "y")
    messages = []
    for _ in range(2):
        holds(channel, names[-1], 2 - len(messages))
        messages.append(take(channel, names[-1]))
    assert [len(deaths(message)) for message in messages] == [199, 199]

    first, second = unique("first"), unique("second")
    for name, other in ((first, second), (second, first)):
        declare(channel, name, dead_letter_exchange="", dead_letter_routing_key=other)
    with Wire.open(broker.port) as wire:
        for name in (first, second):
            wire.send_bytes(encode_publish(1, "", name, b"x") * 10_000)
        wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)
    channel.basic_qos(prefetch_count=10_000)
    received = {name: start_consumer(channel, name) for name in (first, second)}
    for messages in received.values():
        wait_for(channel, messages, 10_000)
    for tag in list(channel.consumer_tags):
        channel.basic_cancel(tag)
    channel.basic_nack(0, multiple=True, requeue=False)
    holds(channel, first, 10_000)
    holds(channel, second, 10_000)


# --- what they tell


def test_the_record_of_a_rejection(channel: BlockingChannel, source: str, dead: str) -> None:
    """edge-cases.md 206, 207"""
    before = int(time.time())
    send(channel, source, "x", expiration="60000", priority=3, message_id="id")
    reject(channel, source)
    message = take(channel, dead)
    (death,) = deaths(message)
    assert list(death) == [
        "queue", "reason", "exchange", "count", "time", "routing-keys", "original-expiration",
    ]  # fmt: skip
    assert before <= death["time"].timestamp() <= time.time() + 1
    del death["time"]
    assert death == {
        "queue": source, "reason": "rejected", "exchange": "", "count": 1,
        "routing-keys": [source], "original-expiration": "60000",
    }  # fmt: skip
    assert message.properties.expiration is None
    assert (message.properties.priority, message.properties.message_id) == (3, "id")
    assert message.routing_key == dead


def test_the_reason_of_an_overflow(channel: BlockingChannel, unique: UniqueName, dead: str) -> None:
    """edge-cases.md 208"""
    for rule, reason in (({"max_length": 0}, "maxlen"), ({"max_length_bytes": 9}, "maxlenbytes")):
        queue = declare(channel, unique("q"), dead_letter_exchange="",
                        dead_letter_routing_key=dead, **rule)  # fmt: skip
        send(channel, queue, "x")
        message = take(channel, dead)
        channel.basic_ack(message.tag)
        assert deaths(message)[0]["reason"] == reason


# --- who may


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a user who may write to two exchanges, and to one that is not there."""
    data_dir = tmp_path_factory.mktemp("limited") / "data"
    write = r"^(amq\.direct|amq\.fanout|is-none)$"
    user = {"name": "limited", "permissions": {"/": [".*", write, ".*"]}}
    prepare(data_dir, [{"users": [user]}])
    broker = Broker(data_dir)
    yield broker.start()
    broker.close()


@pytest.fixture
def own_wire(limited: Broker) -> Iterator[Wire]:
    """The connection of that user."""
    port, password = limited.port, "limited-pw"
    with Wire.open(port, channels=(1, 2), user="limited", password=password) as wire:
        yield wire


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("mode", ["plain", "tx", "confirm"])
def test_a_message_cannot_die_its_way_into_an_exchange(
    own_wire: Wire, mode: str, in_parts: bool
) -> None:
    """amqp.md 22.24: an exchange that its publisher may not write to, `amq.topic` here."""
    if mode == "tx":
        own_wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    elif mode == "confirm":
        own_wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for exchange, is_allowed in (("amq.direct", True), ("is-none", True), ("amq.topic", False)):
        properties = commands.Basic.Properties(headers={"x-dead-letter-exchange": exchange})
        if in_parts:
            own_wire.send(1, commands.Basic.Publish(exchange="amq.fanout"))
            wait_for_answer(own_wire)
        own_wire.publish(1, "amq.fanout", "", b"x", properties) if not in_parts else (
            own_wire.send_bytes(content(properties))
        )
        if is_allowed:
            wait_for_answer(own_wire)
            continue
        closed = own_wire.receive().method
        while isinstance(closed, commands.Basic.Ack):
            closed = own_wire.receive().method
        assert isinstance(closed, commands.Channel.Close)
        assert closed.reply_code == 403
        assert closed.reply_text == (
            "ACCESS_REFUSED - User 'limited' not allowed to publish to exchange 'amq.topic'"
        )
        assert (closed.class_id, closed.method_id) == (60, 40)


def wait_for_answer(wire: Wire) -> None:
    """Wait for an answer on channel 2, whatever is confirmed meanwhile."""
    wire.send(2, commands.Basic.Qos())
    while not isinstance(wire.receive().method, commands.Basic.QosOk):
        pass


def content(properties: commands.Basic.Properties) -> bytes:
    """Header and body of a publish whose method has been sent."""
    frame = header.ContentHeader(body_size=1, properties=properties)
    return encode(1, frame) + raw_frame(3, 1, b"x")


def test_exchanges_that_share_a_place_in_memory(channel: BlockingChannel, dead: str) -> None:
    """amqp.md 22.24: a publish to one that dies into another, all pairs of 24."""
    names = [f"pair-{number}" for number in range(24)]
    for name in names:
        channel.exchange_declare(name, "fanout", auto_delete=True)
        channel.queue_bind(dead, name)
    for one in names:
        for other in names:
            properties = pika.BasicProperties(headers={"x-dead-letter-exchange": other})
            channel.basic_publish(one, "", b"x", properties)
    settle(channel)
    holds(channel, dead, 24 * 24)


# --- headers of any shape


HEADERS: list[Any] = [
    {"x-death": "text"}, {"x-death": 5}, {"x-death": None}, {"x-death": []}, {"x-death": {}},
    {"x-death": [1, "a", None]}, {"x-death": [{}]}, {"x-death": [[]]},
    {"x-death": [{"queue": "q"}]}, {"x-death": [{"reason": "rejected"}]},
    {"x-death": [{"queue": 1, "reason": 2}]},
    {"x-death": [{"queue": "q", "reason": "expired"}]},
    {"x-death": [{"queue": "q", "reason": "expired", "count": "many"}]},
    {"x-death": [{"queue": "q", "reason": "rejected", "count": -(1 << 40)}]},
    {"x-death": [{"queue": "q", "reason": "rejected", "count": (1 << 63) - 1}]},
    {"x-death": [{"queue": "q", "reason": "rejected"}] * 3000},
    {"x-first-death-reason": 1, "x-first-death-queue": [], "x-first-death-exchange": {}},
    {"x-dead-letter-exchange": 5}, {"x-dead-letter-exchange": "x" * 300},
    {"x-dead-letter-routing-key": "k" * 300}, {"x-dead-letter-routing-key": None},
    {"x-delivery-count": "many"},
]  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: str(headers)[:40])
def test_headers_from_clients_of_any_shape_are_survived(
    channel: BlockingChannel, source: str, dead: str, headers: dict[str, Any]
) -> None:
    """amqp.md 22.25: malformed entries count as absent."""
    send(channel, source, "x", headers=headers)
    reject(channel, source)
    settle(channel)
    message = get(channel, dead)
    if message is not None:
        newest = deaths(message)[0]
        assert (newest["queue"], newest["reason"], newest["count"]) == (source, "rejected", 1)
