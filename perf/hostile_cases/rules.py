"""Rules that many messages follow at once: expiry, lengths, dead letters, delays."""

from __future__ import annotations

import time

from pamqp import commands
from pamqp.common import FieldTable

from perf.hostile_cases.peer import (
    DEAD_LETTERS,
    MANY,
    Broker,
    client,
    full_queue,
    publish,
    published,
    put_policy,
    raw_publish,
    send_many,
    settle,
    wait_for_messages,
)
from tests.support import raw_wire as wire
from tests.support.raw_wire import Properties, build


def expiry(broker: Broker) -> None:
    """500 000 messages expire at once, by a policy."""
    with client(broker) as (_connection, channel):
        full_queue(broker, channel)
        with broker.watched():
            put_policy(broker, message_ttl=1)
            wait_for_messages(broker, "q", 0)


def expiry_dead_letters(broker: Broker) -> None:
    """500 000 messages expire at once and are dead-lettered."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("dead")
        full_queue(broker, channel, **DEAD_LETTERS)
        with broker.watched():
            put_policy(broker, message_ttl=1)
            wait_for_messages(broker, "dead", MANY)


def expiry_each(broker: Broker) -> None:
    """500 000 messages with an expiration each, in a queue whose head is let go."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        publish(connection, "", "q", 1)
        publish(connection, "", "q", MANY, Properties(expiration="1"))
        settle(channel)
        with broker.watched():
            channel.get("q", no_ack=True)
            wait_for_messages(broker, "q", 0)


def max_length(broker: Broker) -> None:
    """A policy lets a queue of 500 000 messages keep one."""
    with client(broker) as (_connection, channel):
        full_queue(broker, channel)
        with broker.watched():
            put_policy(broker, max_length=1)
            wait_for_messages(broker, "q", 1)


def max_length_dead_letters(broker: Broker) -> None:
    """A policy lets a queue of 500 000 messages keep one; the others are dead-lettered."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("dead")
        full_queue(broker, channel, **DEAD_LETTERS)
        with broker.watched():
            put_policy(broker, max_length=1)
            wait_for_messages(broker, "dead", MANY - 1)


def max_length_bytes(broker: Broker) -> None:
    """Publishes of large messages to a queue of 500 000 small ones with a limit of bytes."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q", arguments={"x-max-length-bytes": 64 << 20})
        publish(connection, "", "q", MANY)
        settle(channel)
        content = wire.encode_content(1, Properties(), bytes(60 << 20), wire.FRAME_MAX)
        method = build(commands.Basic.Publish, routing_key="q")
        with broker.watched():
            connection.write(wire.encode_method(1, method) + content)
            settle(channel)


def delayed_release(broker: Broker) -> None:
    """200 000 delayed messages are due at once."""
    with client(broker) as (connection, channel):
        asked = {"x-delayed-type": "fanout"}
        channel.declare_exchange("d", "x-delayed-message", arguments=asked)
        channel.declare_queue("q")
        channel.bind_queue("q", "d")
        due = time.monotonic() + 6
        for _ in range(200):
            left_ms = int((due - time.monotonic()) * 1000)
            publish(connection, "d", "", 1000, Properties(headers={"x-delay": max(1, left_ms)}))
        settle(channel)
        with broker.watched():
            wait_for_messages(broker, "q", 200_000)


def dead_letter_forged(broker: Broker) -> None:
    """1 000 messages with 1 500 forged deaths each are dead-lettered."""
    with client(broker) as (connection, channel):
        death: FieldTable = {"queue": "x", "reason": "expired", "count": 1, "exchange": ""}
        head = Properties(headers={"x-death": [death | {"queue": f"q{n}"} for n in range(1500)]})
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
                     "x-max-length": 0}  # fmt: skip
        channel.declare_queue("dead", arguments={"x-max-length": 100})
        channel.declare_queue("q", arguments=arguments)
        one = published("", "q", head)
        with broker.watched():
            send_many(connection, one, 1000)
            settle(channel)


def dead_letter_cycle(broker: Broker) -> None:
    """2 000 messages go round a cycle of 300 queues in which they expire at once."""
    with client(broker) as (connection, channel):
        for n in range(300):
            to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"c{(n + 1) % 300}"}
            channel.declare_queue(f"c{n}", arguments={"x-message-ttl": 1, **to})
        with broker.watched():
            send_many(connection, published("", "c0"), 2000)
            settle(channel)
            time.sleep(3)


def history_headers(broker: Broker) -> None:
    """20 queues are bound to an exchange that keeps 1 000 messages with 64 kB of headers each."""
    with client(broker) as (connection, channel):
        asked = {"x-recent-history-length": 1000}
        channel.declare_exchange("h", "x-recent-history", arguments=asked)
        table = b"".join(b"\x05h%04xV" % n for n in range(0, 0x10000, 8))
        send_many(connection, raw_publish("h", "", table), 1000)
        for n in range(20):
            channel.declare_queue(f"q{n}", arguments={"x-max-length": 10})
        with broker.watched():
            for n in range(20):
                channel.bind_queue(f"q{n}", "h")
            settle(channel)
            time.sleep(1)


CASES = (
    dead_letter_cycle,
    history_headers,
    expiry,
    expiry_dead_letters,
    expiry_each,
    max_length,
    max_length_dead_letters,
    max_length_bytes,
    delayed_release,
    dead_letter_forged,
)
