"""Publishers that number their messages and keep books over any number of failures of a cluster,
and the checker of what is there in the end.

A producer goes through any node, and to another one when its connection ends; what was not
confirmed by then it sends again. So in the end each number that was confirmed is there; of one
attempt the numbers rise; a transaction is there as a whole or not at all.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

from pamqp import commands

from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.waiting import wait_for
from tests.support.wire import Wire, WireClosed, WireTimeout

WINDOW = 20
QUIET_S = 0.5
"""How long a producer waits for a confirm before it looks whether it is to end."""
SILENT_S = 3.0
"""After which it tries another node."""
PACE_S = 0.0 if os.environ.get("CLUSTER_TESTS_LONG") else 0.005
"""Between a producer's windows: processors are for the nodes."""
PAUSE_S = 0.05
PERSISTENT = commands.Basic.Properties(delivery_mode=2)
ENDED = (OSError, WireClosed, WireTimeout, AssertionError)
"""What a connection to a node ends with that is killed, or does not lead any more."""


class Producer(threading.Thread):
    """Publishes to a queue until it is told to end."""

    def __init__(self, cluster: Cluster, name: str, queue: str, seed: int, size: int = 30) -> None:
        super().__init__(daemon=True, name=name)
        self.cluster = cluster
        self.producer = name
        self.queue = queue
        self.confirmed = 0
        """How many are: numbers begin at 1."""
        self.confirms: list[tuple[int, int]] = []
        """When, by CLOCK_MONOTONIC in nanoseconds, and up to which number."""
        self.published = 0
        """The highest number that was sent."""
        self._attempt = 0
        self._chance = random.Random(seed)
        self._filling = b"." * size
        self._is_over = threading.Event()

    def end(self) -> None:
        """Have it end; what is under way may stay unconfirmed."""
        self._is_over.set()
        self.join(WAIT_S)
        assert not self.is_alive(), f"{self.producer} does not end"

    def run(self) -> None:
        """Publish, whatever happens."""
        while not self._is_over.is_set():
            # One that is paused takes connections and answers none: ten seconds are lost.
            there = [each for each in self.cluster.nodes if not each.is_paused]
            node = self._chance.choice(there)
            self._attempt += 1
            with suppress(*ENDED):
                self.attempt(node)
            self._is_over.wait(PAUSE_S)

    def declare(self, wire: Wire) -> None:
        """Have there be a queue for it."""
        queue = commands.Queue.Declare(queue=self.queue, durable=True)
        wire.call(1, queue, commands.Queue.DeclareOk)

    def attempt(self, node: ClusterNode) -> None:
        """Publish through a node until that fails, or it is to end."""
        with Wire.open(node.port, host=node.host) as wire:
            self.publish(wire)

    def take_all(self, cluster: Cluster) -> list[bytes]:
        """All messages of its queue, in order."""
        return drain(cluster, self.queue)

    def body(self, number: int) -> bytes:
        """Of a message, in this attempt."""
        return f"{self.producer}:{number}:{self._attempt}:".encode() + self._filling

    def publish(self, wire: Wire) -> None:
        """By one connection."""
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        first = self.confirmed
        number = first
        while not self._is_over.is_set():
            while number - self.confirmed < WINDOW:
                number += 1
                self.published = max(self.published, number)
                wire.publish(1, "", self.queue, self.body(number), PERSISTENT)
            ack = self._next_ack(wire)
            if ack is not None:
                up_to = first + ack.delivery_tag
                assert ack.multiple or up_to == self.confirmed + 1
                self.confirmed = max(self.confirmed, up_to)
                self.confirms.append((time.monotonic_ns(), self.confirmed))
            self._is_over.wait(PACE_S)

    def _next_ack(self, wire: Wire) -> commands.Basic.Ack | None:
        deadline = time.monotonic() + SILENT_S
        while not self._is_over.is_set():
            try:
                method = wire.receive(QUIET_S).method
            except WireTimeout:
                if time.monotonic() > deadline:
                    raise
                continue
            assert isinstance(method, commands.Basic.Ack), method
            return method
        return None


class Transactor(Producer):
    """The same in transactions of several messages each; a number is a transaction."""

    MESSAGES = 4

    def publish(self, wire: Wire) -> None:
        """By one connection."""
        wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        while not self._is_over.is_set():
            number = self.confirmed + 1
            self.published = number
            for _ in range(self.MESSAGES):
                wire.publish(1, "", self.queue, self.body(number), PERSISTENT)
            wire.send(1, commands.Tx.Commit())
            deadline = time.monotonic() + SILENT_S
            while True:
                try:
                    method = wire.receive(QUIET_S).method
                    break
                except WireTimeout:
                    if self._is_over.is_set() or time.monotonic() > deadline:
                        return
            assert isinstance(method, commands.Tx.CommitOk), method
            self.confirmed = number
            self.confirms.append((time.monotonic_ns(), number))


class Book:
    """Producers of a cluster and what becomes of their messages. Use it as a context manager."""

    def __init__(
        self, cluster: Cluster, *, producers: int = 2, transactors: int = 1, seed: int = 1,
        name: str = "book", size: int = 30, more: Sequence[Producer] = (),
    ) -> None:  # fmt: skip
        self.more = more
        """Others of its producers."""
        self.cluster = cluster
        self.queue, self.tx_queue = f"{name}-confirms", f"{name}-tx"
        self.producers = [
            Producer(cluster, f"{name}-p{n}", self.queue, seed + n, size) for n in range(producers)
        ]
        self.transactors = [
            Transactor(cluster, f"{name}-t{n}", self.tx_queue, seed + 100 + n, size)
            for n in range(transactors)
        ]

    def __enter__(self) -> Book:
        leader = self.cluster.leader()
        with Wire.open(leader.port, host=leader.host) as wire:
            for each in self.all:
                each.declare(wire)
        for each in self.all:
            each.start()
        return self

    def __exit__(self, *error: object) -> None:
        for each in self.all:
            each.end()

    @property
    def all(self) -> Sequence[Producer]:
        """All producers."""
        return [*self.producers, *self.transactors, *self.more]

    @property
    def n_confirmed(self) -> int:
        """How many messages and transactions were confirmed."""
        return sum(each.confirmed for each in self.all)

    def progress(self, n: int = 20) -> None:
        """Wait until each producer got so many more confirms."""
        wanted = {each: each.confirmed + n for each in self.all}
        wait_for(
            lambda: all(each.confirmed >= number for each, number in wanted.items()),
            f"no confirms for {[each.producer for each in self.all]}", WAIT_S,
        )  # fmt: skip

    def check(self) -> None:
        """End all, take all messages, and assert that nothing is missing and all is in order."""
        for each in self.all:
            each.end()
        wanted = {each.producer: each for each in self.all}
        found: list[bytes] = []
        for each in {each.queue: each for each in self.all}.values():
            found += each.take_all(self.cluster)
        numbers: dict[str, set[int]] = defaultdict(set)
        attempts: dict[tuple[str, str], int] = defaultdict(int)
        sizes: Counter[tuple[str, str, str]] = Counter()
        for body in found:
            name, number, attempt, _ = body.decode().split(":")
            numbers[name].add(int(number))
            sizes[name, number, attempt] += 1
            assert int(number) >= attempts[name, attempt], f"{name}: {number} is out of order"
            attempts[name, attempt] = int(number)
        for name, each in wanted.items():
            missing = set(range(1, each.confirmed + 1)) - numbers[name]
            assert not missing, (
                f"{name}: confirmed and not there: {_shown(missing)} of {each.confirmed}"
            )
            strange = [number for number in numbers[name] if number > each.published]
            assert not strange, f"{name}: never published: {strange[:10]}"
        for (name, number, attempt), size in sizes.items():
            is_tx = isinstance(wanted[name], Transactor)
            whole = Transactor.MESSAGES if is_tx else 1
            assert size == whole, f"{name}: of {number} in attempt {attempt} {size} are there"


def drain(cluster: Cluster, queue: str) -> list[bytes]:
    """Take all messages of a queue, in order."""
    leader = cluster.leader()
    with Wire.open(leader.port, host=leader.host) as wire:
        left = wire.call(
            1, commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk
        ).message_count
        wire.call(
            1, commands.Basic.Consume(queue=queue, no_ack=True, consumer_tag="drain"),
            commands.Basic.ConsumeOk,
        )  # fmt: skip
        return [wire.expect_unit(commands.Basic.Deliver).body for _ in range(left or 0)]


def _shown(numbers: set[int]) -> str:
    shown = sorted(numbers)
    return f"{len(shown)}, among them {shown[:5]} and {shown[-1]}"
