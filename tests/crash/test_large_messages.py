"""Large messages go into a file of their own: kill, cut the power, let the disk fail on its way.

Each run publishes small and large messages in turn to one queue, each confirmed before the next.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.books import Books, messages_found
from tests.crash.conftest import EVERY_READING, BrokerFactory, DiskFactory
from tests.crash.kills import calls_of, each_killed
from tests.crash.load import DAMAGED, Stream
from tests.support.broker import Broker, BrokerError
from tests.support.disk import Action, Call
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import queue_directory
from tests.support.wire import Wire, WireClosed

QUEUE, STREAM = "q", "s"
SMALL, LARGE = 900, (1 << 20) + 200_000
SIZES = (SMALL, LARGE, SMALL, SMALL, LARGE, LARGE, SMALL)
SEGMENT_SIZE = 8 << 20
TEMPORARY = "*/tmp.msgs.*"
CUTS, LONG_CUTS = 12, 200
PIECE = 1 << 17

pytestmark = pytest.mark.crash


class Run:
    """A broker with two queues of one kind each, and what was published to them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.streams = {name: Stream(name, name) for name in (QUEUE, STREAM)}
        broker.start()
        with Wire.open(broker.port) as wire:
            for name in self.streams:
                arguments = {"x-queue-type": "stream"} if name == STREAM else {}
                declare = commands.Queue.Declare(queue=name, durable=True, arguments=arguments)
                wire.call(1, declare, commands.Queue.DeclareOk)

    def publish(self, name: str = QUEUE) -> list[int]:
        """Publish all, each confirmed before the next; returns the numbers that were refused."""
        stream = self.streams[name]
        refused = []
        with Wire.open(self.broker.port) as wire:
            wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            for size in SIZES:
                stream.published += 1
                wire.publish(1, "", name, stream.body(stream.published, size))
                while True:
                    method = wire.receive().method
                    if isinstance(method, commands.Basic.Ack):
                        stream.confirm(stream.published)
                        break
                    if isinstance(method, commands.Basic.Nack):
                        refused.append(stream.published)
                        break
        return refused

    def try_publish(self) -> bool:
        """The same to both; False when the broker ended before."""
        try:
            for name in self.streams:
                self.publish(name)
        except (WireClosed, BrokerError, ConnectionError):
            self.broker.kill()
            return False
        return True

    def check(self, broker: Broker, *, before_ns: int = 1 << 63, reading: Reading | None) -> None:
        """Start once more, and compare."""
        before = len(broker.log_text()) if broker.log_path.exists() else 0
        broker.start()
        books = Books()
        books.add([self.streams[QUEUE]])
        found = messages_found(broker.port, [QUEUE], count_is_exact=reading is None)
        if reading is Reading.POSIX:
            found[QUEUE] = [each for each in found[QUEUE] if each != DAMAGED]
        books.check(found, before_ns=before_ns)
        with Wire.open(broker.port) as wire:
            passive = commands.Queue.Declare(queue=STREAM, passive=True)
            count = wire.call(1, passive, commands.Queue.DeclareOk).message_count
        assert count is not None and count >= self.streams[STREAM].confirmed_before(before_ns)
        assert broker.stop() == 0
        assert "is closed" not in broker.log_text()[before:]
        assert list(broker.data_dir.rglob("tmp.msgs.*")) == []


def test_a_kill_at_any_call_leaves_what_was_confirmed_and_nothing_else(
    on_disk: DiskFactory, is_long: bool
) -> None:
    broker, disk = on_disk(log=True, segment_size=SEGMENT_SIZE)
    run = Run(broker)
    assert run.try_publish()
    broker.kill()
    run.check(broker, reading=None)
    calls = calls_of(disk, TEMPORARY)

    for broker, killing in each_killed(on_disk, calls, TEMPORARY, SEGMENT_SIZE, is_long=is_long):
        run = Run(broker)
        has_ended = not run.try_publish()
        assert has_ended == bool(killing.struck)
        broker.kill()
        killing.heal()
        run.check(broker, reading=None)


@EVERY_READING
def test_what_was_confirmed_survives_a_loss_of_power(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    broker, disk = on_disk(log=True, segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=2000)
    run = Run(broker)
    declared = len(disk.records())
    assert run.try_publish()
    broker.kill()
    records = disk.records()
    kinds = (Call.RENAME, Call.SYNCED)
    cuts = [at for at in range(declared + 1, len(records)) if records[at - 1].kind in kinds]
    chance.shuffle(cuts)

    for number, cut in enumerate(cuts[: LONG_CUTS if is_long else CUTS]):
        print(f"seed {seed}, after call {cut} of {len(records)}")
        root = tmp_path / f"cut-{number}"
        Survivors(records[:cut], reading=reading).write(root, chance)
        before_ns = records[cut].time_ns if cut < len(records) else 1 << 63
        run.check(broker_factory(data_dir=root, start=False), before_ns=before_ns, reading=reading)


@pytest.mark.parametrize("kind", [Call.OPEN, Call.WRITE, Call.RENAME], ids=lambda kind: kind.name)
@pytest.mark.parametrize("first", [1, 2])
def test_a_broken_disk_closes_the_queue_and_the_publisher_is_told(
    on_disk: DiskFactory, kind: Call, first: int
) -> None:
    broker, disk = on_disk(segment_size=SEGMENT_SIZE)
    run = Run(broker)
    disk.plan(Action.FAIL, kind, TEMPORARY, first=first, last=first, error=errno.EIO)

    refused = run.publish()

    assert disk.struck == 1
    assert refused == list(range(refused[0], len(SIZES) + 1))
    assert SIZES[refused[0] - 1] == LARGE
    run.publish(STREAM)  # others go on
    assert list(broker.data_dir.rglob("tmp.msgs.*")) == []
    assert queue_directory(broker.data_dir, QUEUE).name in broker.log_text()
    broker.kill()
    run.check(broker, reading=None)


@pytest.mark.parametrize("kind", [Call.OPEN, Call.WRITE, Call.RENAME], ids=lambda kind: kind.name)
def test_a_full_disk_is_waited_for(on_disk: DiskFactory, kind: Call) -> None:
    broker, disk = on_disk(segment_size=SEGMENT_SIZE)
    run = Run(broker)
    disk.plan(Action.FAIL, kind, TEMPORARY, first=2, last=2, error=errno.ENOSPC)

    assert run.publish() == []

    assert disk.struck == 1
    assert list(broker.data_dir.rglob("tmp.msgs.*")) == []
    broker.kill()
    run.check(broker, reading=None)


@pytest.mark.parametrize("name", [QUEUE, STREAM])
def test_what_has_waited_for_room_is_written_in_pieces(on_disk: DiskFactory, name: str) -> None:
    """Others have their turn between two of them."""
    broker, disk = on_disk(segment_size=SEGMENT_SIZE, log=True)
    run = Run(broker)
    stream = run.streams[name]
    stream.published = 1
    disk.plan(Action.FAIL, Call.OPEN | Call.WRITE, "*msgs.*", error=errno.ENOSPC)
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", name, stream.body(1, 3 * LARGE))
        disk.wait_for_strikes(2)  # aside, and where it then waits
        before = len(disk.records())
        disk.heal()
        wire.expect(commands.Basic.Ack, 1)
    written = [
        len(each.data)
        for each in disk.records()[before:]
        if each.kind is Call.WRITE and "/msgs." in each.path
    ]
    assert sum(written) > 3 * LARGE
    assert max(written) <= PIECE
    broker.kill()
    broker.start()
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        consume = commands.Basic.Consume(queue=name, arguments={"x-stream-offset": "first"})
        wire.call(1, consume, commands.Basic.ConsumeOk)
        assert wire.expect_unit(commands.Basic.Deliver, 1).body == stream.body(1, 3 * LARGE)
