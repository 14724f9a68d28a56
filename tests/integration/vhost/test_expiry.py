"""Messages and queues that live for a time only."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

import lavinmq
from lavinmq.policy.policies import Policy
from tests.conftest import BrokerFactory
from tests.integration.conftest import OpenConnection, UniqueName
from tests.integration.pika_actions import (
    get,
    get_all,
    ready_count,
    serve_until,
    settle,
    start_consumer,
    wait_for,
)
from tests.integration.rules_actions import (
    WAIT_S,
    change_rules,
    deaths,
    declare,
    holds,
    on_loop,
    send,
    take,
    taken,
    wait_until,
)


@pytest.fixture(scope="module")
def embedded() -> Iterator[lavinmq.Broker]:
    with lavinmq.run() as broker:
        yield broker


def exists(connection: pika.BlockingConnection, queue: str) -> bool:
    """Asks without using the queue: a delete that is only carried out when it has a consumer."""
    channel = connection.channel()
    try:
        channel.queue_bind(queue, "amq.direct", "unused")
    except ChannelClosedByBroker as closed:
        assert closed.reply_code == 404
        return False
    channel.close()
    return True


# --- messages


def test_a_message_is_gone_after_its_time(channel: BlockingChannel, unique: UniqueName) -> None:
    """edge-cases.md 167"""
    queue = declare(channel, unique("ttl"))
    for _ in range(2):
        send(channel, queue, "x", expiration="1")
        holds(channel, queue, 0)
        assert get(channel, queue) is None


def test_an_expiration_of_zero_is_legal(channel: BlockingChannel, unique: UniqueName) -> None:
    """edge-cases.md 120: a consumer that is ready gets the message, else it is gone at once."""
    queue = declare(channel, unique("ttl"))
    send(channel, queue, "gone", expiration="0")
    assert ready_count(channel, queue) == 0
    received = start_consumer(channel, queue, auto_ack=True)
    send(channel, queue, "here", expiration="0")
    assert [message.body for message in wait_for(channel, received, 1)] == [b"here"]


def test_a_queue_ttl_of_zero_delivers_to_a_ready_consumer(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 170: what is requeued then is dead."""
    dead = declare(channel, unique("dead"))
    queue = declare(channel, unique("ttl"), message_ttl=0, dead_letter_exchange="",
                    dead_letter_routing_key=dead)  # fmt: skip
    received = start_consumer(channel, queue)
    send(channel, queue, "x")
    message = wait_for(channel, received, 1)[0]
    channel.basic_nack(message.tag, requeue=True)
    assert taken(channel, dead, 1) == ["x"]
    assert len(received) == 1


def test_an_expired_message_goes_where_its_headers_say(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 168"""
    queue, dead = declare(channel, unique("q")), declare(channel, unique("dead"))
    headers = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "mine": 5}
    send(channel, queue, "x", expiration="20", headers=headers)
    holds(channel, dead, 1)
    message = take(channel, dead)
    assert message.body == b"x"
    assert message.properties.expiration is None
    assert message.properties.headers["mine"] == 5
    assert "x-dead-letter-exchange" not in message.properties.headers
    assert "x-dead-letter-routing-key" not in message.properties.headers
    assert deaths(message)[0]["original-expiration"] == "20"


def test_a_queue_ttl_moves_messages_with_no_consumer(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 169, 207"""
    dead = declare(channel, unique("dead"))
    queue = declare(channel, unique("q"), message_ttl=30, dead_letter_exchange="",
                    dead_letter_routing_key=dead)  # fmt: skip
    for body in ("first", "later"):
        send(channel, queue, body)
        holds(channel, dead, 1)
        message = take(channel, dead)
        assert message.body == body.encode()
        assert "original-expiration" not in deaths(message)[0]
        channel.basic_ack(message.tag)


def test_a_message_that_expired_while_it_was_held_is_dead_when_it_comes_back(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 170"""
    dead = declare(channel, unique("dead"))
    queue = declare(channel, unique("q"), message_ttl=60, dead_letter_exchange="",
                    dead_letter_routing_key=dead)  # fmt: skip
    send(channel, queue, "held", "clock")
    message = take(channel, queue)
    assert taken(channel, dead, 1) == ["clock"]  # both are as old
    channel.basic_reject(message.tag, requeue=True)
    assert taken(channel, dead, 1) == ["held"]
    assert ready_count(channel, queue) == 0


@pytest.mark.parametrize("head", [None, "60000"])
def test_a_message_expires_in_time_behind_another(
    channel: BlockingChannel, unique: UniqueName, head: str | None
) -> None:
    """edge-cases.md 171, 172: before and after the head was consumed."""
    queue = declare(channel, unique("q"))
    send(channel, queue, "head", expiration=head)
    send(channel, queue, "short", expiration="40")
    holds(channel, queue, 1)
    send(channel, queue, "short", expiration="40")
    assert take(channel, queue).body == b"head"
    holds(channel, queue, 0)


def test_a_purge_or_an_ack_exposes_a_message_that_expires(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 173"""
    queue = declare(channel, unique("q"))
    send(channel, queue, "head")
    send(channel, queue, "short", expiration="50")
    channel.basic_ack(take(channel, queue).tag)
    holds(channel, queue, 0)
    send(channel, queue, "a")
    channel.queue_purge(queue)
    send(channel, queue, "b", expiration="30")
    holds(channel, queue, 0)


def test_a_message_expires_behind_a_busy_consumer(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 174: those that wait for credit are not forgotten."""
    queue = declare(channel, unique("q"))
    channel.basic_qos(prefetch_count=1)
    received = start_consumer(channel, queue)
    send(channel, queue, "held", "waits")
    send(channel, queue, "short", expiration="40")
    wait_for(channel, received, 1)
    holds(channel, queue, 1)
    channel.basic_ack(received[0].tag)
    assert wait_for(channel, received, 2)[1].body == b"waits"


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "2147483648", " "])
def test_an_expiration_that_is_none_is_refused(
    channel: BlockingChannel, unique: UniqueName, text: str
) -> None:
    """edge-cases.md 120"""
    queue = declare(channel, unique("q"))
    send(channel, queue, "x", expiration=text)
    with pytest.raises(ChannelClosedByBroker) as closed:
        settle(channel)
    assert closed.value.reply_code == 406


def test_rules_are_kept_by_a_restart(
    broker_factory: BrokerFactory, connect: OpenConnection
) -> None:
    """edge-cases.md 175, 177: the queue of dead letters is loaded after the one with the TTL."""
    own = broker_factory()
    with pika.BlockingConnection(pika.URLParameters(own.uri)) as connection:
        channel = connection.channel()
        channel.queue_declare("a-ttl", durable=True, arguments={
            "x-message-ttl": 300, "x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "k",
        })  # fmt: skip
        channel.queue_declare("a-expires", durable=True, arguments={"x-expires": 600})
        channel.exchange_declare("x", "direct", durable=True)
        channel.queue_declare("z-dead", durable=True)
        channel.queue_bind("z-dead", "x", "k")
        channel.queue_declare("own", durable=True)
        channel.confirm_delivery()
        send(channel, "a-ttl", "1", "2")
        send(channel, "own", "stays")
        send(channel, "own", "goes", expiration="300")
    own.restart()
    with pika.BlockingConnection(pika.URLParameters(own.uri)) as connection:
        channel = connection.channel()
        assert taken(channel, "z-dead", 2) == ["1", "2"]
        holds(channel, "own", 1)
        send(channel, "a-ttl", "3")
        assert taken(channel, "z-dead", 1) == ["3"]
        wait_until(lambda: not exists(connection, "a-expires"), "the queue has not expired")


# --- queues


def test_a_queue_without_consumers_expires(
    connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    """edge-cases.md 176: its time begins when the last consumer leaves."""
    channel = connection.channel()
    queue = declare(channel, unique("expires"), expires=100)
    received = start_consumer(channel, queue)
    other = declare(channel, unique("other"), expires=100)
    wait_until(lambda: not exists(connection, other), "the other queue is still there")
    assert exists(connection, queue)
    send(channel, queue, "x")
    wait_for(channel, received, 1)
    channel.basic_cancel(channel.consumer_tags[0])
    wait_until(lambda: not exists(connection, queue), "the queue is still there")


def test_use_of_a_queue_starts_its_time_anew(
    connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    """edge-cases.md 176: a fetch and a declare are use, a publish is not."""
    channel = connection.channel()
    fetched = declare(channel, unique("fetched"), expires=400)
    declared = declare(channel, unique("declared"), expires=400)
    clocks = [declare(channel, unique("clock"), expires=400)]

    def used_on() -> bool:
        get(channel, fetched)
        channel.queue_declare(declared, passive=True)
        send(channel, clocks[0], "no use")
        return not exists(connection, clocks[0])

    assert serve_until(channel, used_on, timeout_s=WAIT_S)
    assert exists(connection, fetched)
    assert exists(connection, declared)


def test_an_expired_queue_sends_no_dead_letters(
    connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    """edge-cases.md 176"""
    channel = connection.channel()
    dead = declare(channel, unique("dead"))
    queue = declare(channel, unique("q"), expires=30, dead_letter_exchange="",
                    dead_letter_routing_key=dead)  # fmt: skip
    send(channel, queue, "x")
    wait_until(lambda: not exists(connection, queue), "the queue is still there")
    assert ready_count(channel, dead) == 0


# --- rules that change


def test_a_ttl_of_zero_empties_a_queue_at_once(embedded: lavinmq.Broker) -> None:
    """edge-cases.md 178"""
    with pika.BlockingConnection(pika.URLParameters(embedded.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("full", durable=True)
        send(channel, "full", *map(str, range(20)))
        change_rules(embedded, "full", ttl_ms=0)
        holds(channel, "full", 0)
        change_rules(embedded, "full")
        send(channel, "full", "stays")
        assert get_all(channel, "full") == [b"stays"]


@pytest.mark.parametrize("expires_ms", [0, 50])
def test_a_lower_expires_counts_what_has_passed(embedded: lavinmq.Broker, expires_ms: int) -> None:
    """edge-cases.md 178, 179"""
    with pika.BlockingConnection(pika.URLParameters(embedded.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("idle", arguments={"x-expires": 600000})
        vhost = embedded._server.broker.vhosts["/"]

        def lower() -> None:
            vhost.rules.put_policy(Policy.of("lower", "^idle$", {"expires": expires_ms}))

        on_loop(embedded, lower)
        wait_until(lambda: not exists(connection, "idle"), "the queue is still there")
