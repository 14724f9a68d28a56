"""Steps that the pika tests have in common: publish, take, collect and wait until.

Called by `test_pika_*.py` with their channel. Nothing here opens or closes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pika
from pika.adapters.blocking_connection import BlockingChannel

WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the client got it; `tag` is its delivery tag."""

    body: bytes
    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: pika.BasicProperties


def publish(channel: BlockingChannel, queue: str, bodies: Iterable[bytes | str]) -> None:
    """Publish `bodies` in order to `queue` through the default exchange."""
    for body in bodies:
        channel.basic_publish("", queue, body)


def settle(channel: BlockingChannel) -> None:
    """Wait until the broker has handled everything sent on the channel before."""
    # Replies come in the order of the requests, so any answer will do.
    channel.exchange_declare("amq.direct", passive=True)


def ready_count(channel: BlockingChannel, queue: str) -> int:
    """Return the number of ready messages that a passive declare of `queue` reports."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def get(channel: BlockingChannel, queue: str, *, auto_ack: bool = False) -> Message | None:
    """Return one message fetched with basic.get, or None when the broker says it is empty."""
    method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
    if method is None:
        return None
    return Message(
        body,
        method.delivery_tag,
        method.redelivered,
        method.exchange,
        method.routing_key,
        properties,
    )


def get_all(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Return the bodies of all ready messages, which are thereby gone."""
    bodies = []
    while (message := get(channel, queue, auto_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


def get_soon(channel: BlockingChannel, queue: str, *, timeout_s: float = WAIT_S) -> Message:
    """Return the first message that becomes ready. Raises AssertionError when none does."""
    found: list[Message] = []

    def took_one() -> bool:
        message = get(channel, queue)
        found.extend([message] if message else [])
        return bool(found)

    became_ready = serve_until(channel, took_one, timeout_s=timeout_s)
    assert became_ready, f"no message became ready in {queue} within {timeout_s:g} s"
    return found[0]


def start_consumer(
    channel: BlockingChannel, queue: str, *, auto_ack: bool = False, **consume: object
) -> list[Message]:
    """Start a consumer and return the list that its deliveries are appended to."""
    received: list[Message] = []

    def on_message(
        _channel: BlockingChannel,
        method: pika.spec.Basic.Deliver,
        properties: pika.BasicProperties,
        body: bytes,
    ) -> None:
        received.append(
            Message(
                body,
                method.delivery_tag,
                method.redelivered,
                method.exchange,
                method.routing_key,
                properties,
            )
        )

    channel.basic_consume(queue, on_message, auto_ack=auto_ack, **consume)
    return received


def serve_until(
    channel: BlockingChannel, condition: Callable[[], bool], *, timeout_s: float = WAIT_S
) -> bool:
    """Serve the channel's connection until `condition` holds; tell whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        channel.connection.process_data_events(time_limit=0.02)
    return True


def wait_for(channel: BlockingChannel, received: list[Message], count: int) -> list[Message]:
    """Serve the connection until `count` messages were received and return them."""
    arrived = serve_until(channel, lambda: len(received) >= count)
    assert arrived, f"{len(received)} of {count} messages arrived within {WAIT_S:g} s"
    return received


def bodies(messages: Iterable[Message]) -> list[bytes]:
    """Return the bodies of messages, in order."""
    return [message.body for message in messages]
