"""Queues that may hold so many messages or bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

import lavinmq
from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import (
    get,
    get_all,
    ready_count,
    settle,
    start_consumer,
    wait_for,
)
from tests.integration.rules_actions import (
    change_rules,
    declare,
    holds,
    send,
    take,
    taken,
)
from tests.support.broker import Broker
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def embedded() -> Iterator[lavinmq.Broker]:
    with lavinmq.run() as broker:
        yield broker


@pytest.fixture
def policies(embedded: lavinmq.Broker) -> Iterator[BlockingChannel]:
    """A channel to a broker whose queues can be given other rules."""
    with pika.BlockingConnection(pika.URLParameters(embedded.url)) as connection:
        yield connection.channel()


def test_a_full_queue_keeps_the_newest(channel: BlockingChannel, unique: UniqueName) -> None:
    """edge-cases.md 180"""
    queue = declare(channel, unique("q"), max_length=1)
    send(channel, queue, "1", "2", "3")
    assert taken(channel, queue, 1) == ["3"]


def test_a_limit_trims_a_longer_queue(policies: BlockingChannel, embedded: lavinmq.Broker) -> None:
    """edge-cases.md 181, 189"""
    queue = declare(policies, "trimmed")
    send(policies, queue, *map(str, range(10)))
    settle(policies)
    change_rules(embedded, queue, max_length=2)
    holds(policies, queue, 2)
    send(policies, queue, "10")
    assert ready_count(policies, queue) == 2
    change_rules(embedded, queue)
    send(policies, queue, "11")
    assert taken(policies, queue, 3) == ["9", "10", "11"]


@pytest.mark.parametrize("later", [False, True])
def test_bytes_are_those_of_the_stored_message(
    policies: BlockingChannel, embedded: lavinmq.Broker, later: bool
) -> None:
    """edge-cases.md 182: three tiny messages are more than 100 bytes."""
    queue = declare(policies, "bytes-of-messages")
    policies.queue_purge(queue)
    change_rules(embedded, queue)
    if not later:
        change_rules(embedded, queue, max_bytes=100)
    send(policies, queue, "msg1", "msg2", "msg3")
    settle(policies)
    if later:
        change_rules(embedded, queue, max_bytes=100)
    assert taken(policies, queue, 2) == ["msg2", "msg3"]


def test_a_limit_of_bytes_refuses_publishes(channel: BlockingChannel, unique: UniqueName) -> None:
    """edge-cases.md 183"""
    name = unique("q")
    size = 8 + 1 + 1 + len(name) + 2 + 8 + len("msg1")
    queue = declare(channel, name, max_length_bytes=3 * size - 1, overflow="reject-publish")
    channel.confirm_delivery()
    send(channel, queue, "msg1")
    send(channel, queue, "msg2")
    with pytest.raises(NackError):
        send(channel, queue, "msg3")
    assert taken(channel, queue, 2) == ["msg1", "msg2"]


def test_another_limit_replaces_the_first(
    policies: BlockingChannel, embedded: lavinmq.Broker
) -> None:
    """edge-cases.md 184"""
    queue = declare(policies, "replaced")
    change_rules(embedded, queue, max_bytes=10)
    send(policies, queue, "x" * 100)
    assert ready_count(policies, queue) == 0
    change_rules(embedded, queue, max_length=10)
    send(policies, queue, *["x" * 1000] * 12)
    holds(policies, queue, 10)


def test_a_limit_of_zero_delivers_to_a_ready_consumer(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 185"""
    queue = declare(channel, unique("q"), max_length=0)
    send(channel, queue, "dropped")
    received = start_consumer(channel, queue, auto_ack=True)
    send(channel, queue, *map(str, range(5)))
    assert [m.body for m in wait_for(channel, received, 5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_busy_consumer_does_not_keep_messages_from_being_dropped(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 186"""
    queue = declare(channel, unique("q"), max_length=2)
    channel.basic_qos(prefetch_count=1)
    received = start_consumer(channel, queue)
    send(channel, queue, *map(str, range(10)))
    wait_for(channel, received, 1)
    holds(channel, queue, 2)
    channel.basic_ack(received[0].tag)
    wait_for(channel, received, 2)
    channel.basic_ack(received[1].tag)
    assert [m.body for m in wait_for(channel, received, 3)] == [b"0", b"8", b"9"]


@pytest.mark.parametrize("exchange", ["there-is-none", ""])
def test_overflow_without_a_way_out_drops(
    channel: BlockingChannel, unique: UniqueName, exchange: str
) -> None:
    """edge-cases.md 187, 188: also when the way leads back to the queue."""
    queue = declare(channel, unique("q"), max_length=1, dead_letter_exchange=exchange)
    send(channel, queue, "1", "2", "3")
    assert taken(channel, queue, 1) == ["3"]


def test_a_requeue_into_a_full_queue(channel: BlockingChannel, unique: UniqueName) -> None:
    """amqp.md 22.42: publishes are limited, what is there already is not dropped. With drop-head
    the oldest goes."""
    for overflow, left in (("reject-publish", ["1", "2"]), ("drop-head", ["2"])):
        queue = declare(channel, unique("q"), max_length=1, overflow=overflow)
        send(channel, queue, "1")
        message = take(channel, queue)
        send(channel, queue, "2")
        settle(channel)
        channel.basic_reject(message.tag, requeue=True)
        assert taken(channel, queue, len(left)) == left


# --- refused publishes


def confirms(wire: Wire, count: int) -> list[bool]:
    """Whether each of the first publishes was acked, one nack each."""
    found: dict[int, bool] = {}
    while len(found) < count:
        method = wire.receive().method
        if isinstance(method, commands.Basic.Ack):
            for tag in range(1, method.delivery_tag + 1):
                found.setdefault(tag, True)
        else:
            assert isinstance(method, commands.Basic.Nack), method
            assert not method.multiple
            assert method.delivery_tag not in found
            found[method.delivery_tag] = False
    return [found[tag] for tag in range(1, count + 1)]


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with Wire.open(broker.port, channels=(1, 2)) as opened:
        yield opened


def declare_on(wire: Wire, queue: str, **arguments: object) -> str:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    request = commands.Queue.Declare(queue=queue, exclusive=True, arguments=named)
    wire.call(1, request, commands.Queue.DeclareOk)
    return queue


@pytest.mark.parametrize(("limit", "expected"), [(1, [True, False, False]), (0, [False] * 3)])
def test_refused_publishes_are_nacked(
    wire: Wire, unique: UniqueName, limit: int, expected: list[bool]
) -> None:
    """edge-cases.md 125, 128: all in flight together."""
    queue = declare_on(wire, unique("q"), max_length=limit, overflow="reject-publish")
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for body in (b"1", b"2", b"3"):
        wire.publish(1, "", queue, body)
    assert confirms(wire, 3) == expected


def test_a_publish_that_one_of_two_queues_refuses(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 126"""
    full = declare_on(wire, unique("full"), max_length=0, overflow="reject-publish")
    other, fanout = declare_on(wire, unique("other")), unique("fanout")
    declare = commands.Exchange.Declare(exchange=fanout, exchange_type="fanout", auto_delete=True)
    wire.call(1, declare, commands.Exchange.DeclareOk)
    for queue in (full, other):
        bind = commands.Queue.Bind(queue=queue, exchange=fanout)
        wire.call(1, bind, commands.Queue.BindOk)
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    wire.publish(1, fanout, "", b"x")
    assert confirms(wire, 1) == [False]
    wire.send(2, commands.Basic.Get(queue=other, no_ack=True))
    assert wire.expect_unit(commands.Basic.GetOk, 2).body == b"x"


def test_a_refused_mandatory_publish_is_not_returned(wire: Wire, unique: UniqueName) -> None:
    """amqp.md 22.40"""
    queue = declare_on(wire, unique("q"), max_length=0, overflow="reject-publish")
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    wire.publish(1, "", queue, b"x", mandatory=True)
    assert confirms(wire, 1) == [False]


def test_a_refused_publish_can_go_where_dead_letters_go(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    dead = declare(channel, unique("dead"))
    queue = declare(channel, unique("q"), max_length=1, overflow="reject-publish-dlx",
                    dead_letter_exchange="", dead_letter_routing_key=dead)  # fmt: skip
    channel.confirm_delivery()
    send(channel, queue, "1")
    with pytest.raises(NackError):
        send(channel, queue, "2")
    assert taken(channel, dead, 1) == ["2"]
    assert taken(channel, queue, 1) == ["1"]


# --- transactions


def test_a_commit_that_a_full_queue_would_refuse_does_nothing(
    connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    """amqp.md 22.22: nothing is published, nothing is acked."""
    setup = connection.channel()
    queue = declare(setup, unique("q"), max_length=2, overflow="reject-publish")
    other = declare(setup, unique("other"))
    send(setup, other, "acked")
    channel = connection.channel()
    channel.tx_select()
    send(channel, queue, "1", "2")
    channel.tx_commit()
    channel.basic_ack(take(channel, other).tag)
    send(channel, other, "new")
    send(channel, queue, "3")
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.tx_commit()
    assert closed.value.reply_code == 406
    assert "full" in closed.value.reply_text
    assert get_all(setup, queue) == [b"1", b"2"]
    assert get_all(setup, other) == [b"acked"]


def test_a_commit_counts_what_it_gives_back(
    connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    """amqp.md 22.22: a requeue of the same transaction takes room; an ack makes none."""
    channel = connection.channel()
    queue = declare(channel, unique("q"), max_length=2, overflow="reject-publish")
    send(channel, queue, "1")
    for requeue, fits in ((False, True), (True, False)):
        transacted = connection.channel()
        transacted.tx_select()
        transacted.basic_nack(take(transacted, queue).tag, requeue=requeue)
        send(transacted, queue, "2", "3")
        if fits:
            transacted.tx_commit()
        else:
            with pytest.raises(ChannelClosedByBroker, match="full"):
                transacted.tx_commit()
    assert get(channel, queue) is not None
