"""The load of a soak run: threads that publish, consume, declare and disconnect at random.

Each actor repeats episodes: a connection, a while of one kind of work, and an end that is orderly
or not. What was published, confirmed and delivered goes into the ledger. Nothing here measures.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from subprocess import PIPE, Popen

from pamqp import commands

from perf.soak_ledger import VOID, Ledger, Message, body_of
from tests.support import raw_wire as wire
from tests.support.raw_connection import (
    Address,
    Channel,
    Connection,
    ConsumerCancelled,
    NoAnswer,
    Properties,
)

HOST = "127.0.0.1"
TIMEOUT_S = 60.0
AUDITED = ("soak-durable-1", "soak-durable-2", "soak-transient")
PURGED = "soak-purged"
QUEUES = (*AUDITED, PURGED)
BULK = "soak-bulk"
EXCHANGE = "soak-topic"
WINDOW = 300
MOST_READY = 20_000
"""Publishers pause while more than this are ready in their queue: the backlog stays bounded."""
SIZES = (0, 10, 100, 100, 1000, 1000, 20_000)
LARGE_SIZES = (131_072, 1_000_000, 5_000_000)
LARGE_SHARE = 0.002
HOW_TO_LEAVE = ("close", "close", "close", "abort", "reset", "cut")


@dataclass(slots=True)
class Load:
    """What all actors share."""

    port: int
    ledger: Ledger
    episode_s: float
    ends: tuple[str, ...] = HOW_TO_LEAVE
    """How connections end, picked at random; see `Line.leave`."""
    stop: threading.Event = field(default_factory=threading.Event)
    ready: dict[str, int] = field(default_factory=dict)
    """Messages in each queue at the last look."""

    def prepare(self) -> None:
        """Declare the queues that live as long as the run."""
        with Connection.open(Address(port=self.port)) as connection:
            channel = connection.channel()
            channel.declare_exchange(EXCHANGE, "topic", durable=True)
            for queue in QUEUES:
                channel.declare_queue(queue, durable=queue != "soak-transient")
                channel.bind_queue(queue, EXCHANGE, queue)

    def drain(self, patience_s: float) -> None:
        """Take what is left in the audited queues, until nothing is missing or no more comes."""
        deadline = time.monotonic() + patience_s
        line = Line(self.port)
        for queue in AUDITED:
            line.channel.consume(queue, no_ack=True, tag=queue)
        while time.monotonic() < deadline:
            if line.poll(0.2):
                deadline = time.monotonic() + patience_s
                for message in self.take(line.channel):
                    self.ledger.settle([message])
            elif not self.ledger.lost():
                break
        line.leave("close", random.Random(0))

    def tidy(self) -> None:
        """Delete what `prepare` declared."""
        with Connection.open(Address(port=self.port)) as connection:
            channel = connection.channel()
            for queue in (*QUEUES, BULK):
                channel.delete_queue(queue)
            channel.delete_exchange(EXCHANGE)

    def take(self, channel: Channel) -> list[Message]:
        """Note all deliveries that came, whose tags are the queue's name; return our messages."""
        taken = []
        while channel.deliveries:
            delivery = channel.deliveries.popleft()
            method = delivery.method
            assert isinstance(method, commands.Basic.Deliver)
            message = self.ledger.deliver(
                delivery.body,
                is_redelivered=bool(method.redelivered),
                queue=method.consumer_tag or "",
            )
            taken += [message] if message else []
        return taken


class Line:
    """One connection with channel 1 open, that may end in other ways than by agreement."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), TIMEOUT_S)
        self.connection = Connection(self._socket, TIMEOUT_S)
        self.connection.handshake(Address(port=port), name="soak")
        self.channel = self.connection.channel()

    def poll(self, seconds: float) -> bool:
        """Read one frame; tell whether one came in time."""
        try:
            self.connection.process(time.monotonic() + seconds)
        except NoAnswer:
            return False
        return True

    def leave(self, how: str, chance: random.Random) -> None:
        """End the connection; after "close" the broker has dealt with all that was sent."""
        if how == "close":
            # Answered last, so that whatever was sent before is surely carried out.
            self.channel.qos(0)
            self.connection.close()
            return
        if how == "cut":
            frames = encode_publish(1, "", PURGED, [b"." * chance.choice((10, 1000, 200_000))])
            self.connection.write(frames[: chance.randrange(1, len(frames))])
        if how == "reset":
            # Closing with a linger time of zero sends a reset instead of an end of file.
            linger = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.abort()


def encode_publish(channel: int, exchange: str, key: str, bodies: Iterable[bytes]) -> bytes:
    """Return the frames that publish these bodies."""
    fields = {"exchange": exchange, "routing_key": key, "mandatory": True}
    method = wire.encode_method(channel, wire.build(commands.Basic.Publish, **fields))
    properties = Properties(delivery_mode=2, headers={"soak": 1})
    return b"".join(
        method + wire.encode_content(channel, properties, body, wire.FRAME_MAX) for body in bodies
    )


class Actor(threading.Thread):
    """Plays episodes until the load stops. What goes wrong is a failure and stops the load."""

    def __init__(self, load: Load, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.load = load
        self.chance = random.Random(f"{seed} {name}")
        self._until = 0.0

    def run(self) -> None:
        """Play until told to stop."""
        try:
            while not self.load.stop.is_set():
                self._until = time.monotonic() + self.chance.uniform(0.1, 2) * self.load.episode_s
                self.play()
        except Exception as error:  # noqa: BLE001  whatever it is, the report must say it
            self.load.ledger.fail(f"{self.name}: {error!r}")
            self.load.stop.set()

    def play(self) -> None:
        """Play one episode: a connection, the work, the end."""
        line = Line(self.load.port)
        self.work(line)
        self.leave(line, self.chance.choice(self.load.ends))

    def work(self, line: Line) -> None:
        raise NotImplementedError

    def leave(self, line: Line, how: str) -> None:
        """End the episode."""
        line.leave(how, self.chance)

    def goes_on(self) -> bool:
        """Say whether the episode has not reached its end."""
        return time.monotonic() < self._until and not self.load.stop.is_set()

    def pause(self, seconds: float) -> None:
        """Wait, but not when the load stops."""
        self.load.stop.wait(seconds)


class Publisher(Actor):
    """Publishes to one queue: with confirms, in transactions, or neither."""

    _stream = 0
    _published = 0
    _confirmed = 0
    _is_confirming = False

    def work(self, line: Line) -> None:
        queue = self.chance.choice(QUEUES)
        route = self.chance.choice([("", queue), (EXCHANGE, queue)])
        self._stream = self.load.ledger.open_stream(queue, is_audited=queue != PURGED)
        self._published = self._confirmed = 0
        mode = self.chance.choice(["confirm", "confirm", "plain", "transaction"])
        self._is_confirming = mode == "confirm"
        if mode == "confirm":
            line.channel.confirm_select()
        elif mode == "transaction":
            line.channel.tx_select()
        while self.goes_on():
            if self.load.ready.get(queue, 0) > MOST_READY:
                self.pause(0.05)
            elif mode == "transaction":
                self._transact(line, *route)
            else:
                self._publish(line, *route)
                self._take_confirms(line, WINDOW)
        if mode == "transaction":
            # Whether it ends by agreement or not: what was not committed was never published.
            line.connection.write(encode_publish(1, *route, self._void_bodies()))

    def leave(self, line: Line, how: str) -> None:
        if how == "close" and self._is_confirming:
            self._take_confirms(line, 0)
        super().leave(line, how)
        if how == "close" and not self._is_confirming:
            self._confirm(self._published)
        if line.channel.returned:
            self.load.ledger.fail(f"{self.name}: message returned although a queue is bound")

    def _publish(self, line: Line, exchange: str, key: str) -> None:
        numbers = self.load.ledger.publish(self._stream, self.chance.choice((1, 5, 30)))
        self._published += len(numbers)
        bodies = [body_of(Message(self._stream, number), self._size()) for number in numbers]
        line.connection.write(encode_publish(1, exchange, key, bodies))

    def _transact(self, line: Line, exchange: str, key: str) -> None:
        if self.chance.random() < 0.2:
            line.connection.write(encode_publish(1, exchange, key, self._void_bodies()))
            rollback = wire.build(commands.Tx.Rollback)
            line.channel.call(rollback, commands.Tx.RollbackOk)
            return
        self._publish(line, exchange, key)
        line.channel.tx_commit()
        self._confirm(self._published)

    def _void_bodies(self) -> list[bytes]:
        return [body_of(Message(self._stream, VOID), self._size()) for _ in range(3)]

    def _take_confirms(self, line: Line, allowed: int) -> None:
        """Read until at most `allowed` confirms are outstanding."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._is_confirming and self._published - self._confirmed > allowed:
            line.connection.process(deadline)
            while line.channel.confirms:
                confirm = line.channel.confirms.popleft()
                if not isinstance(confirm, commands.Basic.Ack):
                    self.load.ledger.fail(f"{self.name}: nack of {confirm.delivery_tag}")
                self._confirm(confirm.delivery_tag or 0, multiple=bool(confirm.multiple))

    def _confirm(self, number: int, *, multiple: bool = True) -> None:
        self._confirmed = max(self._confirmed, number)
        self.load.ledger.confirm(self._stream, number, multiple=multiple)

    def _size(self) -> int:
        large = self.chance.random() < LARGE_SHARE
        return self.chance.choice(LARGE_SIZES if large else SIZES)


class Consumer(Actor):
    """Consumes from one queue and settles in every way; some stop reading for a while."""

    def __init__(self, load: Load, name: str, seed: int) -> None:
        super().__init__(load, name, seed)
        self._pending: list[Message] = []
        self._unsure: list[Message] = []
        self._last_tag = 0

    def work(self, line: Line) -> None:
        queue = self.chance.choice(QUEUES)
        prefetch = self.chance.choice((1, 10, 100, 1000, 0))
        every = min(self.chance.choice((1, 10, 50)), prefetch or 50)
        slow = self.chance.random() < 0.2
        self._pending, self._unsure, self._last_tag = [], [], 0
        no_ack = queue == PURGED and self.chance.random() < 0.5
        line.channel.qos(prefetch)
        line.channel.consume(queue, tag=queue, no_ack=no_ack)
        while self.goes_on():
            came = line.poll(0.1)
            taken = self.load.take(line.channel)
            if no_ack:
                continue
            self._pending += taken
            self._last_tag += len(taken)
            if self._pending and (not came or len(self._pending) >= every):
                self._settle(line, prefetch)
            if slow and self.chance.random() < 0.003:
                self.pause(self.chance.uniform(0.5, 3))
        if self.chance.random() < 0.3:
            line.channel.cancel(queue)

    def leave(self, line: Line, how: str) -> None:
        super().leave(line, how)
        if how == "close":
            self.load.ledger.vanish(self._unsure)

    def _settle(self, line: Line, prefetch: int) -> None:
        first = self._last_tag - len(self._pending) + 1
        choice = self.chance.random()
        if choice < 0.02:
            self._recover(line)
        elif choice < 0.1:
            line.channel.nack(self._last_tag, multiple=True, requeue=True)
        elif choice < 0.13:
            self._note_settled()
            line.channel.nack(self._last_tag, multiple=True, requeue=False)
        elif choice < 0.3:
            self._note_settled()
            tags = list(range(first, self._last_tag + 1))
            self.chance.shuffle(tags)
            for tag in tags:
                line.channel.ack(tag)
        else:
            self._note_settled()
            line.channel.ack(self._last_tag, multiple=True)
        self._pending = []
        if len(self._unsure) > 500:
            line.channel.qos(prefetch)  # its answer says that the acks before were carried out
            self.load.ledger.vanish(self._unsure)
            self._unsure = []

    def _recover(self, line: Line) -> None:
        request = wire.build(commands.Basic.Recover, requeue=True)
        line.channel.call(request, commands.Basic.RecoverOk)
        # What arrived before the answer is requeued, too: somebody else may have settled it by now.
        self._last_tag += len(line.channel.deliveries)
        line.channel.deliveries.clear()

    def _note_settled(self) -> None:
        self.load.ledger.settle(self._pending)
        self._unsure += self._pending


class Getter(Actor):
    """Takes single messages."""

    def work(self, line: Line) -> None:
        queue = self.chance.choice(QUEUES)
        while self.goes_on():
            no_ack = self.chance.random() < 0.5
            delivery = line.channel.get(queue, no_ack=no_ack)
            if delivery is None:
                self.pause(0.01)
                continue
            redelivered = bool(getattr(delivery.method, "redelivered", False))
            message = self.load.ledger.deliver(
                delivery.body, is_redelivered=redelivered, queue=queue
            )
            if message is None:
                continue
            if no_ack or self.chance.random() < 0.8:
                self.load.ledger.settle([message])
                if not no_ack:
                    line.channel.ack(delivery.delivery_tag)
            else:
                line.channel.nack(delivery.delivery_tag, requeue=True)
            self.pause(self.chance.choice((0, 0, 0.01)))


class Churner(Actor):
    """Declares, binds, uses and deletes queues and exchanges of its own beside the others' ones."""

    def work(self, line: Line) -> None:
        while self.goes_on():
            try:
                self._churn(line, f"{self.name}-{self.chance.getrandbits(64):x}")
            except ConsumerCancelled:
                return  # told that its queue was deleted, as it should be
            line.connection.channel().close()

    def leave(self, line: Line, how: str) -> None:
        if how == "close":
            line.connection.close()
        else:
            super().leave(line, how)

    def _churn(self, line: Line, name: str) -> None:
        channel = line.channel
        durable = self.chance.random() < 0.5
        kind = self.chance.choice(["direct", "fanout", "topic", "headers"])
        channel.declare_queue(name, durable=durable, exclusive=not durable)
        channel.declare_exchange(name, kind, durable=durable, auto_delete=not durable)
        arguments = {"x-match": "any", "soak": 1} if kind == "headers" else {}
        channel.bind_queue(name, name, "soak.*", arguments=arguments)
        # The others' publishes reach this queue as well, for as long as it is there.
        channel.bind_queue(name, EXCHANGE, self.chance.choice((*AUDITED, "*", "#", "a.b")))
        line.connection.write(encode_publish(1, name, "soak.*", [b"churn"] * 5))
        channel.get(name, no_ack=True)
        if self.chance.random() < 0.1:
            channel.consume(name)
        self.pause(self.chance.choice((0, 0, 0.05)))
        if durable:
            channel.delete_exchange(name)
        elif self.chance.random() < 0.2:
            return  # it goes with its connection
        channel.delete_queue(name)
        channel.deliveries.clear()


class Purger(Actor):
    """Purges a queue now and then, and watches how many messages are in the others."""

    def work(self, line: Line) -> None:
        while self.goes_on():
            for queue in QUEUES:
                reply = line.channel.declare_queue(queue, passive=True)
                self.load.ready[queue] = reply.message_count or 0
            if self.chance.random() < 0.1:
                line.channel.purge_queue(PURGED)
            self.pause(0.1)


class Bulk(Actor):
    """Runs lavinmqperf, for a rate that Python does not reach; kills it now and then."""

    def play(self) -> None:
        seconds = max(1, round(self.load.episode_s))
        with Popen(self._command(seconds), stdout=PIPE, stderr=PIPE) as process:
            if self.chance.random() < 0.5:
                self.pause(self.chance.uniform(0, seconds))
                process.kill()
                return
            _, complaint = process.communicate()
        if process.returncode:
            self.load.ledger.fail(f"{self.name}: lavinmqperf: {complaint.decode()}")

    def _command(self, seconds: int) -> list[str]:
        pick = self.chance.choice
        program = [sys.executable, "-m", "lavinmq.cli.perf", "amqp", "throughput", "-q", "-p"]
        settling = pick([["-a", "10", "-P", "500"], ["-a", "1", "-P", "50"], []])
        confirms = pick([["-c", "500"], []])
        sizes = ["-s", pick(["16", "1000", "20000"]), "-r", "2000", "-z", str(seconds)]
        uri = f"amqp://guest:guest@{HOST}:{self.load.port}"
        return [*program, *settling, *confirms, *sizes, "-y", "2", "-u", BULK, "--uri", uri]


CAST: tuple[tuple[Callable[[Load, str, int], Actor], int], ...] = (
    (Publisher, 4),
    (Consumer, 5),
    (Getter, 1),
    (Churner, 2),
    (Purger, 1),
    (Bulk, 1),
)


def cast(load: Load, seed: int) -> list[Actor]:
    """Return all actors of a run, not started."""
    return [
        role(load, f"{getattr(role, '__name__', 'actor').lower()}-{number}", seed)
        for role, count in CAST
        for number in range(count)
    ]
