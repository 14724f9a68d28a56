"""Publishers and consumers that keep books while a broker is killed under them.

Each runs in a thread of its own until its connection ends, and then tells what was published,
what was confirmed and what was acknowledged, and when: times are those of CLOCK_MONOTONIC in
nanoseconds, like in the log of the disk. Used by the crash tests only.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pamqp import base, commands

from tests.support.patience import PATIENCE
from tests.support.wire import Method, Unit, Wire, WireClosed, encode_publish

WINDOW = 200
BATCH = 20
LONGEST_FILLING = 1500
JOIN_TIMEOUT_S = 20.0 * PATIENCE
READ_TIMEOUT_S = 20.0 * PATIENCE


Message = tuple[str, int]
"""The name of a stream and a number in it."""

DAMAGED: Message = ("", 0)
"""Stands for a message whose body is not as it was published."""


@dataclass(slots=True)
class Stream:
    """What one publishing channel did: message bodies start with `<name>:<number>:`.

    `confirms` are the times at which confirms came, each with the number up to which."""

    name: str
    queue: str
    published: int = 0
    confirmed: int = 0
    confirms: list[tuple[int, int]] = field(default_factory=list)

    def confirm(self, number: int) -> None:
        """All up to this number are safe."""
        assert number > self.confirmed, "a confirm went backwards"
        assert number <= self.published, "a confirm of nothing"
        self.confirmed = number
        self.confirms.append((time.monotonic_ns(), number))

    def confirmed_before(self, time_ns: int) -> int:
        """Return up to which number all was confirmed before this time."""
        return max((number for at, number in self.confirms if at < time_ns), default=0)

    def body(self, number: int, filling: int) -> bytes:
        """Return the body of a message; numbers start at 1, like confirm tags."""
        return f"{self.name}:{number}:".encode() + b"." * filling


def stream_and_number(body: bytes) -> Message:
    """Return which stream a body belongs to and its number there; DAMAGED if it is not whole."""
    name, number, filling = body.split(b":", 2) if body.count(b":") == 2 else (b"", b"", b"?")
    return (name.decode(), int(number)) if filling.strip(b".") == b"" else DAMAGED


class Client(threading.Thread):
    """Runs `work` until the broker closes the connection; keeps what else went wrong."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(daemon=True)
        self.wire = wire
        self.error: Exception | None = None

    def run(self) -> None:
        """Work until the connection ends."""
        try:
            self.work()
        except (WireClosed, OSError):
            pass
        except Exception as error:  # noqa: BLE001  kept for the test, which raises it
            self.error = error
        finally:
            self.wire.close()

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for the end; raise what went wrong besides the end of the connection."""
        self.join(JOIN_TIMEOUT_S)
        assert not self.is_alive(), "a client does not notice that the broker is gone"
        if self.error is not None:
            raise self.error


class Publisher(Client):
    """Publishes on several channels of one connection, with a window of outstanding confirms."""

    def __init__(
        self,
        port: int,
        streams: Iterable[Stream],
        seed: int,
        select: base.Frame = commands.Confirm.Select(),  # noqa: B008  a value
        selected: type[base.Frame] = commands.Confirm.SelectOk,
    ) -> None:
        self.streams = dict(enumerate(streams, start=1))
        super().__init__(Wire.open(port, channels=self.streams))
        self._random = random.Random(seed)
        for channel in self.streams:
            self.wire.call(channel, select, selected)

    def work(self) -> None:
        while True:
            for channel, stream in self.streams.items():
                if stream.published - stream.confirmed < WINDOW:
                    self._publish_batch(channel, stream)
            self._take(self.wire.receive())

    def properties(self) -> commands.Basic.Properties | None:
        """Of the next message."""
        return None

    def _publish_batch(self, channel: int, stream: Stream) -> None:
        first = stream.published + 1
        # Counted before they are sent: a message that may have left counts as published.
        stream.published += BATCH
        self.wire.send_bytes(
            b"".join(
                encode_publish(
                    channel,
                    "",
                    stream.queue,
                    stream.body(number, self._random.randrange(LONGEST_FILLING)),
                    self.properties(),
                )
                for number in range(first, first + BATCH)
            )
        )

    def _take(self, unit: Unit) -> None:
        stream = self.streams[unit.channel]
        if isinstance(unit.method, commands.Basic.Ack):
            assert unit.method.multiple, "confirms are cumulative"
            stream.confirm(unit.method.delivery_tag)
            return
        raise AssertionError(f"the publisher got {unit.method}")


class TransactionalPublisher(Publisher):
    """Publishes on one channel in transactions; a commit counts as the confirm of all in it."""

    def __init__(self, port: int, stream: Stream, seed: int) -> None:
        super().__init__(port, [stream], seed, commands.Tx.Select(), commands.Tx.SelectOk)

    def work(self) -> None:
        stream = self.streams[1]
        while True:
            self._publish_batch(1, stream)
            self.wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)
            stream.confirm(stream.published)


class Consumer(Client):
    """Takes from one queue and acknowledges, every message or several at once, maybe with commits.

    `delivered` is all it was given, `acknowledged` when it sent the ack of each of these, and
    `settled` are those whose ack the broker has answered: by commit-ok, or by the answer to a
    later request, which it gives after it has written the acks to the file.
    """

    def __init__(
        self,
        port: int,
        queue: str,
        prefetch: int,
        acknowledge_every: int,
        *,
        transactional: bool = False,
    ) -> None:
        super().__init__(Wire.open(port))
        self._every = acknowledge_every
        self._transactional = transactional
        self._unacknowledged: list[Message] = []
        self._unasked: list[Message] = []
        self._asked: list[Message] = []
        self.delivered: set[Message] = set()
        self.acknowledged: dict[Message, int] = {}
        self.settled: set[Message] = set()
        if transactional:
            self.wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        self._qos = commands.Basic.Qos(prefetch_count=prefetch)
        self.wire.call(1, self._qos, commands.Basic.QosOk)
        self.wire.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)

    def work(self) -> None:
        while True:
            unit = self.wire.receive()
            if isinstance(unit.method, commands.Basic.Deliver):
                self._take(unit.method, stream_and_number(unit.body))
            else:
                assert isinstance(unit.method, (commands.Basic.QosOk, commands.Tx.CommitOk))
                self.settled.update(self._asked)
                self._asked = []
                self._ask()

    def _take(self, deliver: commands.Basic.Deliver, message: Message) -> None:
        assert deliver.redelivered or message not in self.delivered, f"{message} came twice"
        self.delivered.add(message)
        self._unacknowledged.append(message)
        if len(self._unacknowledged) < self._every:
            return
        now = time.monotonic_ns()
        self.acknowledged.update((each, now) for each in self._unacknowledged)
        self.wire.send(1, commands.Basic.Ack(deliver.delivery_tag, multiple=True))
        self._unasked += self._unacknowledged
        self._unacknowledged = []
        if not self._asked:
            self._ask()

    def _ask(self) -> None:
        """Request an answer behind the acks, or the commit without which they do not count."""
        self._asked, self._unasked = self._unasked, []
        if self._asked:
            self.wire.send(1, commands.Tx.Commit() if self._transactional else self._qos)


class Declarer(Client):
    """Sends one request after another; `done` counts those that were answered."""

    def __init__(
        self, port: int, request: Callable[[int], base.Frame], reply: type[base.Frame]
    ) -> None:
        super().__init__(Wire.open(port))
        self._request = request
        self._reply = reply
        self.done = 0

    def work(self) -> None:
        while True:
            self.wire.call(1, self._request(self.done), self._reply)
            self.done += 1


def messages_in(port: int, queue: str, *, count_is_exact: bool = True) -> list[Message]:
    """Return stream and number of every message of a queue, in order, leaving them there.

    `count_is_exact`: the queue must have said beforehand how many there are; after a loss of power
    it may say too many, until it has read them.
    """
    promised, bodies = bodies_in(port, queue)
    assert len(bodies) == promised or not count_is_exact
    return [stream_and_number(body) for body in bodies]


def bodies_in(port: int, queue: str) -> tuple[int, list[bytes]]:
    """Return how many messages a queue says that it has, and the bodies of those that it has."""
    units: list[Unit] = []
    with Wire.open(port) as wire:
        passive = commands.Queue.Declare(queue=queue, passive=True)
        promised = wire.call(1, passive, commands.Queue.DeclareOk).message_count
        # Without it a consumer gets 65 535 that it does not acknowledge, and no more.
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
        consume = commands.Basic.Consume(queue=queue, consumer_tag="reader")
        wire.call(1, consume, commands.Basic.ConsumeOk)
        deadline = time.monotonic() + READ_TIMEOUT_S
        while _ask_behind(wire, passive, commands.Queue.DeclareOk, units).message_count:
            assert time.monotonic() < deadline, f"{queue}: messages that are never delivered"
        _ask_behind(
            wire, commands.Basic.Cancel(consumer_tag="reader"), commands.Basic.CancelOk, units
        )
    return promised, [unit.body for unit in units]


def _ask_behind(wire: Wire, request: base.Frame, reply: type[Method], units: list[Unit]) -> Method:
    """Call, and gather the deliveries that come before the answer."""
    wire.send(1, request)
    while True:
        unit = wire.receive()
        if isinstance(unit.method, reply):
            return unit.method
        assert isinstance(unit.method, commands.Basic.Deliver)
        units.append(unit)
