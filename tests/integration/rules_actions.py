"""Steps that the tests of limits, lifetimes and dead letters have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

import lavinmq
from tests.integration.pika_actions import Message, get, get_all, ready_count, serve_until

WAIT_S = 10.0


def declare(channel: BlockingChannel, queue: str, **arguments: Any) -> str:
    """A transient queue that goes with its connection; `max_length=1` means `x-max-length: 1`."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.queue_declare(queue, exclusive=True, arguments=named)
    return queue


def send(channel: BlockingChannel, queue: str, *bodies: str, **properties: Any) -> None:
    """Publish to the default exchange."""
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def holds(channel: BlockingChannel, queue: str, count: int) -> None:
    """Wait until the queue has that many ready messages."""
    found = serve_until(channel, lambda: ready_count(channel, queue) == count, timeout_s=WAIT_S)
    assert found, f"{queue} has {ready_count(channel, queue)} messages, not {count}"


def taken(channel: BlockingChannel, queue: str, count: int) -> list[str]:
    """Wait for that many messages, and take them."""
    holds(channel, queue, count)
    return [body.decode() for body in get_all(channel, queue)]


def take(channel: BlockingChannel, queue: str) -> Message:
    """One message that has to be there."""
    message = get(channel, queue)
    assert message is not None, f"{queue} is empty"
    return message


def deaths(message: Message) -> list[dict[str, Any]]:
    """The history of a dead letter, newest first."""
    return list(message.properties.headers["x-death"])


def change_rules(broker: lavinmq.Broker, queue: str, **rules: Any) -> None:
    """Give a queue of a broker in this process other rules, as a policy does."""
    done: Future[None] = Future()

    def change() -> None:
        broker._server.broker.vhosts["/"].queues[queue].core.set_features(**rules)
        done.set_result(None)

    on_loop(broker, change)
    done.result(WAIT_S)


def on_loop(broker: lavinmq.Broker, callback: Callable[[], None]) -> None:
    """Have something done by the thread of a broker in this process."""
    broker._server.events.call_soon_threadsafe(callback)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
