# mypy: disable-error-code="no-untyped-call"
"""A broker with a stream is killed while it is published to and read by a tracked consumer.

Confirmed messages are all there, in order and under the offsets that consumers have seen; a
consumer goes on no later than at the first message that it has not acknowledged.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.replay import Mismatch
from tests.support.typed import TypedClient, Unit

ROUNDS, LONG_ROUNDS = 5, 50
STREAM = [["x-queue-type", "S", "stream"]]
TAG = "reader"
pytestmark = pytest.mark.crash


class Gone(Exception):
    """The broker was killed."""


class Client(TypedClient):
    """A client that may see its broker go."""

    def poll(self, timeout_s: float) -> Unit | None:
        """The next unit, None when there is none yet. Raises: Gone."""
        unit: Unit | None = self._connection.unit(timeout_s)
        if unit is None and self._connection.eof:
            raise Gone
        return unit

    def take(self) -> Unit:
        """The next unit. Raises: Gone."""
        unit = self.poll(15)
        assert unit is not None, "nothing came"
        return unit


class Books:
    """What publisher and consumer know."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.confirmed: set[bytes] = set()
        self.seen: dict[int, bytes] = {}
        self.acked: set[int] = set()
        self.sure = 1  # all below were acknowledged, and the broker has answered afterwards

    def first_unacked(self) -> int:
        """The lowest offset that was not acknowledged."""
        offset = 1
        while offset in self.acked:
            offset += 1
        return offset


class Publisher:
    """Publishes with confirms."""

    def __init__(self, port: int, books: Books) -> None:
        self.client = Client(port)
        self.client.call("confirm.select")
        self.books = books
        self.waiting: dict[int, bytes] = {}
        self.sequence = 0

    def publish(self, size: int) -> None:
        """Publish one message, which is confirmed later."""
        body = b"%d " % len(self.books.published) + bytes(size)
        self.books.published.append(body)
        self.sequence += 1
        self.waiting[self.sequence] = body
        self.client.publish("", "s", body)

    def settle(self, most: int) -> None:
        """Take confirms until no more than so many are missing. Raises: Gone."""
        while len(self.waiting) > most:
            unit = self.client.take()
            assert unit["method"] == "basic.ack", unit
            for sequence in [s for s in self.waiting if s <= unit["args"]["delivery_tag"]]:
                self.books.confirmed.add(self.waiting.pop(sequence))


class Consumer:
    """Consumes with tracking, and acknowledges in any order."""

    def __init__(self, port: int, books: Books) -> None:
        self.client = Client(port)
        self.client.call("basic.qos", prefetch_count=20)
        self.client.call("basic.consume", queue="s", consumer_tag=TAG)
        self.books = books
        self.waiting: list[tuple[int, int]] = []

    def note(self, unit: Unit) -> None:
        """A message was delivered."""
        assert unit["method"] == "basic.deliver", unit
        offset = unit["props"]["headers"][-1][2]
        assert self.books.seen.setdefault(offset, unit["_raw_body"]) == unit["_raw_body"]
        self.waiting.append((unit["args"]["delivery_tag"], offset))

    def work(self, random_: random.Random) -> None:
        """Acknowledge some; now and then have the broker answer. Raises: Gone."""
        while (unit := self.client.poll(0)) is not None:
            self.note(unit)
        random_.shuffle(self.waiting)
        for _ in range(random_.randrange(len(self.waiting) + 1)):
            tag, offset = self.waiting.pop()
            self.books.acked.add(offset)
            self.client.send("basic.ack", delivery_tag=tag, multiple=False)
        if random_.random() < 0.3:
            sure = self.books.first_unacked()
            self.client.send("queue.declare", queue="s", passive=True)
            while (unit := self.client.take())["method"] != "queue.declare-ok":
                self.note(unit)
            self.books.sure = sure


def work(port: int, books: Books, random_: random.Random) -> None:
    """Publish and consume until the broker is gone."""
    with contextlib.suppress(Gone, Mismatch, OSError):
        publisher, consumer = Publisher(port, books), Consumer(port, books)
        with publisher.client, consumer.client:
            while True:
                for _ in range(random_.randrange(1, 20)):
                    publisher.publish(random_.randrange(2000))
                publisher.settle(random_.randrange(10))
                consumer.work(random_)


def resumes_at(port: int, n: int) -> int:
    """Where the tracked consumer goes on; n + 1 when it has read all."""
    client = Client(port)
    with client:
        client.call("basic.qos", prefetch_count=1)
        client.call("basic.consume", queue="s", consumer_tag=TAG)
        client.send("queue.declare", queue="s", passive=True)
        units: list[Any] = [client.take()]
        if units[0]["method"] == "queue.declare-ok":
            unit = client.poll(0.2)
            units += [unit] if unit else []
        found = [u["props"]["headers"][-1][2] for u in units if u["method"] == "basic.deliver"]
    return found[0] if found else n + 1


def test_confirmed_messages_keep_their_offsets_and_nothing_unacknowledged_is_passed_over(
    tmp_path: Path, broker_factory: Callable[..., Broker], is_long: bool
) -> None:
    """amqp.md 22.11; edge-cases.md 261, 274."""
    config = tmp_path / "small.ini"
    config.write_text("[main]\nsegment_size = 16384\n")
    broker = broker_factory(["-c", str(config)])
    with TypedClient(broker.port) as client:
        client.call("queue.declare", queue="s", durable=True, arguments=STREAM)
    books = Books()
    for round_ in range(LONG_ROUNDS if is_long else ROUNDS):
        random_ = random.Random(round_)
        killer = threading.Timer(random_.uniform(0.1, 0.5), broker.kill)
        killer.start()
        work(broker.port, books, random_)
        killer.join()
        broker.start()

        with TypedClient(broker.port) as client:
            units = client.read_stream("s")
        found = {unit["props"]["headers"][-1][2]: unit["body"] for unit in units}
        assert list(found) == list(range(1, len(units) + 1)), round_
        rest = iter(books.published)
        assert all(body in rest for body in found.values()), round_
        assert books.confirmed <= set(found.values()), round_
        assert all(
            found[offset] == body for offset, body in books.seen.items() if body in books.confirmed
        ), round_
        books.seen = {o: body for o, body in books.seen.items() if found.get(o) == body}
        books.acked &= found.keys()
        resumes = resumes_at(broker.port, len(found))
        assert books.sure <= resumes <= books.first_unacked(), round_
        books.acked = set(range(1, resumes))  # the others are delivered again
    assert books.sure > 1
