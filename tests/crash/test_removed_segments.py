"""What a removed segment leaves behind: nothing of it comes back, whatever a loss of power takes.

The name of its messages and that of their deleted positions go at different times, and a disk may
remember the one and not the other.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.conftest import EVERY_READING, BrokerFactory, DiskFactory
from tests.crash.load import messages_in
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import queue_directory
from tests.support.wire import Wire

pytestmark = pytest.mark.crash
QUEUE = "q"
IN_A_SEGMENT = 4
BODY = b"." * 3900
MESSAGES = IN_A_SEGMENT + 1
SEEDS, LONG_SEEDS = 6, 100


def fill(wire: Wire, n: int) -> None:
    """Publish messages, each with a number, and wait until they are confirmed."""
    declare = commands.Queue.Declare(queue=QUEUE, durable=True)
    wire.call(1, declare, commands.Queue.DeclareOk)
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for number in range(1, n + 1):
        wire.publish(1, "", QUEUE, b"s:%d:" % number + BODY)
    while wire.expect(commands.Basic.Ack, 1).delivery_tag != n:
        pass


def take(wire: Wire, channel: int, n: int) -> None:
    """Get so many messages."""
    for _ in range(n):
        wire.send(channel, commands.Basic.Get(queue=QUEUE))
        wire.expect_unit(commands.Basic.GetOk, channel)


def commit_first(wire: Wire) -> None:
    """Acknowledge the first message in a transaction, and wait for the answer."""
    wire.call(2, commands.Tx.Select(), commands.Tx.SelectOk)
    take(wire, 2, 1)
    wire.send(2, commands.Basic.Ack(1))
    wire.call(2, commands.Tx.Commit(), commands.Tx.CommitOk)


def settle(wire: Wire, n: int) -> None:
    """Take and acknowledge so many messages without waiting for the disk."""
    take(wire, 1, n)
    wire.send(1, commands.Basic.Ack(n, multiple=True))
    passive = commands.Queue.Declare(queue=QUEUE, passive=True)
    wire.call(1, passive, commands.Queue.DeclareOk)


def disks(
    disk: Disk, cuts: Iterable[int], reading: Reading, seeds: int, tmp_path: Path
) -> Iterator[Path]:
    """What may be left when the power goes after those calls, each different one once."""
    records = disk.records()
    seen = set()
    for cut in cuts:
        for seed in range(seeds):
            root = tmp_path / f"cut-{cut}-{seed}"
            Survivors(records[:cut], reading=reading).write(root, random.Random(seed))
            files = queue_directory(root, QUEUE).iterdir()
            found = frozenset((path.name, path.read_bytes()) for path in files)
            if found not in seen:
                seen.add(found)
                print(f"cut {cut} of {len(records)}, seed {seed}")
                yield root


def settle_all(wire: Wire) -> None:
    """Take and acknowledge what is there, each by itself."""
    while True:
        wire.send(1, commands.Basic.Get(queue=QUEUE))
        method = wire.receive().method
        if isinstance(method, commands.Basic.GetEmpty):
            return
        wire.send(1, commands.Basic.Ack(method.delivery_tag))


def positions_in(directory: Path) -> list[str]:
    """The files of deleted positions of the queue."""
    return sorted(path.name for path in queue_directory(directory, QUEUE).glob("acks.*"))


@EVERY_READING
def test_what_a_commit_has_settled_stays_gone_when_its_segment_goes_later(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        fill(wire, MESSAGES)
        commit_first(wire)
        committed = len(disk.records())
        settle(wire, MESSAGES - 1)
        broker.kill()
    records = disk.records()
    assert any(each.kind is Call.UNLINK and "/msgs." in each.path for each in records[committed:])

    numbers: list[int] = []
    cuts = range(committed, len(records) + 1) if is_long else [len(records)]
    for root in disks(disk, cuts, reading, LONG_SEEDS if is_long else SEEDS, tmp_path):
        again: Broker = broker_factory(data_dir=root, start=False).start()
        found = [number for _, number in messages_in(again.port, QUEUE, count_is_exact=False)]
        assert again.stop() == 0
        assert found == sorted(set(found))
        numbers += found
    assert 1 not in numbers
    assert numbers or reading is Reading.METADATA_FIRST


def test_positions_of_a_removed_segment_go_after_a_sync_that_others_wait_for(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        fill(wire, MESSAGES)
        commit_first(wire)
        settle(wire, MESSAGES - 1)
        assert "acks.0000000001" in positions_in(broker.data_dir)
        syncs = sum(each.kind is Call.SYNC for each in disk.records())
        for number in range(1, 2 * IN_A_SEGMENT + 2):  # the next segment, and another one
            wire.publish(1, "", QUEUE, b"s:%d:" % number + BODY)
            wire.expect(commands.Basic.Ack, 1)
        settle_all(wire)
        assert "acks.0000000001" not in positions_in(broker.data_dir)
        assert sum(each.kind is Call.SYNC for each in disk.records()) > syncs
    assert broker.stop() == 0
    assert len(positions_in(broker.data_dir)) <= 1  # of the segment that is written to


@pytest.mark.parametrize(
    ("how", "call"),
    [
        ("settled", Call.UNLINK),
        ("settled", Call.UNLINK | Call.TRUNCATE),
        ("purged", Call.UNLINK),
    ],
)
def test_a_segment_that_cannot_be_removed_does_not_come_back(
    on_disk: DiskFactory, how: str, call: Call
) -> None:
    """Its name cannot be taken from it, or it cannot be cut either, while other files go."""
    broker, disk = on_disk()
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        fill(wire, MESSAGES)
        if how == "settled":
            commit_first(wire)
            settle(wire, IN_A_SEGMENT - 1)
        disk.plan(Action.FAIL, call, "*/msgs.0000000001", error=errno.EIO)
        if how == "settled":
            take(wire, 1, 1)  # what is behind the segment
            wire.send(1, commands.Basic.Ack(IN_A_SEGMENT))
        else:
            wire.call(1, commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk)
        disk.wait_for_strikes()
    assert broker.stop() == 0
    disk.heal()

    broker.start()

    assert messages_in(broker.port, QUEUE) == []
    assert not (queue_directory(broker.data_dir, QUEUE) / "msgs.0000000001").exists()


def test_an_orderly_stop_leaves_no_positions_of_removed_segments(on_disk: DiskFactory) -> None:
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        fill(wire, MESSAGES)
        commit_first(wire)
        settle(wire, MESSAGES - 1)
    assert broker.stop() == 0

    assert "acks.0000000001" not in positions_in(broker.data_dir)
    records = disk.records()
    name = queue_directory(Path(), QUEUE).name
    (removed,) = (
        at for at, each in enumerate(records)
        if each.kind is Call.UNLINK and each.path.endswith("/acks.0000000001")
    )  # fmt: skip
    messages = max(
        at for at, each in enumerate(records)
        if each.kind is Call.UNLINK and each.path.endswith("/msgs.0000000001")
    )  # fmt: skip
    assert any(
        each.kind is Call.SYNCED and each.of_directory and each.path.endswith(name)
        for each in records[messages:removed]
    )
