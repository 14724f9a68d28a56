"""Many messages at once: settled, purged, deleted, given back, committed; many consumers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from pamqp import commands

from perf.hostile_cases.peer import (
    ALLOWED_CONSUMERS,
    CHANNELS,
    CONSUMERS,
    DEAD_LETTERS,
    MANY,
    Broker,
    client,
    full_queue,
    publish,
    published,
    send_all,
    settle,
    unacknowledged,
    wait_for_messages,
)
from tests.support import raw_wire as wire
from tests.support.raw_connection import ClientError, Connection
from tests.support.raw_wire import Properties, build


def nack_multiple(broker: Broker) -> None:
    """A nack with requeue of 500 000 messages at once."""
    with client(broker) as (connection, channel):
        full_queue(broker, channel)
        last = unacknowledged(connection, channel, "q")
        channel.send(build(commands.Basic.Cancel, consumer_tag="greedy", nowait=True))
        with broker.watched():
            channel.nack(last, multiple=True)
            settle(channel)


def nack_discard(broker: Broker) -> None:
    """A nack without requeue of 500 000 messages, which go to a dead-letter exchange."""
    with client(broker) as (connection, channel):
        channel.declare_queue("dead")
        full_queue(broker, channel, **DEAD_LETTERS)
        last = unacknowledged(connection, channel, "q")
        with broker.watched():
            channel.nack(last, multiple=True, requeue=False)
            settle(channel)


def ack_multiple(broker: Broker) -> None:
    """An ack of 500 000 messages at once."""
    with client(broker) as (connection, channel):
        full_queue(broker, channel)
        last = unacknowledged(connection, channel, "q")
        with broker.watched():
            channel.ack(last, multiple=True)
            settle(channel)


def ack_each_backwards(broker: Broker) -> None:
    """500 000 acks, one by one, the newest first."""
    with client(broker) as (connection, channel):
        full_queue(broker, channel)
        last = unacknowledged(connection, channel, "q")
        acks = (wire.encode_method(1, build(commands.Basic.Ack, delivery_tag=tag))
                for tag in range(last, last - 100_000, -1))  # fmt: skip
        sent = list(acks)
        with broker.watched():
            send_all(connection, sent)
            settle(channel)


def nack_scattered(broker: Broker) -> None:
    """A nack with requeue of 250 000 messages of which every other one has been acknowledged."""
    with client(broker) as (connection, channel):
        full_queue(broker, channel)
        last = unacknowledged(connection, channel, "q")
        channel.send(build(commands.Basic.Cancel, consumer_tag="greedy", nowait=True))
        send_all(connection, (wire.encode_method(1, build(commands.Basic.Ack, delivery_tag=tag))
                              for tag in range(1, last + 1, 2)))  # fmt: skip
        settle(channel)
        with broker.watched():
            channel.nack(last, multiple=True)
            settle(channel)


def recover(broker: Broker) -> None:
    """basic.recover with 500 000 unacknowledged messages."""
    with client(broker) as (connection, channel):
        full_queue(broker, channel)
        unacknowledged(connection, channel, "q")
        channel.send(build(commands.Basic.Cancel, consumer_tag="greedy", nowait=True))
        with broker.watched():
            channel.call(build(commands.Basic.Recover, requeue=True), commands.Basic.RecoverOk)


def channel_close(broker: Broker) -> None:
    """The end of a channel with 500 000 unacknowledged messages."""
    with client(broker) as (connection, channel):
        full_queue(broker, channel)
        unacknowledged(connection, channel, "q")
        with broker.watched():
            channel.close()
            settle(connection.channel())


def connection_lost(broker: Broker) -> None:
    """The end of a connection with 500 000 unacknowledged messages."""
    with client(broker) as (connection, channel):
        full_queue(broker, channel)
        unacknowledged(connection, channel, "q")
        with broker.watched():
            connection.abort()
            wait_for_messages(broker, "q", MANY)


def queue_delete(broker: Broker) -> None:
    """Deleting a queue with 500 000 messages."""
    with client(broker) as (_connection, channel):
        full_queue(broker, channel)
        with broker.watched():
            channel.delete_queue("q")


def queue_delete_transient(broker: Broker) -> None:
    """Deleting a transient queue with 500 000 messages."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("q")
        broker.fill("q")
        with broker.watched():
            channel.delete_queue("q")


def purge(broker: Broker) -> None:
    """Purging 500 000 messages."""
    with client(broker) as (_connection, channel):
        full_queue(broker, channel)
        with broker.watched():
            channel.purge_queue("q")


def purge_ttl(broker: Broker) -> None:
    """Purging 500 000 messages that each have an expiration."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("q")
        broker.fill("q", properties=Properties(expiration="3600000"))
        with broker.watched():
            channel.purge_queue("q")


def queue_of_consumers(broker: Broker) -> None:
    """Deleting a queue that has 300 000 consumers."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("q")
        with _consumers(broker), broker.watched():
            channel.delete_queue("q")
            settle(channel)


def consumers_end(broker: Broker) -> None:
    """The end of a connection with 300 000 consumers."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("q")
        with _consumers(broker) as many, broker.watched():
            many.abort()
            deadline = time.monotonic() + 60
            while channel.declare_queue("q", passive=True).consumer_count:
                if time.monotonic() > deadline:
                    broker.refusals.append("consumers are left")
                    return
                time.sleep(0.05)


def consumers_channel(broker: Broker) -> None:
    """The end of a channel with 150 000 consumers, and messages for consumers without credit."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        consume = (wire.encode_method(1, build(commands.Basic.Consume, queue="q",
                                               consumer_tag=f"c{n}", nowait=True))
                   for n in range(150_000))  # fmt: skip
        try:
            send_all(connection, consume)
            settle(channel)
        except ClientError as error:
            broker.refusals.append(str(error))
        with broker.watched():
            channel.close()


@contextlib.contextmanager
def _consumers(broker: Broker) -> Iterator[Connection]:
    """A connection with as many consumers of `q` as are wanted, or else allowed."""
    connection = broker.connect()
    try:
        _consume(connection, CONSUMERS // CHANNELS)
    except ClientError as error:
        broker.refusals.append(str(error))
        connection.abort()
        connection = broker.connect()
        _consume(connection, ALLOWED_CONSUMERS // CHANNELS)
    try:
        yield connection
    finally:
        connection.abort()


def _consume(connection: Connection, count: int) -> None:
    """Start so many consumers on each channel."""
    for number in range(1, CHANNELS + 1):
        channel = connection.channel(number)
        consumes = (
            build(commands.Basic.Consume, queue="q", consumer_tag=f"c{n}", nowait=True)
            for n in range(count)
        )
        connection.write(b"".join(wire.encode_method(number, each) for each in consumes))
    settle(channel)


def consumers_busy(broker: Broker) -> None:
    """10 000 publishes to a queue with 100 000 consumers of which none has credit."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        channel.qos(1)
        consume = [wire.encode_method(1, build(commands.Basic.Consume, queue="q",
                                               consumer_tag=f"c{n}", nowait=True))
                   for n in range(50_000)]  # fmt: skip
        try:
            send_all(connection, consume)
            publish(connection, "", "q", 50_000)
            settle(channel)
        except ClientError as error:
            broker.refusals.append(str(error))
        with client(broker) as (second, publisher), broker.watched():
            publish(second, "", "q", 10_000)
            settle(publisher)


def priority_levels(broker: Broker) -> None:
    """60 priority queues of 256 levels with a message in each level, then their deletion."""
    with client(broker) as (connection, channel), broker.watched():
        for number in range(60):
            channel.declare_queue(f"p{number}", arguments={"x-max-priority": 255})
            levels = (published("", f"p{number}", Properties(priority=n)) for n in range(256))
            connection.write(b"".join(levels))
        settle(channel)
        for number in range(60):
            channel.delete_queue(f"p{number}")


def dedup_keys(broker: Broker) -> None:
    """500 000 keys of duplicates in one queue, which is deleted then."""
    with client(broker) as (connection, channel):
        asked = {"x-message-deduplication": True, "x-cache-size": 1_000_000}
        channel.declare_queue("q", arguments=asked)
        header = "x-deduplication-header"
        keys = [published("", "q", Properties(headers={header: n})) for n in range(MANY)]
        with broker.watched():
            send_all(connection, keys)
            settle(channel)
            channel.delete_queue("q")


def tx_commit(broker: Broker) -> None:
    """A commit of 200 000 publishes."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        channel.tx_select()
        with broker.watched():
            publish(connection, "", "q", 200_000)
            channel.tx_commit()


def tx_commit_lost(broker: Broker) -> None:
    """A client sends a commit of 500 publishes to a fanout of 2 000 queues, and has gone."""
    with client(broker) as (_, other):
        other.declare_exchange("f", "fanout")
        for number in range(2000):
            other.declare_queue(f"q{number}", durable=number % 2 == 0)
            other.bind_queue(f"q{number}", "f")
        connection = broker.connect()
        channel = connection.channel()
        channel.tx_select()
        publish(connection, "f", "", 500)
        settle(channel)
        with broker.watched():
            connection.write(wire.encode_method(1, commands.Tx.Commit()))
            connection.abort()
            while (other.declare_queue("q1999", passive=True).message_count or 0) < 500:
                time.sleep(0.1)


def tx_rollback(broker: Broker) -> None:
    """A rollback of 200 000 publishes and 200 000 acks."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        broker.fill("q", 200_000)
        last = unacknowledged(connection, channel, "q", 200_000)
        channel.tx_select()
        publish(connection, "", "q", 200_000)
        channel.ack(last, multiple=True)
        settle(channel)
        with broker.watched():
            channel.call(build(commands.Tx.Rollback), commands.Tx.RollbackOk)


CASES = (
    nack_multiple,
    nack_discard,
    ack_multiple,
    ack_each_backwards,
    nack_scattered,
    recover,
    channel_close,
    connection_lost,
    queue_delete,
    queue_delete_transient,
    purge,
    purge_ttl,
    queue_of_consumers,
    consumers_end,
    consumers_channel,
    consumers_busy,
    priority_levels,
    dedup_keys,
    tx_commit,
    tx_commit_lost,
    tx_rollback,
)
