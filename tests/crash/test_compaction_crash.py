"""Compaction under a broker that is killed, and a disk that loses its power: nothing is garbage.

A segment that a few messages keep loses the space of the others in steps. Wherever that stops, the
next start finds all that was confirmed and not acknowledged, each message once and whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash import compacting_broker
from tests.crash.books import messages_found
from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.load import DAMAGED
from tests.crash.pinned import OF_SEGMENT, SEGMENT_SIZE, Pinned
from tests.crash.workload import PLAIN, TX, is_there
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk, Record
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import queue_directory
from tests.support.waiting import wait_for
from tests.support.wire import Wire

SHORT_CUTS, LONG_CUTS = 12, 400
SYNC_US = 500
POINTS = ((Call.PUNCH, 1), (Call.PUNCH, 2), (Call.RENAME, 1), (Call.TRUNCATE, 1))
"""Calls that compaction makes, and the number of the one that is tried in the short form."""
NUMBERS = 12
FILLER_HEAD = 20

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]


def on_pinned_disk(on_disk: DiskFactory, *, log: bool = False) -> tuple[Broker, Disk]:
    return on_disk(log=log, segment_size=SEGMENT_SIZE, program=compacting_broker)


def cuts_of(records: list[Record], chance: random.Random, count: int) -> Iterator[int]:
    """Numbers of calls after which the power goes: near a hole or a new ack file, and others."""
    near = [
        at
        for at, record in enumerate(records, 1)
        if record.kind is Call.PUNCH or "tmp.acks" in record.path
    ]
    yield len(records)
    for number in range(1, count):
        cut = chance.choice(near) + chance.randrange(-8, 12) if number % 4 else 0
        yield min(len(records), cut or chance.randrange(len(records)))


@EVERY_READING
def test_a_loss_of_power_brings_nothing_back_that_was_punched_out(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    broker, disk = on_pinned_disk(on_disk, log=True)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    workload = Pinned()
    assert workload.run(broker)
    records = disk.records()

    for number, cut in enumerate(cuts_of(records, chance, LONG_CUTS if is_long else SHORT_CUTS)):
        print(f"seed {seed}, cut {number}: after call {cut} of {len(records)}")
        root = tmp_path / f"cut-{number}"
        Survivors(records[:cut], reading=reading).write(root, chance)
        before_ns = records[cut].time_ns if cut < len(records) else records[-1].time_ns + 1
        check_after(workload, broker_factory(data_dir=root, start=False), before_ns, reading)


def check_after(workload: Pinned, broker: Broker, before_ns: int, reading: Reading) -> None:
    """Start on what is left: nothing confirmed and not acknowledged is lost, nothing is garbage."""
    broker.start()
    there = [queue for queue in (PLAIN, TX) if is_there(broker.port, "queue", queue)]
    found = messages_found(broker.port, there, count_is_exact=False)
    if reading is Reading.POSIX:  # of what was not synced single pages may be missing
        found = {queue: [each for each in found[queue] if each != DAMAGED] for queue in found}
    workload.books.check(found, before_ns=before_ns, acks_may_be_lost=True)
    assert "is closed" not in broker.log_text()
    assert broker.stop() == 0


def without_syncs_of_fillers(records: list[Record]) -> Iterator[Record]:
    """The same calls, had the fillers not been on disk before acks.N was replaced."""
    is_unsynced = False
    for record in records:
        is_message_file = "/msgs." in record.path
        if is_message_file and record.kind is Call.WRITE and len(record.data) == FILLER_HEAD:
            is_unsynced = True
        if record.kind is Call.RENAME and "tmp.acks" in record.path:
            is_unsynced = False
        if not (is_unsynced and is_message_file and record.kind in (Call.SYNC, Call.SYNCED)):
            yield record


def test_fillers_that_are_not_on_disk_would_bring_garbage_back(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    """The simulation must be able to find it."""
    broker, disk = on_pinned_disk(on_disk, log=True)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    workload = Pinned()
    assert workload.run(broker)
    records = list(without_syncs_of_fillers(disk.records()))
    renamed = [at for at, record in enumerate(records, 1) if "tmp.acks" in record.path]

    with pytest.raises(AssertionError, match=r"never published|lost|twice"):
        for seed in range(LONG_CUTS):
            root = tmp_path / f"cut-{seed}"
            survivors = Survivors(records[: renamed[-1]], reading=Reading.METADATA_FIRST)
            survivors.write(root, random.Random(seed))
            check_after(
                workload, broker_factory(data_dir=root, start=False),
                records[renamed[-1]].time_ns, Reading.METADATA_FIRST,
            )  # fmt: skip


def test_a_kill_at_any_call_of_compaction_loses_nothing_and_returns_nothing(
    on_disk: DiskFactory, is_long: bool
) -> None:
    points = [
        (action, kind, at)
        for kind, number in POINTS
        for at in (range(1, NUMBERS) if is_long else (number,))
        for action in (Action.KILL_BEFORE, Action.KILL_AFTER)
    ]
    for action, kind, number in points:
        print(f"{action.name} call {number}, {kind.name}")
        broker, killing = on_pinned_disk(on_disk)
        killing.plan(action, kind, first=number, last=number)
        workload = Pinned()

        was_killed = not workload.run(broker)

        killing.heal()
        assert was_killed or killing.struck == 0
        workload.check(broker)


@EVERY_READING
def test_what_a_commit_deletes_while_its_segment_is_compacted_stays_deleted(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, reading: Reading
) -> None:
    """Its place is in the old file of deleted positions, and comes to the new one late."""
    broker, disk = on_pinned_disk(on_disk, log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    beside = queue_directory(broker.data_dir, PLAIN) / "tmp.acks.0000000001"
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        wire.call(1, commands.Queue.Declare(queue=PLAIN, durable=True), commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(1, OF_SEGMENT + 20):
            wire.publish(1, "", PLAIN, b"s:%d:" % number + b"." * 900)
        while wire.expect(commands.Basic.Ack, 1).delivery_tag != OF_SEGMENT + 19:
            pass
        wire.call(2, commands.Tx.Select(), commands.Tx.SelectOk)
        for number in range(1, OF_SEGMENT + 6):
            wire.send(2, commands.Basic.Get(queue=PLAIN))
            wire.expect_unit(commands.Basic.GetOk, 2)
            if number > 2:
                wire.send(2, commands.Basic.Ack(number))
        disk.plan(Action.NOTHING, Call.CHANGES, sync_us=100_000)
        wire.call(2, commands.Tx.Commit(), commands.Tx.CommitOk)
        wait_for(beside.exists, "the segment is not compacted")
        wire.send(2, commands.Basic.Ack(1))
        wire.call(2, commands.Tx.Commit(), commands.Tx.CommitOk)
        broker.kill()

    records = disk.records()
    for seed in range(6):
        root = tmp_path / f"seed-{seed}"
        Survivors(records, reading=reading).write(root, random.Random(seed))
        found = messages_found(broker_factory(data_dir=root).port, [PLAIN], count_is_exact=False)
        assert found[PLAIN][0] == ("s", 2), f"seed {seed}"
        assert len(found[PLAIN]) == 15
