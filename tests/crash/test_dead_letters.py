"""The broker is killed, or loses its power, while messages move to where dead letters go.

Publishers with confirms, into queues that are rejected from, too short, or whose messages expire;
one has priorities. Every confirmed message is then in its queue, in that of the dead letters, or
was acked: in both queues at worst, never in neither. Each queue keeps its order; dead letters of a
short queue and of one with a TTL come in the order of publishing, but for those that come twice. A
loss of power may take some that were not synced, which then move again, behind others.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.books import END_OF_TIME_NS, check_confirmed, messages_found
from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.load import DAMAGED, Client, Message, Publisher, Stream, stream_and_number
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.patience import PATIENCE
from tests.support.power_loss import Reading, Survivors
from tests.support.wire import Wire

SHORT_ROUNDS, LONG_ROUNDS = 4, 50
SHORT_CUTS, LONG_CUTS = 6, 300
SYNC_US = 3000
ENOUGH_MOVED = 150
PROGRESS_TIMEOUT_S = 20.0 * PATIENCE
DEAD = "dead"
SOURCES: Mapping[str, dict[str, int]] = {
    "rejected": {},
    "prioritized": {"x-max-priority": 3},
    "short": {"x-max-length": 10},
    "expiring": {"x-message-ttl": 20},
}
QUEUES = (*SOURCES, DEAD)

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]


class PrioritizedPublisher(Publisher):
    """Gives its messages any priority."""

    def properties(self) -> commands.Basic.Properties:
        """Any priority, also above the highest."""
        return commands.Basic.Properties(priority=self._random.randrange(6))


class Rejecter(Client):
    """Acks, rejects and requeues what it gets, at random. `moved` counts its rejects."""

    def __init__(self, port: int, queue: str, seed: int) -> None:
        super().__init__(Wire.open(port))
        self._chance = random.Random(seed)
        self.acknowledged: dict[Message, int] = {}
        self.moved = 0
        self.wire.call(1, commands.Basic.Qos(prefetch_count=30), commands.Basic.QosOk)
        self.wire.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)

    def work(self) -> None:
        while True:
            unit = self.wire.receive()
            assert isinstance(unit.method, commands.Basic.Deliver)
            tag, luck = unit.method.delivery_tag, self._chance.random()
            if luck < 0.2:
                self.acknowledged[stream_and_number(unit.body)] = time.monotonic_ns()
                self.wire.send(1, commands.Basic.Ack(tag))
            else:
                self.moved += luck < 0.7
                self.wire.send(1, commands.Basic.Reject(tag, requeue=luck >= 0.7))


@dataclass(slots=True)
class Letters:
    """What clients did, over any number of lives of a broker."""

    streams: dict[str, Stream] = field(default_factory=dict)
    acknowledged: dict[Message, int] = field(default_factory=dict)

    def check(self, found: Mapping[str, list[Message]], before_ns: int = END_OF_TIME_NS) -> None:
        """Compare with what is in the queues; `before_ns`, when the power was lost."""
        check_confirmed(self.streams.values(), self.acknowledged, found, before_ns)
        for queue, messages in found.items():
            self._check_order(
                queue, messages, ("short", "expiring") if (before_ns == END_OF_TIME_NS) else ()
            )

    def _check_order(self, queue: str, messages: list[Message], ordered: Iterable[str]) -> None:
        numbers: dict[str, list[int]] = defaultdict(list)
        for name, number in messages:
            assert 1 <= number <= self.streams[name].published, f"{name}: never published"
            assert queue in (DEAD, self.streams[name].queue)
            numbers[name].append(number)
        for name, each in numbers.items():
            if queue == DEAD:
                each = list(dict.fromkeys(each))
                if self.streams[name].queue not in ordered:
                    continue
            assert len(each) == len(set(each)), f"{queue}: {name}: a message twice"
            if queue != "prioritized":
                assert each == sorted(each), f"{queue}: {name}: out of order: {each}"


def declare_queues(port: int) -> None:
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    with Wire.open(port) as wire:
        for queue in QUEUES:
            arguments = SOURCES[queue] | to_dead if queue in SOURCES else {}
            declare = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
            wire.call(1, declare, commands.Queue.DeclareOk)


def work_until_killed(broker: Broker, letters: Letters, life: int, seed: int) -> None:
    """Publish, reject, kill after a random amount of work; fill the books."""
    chance = random.Random(seed)
    port = broker.port
    publishers = [
        Publisher(port, [Stream(f"{life}-{queue}", queue) for queue in SOURCES
                         if queue != "prioritized"], seed),
        PrioritizedPublisher(port, [Stream(f"{life}-prioritized", "prioritized")], seed),
    ]  # fmt: skip
    rejecters = [Rejecter(port, queue, seed) for queue in ("rejected", "prioritized")]
    streams = [stream for publisher in publishers for stream in publisher.streams.values()]
    clients: list[Client] = [*publishers, *rejecters]
    for client in clients:
        client.start()
    enough = chance.randrange(50, 300)
    deadline = time.monotonic() + PROGRESS_TIMEOUT_S
    while (any(each.moved < ENOUGH_MOVED for each in rejecters)
           or any(stream.confirmed < enough for stream in streams)):  # fmt: skip
        assert all(client.is_alive() for client in clients), [each.error for each in clients]
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.001)
    broker.kill()
    for client in clients:
        client.finish()
    letters.streams.update((stream.name, stream) for stream in streams)
    for rejecter in rejecters:
        letters.acknowledged |= rejecter.acknowledged


def purge(port: int, letters: Letters) -> None:
    """Empty all queues."""
    with Wire.open(port) as wire:
        for queue in QUEUES:
            wire.call(1, commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)
    letters.streams.clear()


def test_dead_letters_survive_kills(
    tmp_path: Path, broker_factory: BrokerFactory, is_long: bool
) -> None:
    """edge-cases.md 211: also over several lives, in which messages may move once more."""
    config = tmp_path / "lavinmq.ini"
    config.write_text("[main]\nsegment_size = 16384\n")
    broker = broker_factory(["-c", str(config)])
    declare_queues(broker.port)
    letters = Letters()
    for life in range(LONG_ROUNDS if is_long else SHORT_ROUNDS):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"life {life}: seed {seed}")
        work_until_killed(broker, letters, life, seed)
        broker.start()
        letters.check(messages_found(broker.port, QUEUES, count_is_exact=False))
        if life % 3 == 2:
            purge(broker.port, letters)


def cuts_of(records: list[object], syncs: Iterable[int], count: int, seed: int) -> list[int]:
    """Numbers of calls after which the power goes: the last one, those behind a sync, others."""
    chance, behind = random.Random(seed), list(syncs)
    others = [chance.choice(behind) if number % 2 else chance.randrange(len(records))
              for number in range(1, count)]  # fmt: skip
    return [len(records), *others]


@EVERY_READING
def test_dead_letters_survive_a_loss_of_power(
    on_disk: DiskFactory,
    tmp_path: Path,
    broker_factory: BrokerFactory,
    is_long: bool,
    reading: Reading,
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    broker, disk = on_disk(log=True)
    letters = run_on(broker, disk, seed)
    records = disk.records()
    syncs = [at for at, record in enumerate(records, 1) if record.kind is Call.SYNCED]
    chance = random.Random(seed)
    for cut in cuts_of(list(records), syncs, LONG_CUTS if is_long else SHORT_CUTS, seed):
        print(f"seed {seed}: after call {cut} of {len(records)}")
        root = tmp_path / f"cut-{cut}-{chance.randrange(1 << 30)}"
        Survivors(records[:cut], reading=reading).write(root, chance)
        after = broker_factory(data_dir=root, start=False)
        before_ns = records[cut].time_ns if cut < len(records) else time.monotonic_ns()
        after.start()
        check_after(after, letters, before_ns)
        assert after.stop() == 0


def run_on(broker: Broker, disk: Disk, seed: int) -> Letters:
    """One life of a broker with slow syncs."""
    letters = Letters()
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    broker.start()
    declare_queues(broker.port)
    work_until_killed(broker, letters, 0, seed)
    return letters


def check_after(broker: Broker, letters: Letters, before_ns: int) -> None:
    """Queues whose declaration was lost were not answered for; nor was any publish to them."""
    with Wire.open(broker.port) as wire:
        there = []
        for channel, queue in enumerate(QUEUES, 2):
            wire.open_channel(channel)
            wire.send(channel, commands.Queue.Declare(queue=queue, passive=True))
            if isinstance(wire.receive().method, commands.Queue.DeclareOk):
                there.append(queue)
    found = messages_found(broker.port, there, count_is_exact=False)
    letters.check(
        {queue: [each for each in found[queue] if each != DAMAGED] for queue in there}, before_ns
    )
    assert "is closed" not in broker.log_text()
