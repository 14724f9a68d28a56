"""Many bindings, queues and channels, and their ends."""

from __future__ import annotations

import time

from pamqp import commands

from perf.hostile_cases.peer import (
    BINDINGS,
    CHANNELS,
    MANY,
    TIMEOUT_S,
    Broker,
    bind,
    bound_by_headers,
    client,
    publish,
    send_all,
    settle,
    unbind,
)
from tests.support import raw_wire as wire
from tests.support.raw_wire import build


def unbind_pair(broker: Broker) -> None:
    """Deleting a queue with 50 000 bindings of one pair, by headers."""
    with client(broker) as (connection, channel):
        bound_by_headers(channel, connection)
        with broker.watched():
            channel.delete_queue("q")


def unbind_each(broker: Broker) -> None:
    """20 000 unbinds of a pair with 50 000 bindings by headers, the newest first."""
    with client(broker) as (connection, channel):
        bound_by_headers(channel, connection)
        unbinds = [unbind("q", "h", "", n=str(n)) for n in range(BINDINGS - 1, 30_000, -1)]
        with broker.watched():
            send_all(connection, unbinds)
            deadline = time.monotonic() + TIMEOUT_S
            for _ in unbinds:
                while not channel._replies:
                    connection.process(deadline)
                channel._replies.popleft()


def bind_pair(broker: Broker) -> None:
    """50 000 bindings of one pair, by headers."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("h", "headers")
        channel.declare_queue("q")
        binds = [bind("q", "h", "", n=str(n)) for n in range(BINDINGS)]
        with broker.watched():
            send_all(connection, binds)
            settle(channel)


def _exchange_delete(broker: Broker, kind: str) -> None:
    with client(broker) as (connection, channel):
        channel.declare_exchange("e", kind)
        channel.declare_queue("q")
        send_all(connection, (bind("q", "e", f"a.{n}.*.b") for n in range(BINDINGS)))
        settle(channel)
        with broker.watched():
            channel.delete_exchange("e")


def exchange_delete_topic(broker: Broker) -> None:
    """Deleting a topic exchange with 50 000 bindings."""
    _exchange_delete(broker, "topic")


def exchange_delete_direct(broker: Broker) -> None:
    """Deleting a direct exchange with 50 000 bindings."""
    _exchange_delete(broker, "direct")


def exchange_delete_headers(broker: Broker) -> None:
    """Deleting a headers exchange with 50 000 bindings of one pair."""
    with client(broker) as (connection, channel):
        bound_by_headers(channel, connection)
        with broker.watched():
            channel.delete_exchange("h")


def queue_delete_topic(broker: Broker) -> None:
    """Deleting a queue with 50 000 topic bindings."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("e", "topic")
        channel.declare_queue("q")
        send_all(connection, (bind("q", "e", f"a.{n}.*.b") for n in range(BINDINGS)))
        settle(channel)
        with broker.watched():
            channel.delete_queue("q")


def exclusive_end(broker: Broker) -> None:
    """The end of a connection with 20 000 exclusive queues, each bound."""
    with client(broker) as (connection, channel):
        declares = (
            wire.encode_method(1, build(commands.Queue.Declare, queue=f"x{n}", exclusive=True,
                                        nowait=True)) + bind(f"x{n}", "amq.topic", f"k.{n}")
            for n in range(20_000)
        )  # fmt: skip
        send_all(connection, declares)
        settle(channel)
        with broker.watched():
            connection.abort()
            time.sleep(1)


def channels_end(broker: Broker) -> None:
    """The end of a connection with 2 000 channels, each with 100 unconfirmed publishes."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q", durable=True)
        for number in range(2, CHANNELS):
            connection.channel(number)
        with broker.watched():
            connection.abort()


def vhost_delete(broker: Broker) -> None:
    """Deleting a virtual host with 500 000 messages and 5 000 bound queues."""
    broker.ask("PUT", "vhosts/v")
    broker.ask("PUT", "permissions/v/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    connection = broker.connect(vhost="v")
    channel = connection.channel()
    for number in range(5000):
        channel.declare_queue(f"q{number}", durable=number % 2 == 0)
        channel.bind_queue(f"q{number}", "amq.topic", f"a.{number}")
    publish(connection, "", "q0", MANY)
    settle(channel)
    with broker.watched():
        broker.ask("DELETE", "vhosts/v")
        time.sleep(1)
    connection.abort()


CASES = (
    unbind_pair,
    unbind_each,
    bind_pair,
    exchange_delete_topic,
    exchange_delete_direct,
    exchange_delete_headers,
    queue_delete_topic,
    exclusive_end,
    channels_end,
    vhost_delete,
)
