"""What follows from another file's content, or from a name, is on disk after that, never before.

Each test takes the log of the calls that a broker made, and looks at their order or at what a loss
of power between them may leave.
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
from tests.crash.workload import is_there
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk, Record
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import queue_directory
from tests.support.waiting import wait_for
from tests.support.wire import Wire, WireClosed

QUEUE = "q"
MESSAGES = 5
SEEDS, LONG_SEEDS = 4, 40
DEFINITIONS = "definitions.amqp"
RECORD = b"\x01" + QUEUE.encode() + b"\x02"
"""In the record of the queue's declaration: its name, and that it is durable."""

pytestmark = pytest.mark.crash


def declare(wire: Wire, **properties: object) -> None:
    request = commands.Queue.Declare(queue=QUEUE, durable=True, **properties)
    wire.call(1, request, commands.Queue.DeclareOk)


def publish(wire: Wire, count: int, size: int = 600) -> None:
    """Publish messages and wait until they are confirmed."""
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for number in range(1, count + 1):
        wire.publish(1, "", QUEUE, b"s:%d:" % number + b"." * size)
    while wire.expect(commands.Basic.Ack, 1).delivery_tag != count:
        pass


def prepare(wire: Wire) -> None:
    """A queue with a message, and another one for what is made of it."""
    declare(wire)
    wire.call(1, commands.Queue.Declare(queue="to", durable=True), commands.Queue.DeclareOk)
    publish(wire, 1)


def of(record: Record, kind: Call, name: str) -> bool:
    return record.kind is kind and record.path.endswith(name)


def syncs(record: Record, kind: Call, name: str) -> bool:
    """Whether a file is synced, or all of its file system, which a broker does if that is shorter
    by what it has measured."""
    return record.kind is kind and (not record.inode or record.path.endswith(name))


def disks_after(
    disk: Disk, cuts: Iterable[int], reading: Reading, seeds: int, directory: Path
) -> Iterator[tuple[int, Path]]:
    """After each different loss of power: the cut, and what the disk holds then. A broker does the
    same with the same files, so each is there once, and once more behind the last call."""
    seen = set()
    records = disk.records()
    for cut in cuts:
        for seed in range(seeds):
            root = directory / f"cut-{cut}-{seed}"
            Survivors(records[:cut], reading=reading).write(root, random.Random(seed))
            files = frozenset(
                (str(path.relative_to(root)), path.read_bytes() if path.is_file() else b"")
                for path in root.rglob("*")
            )
            if (files, cut == len(records)) not in seen:
                seen.add((files, cut == len(records)))
                print(f"cut {cut} of {len(records)}, seed {seed}")
                yield cut, root


def found_after(root: Path, broker_factory: BrokerFactory) -> list[int] | None:
    """The numbers of the messages that a broker finds in the queue; None when there is no queue."""
    broker: Broker = broker_factory(data_dir=root, start=False).start()
    found = None
    if is_there(broker.port, "queue", QUEUE):
        found = [number for _, number in messages_in(broker.port, QUEUE, count_is_exact=False)]
    assert "is closed" not in broker.log_text()
    assert broker.stop() == 0
    return found


@EVERY_READING
def test_a_queue_whose_deletion_is_lost_has_its_messages(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port) as wire:
        declare(wire)
        publish(wire, MESSAGES)
        before = len(disk.records())
        wire.call(1, commands.Queue.Delete(queue=QUEUE), commands.Queue.DeleteOk)
    broker.kill()
    end = len(disk.records())

    seeds = LONG_SEEDS if is_long else SEEDS
    for _, root in disks_after(disk, range(before, end + 1), reading, seeds, tmp_path):
        assert found_after(root, broker_factory) in (None, list(range(1, MESSAGES + 1)))
    assert found_after(broker.data_dir, broker_factory) is None


def test_a_queue_may_be_made_again_before_the_deletion_of_the_last_one_is_on_disk(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk()
    broker.start()
    with Wire.open(broker.port) as wire, Wire.open(broker.port) as other:
        declare(wire)
        publish(wire, MESSAGES)
        disk.plan(Action.NOTHING, Call.CHANGES, sync_us=200_000)
        wire.send(1, commands.Queue.Delete(queue=QUEUE))
        while is_there(broker.port, "queue", QUEUE):
            pass
        other.call(1, commands.Queue.Declare(queue=QUEUE, durable=True), commands.Queue.DeclareOk)
        wire.expect(commands.Queue.DeleteOk, 1)
        wire.call(1, commands.Queue.Declare(queue=QUEUE, passive=True), commands.Queue.DeclareOk)
    directory = queue_directory(broker.data_dir, QUEUE)
    assert broker.stop() == 0
    assert directory.is_dir()
    assert [path for path in directory.parent.iterdir() if directory.name in path.name] == [
        directory
    ]


@EVERY_READING
def test_what_a_killed_broker_left_in_memory_is_on_disk_before_it_is_relied_on(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """The declaration was written, not synced, and not answered; the next broker finds it."""
    broker, disk = on_disk(log=True)
    broker.start()
    disk.plan(Action.KILL_AFTER, Call.WRITE, f"*/{DEFINITIONS}")
    with Wire.open(broker.port) as wire, pytest.raises(WireClosed):
        declare(wire)
    broker.kill()
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port) as wire:
        declare(wire)
        publish(wire, MESSAGES)
    broker.kill()

    seeds = LONG_SEEDS if is_long else SEEDS
    for _, root in disks_after(disk, [len(disk.records())], reading, seeds, tmp_path):
        assert found_after(root, broker_factory) == list(range(1, MESSAGES + 1))


@pytest.mark.parametrize("is_http", [False, True])
def test_who_declares_a_queue_again_is_answered_when_its_declaration_is_on_disk(
    on_disk: DiskFactory, is_http: bool
) -> None:
    broker, disk = on_disk(log=True, http=True)
    broker.start()
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=200_000)
    with Wire.open(broker.port) as first, Wire.open(broker.port) as second:
        for number in range(3):  # from now on syncs are known to be long: the worker does them
            other = commands.Queue.Declare(queue=f"other-{number}", durable=True)
            first.call(1, other, commands.Queue.DeclareOk)
        first.send(1, commands.Queue.Declare(queue=QUEUE, durable=True))
        while not is_recorded(disk):
            pass
        if is_http:
            assert Api(broker)("PUT", f"/api/queues/%2F/{QUEUE}", {"durable": True}).status == 204
        else:
            declare(second)
        records = disk.records()
    written = max(at for at, each in enumerate(records) if of(each, Call.WRITE, DEFINITIONS))
    begun = [at for at, each in enumerate(records) if syncs(each, Call.SYNC, DEFINITIONS)]
    done = [at for at, each in enumerate(records) if syncs(each, Call.SYNCED, DEFINITIONS)]
    assert any(at > written for at in begun)
    assert len(done) == len(begun)


def is_recorded(disk: Disk) -> bool:
    return any(RECORD in each.data for each in disk.records() if DEFINITIONS in each.path)


def test_positions_that_a_start_drops_are_dropped_on_disk(on_disk: DiskFactory) -> None:
    """Else a later message, confirmed, would count as deleted after a loss of power."""
    broker, disk = on_disk(log=True)
    broker.start()
    with Wire.open(broker.port) as wire:
        declare(wire)
        publish(wire, MESSAGES)
    assert broker.stop() == 0
    acks = queue_directory(broker.data_dir, QUEUE) / "acks.0000000001"
    acks.write_bytes((1_000_000).to_bytes(4, "little"))
    before = len(disk.records())
    broker.start()

    records = disk.records()[before:]
    renamed = next(at for at, each in enumerate(records) if each.kind is Call.RENAME)
    assert records[renamed].target.endswith(acks.name)
    assert any(
        each.kind is Call.SYNCED and each.of_directory and each.path in records[renamed].target
        for each in records[renamed:]
    )


def test_what_a_commit_settles_is_deleted_after_what_it_publishes_is_on_disk(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk(log=True)
    broker.start()
    disk.plan(Action.NOTHING, Call.CHANGES)
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        prepare(wire)
        wire.call(2, commands.Tx.Select(), commands.Tx.SelectOk)
        wire.send(2, commands.Basic.Get(queue=QUEUE))
        wire.expect_unit(commands.Basic.GetOk, 2)
        before = len(disk.records())
        wire.send(2, commands.Basic.Ack(1))
        wire.publish(2, "", "to", b"made of it")
        wire.call(2, commands.Tx.Commit(), commands.Tx.CommitOk)
    assert broker.stop() == 0

    records = disk.records()[before:]
    source, to = (queue_directory(Path(), name).name for name in (QUEUE, "to"))
    deleted = [f"{source}/acks." in each.path for each in records].index(True)
    written = max(
        at for at, each in enumerate(records) if each.kind is Call.WRITE and to in each.path
    )
    assert written < deleted
    assert any(  # the file, or the whole file system
        each.kind is Call.SYNCED and (not each.path or to in each.path)
        for each in records[written:deleted]
    )


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_commit_whose_queue_breaks_settles_nothing(on_disk: DiskFactory, is_lost: bool) -> None:
    broker, disk = on_disk()
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        prepare(wire)
        wire.call(2, commands.Tx.Select(), commands.Tx.SelectOk)
        wire.send(2, commands.Basic.Get(queue=QUEUE))
        wire.expect_unit(commands.Basic.GetOk, 2)
        if is_lost:
            to = queue_directory(Path(), "to").name
            disk.plan(Action.FAIL, Call.WRITE | Call.OPEN, f"*/{to}/msgs.*", error=errno.EIO)
        wire.send(2, commands.Basic.Ack(1))
        wire.publish(2, "", "to", b"made of it")
        wire.send(2, commands.Tx.Commit())
        if is_lost:
            wire.expect_connection_close(541)
        else:
            wire.expect(commands.Tx.CommitOk, 2)
    disk.heal()

    broker.restart()

    assert len(messages_in(broker.port, QUEUE, count_is_exact=False)) == is_lost


def begin_commit(wire: Wire, settle: commands.Basic.Ack | commands.Basic.Reject) -> None:
    """Take the first message in a transaction of channel 2, and settle it there."""
    wire.call(2, commands.Tx.Select(), commands.Tx.SelectOk)
    wire.send(2, commands.Basic.Get(queue=QUEUE))
    wire.expect_unit(commands.Basic.GetOk, 2)
    wire.send(2, settle)


def lives_after(
    disks: Iterable[tuple[int, Path]], broker_factory: BrokerFactory, other: str
) -> Iterator[tuple[int, int, int]]:
    """The cut of each disk, and how many messages are in QUEUE and in the other queue then."""
    for cut, root in disks:
        broker = broker_factory(data_dir=root, start=False).start()
        in_source, in_other = (
            len(messages_in(broker.port, queue, count_is_exact=False)) for queue in (QUEUE, other)
        )
        assert "is closed" not in broker.log_text()
        assert broker.stop() == 0
        yield cut, in_source, in_other


@EVERY_READING
def test_a_loss_of_power_in_a_commit_takes_not_both(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """What was consumed, and what was made of it; after commit-ok all is as the commit says."""
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        prepare(wire)
        begin_commit(wire, commands.Basic.Ack(1))
        wire.publish(2, "", "to", b"s:1:made of it")
        before = len(disk.records())
        wire.call(2, commands.Tx.Commit(), commands.Tx.CommitOk)
        broker.kill()

    end = len(disk.records())
    seeds = LONG_SEEDS if is_long else SEEDS
    disks = disks_after(disk, range(before, end + 1), reading, seeds, tmp_path)
    for cut, in_source, in_to in lives_after(disks, broker_factory, "to"):
        assert in_source or in_to
        if cut == end:
            assert (in_source, in_to) == (0, 1)


@EVERY_READING
@pytest.mark.parametrize("size", [600, 1 << 21], ids=["small", "large"])
def test_what_a_commit_rejects_is_a_dead_letter_on_disk_and_no_more(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading, size: int,
) -> None:  # fmt: skip
    """A large one goes in pieces, see docs/decisions/0047-large-messages-in-pieces.md."""
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        declare(
            wire,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        )
        wire.call(1, commands.Queue.Declare(queue="dead", durable=True), commands.Queue.DeclareOk)
        publish(wire, 1, size)
        begin_commit(wire, commands.Basic.Reject(1, requeue=False))
        wire.call(2, commands.Tx.Commit(), commands.Tx.CommitOk)
        broker.kill()

    end = len(disk.records())
    seeds = LONG_SEEDS if is_long else SEEDS
    disks = disks_after(disk, [end], reading, seeds, tmp_path)
    lives = list(lives_after(disks, broker_factory, "dead"))
    assert {life[1:] for life in lives} == {(0, 1)}


def test_a_commit_is_carried_out_when_its_client_goes_while_the_disk_is_waited_for(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk()
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        prepare(wire)
        begin_commit(wire, commands.Basic.Ack(1))
        disk.plan(Action.NOTHING, Call.SYNC, sync_us=2_000_000)
        wire.publish(2, "", "to", b"s:1:made of it")
        wire.send(2, commands.Tx.Commit())
        wait_for(lambda: disk.matched > 0, "no sync")
        wire.reset()  # which is noticed within a second
    wait_for(  # after the one that found the broker answering
        lambda: broker.log_text().count("connection lost") == 2, "the connection stays"
    )
    disk.heal()

    broker.restart()

    assert not messages_in(broker.port, QUEUE, count_is_exact=False)
    assert len(messages_in(broker.port, "to", count_is_exact=False)) == 1


def test_a_queue_may_be_deleted_while_a_commit_that_settles_in_it_waits_for_the_disk(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk()
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire, Wire.open(broker.port) as other:
        prepare(wire)
        begin_commit(wire, commands.Basic.Ack(1))
        disk.plan(Action.NOTHING, Call.SYNC, sync_us=300_000)
        wire.publish(2, "", "to", b"s:1:made of it")
        wire.send(2, commands.Tx.Commit())
        wait_for(lambda: disk.matched > 0, "no sync")
        other.call(1, commands.Queue.Delete(queue=QUEUE), commands.Queue.DeleteOk)
        wire.expect(commands.Tx.CommitOk, 2)
    disk.heal()

    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text()
