"""What follows from another file's content, or from a name, is on disk after that, never before.

Each test takes the log of the calls that a broker made, and looks at their order or at what a loss
of power between them may leave.
"""

from __future__ import annotations

import random
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


def publish(wire: Wire, count: int) -> None:
    """Publish messages and wait until they are confirmed."""
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for number in range(1, count + 1):
        wire.publish(1, "", QUEUE, b"s:%d:" % number + b"." * 600)
    while wire.expect(commands.Basic.Ack, 1).delivery_tag != count:
        pass


def of(record: Record, kind: Call, name: str) -> bool:
    return record.kind is kind and record.path.endswith(name)


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
    records = disk.records()

    for cut in range(before, len(records) + 1):
        for seed in range(LONG_SEEDS if is_long else SEEDS):
            print(f"cut {cut} of {before} to {len(records)}, seed {seed}")
            root = tmp_path / f"cut-{cut}-{seed}"
            Survivors(records[:cut], reading=reading).write(root, random.Random(seed))
            found = found_after(root, broker_factory)
            assert found in (None, list(range(1, MESSAGES + 1)))
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

    for seed in range(LONG_SEEDS if is_long else SEEDS):
        root = tmp_path / f"seed-{seed}"
        Survivors(disk.records(), reading=reading).write(root, random.Random(seed))
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
    begun = [at for at, each in enumerate(records) if of(each, Call.SYNC, DEFINITIONS)]
    done = [at for at, each in enumerate(records) if of(each, Call.SYNCED, DEFINITIONS)]
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
