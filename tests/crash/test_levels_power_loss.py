"""The power goes while messages of several priorities come and go in one queue.

One run gives a log of all file calls, which is cut behind every one of them. What may be left is
read in this process, by the same code as a broker's, so that every cut takes some milliseconds: no
confirmed message is missing, no level pays for what another one has lost, and what is published
amid reading removes nothing. A failure names its seed and its cut.
"""

from __future__ import annotations

import random
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.crash.books import Books
from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.load import DAMAGED, Message, Stream, stream_and_number
from tests.support.broker import Broker
from tests.support.core import Bench, properties, publish
from tests.support.disk import Action, Call, Record
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import queue_directory
from tests.support.wire import Wire, encode_publish

QUEUE = "levels"
HIGHEST = 3
PRIORITIES = (0, 1, 3)
SEGMENT_SIZE = 4096
SYNC_US = 1500
"""Long enough for segments to be finished while the sync of earlier ones runs."""
ROUNDS, MOST_AT_ONCE, LONGEST_FILLING = 12, 6, 1500
SHORT_CUTS = 100
LONG_SEEDS = 10

pytestmark = pytest.mark.crash


@dataclass(slots=True)
class Run:
    """What was done to the queue and, by it, to the disk."""

    records: list[Record]
    books: Books


class Levels:
    """One client that publishes to all levels, a channel for each, and one that takes from them."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.streams = {
            channel: Stream(f"level-{priority}", QUEUE)
            for channel, priority in enumerate(PRIORITIES, 1)
        }
        self.acknowledged: dict[Message, int] = {}
        self._chance = chance
        self._wire = Wire.open(port, channels=self.streams)
        self._reader = Wire.open(port)
        for channel in self.streams:
            self._wire.call(channel, commands.Confirm.Select(), commands.Confirm.SelectOk)

    def work(self) -> None:
        """Publish, wait for confirms in some rounds only, and take in some."""
        for number in range(1, ROUNDS + 1):
            for channel, priority in enumerate(PRIORITIES, 1):
                self._publish(channel, priority, self._chance.randrange(MOST_AT_ONCE))
            if number % 3 == 0 or number == ROUNDS:
                self._wait()
            if number % 2 == 0:
                self._take(self._chance.randrange(3 * MOST_AT_ONCE))

    def close(self) -> None:
        self._wire.close()
        self._reader.close()

    def _publish(self, channel: int, priority: int, count: int) -> None:
        stream = self.streams[channel]
        for _ in range(count):
            stream.published += 1
            body = stream.body(stream.published, self._chance.randrange(LONGEST_FILLING))
            of_level = commands.Basic.Properties(priority=priority)
            self._wire.send_bytes(encode_publish(channel, "", QUEUE, body, of_level))

    def _wait(self) -> None:
        while any(stream.confirmed < stream.published for stream in self.streams.values()):
            unit = self._wire.receive()
            assert isinstance(unit.method, commands.Basic.Ack)
            self.streams[unit.channel].confirm(unit.method.delivery_tag)

    def _take(self, count: int) -> None:
        """Acknowledge all that is got but the last one, which stays unacknowledged."""
        got = []
        for _ in range(count):
            self._reader.send(1, commands.Basic.Get(queue=QUEUE))
            unit = self._reader.receive()
            if not isinstance(unit.method, commands.Basic.GetOk):
                break
            got.append((unit.method.delivery_tag or 0, stream_and_number(unit.body)))
        now = time.monotonic_ns()
        for tag, message in got[:-1]:
            self.acknowledged[message] = now
            self._reader.send(1, commands.Basic.Ack(tag))


def run_levels(on_disk: DiskFactory, seed: int, *args: str) -> Run:
    """Do it all on a disk whose syncs take their time, and end the broker."""
    broker, disk = on_disk(*args, log=True, segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    broker.start()
    declare(broker)
    with closing(Levels(broker.port, random.Random(seed))) as levels:
        levels.work()
        broker.kill()
    books = Books(acknowledged=levels.acknowledged)
    books.add([*levels.streams.values(), Stream("later", QUEUE, published=1)])
    return Run(disk.records(), books)


def declare(broker: Broker) -> None:
    with Wire.open(broker.port) as wire:
        arguments: dict[str, Any] = {"x-max-priority": HIGHEST}
        queue = commands.Queue.Declare(queue=QUEUE, durable=True, arguments=arguments)
        wire.call(1, queue, commands.Queue.DeclareOk)


def level_of(message: Message) -> int:
    return int(message[0].partition("-")[2] or 0)


def read(directory: Path, most: int, *, later: bool) -> list[Message]:
    """Take so many messages, or all there are, from what a disk holds; then publish one more."""
    with closing(Bench(directory.parent)) as bench:
        queue = bench.queue(directory.name, SEGMENT_SIZE, max_priority=HIGHEST)
        found: list[Message] = []
        while len(found) < most and (got := bench.get(queue)):
            found.append(stream_and_number(got.body))
        if later:
            of_level = properties(priority=0)
            bench.send(publish(directory.name.encode(), b"later:1:", of_level))
            bench.run()
        else:
            assert (queue.ready, queue.ready_bytes) == (0, 0), "messages that are none"
        assert not queue.is_closed and not bench.failures
        bench.run()
        queue.close()
    levels = [level_of(message) for message in found if message != DAMAGED]
    assert levels == sorted(levels, reverse=True), "a lower level came before a higher one"
    return found


def check(run: Run, cut: int, reading: Reading, seed: int, root: Path) -> None:
    """What is left when the power goes behind a call; part of it is taken in a first life."""
    chance = random.Random(seed)
    Survivors(run.records[:cut], reading=reading).write(root, chance)
    before_ns = run.records[cut].time_ns if cut < len(run.records) else time.monotonic_ns()
    directory = queue_directory(root, QUEUE)
    found: list[Message] = []
    if directory.is_dir():
        all_published = sum(stream.published for stream in run.books.streams.values())
        found = read(directory, chance.randrange(all_published), later=True)
        found += read(directory, all_published, later=False)
        assert found.count(("later", 1)) == 1
        found.remove(("later", 1))
    if reading is Reading.POSIX:
        found = [message for message in found if message != DAMAGED]
    run.books.check({QUEUE: found}, before_ns=before_ns, acks_may_be_lost=True)


def check_cuts(run: Run, cuts: list[int], reading: Reading, seed: int, directory: Path) -> None:
    for cut in cuts:
        print(f"seed {seed}, cut {cut} of {len(run.records)}, {reading.value}")
        check(run, cut, reading, seed, directory / f"{reading.value}-{seed}-{cut}")


@EVERY_READING
def test_no_level_pays_for_what_another_loses_with_the_power(
    on_disk: DiskFactory, tmp_path: Path, is_long: bool, reading: Reading
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    run = run_levels(on_disk, seed)
    every = list(range(1, len(run.records) + 1))
    n_cuts = len(every) if is_long else min(SHORT_CUTS, len(every))

    for again in range(LONG_SEEDS if is_long else 1):
        cuts = sorted(random.Random(seed + again).sample(every, n_cuts))
        check_cuts(run, cuts, reading, seed + again, tmp_path)


def test_without_syncs_levels_do_lose_what_was_confirmed(
    on_disk: DiskFactory, tmp_path: Path
) -> None:
    """The simulation must be able to find a loss."""
    run = run_levels(on_disk, 1, "--no-sync")
    every = list(range(1, len(run.records) + 1))

    with pytest.raises(AssertionError, match="lost"):
        check_cuts(run, every, Reading.JOURNALING, 1, tmp_path)
