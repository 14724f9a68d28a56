"""Messages that were delivered too often."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

import lavinmq
from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import Message, get, ready_count, start_consumer, wait_for
from tests.integration.rules_actions import (
    change_rules,
    deaths,
    declare,
    holds,
    send,
    take,
    taken,
)
from tests.support.broker import Broker


@pytest.fixture(scope="module")
def embedded() -> Iterator[lavinmq.Broker]:
    with lavinmq.run() as broker:
        yield broker


@contextmanager
def surviving(uri: pika.URLParameters) -> Iterator[pika.BlockingConnection]:
    """A connection whose broker may go before it is closed."""
    connection = pika.BlockingConnection(uri)
    yield connection
    with suppress(AMQPError):
        connection.close()


def stop_under(broker: Broker, connection: pika.BlockingConnection) -> None:
    """Stop in order while a client holds messages, and answers that it is disconnected."""
    stopping = threading.Thread(target=broker.stop)
    stopping.start()
    with suppress(AMQPError):
        connection.process_data_events(time_limit=None)
    stopping.join()


def count_of(message: Message) -> int | None:
    """What the broker says of earlier deliveries."""
    headers = message.properties.headers
    assert headers is not None, "a queue with a limit delivers a headers table"
    found = headers.get("x-delivery-count")
    assert found is None or isinstance(found, int)
    return found


def test_a_message_is_delivered_once_more_than_the_limit(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 190"""
    queue = declare(channel, unique("q"), delivery_limit=1)
    send(channel, queue, "x")
    for expected in (None, 1):
        message = take(channel, queue)
        assert (count_of(message), message.redelivered) == (expected, expected is not None)
        channel.basic_reject(message.tag, requeue=True)
    assert get(channel, queue) is None
    assert ready_count(channel, queue) == 0


@pytest.mark.parametrize("how", ["reject", "nack", "recover", "close"])
def test_a_message_over_the_limit_is_a_dead_letter(
    connection: pika.BlockingConnection, unique: UniqueName, how: str
) -> None:
    """edge-cases.md 191"""
    channel = connection.channel()
    dead = declare(channel, unique("dead"))
    queue = declare(channel, unique("q"), delivery_limit=0, dead_letter_exchange="",
                    dead_letter_routing_key=dead)  # fmt: skip
    send(channel, queue, "x")
    other = connection.channel()
    received = start_consumer(other, queue)
    message = wait_for(other, received, 1)[0]
    if how == "reject":
        other.basic_reject(message.tag, requeue=True)
    elif how == "nack":
        other.basic_nack(message.tag, multiple=True, requeue=True)
    elif how == "recover":
        other.basic_recover(requeue=True)
    else:
        other.close()
    holds(channel, dead, 1)
    assert deaths(take(channel, dead))[0]["reason"] == "delivery_limit"


def test_a_lower_limit_counts_what_has_been(embedded: lavinmq.Broker) -> None:
    """edge-cases.md 192, 193: a limit of 0 drops what was delivered once, and keeps the rest."""
    with pika.BlockingConnection(pika.URLParameters(embedded.url)) as connection:
        channel = connection.channel()
        queue = declare(channel, "limited", delivery_limit=3)
        send(channel, queue, "tried", "fresh")
        channel.basic_reject(take(channel, queue).tag, requeue=True)
        change_rules(embedded, queue, delivery_limit=0)
        holds(channel, queue, 1)
        message = take(channel, queue)
        assert (message.body, count_of(message)) == (b"fresh", None)
        change_rules(embedded, queue)
        channel.basic_reject(message.tag, requeue=True)
        holds(channel, queue, 1)
        assert take(channel, queue).properties.headers is None


def test_a_poison_message_gets_no_fresh_life_from_a_restart(broker_factory: BrokerFactory) -> None:
    """amqp.md 22.18: counts and the redelivered flag, by an orderly stop and by a kill."""
    own = broker_factory()
    uri = pika.URLParameters(own.uri)
    with surviving(uri) as connection:
        channel = connection.channel()
        channel.queue_declare("limited", durable=True, arguments={"x-delivery-limit": 2})
        channel.queue_declare("plain", durable=True)
        for queue in ("limited", "plain"):
            send(channel, queue, "held", "back", "fresh")
        for queue in ("limited", "plain"):
            take(channel, queue)
            channel.basic_reject(take(channel, queue).tag, requeue=True)
        assert ready_count(channel, "plain") == 2
        stop_under(own, connection)
    own.start()
    with surviving(uri) as connection:
        channel = connection.channel()
        plain = [take(channel, "plain") for _ in range(3)]
        assert [m.redelivered for m in plain] == [True, True, False]
        limited = [take(channel, "limited") for _ in range(3)]
        assert [count_of(m) for m in limited] == [1, 1, None]
        channel.basic_ack(limited[1].tag)
        assert ready_count(channel, "limited") == 0
        own.kill()
    own.start()
    with pika.BlockingConnection(uri) as connection:
        channel = connection.channel()
        limited = [take(channel, "limited") for _ in range(2)]
        assert [(m.body, count_of(m)) for m in limited] == [(b"held", 2), (b"fresh", 1)]
        channel.basic_nack(0, multiple=True, requeue=True)
        assert taken(channel, "limited", 1) == ["fresh"]
