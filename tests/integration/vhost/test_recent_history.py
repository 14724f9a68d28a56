"""x-recent-history: an exchange that gives who is bound later what was published last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.process import MIB, Process

TYPE = "x-recent-history"
LENGTH = "x-recent-history-length"
NO_STORE = pika.BasicProperties(headers={"x-recent-history-no-store": True})
CROWD = 12


@pytest.fixture
def channel(connect: Callable[..., pika.BlockingConnection]) -> BlockingChannel:
    return connect().channel()


def _connection(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.uri))


def publish(channel: BlockingChannel, exchange: str, first: int, end: int) -> None:
    for number in range(first, end):
        channel.basic_publish(exchange, f"k{number}", b"%d" % number)


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    found = []
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found.append(body)
    return found


def all_bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    """All that a queue holds, by a consumer, which is ten times as fast as gets."""
    left = channel.queue_declare(queue, passive=True).method.message_count
    found: list[bytes] = []
    for _, _, body in channel.consume(queue, auto_ack=True) if left else ():
        found.append(body)
        if len(found) == left:
            break
    channel.cancel()
    return found


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize(("arguments", "most"), [({}, 20), ({LENGTH: 5}, 5)])
def test_a_queue_gets_what_is_kept_and_then_what_comes(
    channel: BlockingChannel, unique: UniqueName, arguments: dict[str, int], most: int
) -> None:
    x, q = unique("x"), unique("q")
    channel.exchange_declare(x, TYPE, arguments=arguments)
    publish(channel, x, 0, 30)
    channel.basic_publish(x, "", b"not kept", NO_STORE)
    channel.queue_declare(q)

    channel.queue_bind(q, x, "any")
    publish(channel, x, 30, 32)
    channel.basic_publish(x, "", b"passed on", NO_STORE)

    assert bodies(channel, q) == [*numbered(30 - most, 32), b"passed on"]


def test_a_second_binding_gives_nothing_again_and_a_new_one_does(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    x, q = unique("x"), unique("q")
    channel.exchange_declare(x, TYPE)
    channel.queue_declare(q)
    publish(channel, x, 0, 2)
    channel.queue_bind(q, x, "one")
    assert bodies(channel, q) == numbered(0, 2)

    channel.queue_bind(q, x, "two")
    assert bodies(channel, q) == []
    publish(channel, x, 2, 3)
    assert bodies(channel, q) == numbered(2, 3)

    channel.queue_unbind(q, x, "one")
    channel.queue_unbind(q, x, "two")
    channel.queue_bind(q, x, "one")
    assert bodies(channel, q) == numbered(0, 3)


def test_an_exchange_that_is_bound_routes_what_is_kept(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    x, inner, q = unique("x"), unique("inner"), unique("q")
    channel.exchange_declare(x, TYPE)
    channel.exchange_declare(inner, "topic")
    channel.queue_declare(q)
    channel.queue_bind(q, inner, "k1")
    publish(channel, x, 0, 3)

    channel.exchange_bind(inner, x)
    publish(channel, x, 0, 3)

    assert bodies(channel, q) == [b"1", b"1"]


def test_what_nobody_gets_is_returned_and_confirmed(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    x = unique("x")
    channel.exchange_declare(x, TYPE)
    channel.confirm_delivery()

    channel.basic_publish(x, "k", b"kept")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(x, "k", b"kept", mandatory=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "x-recent-history-length must be a positive integer"),
        (-1, "x-recent-history-length must be a positive integer"),
        ("5", "x-recent-history-length must be a positive integer"),
        (True, "x-recent-history-length must be a positive integer"),
        (10_001, "x-recent-history-length 10001 is more than the 10000 messages that are kept"),
        (1 << 62, f"x-recent-history-length {1 << 62} is more than the 10000 messages that are"
         " kept"),
    ],
)  # fmt: skip
def test_a_length_that_cannot_be_is_refused(
    channel: BlockingChannel, unique: UniqueName, value: object, text: str
) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
        channel.exchange_declare(unique("x"), TYPE, arguments={LENGTH: value})

    assert (raised.value.reply_code, raised.value.reply_text) == (
        406, f"PRECONDITION_FAILED - {text}",
    )  # fmt: skip


def test_another_length_is_another_exchange(channel: BlockingChannel, unique: UniqueName) -> None:
    x = unique("x")
    channel.exchange_declare(x, TYPE, arguments={LENGTH: 5})
    channel.exchange_declare(x, TYPE, arguments={LENGTH: 5})

    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
        channel.exchange_declare(x, TYPE, arguments={LENGTH: 6})

    assert LENGTH in raised.value.reply_text


def test_nothing_is_kept_over_a_restart_but_the_exchange(broker_factory: BrokerFactory) -> None:
    broker = broker_factory()
    with _connection(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", TYPE, durable=True, arguments={LENGTH: 3})
        channel.queue_declare("bound", durable=True)
        channel.queue_bind("bound", "x")
        publish(channel, "x", 0, 4)
        channel.queue_declare("flushed")
    broker.stop()
    broker.start()

    with _connection(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", TYPE, durable=True, arguments={LENGTH: 3})
        publish(channel, "x", 4, 5)
        channel.queue_declare("late")
        channel.queue_bind("late", "x")

        assert bodies(channel, "bound") == numbered(0, 5)
        assert bodies(channel, "late") == numbered(4, 5)


def test_definitions_bring_it(http_broker: Broker) -> None:
    api = Api(http_broker)
    document = {
        "exchanges": [{"name": "x", "vhost": "/", "type": TYPE, "arguments": {LENGTH: 2}}],
        "queues": [{"name": "q", "vhost": "/"}],
    }
    assert api("POST", "/api/definitions", document).content == b""

    with _connection(http_broker) as connection:
        channel = connection.channel()
        publish(channel, "x", 0, 5)
        assert api("POST", "/api/bindings/%2F/e/x/q/q", {"routing_key": ""}).status == 201
        assert bodies(channel, "q") == numbered(3, 5)
    (row,) = [row for row in api.get("/api/definitions")["exchanges"] if row["name"] == "x"]
    assert (row["type"], row["arguments"]) == (TYPE, {LENGTH: 2})
    shown = api.get("/api/exchanges/%2F/x")
    assert (shown["type"], shown["effective_arguments"]) == (TYPE, [LENGTH])
    assert TYPE in [row["name"] for row in api.get("/api/overview")["exchange_types"]]
    absurd = {"name": "y", "vhost": "/", "type": TYPE, "arguments": {LENGTH: 1 << 40}}
    document = {"exchanges": [absurd], "queues": []}
    refused = api("POST", "/api/definitions", document)
    assert (refused.status, LENGTH in refused.json["reason"]) == (400, True)


def test_a_delayed_exchange_keeps_what_is_released(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    x, first, late = unique("x"), unique("first"), unique("late")
    channel.exchange_declare(x, "x-delayed-message", arguments={"x-delayed-type": TYPE})
    for queue in (first, late):
        channel.queue_declare(queue)
    channel.queue_bind(first, x)
    channel.basic_publish(x, "", b"later", pika.BasicProperties(headers={"x-delay": 50}))
    channel.basic_publish(x, "", b"now")

    while channel.queue_declare(first, passive=True).method.message_count < 2:
        time.sleep(0.01)
    channel.queue_bind(late, x)

    assert bodies(channel, late) == bodies(channel, first) == [b"now", b"later"]


def test_rights_are_those_of_a_binding(http_broker: Broker) -> None:
    api = Api(http_broker)
    api("PUT", "/api/users/reader", {"password": "p", "tags": ""})
    api("PUT", "/api/permissions/%2F/reader", {"configure": "q", "write": "q", "read": "q"})
    with _connection(http_broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", TYPE)
        publish(channel, "x", 0, 2)
    url = http_broker.uri.replace("guest:guest", "reader:p")
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
            channel.queue_bind("q", "x")
        assert raised.value.reply_code == 403
        assert connection.channel().queue_declare("q", passive=True).method.message_count == 0


def test_long_histories_of_large_messages_stay_within_bounds(
    broker_factory: BrokerFactory,
) -> None:
    """Exchanges that want 10 000 messages of a MiB each, many of them, and queues that are bound to
    them while others publish: memory stays bounded, and a client is answered meanwhile."""
    broker = broker_factory()
    body = bytes(MIB - 1000)
    with _connection(broker) as connection, _connection(broker) as other:
        channel = connection.channel()
        channel.confirm_delivery()
        for i in range(CROWD):
            channel.exchange_declare(f"x{i}", TYPE, arguments={LENGTH: 10_000})
            for _ in range(34):
                channel.basic_publish(f"x{i}", "", body)
        assert Process(broker.pid).resident_bytes < 600 * MIB
        counts = []
        for i in range(3):
            channel.queue_declare(f"q{i}", arguments={"x-max-length": 100})
            channel.queue_bind(f"q{i}", f"x{i}")
            counts.append(channel.queue_declare(f"q{i}", passive=True).method.message_count)
        assert all(1 <= count <= 32 for count in counts), counts
        assert other.channel().queue_declare("").method.queue
        for i in range(CROWD):
            channel.exchange_delete(f"x{i}")


def test_publishers_go_on_while_many_are_bound(broker_factory: BrokerFactory) -> None:
    """Whoever is bound while others publish has what was kept, and all that came, in order."""
    broker = broker_factory()
    over = threading.Event()

    def keep_publishing() -> None:
        with _connection(broker) as connection:
            channel, number = connection.channel(), 2000
            while not over.is_set():
                channel.basic_publish("x", "", b"%d" % number)
                number += 1
            channel.queue_declare("")

    with _connection(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", TYPE, arguments={LENGTH: 10_000})
        publish(channel, "x", 0, 2000)
        publisher = threading.Thread(target=keep_publishing)
        publisher.start()
        for i in range(10):
            channel.queue_declare(f"q{i}")
            channel.queue_bind(f"q{i}", "x")
        over.set()
        publisher.join()
        for i in range(10):
            got = [int(body) for body in all_bodies(channel, f"q{i}")]
            assert got == list(range(got[0], got[0] + len(got)))
            assert got[0] == 0 or len(got) >= 10_000
