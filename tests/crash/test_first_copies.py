"""A confirm says that a message is on disk, also that of a duplicate, whose first copy nobody
had asked to be synced: wherever that went, whatever is bound now, however many files there are.

A message is on disk when its file was synced after it was written: the log of the disk tells.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.conftest import DiskFactory
from tests.crash.test_disk_faults import wait_for_log
from tests.crash.test_refused_publishes import answers
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.segments import queue_directory
from tests.support.wire import Wire

SEGMENT_SIZE = 4096
EXCHANGE, FIRST, SECOND, OWN = "x", "first", "second", "own"
MANY_QUEUES = 1030
DEDUP = {"x-message-deduplication": True}

pytestmark = pytest.mark.crash


def start(on_disk: DiskFactory) -> tuple[Broker, Disk]:
    """An exchange that drops duplicates, bound to one queue of two; and a queue that drops them."""
    broker, disk = on_disk(log=True, segment_size=SEGMENT_SIZE, http=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port) as wire:
        exchange = commands.Exchange.Declare(
            exchange=EXCHANGE, exchange_type="fanout", durable=True, arguments=DEDUP
        )
        wire.call(1, exchange, commands.Exchange.DeclareOk)
        for queue, arguments in ((FIRST, {}), (SECOND, {}), (OWN, DEDUP)):
            declare = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
            wire.call(1, declare, commands.Queue.DeclareOk)
        bind = commands.Queue.Bind(queue=FIRST, exchange=EXCHANGE)
        wire.call(1, bind, commands.Queue.BindOk)
    return broker, disk


def have_many_queues(wire: Wire) -> None:
    """So many that none keeps its files open."""
    for number in range(MANY_QUEUES):
        declare = commands.Queue.Declare(queue=f"t{number}", durable=False, nowait=True)
        wire.send(1, declare)
    wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


def publish(wire: Wire, exchange: str, key: str, body: bytes, dedup: str | None = None) -> None:
    headers = {"x-deduplication-header": dedup} if dedup else None
    wire.publish(1, exchange, key, body, commands.Basic.Properties(headers=headers))


def settle(wire: Wire) -> None:
    """All that was published before is in its files."""
    for _ in range(2):  # the answer leaves in the turn in which they are written
        wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


def unsynced(disk: Disk, queue: str, body: bytes) -> bool:
    """Whether the bytes of a body were written to a file of a queue, and not synced since."""
    directory = queue_directory(Path(), queue).name
    dirty: set[str] = set()
    was_found = False
    for record in disk.records():
        if record.kind is Call.SYNCED:
            # Syncing the file system has no inode.
            dirty = {path for path in dirty if record.inode and path != record.path}
        elif directory in record.path and record.kind is Call.WRITE and body in record.data:
            was_found = True
            dirty.add(record.path)
    assert was_found, f"{body!r} was never written"
    return bool(dirty)


def send_again(wire: Wire, exchange: str, key: str, body: bytes, dedup: str) -> str:
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    publish(wire, exchange, key, body, dedup)
    return answers(wire, 1, 1)[1]


@pytest.mark.parametrize("exchange", [EXCHANGE, ""], ids=["exchange", "queue"])
@pytest.mark.parametrize("case", ["as it was", "rolled", "many queues", "rolled, many queues"])
def test_the_first_copy_is_on_disk_before_its_duplicate_is_confirmed(
    on_disk: DiskFactory, case: str, exchange: str
) -> None:
    broker, disk = start(on_disk)
    queue = FIRST if exchange else OWN
    with Wire.open(broker.port) as wire:
        if "many" in case:
            have_many_queues(wire)
        publish(wire, exchange, queue, b"the first copy", "a")
        settle(wire)
        if "rolled" in case:
            for _ in range(3):
                publish(wire, "", queue, bytes(SEGMENT_SIZE - 500))
                settle(wire)
        assert unsynced(disk, queue, b"the first copy"), "nobody has asked for it"

        assert send_again(wire, exchange, queue, b"the second copy", "a") == "Ack"

        assert not unsynced(disk, queue, b"the first copy")


def test_the_first_copy_is_synced_in_a_queue_that_is_not_bound_any_more(
    on_disk: DiskFactory,
) -> None:
    broker, disk = start(on_disk)
    with Wire.open(broker.port) as wire:
        publish(wire, EXCHANGE, "", b"the first copy", "a")
        settle(wire)
        unbind = commands.Queue.Unbind(queue=FIRST, exchange=EXCHANGE)
        wire.call(1, unbind, commands.Queue.UnbindOk)
        bind = commands.Queue.Bind(queue=SECOND, exchange=EXCHANGE)
        wire.call(1, bind, commands.Queue.BindOk)
        assert unsynced(disk, FIRST, b"the first copy")

        assert send_again(wire, EXCHANGE, "", b"the second copy", "a") == "Ack"

        assert not unsynced(disk, FIRST, b"the first copy")


def test_a_commit_with_a_duplicate_waits_for_the_first_copy(on_disk: DiskFactory) -> None:
    broker, disk = start(on_disk)
    with Wire.open(broker.port) as wire:
        publish(wire, EXCHANGE, "", b"the first copy", "a")
        settle(wire)
        unbind = commands.Queue.Unbind(queue=FIRST, exchange=EXCHANGE)
        wire.call(1, unbind, commands.Queue.UnbindOk)
        wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        publish(wire, EXCHANGE, "", b"the second copy", "a")

        wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

        assert not unsynced(disk, FIRST, b"the first copy")


def test_the_first_copy_of_a_killed_broker_is_on_disk_before_its_duplicate_is_confirmed(
    on_disk: DiskFactory,
) -> None:
    """The key survives a kill, and so does the message: in the kernel's memory, until then."""
    broker, disk = start(on_disk)
    with Wire.open(broker.port) as wire:
        publish(wire, EXCHANGE, "", b"the first copy", "a")
        settle(wire)
    broker.kill()
    assert unsynced(disk, FIRST, b"the first copy")

    broker.start()

    assert not unsynced(disk, FIRST, b"the first copy")
    with Wire.open(broker.port) as wire:
        assert send_again(wire, EXCHANGE, "", b"the second copy", "a") == "Ack"


def test_a_duplicate_whose_first_copy_is_in_a_closed_queue_is_nacked(
    on_disk: DiskFactory,
) -> None:
    """It was not synced when its queue was closed; when that is started again it is, and is."""
    broker, disk = start(on_disk)
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        publish(wire, EXCHANGE, "", b"the first copy", "a")
        settle(wire)
        unbind = commands.Queue.Unbind(queue=FIRST, exchange=EXCHANGE)
        wire.call(1, unbind, commands.Queue.UnbindOk)
        pattern = f"*/{queue_directory(Path(), FIRST).name}/msgs.*"
        disk.plan(Action.FAIL, Call.WRITE, pattern, error=errno.EIO)
        publish(wire, "", FIRST, b"breaks it")
        wait_for_log(broker, "is closed")
        disk.plan(Action.NOTHING, Call.CHANGES)

        assert send_again(wire, EXCHANGE, "", b"the second copy", "a") == "Nack"
        assert Api(broker)("PUT", f"/api/queues/%2F/{FIRST}/restart").status == 204
        publish(wire, EXCHANGE, "", b"the third copy", "a")

        assert answers(wire, 1, 2)[2] == "Ack"
        assert not unsynced(disk, FIRST, b"the first copy")


@pytest.mark.parametrize("case", ["few queues", "many queues"])
def test_an_ordinary_confirm_covers_every_segment_that_its_messages_are_in(
    on_disk: DiskFactory, case: str
) -> None:
    broker, disk = start(on_disk)
    bodies = [b"message %d " % number + bytes(SEGMENT_SIZE // 3) for number in range(12)]
    with Wire.open(broker.port) as wire:
        if "many" in case:
            have_many_queues(wire)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for body in bodies:
            publish(wire, "", SECOND, body)
        assert set(answers(wire, 1, len(bodies)).values()) == {"Ack"}

        assert not any(unsynced(disk, SECOND, body) for body in bodies)
