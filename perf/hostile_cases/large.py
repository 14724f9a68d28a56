"""One large message: stored and fetched, dead in each way, released, moved by an operator."""

from __future__ import annotations

from pamqp import commands

from perf.hostile_cases.peer import (
    DEAD_LETTERS,
    Broker,
    client,
    settle,
    wait_for_messages,
)
from tests.support import raw_wire as wire
from tests.support.raw_connection import Channel, Connection
from tests.support.raw_wire import Properties, build

LARGE = 128 << 20


def large_publish(key: str, exchange: str = "", properties: Properties | None = None) -> bytes:
    """The bytes of a publish of a large message on channel 1."""
    method = build(commands.Basic.Publish, exchange=exchange, routing_key=key)
    content = wire.encode_content(1, properties or Properties(), bytes(LARGE), wire.FRAME_MAX)
    return wire.encode_method(1, method) + content


def have_large(connection: Connection, channel: Channel, **arguments: object) -> None:
    """A queue with a large message, and the queue that its dead letters go to."""
    channel.declare_queue("dead")
    channel.declare_queue("q", arguments={**DEAD_LETTERS, **arguments})
    connection.write(large_publish("q"))
    settle(channel)


def large_body(broker: Broker) -> None:
    """A message of 128 MiB, and its way to a consumer."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        sent = large_publish("q")
        with broker.watched():
            connection.write(sent)
            settle(channel)
            channel.get("q", no_ack=True)


def large_rejected(broker: Broker) -> None:
    """A message of 128 MiB is rejected, and goes to a dead-letter exchange."""
    with client(broker) as (connection, channel):
        have_large(connection, channel)
        got = channel.get("q")
        assert got is not None
        with broker.watched():
            channel.nack(got.delivery_tag, requeue=False)
            wait_for_messages(broker, "dead", 1)


def large_expired(broker: Broker) -> None:
    """A message of 128 MiB expires, and goes to a dead-letter exchange."""
    with client(broker) as (connection, channel):
        have_large(connection, channel, **{"x-message-ttl": 3000})
        with broker.watched():
            wait_for_messages(broker, "dead", 1)


def large_too_long(broker: Broker) -> None:
    """A message of 128 MiB is dropped from a queue that is too long, and goes to three others."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("fan", "fanout")
        for name in ("one", "two", "dead"):
            channel.declare_queue(name)
            channel.bind_queue(name, "fan", "")
        have_large(connection, channel, **{"x-max-length": 1, "x-dead-letter-exchange": "fan"})
        with broker.watched():
            channel.publish("", "q", b"")
            wait_for_messages(broker, "dead", 1)


def large_refused(broker: Broker) -> None:
    """A message of 128 MiB is refused by a full queue, and goes to a dead-letter exchange."""
    with client(broker) as (connection, channel):
        channel.declare_queue("dead")
        full = {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}
        channel.declare_queue("q", arguments={**DEAD_LETTERS, **full})
        sent = large_publish("q")
        with broker.watched():
            connection.write(sent)
            settle(channel)
            wait_for_messages(broker, "dead", 1)


def large_released(broker: Broker) -> None:
    """A message of 128 MiB is released by a delayed exchange to two queues."""
    with client(broker) as (connection, channel):
        asked = {"x-delayed-type": "fanout"}
        channel.declare_exchange("d", "x-delayed-message", arguments=asked)
        for name in ("q", "other"):
            channel.declare_queue(name)
            channel.bind_queue(name, "d", "")
        connection.write(large_publish("", "d", Properties(headers={"x-delay": 3000})))
        settle(channel)
        with broker.watched():
            wait_for_messages(broker, "q", 1)
            wait_for_messages(broker, "other", 1)


def large_moved(broker: Broker) -> None:
    """An operator moves a message of 128 MiB to another queue."""
    with client(broker) as (connection, channel):
        have_large(connection, channel)
        with broker.watched():
            broker.ask("POST", "queues/%2f/q/move", {"destination": "dead"})
            wait_for_messages(broker, "dead", 1)


CASES = (
    large_body,
    large_rejected,
    large_expired,
    large_too_long,
    large_refused,
    large_released,
    large_moved,
)
