"""The broker is killed under load, again and again on one data directory.

The invariant: confirmed ⊆ recovered ⊆ published, in the order of each channel, nothing twice,
nothing whose ack was answered. Moments are random; a failure names the seed of its round.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.books import Books, messages_found
from tests.crash.load import (
    Client,
    Consumer,
    Declarer,
    Publisher,
    Stream,
    TransactionalPublisher,
    messages_in,
)
from tests.support.broker import Broker
from tests.support.patience import PATIENCE
from tests.support.wire import Wire

SHORT_ROUNDS, LONG_ROUNDS = 5, 50
SEGMENT_SIZE = 65536
PROGRESS_TIMEOUT_S = 20.0 * PATIENCE
CONFIRMING = ("crash-0", "crash-1")
TRANSACTIONAL = "crash-tx"
QUEUES = (*CONFIRMING, TRANSACTIONAL)

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]


@pytest.fixture
def rounds(is_long: bool) -> int:
    """How often a test kills its broker."""
    return LONG_ROUNDS if is_long else SHORT_ROUNDS


@pytest.fixture
def broker_with_small_segments(tmp_path: Path, broker_factory: BrokerFactory) -> Broker:
    """A broker that rolls its segments often, so that kills fall into rolls as well."""
    config = tmp_path / "lavinmq.ini"
    config.write_text(f"[main]\nsegment_size = {SEGMENT_SIZE}\n")
    return broker_factory(["-c", str(config)])


def declare_queues(port: int) -> None:
    with Wire.open(port) as wire:
        for queue in QUEUES:
            wire.call(
                1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk
            )


def wait_for(condition: Callable[[], bool], clients: Iterable[Client]) -> None:
    """Poll until the condition holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + PROGRESS_TIMEOUT_S
    while not condition():
        for client in clients:
            assert client.is_alive(), f"ended before the kill: {client.error!r}"
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.001)


def start_publishers(port: int, round_number: int, seed: int) -> list[Publisher]:
    """Two connections with two confirming channels each, one to each queue; one with commits."""
    publishers = [
        Publisher(port, [Stream(f"r{round_number}-p{at}-{queue}", queue) for queue in CONFIRMING],
                  seed + at)
        for at in range(2)
    ]  # fmt: skip
    stream = Stream(f"r{round_number}-tx", TRANSACTIONAL)
    publishers.append(TransactionalPublisher(port, stream, seed))
    for publisher in publishers:
        publisher.start()
    return publishers


def start_consumers(port: int, chance: random.Random) -> list[Consumer]:
    """One for each queue: acks one by one, by fives, and in transactions."""
    consumers = [
        Consumer(
            port, queue, chance.randrange(10, 300), every, transactional=queue == TRANSACTIONAL
        )
        for queue, every in zip(QUEUES, (1, 5, 7), strict=True)
    ]
    for consumer in consumers:
        consumer.start()
    return consumers


def finish_and_restart(broker: Broker, clients: Iterable[Client]) -> None:
    broker.kill()
    for client in clients:
        client.finish()
    broker.start()


def work_until_killed(
    broker: Broker, books: Books, round_number: int, seed: int, *, consuming: bool
) -> None:
    """Publish, maybe consume, kill after a random amount of work, restart; fill the books."""
    chance = random.Random(seed)
    publishers = start_publishers(broker.port, round_number, seed)
    consumers = start_consumers(broker.port, chance) if consuming else []
    streams = [stream for publisher in publishers for stream in publisher.streams.values()]
    enough = chance.randrange(100, 800)

    def is_enough() -> bool:
        confirmed = sum(stream.confirmed for stream in streams)
        return confirmed >= enough and all(len(each.settled) >= 20 for each in consumers)

    wait_for(is_enough, (*publishers, *consumers))
    finish_and_restart(broker, (*publishers, *consumers))
    books.add(streams, consumers)


def purge(port: int, books: Books) -> None:
    """Empty the queues, and have that answered and written."""
    with Wire.open(port) as wire:
        for queue in QUEUES:
            wire.call(1, commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)
            books.purged(queue)
        wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


@pytest.mark.parametrize("consuming", [False, True])
def test_what_was_confirmed_and_not_acked_survives_kills_in_order(
    broker_with_small_segments: Broker, rounds: int, consuming: bool
) -> None:
    broker = broker_with_small_segments
    declare_queues(broker.port)
    books = Books()
    for round_number in range(rounds):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"round {round_number}: seed {seed}")

        work_until_killed(broker, books, round_number, seed, consuming=consuming)

        books.check(messages_found(broker.port, QUEUES))
        if round_number % 2:
            purge(broker.port, books)


def declare_until_killed(broker: Broker, round_number: int) -> list[str]:
    """Declare queues and exchanges, kill, restart; return the names both were answered for."""
    enough = random.SystemRandom().randrange(5, 60)

    def name(number: int) -> str:
        return f"round-{round_number}-{number}"

    def queue(number: int) -> commands.Queue.Declare:
        return commands.Queue.Declare(queue=name(number), durable=True)

    def exchange(number: int) -> commands.Exchange.Declare:
        return commands.Exchange.Declare(exchange=name(number), durable=True)

    declarers = [
        Declarer(broker.port, queue, commands.Queue.DeclareOk),
        Declarer(broker.port, exchange, commands.Exchange.DeclareOk),
    ]
    for declarer in declarers:
        declarer.start()
    wait_for(lambda: all(declarer.done >= enough for declarer in declarers), declarers)
    finish_and_restart(broker, declarers)
    return [name(number) for number in range(min(declarer.done for declarer in declarers))]


def test_messages_acknowledged_before_an_orderly_stop_stay_away_after_a_kill(
    own_broker: Broker,
) -> None:
    with Wire.open(own_broker.port) as wire:
        wire.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        for number in range(10):
            wire.publish(1, "", "q", b"s:%d:" % number)
        for _ in range(4):
            wire.call(1, commands.Basic.Get(queue="q", no_ack=True), commands.Basic.GetOk)
    own_broker.restart()

    own_broker.kill()
    own_broker.start()

    assert messages_in(own_broker.port, "q") == [("s", number) for number in range(4, 10)]


def test_answered_definitions_survive_kills(own_broker: Broker, rounds: int) -> None:
    """edge-cases.md 311"""
    declared: list[str] = []
    for round_number in range(rounds):
        declared += declare_until_killed(own_broker, round_number)

        with Wire.open(own_broker.port) as wire:
            for name in declared:
                queue = commands.Queue.Declare(queue=name, passive=True)
                exchange = commands.Exchange.Declare(exchange=name, passive=True)
                wire.call(1, queue, commands.Queue.DeclareOk)
                wire.call(1, exchange, commands.Exchange.DeclareOk)


def test_answered_bindings_and_deletions_survive_a_kill(own_broker: Broker) -> None:
    with Wire.open(own_broker.port) as wire:
        for name in ("kept", "deleted"):
            request = commands.Queue.Declare(queue=name, durable=True)
            wire.call(1, request, commands.Queue.DeclareOk)
        for key in ("kept", "unbound"):
            bind = commands.Queue.Bind(queue="kept", exchange="amq.direct", routing_key=key)
            wire.call(1, bind, commands.Queue.BindOk)
        unbind = commands.Queue.Unbind(queue="kept", exchange="amq.direct", routing_key="unbound")
        wire.call(1, unbind, commands.Queue.UnbindOk)
        wire.call(1, commands.Queue.Delete(queue="deleted"), commands.Queue.DeleteOk)

    own_broker.kill()
    own_broker.start()

    with Wire.open(own_broker.port) as wire:
        for key in ("kept", "unbound"):
            wire.publish(1, "amq.direct", key, key.encode(), mandatory=True)
        assert wire.expect_unit(commands.Basic.Return, 1).body == b"unbound"
        wire.send(1, commands.Basic.Get(queue="kept"))
        assert wire.expect_unit(commands.Basic.GetOk, 1).body == b"kept"
        wire.send(1, commands.Queue.Declare(queue="deleted", passive=True))
        wire.expect_channel_close(1, 404)


def test_transient_and_exclusive_queues_do_not_survive_a_kill(own_broker: Broker) -> None:
    """amqp.md 22.19"""
    declarations = [
        commands.Queue.Declare(queue="transient"),
        commands.Queue.Declare(queue="exclusive", exclusive=True),
        commands.Queue.Declare(queue="both", exclusive=True, durable=True),
    ]
    wire = Wire.open(own_broker.port)
    for declaration in declarations:
        wire.call(1, declaration, commands.Queue.DeclareOk)

    own_broker.kill()
    wire.close()
    own_broker.start()

    with Wire.open(own_broker.port) as again:
        for declaration in declarations:
            again.send(1, commands.Queue.Declare(queue=declaration.queue, passive=True))
            again.expect_channel_close(1, 404)
            again.open_channel(1)
