"""The broker is killed under load, again and again on one data directory.

The invariant: confirmed ⊆ recovered ⊆ published, in the order of each channel, nothing twice.
Moments are random; a failure names the seed of its round.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.load import Client, Consumer, Declarer, Publisher, Stream, messages_in
from tests.support.broker import Broker
from tests.support.wire import Wire

RESTARTS = 5
SEGMENT_SIZE = 65536
PROGRESS_TIMEOUT_S = 20.0
CONNECTIONS = 3
CHANNELS = 2
QUEUES = ("crash-0", "crash-1")

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]


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


def new_streams(round_number: int) -> list[Stream]:
    """Return one stream for each channel of each connection; both queues get some."""
    names = itertools.product(range(CONNECTIONS), range(CHANNELS))
    return [
        Stream(f"r{round_number}-c{connection}-ch{channel}", QUEUES[channel % len(QUEUES)])
        for connection, channel in names
    ]


def start_publishers(port: int, streams: list[Stream], seed: int) -> list[Publisher]:
    publishers = [
        Publisher(port, streams[first : first + CHANNELS], seed + first)
        for first in range(0, len(streams), CHANNELS)
    ]
    for publisher in publishers:
        publisher.start()
    return publishers


def finish_and_restart(broker: Broker, clients: Iterable[Client]) -> None:
    broker.kill()
    for client in clients:
        client.finish()
    broker.start()


def publish_until_killed(broker: Broker, round_number: int, seed: int) -> list[Stream]:
    """Publish, kill after a random number of confirms, restart; return what was done."""
    streams = new_streams(round_number)
    publishers = start_publishers(broker.port, streams, seed)
    enough = random.Random(seed).randrange(100, 1500)
    wait_for(lambda: sum(stream.confirmed for stream in streams) >= enough, publishers)
    finish_and_restart(broker, publishers)
    return streams


def consume_until_killed(
    broker: Broker, round_number: int, seed: int
) -> tuple[list[Stream], set[tuple[str, int]]]:
    """Publish and consume, kill, restart; return what was published and what was delivered."""
    chance = random.Random(seed)
    streams = new_streams(round_number)
    publishers = start_publishers(broker.port, streams, seed)
    consumers = [
        Consumer(broker.port, queue, chance.randrange(10, 300), every)
        for queue, every in zip(QUEUES, (1, 5), strict=True)
    ]
    for consumer in consumers:
        consumer.start()
    clients = (*publishers, *consumers)
    enough = chance.randrange(100, 1500)
    wait_for(lambda: all(len(each.delivered) >= enough for each in consumers), clients)
    finish_and_restart(broker, clients)
    return streams, set().union(*(consumer.delivered for consumer in consumers))


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


def numbers_by_stream(port: int) -> dict[str, list[int]]:
    """Return the numbers found of every stream, in the order of its queue."""
    found: dict[str, list[int]] = defaultdict(list)
    for queue in QUEUES:
        for name, number in messages_in(port, queue):
            found[name].append(number)
    return found


def assert_in_order_and_once(found: dict[str, list[int]]) -> None:
    for name, numbers in found.items():
        assert numbers == sorted(set(numbers)), f"{name}: order or number of copies is wrong"


def assert_nothing_invented(found: dict[str, list[int]], streams: Iterable[Stream]) -> None:
    published = {stream.name: stream.published for stream in streams}
    assert set(found) <= set(published)
    for name, numbers in found.items():
        assert numbers[0] >= 1
        assert numbers[-1] <= published[name], f"{name}: recovered what was never published"


def test_confirmed_messages_survive_kills_in_order(broker_with_small_segments: Broker) -> None:
    broker = broker_with_small_segments
    declare_queues(broker.port)
    streams: list[Stream] = []
    for round_number in range(RESTARTS):
        seed = random.SystemRandom().randrange(1 << 30)

        streams += publish_until_killed(broker, round_number, seed)

        found = numbers_by_stream(broker.port)
        assert_in_order_and_once(found)
        assert_nothing_invented(found, streams)
        for stream in streams:
            missing = set(range(1, stream.confirmed + 1)) - set(found[stream.name])
            assert not missing, f"seed {seed}, {stream}: lost {sorted(missing)[:10]}"


def test_confirmed_messages_nobody_took_survive_kills(broker_with_small_segments: Broker) -> None:
    broker = broker_with_small_segments
    declare_queues(broker.port)
    streams: list[Stream] = []
    delivered: set[tuple[str, int]] = set()
    for round_number in range(RESTARTS):
        seed = random.SystemRandom().randrange(1 << 30)

        published, taken = consume_until_killed(broker, round_number, seed)

        streams += published
        delivered |= taken
        found = numbers_by_stream(broker.port)
        assert_in_order_and_once(found)
        assert_nothing_invented(found, streams)
        for stream in streams:
            confirmed = {(stream.name, number) for number in range(1, stream.confirmed + 1)}
            there = {(stream.name, number) for number in found[stream.name]}
            missing = confirmed - there - delivered
            assert not missing, f"seed {seed}, {stream}: lost {sorted(missing)[:10]}"


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


def test_answered_definitions_survive_kills(own_broker: Broker) -> None:
    declared: list[str] = []
    for round_number in range(RESTARTS):
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
