"""The broker is killed while messages of several priorities come and go in one queue.

Beyond the invariant of all kills (confirmed ⊆ recovered ⊆ published, nothing twice, nothing whose
ack was answered) the levels come highest first, each in the order of publishing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.books import Books, messages_found
from tests.crash.load import Client, Consumer, Message, Publisher, Stream
from tests.support.broker import Broker
from tests.support.patience import PATIENCE
from tests.support.wire import Wire

SHORT_ROUNDS, LONG_ROUNDS = 3, 50
PURGE_EVERY = 10
"""Lives: a reader gets no more than the default prefetch, 65535 messages."""
SEGMENT_SIZE = 16384
PROGRESS_TIMEOUT_S = 20.0 * PATIENCE
QUEUE = "levels"
HIGHEST = 5
PRIORITIES = (0, 2, 3, 9)

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]


class LevelPublisher(Publisher):
    """A stream for each priority, which its name ends with."""

    def __init__(self, port: int, life: int, seed: int) -> None:
        self._priority = 0
        streams = [Stream(f"{life}-{priority}", QUEUE) for priority in PRIORITIES]
        super().__init__(port, streams, seed)

    def properties(self) -> commands.Basic.Properties:
        """The priority of the stream whose turn it is."""
        return commands.Basic.Properties(priority=self._priority)

    def _publish_batch(self, channel: int, stream: Stream) -> None:
        self._priority = priority_of((stream.name, 0))
        super()._publish_batch(channel, stream)


def priority_of(message: Message) -> int:
    return int(message[0].rpartition("-")[2])


def level_of(message: Message) -> int:
    return min(priority_of(message), HIGHEST)


def work_until_killed(
    broker: Broker, books: Books, life: int, seed: int, *, is_consuming: bool
) -> None:
    """Publish to all levels, maybe consume, kill after a random amount; fill the books."""
    chance = random.Random(seed)
    publisher = LevelPublisher(broker.port, life, seed)
    prefetch = chance.randrange(10, 100)
    consumers = [Consumer(broker.port, QUEUE, prefetch, 5)] if is_consuming else []
    clients: list[Client] = [publisher, *consumers]
    streams = list(publisher.streams.values())
    enough = chance.randrange(50, 400)
    for client in clients:
        client.start()
    deadline = time.monotonic() + PROGRESS_TIMEOUT_S
    while any(stream.confirmed < enough for stream in streams):
        assert all(client.is_alive() for client in clients), [each.error for each in clients]
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.001)
    broker.kill()
    for client in clients:
        client.finish()
    books.add(streams, consumers)


def test_levels_and_their_order_survive_kills(
    tmp_path: Path, broker_factory: BrokerFactory, is_long: bool
) -> None:
    """edge-cases.md 243"""
    config = tmp_path / "lavinmq.ini"
    config.write_text(f"[main]\nsegment_size = {SEGMENT_SIZE}\n")
    broker = broker_factory(["-c", str(config)])
    with Wire.open(broker.port) as wire:
        arguments = {"x-max-priority": HIGHEST}
        declare = commands.Queue.Declare(queue=QUEUE, durable=True, arguments=arguments)
        wire.call(1, declare, commands.Queue.DeclareOk)
    books = Books()
    for life in range(LONG_ROUNDS if is_long else SHORT_ROUNDS):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"life {life}: seed {seed}")
        is_consuming = life % 2 == 1
        work_until_killed(broker, books, life, seed, is_consuming=is_consuming)
        broker.start()

        found = messages_found(broker.port, [QUEUE])

        books.check(found)
        levels = [level_of(message) for message in found[QUEUE]]
        assert levels == sorted(levels, reverse=True), "a lower level came before a higher one"
        assert is_consuming or set(levels) == {0, 2, 3, HIGHEST}
        if life % PURGE_EVERY == PURGE_EVERY - 1:
            with Wire.open(broker.port) as wire:
                wire.call(1, commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk)
            books.purged(QUEUE)
