"""What a start asks of the disk: little for a queue with nothing in it, one sync for many streams;
and what it does when the disk refuses that."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from shutil import rmtree

import pytest
from pamqp import commands

from lavinmq.files.directories import hashed
from lavinmq.vhost.queue_files import FEW_STREAMS
from tests.crash.conftest import DiskFactory
from tests.support.broker import Broker
from tests.support.disk import FOREVER, Action, Call, Disk
from tests.support.segments import queue_directory
from tests.support.wire import Wire
from tests.support.wire_actions import synchronise

pytestmark = pytest.mark.crash

VHOST = hashed("/")
PERSISTENT = commands.Basic.Properties(delivery_mode=2)


def declare(broker: Broker, *names: str, **arguments: object) -> None:
    with Wire.open(broker.port) as wire:
        for name in names:
            wire.call(
                1, commands.Queue.Declare(queue=name, durable=True, arguments=arguments),
                commands.Queue.DeclareOk,
            )  # fmt: skip


def place(name: str) -> str:
    return f"{VHOST}/{queue_directory(Path(), name).name}"


def opened(disk: Disk, broker: Broker, pattern: str) -> int:
    """How often a start opens what has such a path."""
    disk.plan(Action.FAIL, Call.OPEN | Call.OPEN_READ, pattern, first=FOREVER)
    broker.start()
    disk.heal()
    return disk.matched


def test_a_start_opens_what_is_there_and_nothing_else(on_disk: DiskFactory) -> None:
    broker, disk = on_disk()
    broker.start()
    declare(broker, "empty", "full")
    with Wire.open(broker.port) as wire:
        wire.publish(1, "", "full", b"m", PERSISTENT)
        synchronise(wire)

    broker.kill()
    assert opened(disk, broker, f"{place('empty')}/*") == 0
    broker.kill()
    assert opened(disk, broker, f"{place('empty')}*") == 1
    broker.kill()
    assert opened(disk, broker, f"{place('full')}/[!m]*") == 0
    broker.kill()
    assert opened(disk, broker, f"{place('full')}/meta*") == 0
    broker.kill()
    assert opened(disk, broker, f"{place('full')}/msgs*") >= 1
    with Wire.open(broker.port) as wire:
        wire.send(1, commands.Basic.Get(queue="full", no_ack=True))
        assert wire.expect_unit(commands.Basic.GetOk, 1).body == b"m"


@pytest.mark.parametrize("n", [FEW_STREAMS, FEW_STREAMS + 1])
def test_streams_are_served_once_their_epochs_are_on_disk(on_disk: DiskFactory, n: int) -> None:
    broker, disk = on_disk()
    broker.start()
    names = [f"s{number}" for number in range(n)]
    declare(broker, *names, **{"x-queue-type": "stream"})
    broker.kill()

    disk.plan(Action.FAIL, Call.SYNC, f"{VHOST}/*", error=errno.EIO)
    broker.start()
    disk.heal()
    refused = [name for name in names if f"queue '{name}' is closed" in broker.log_text()]
    assert refused == names
    assert disk.struck == (n if n == FEW_STREAMS else 1)

    broker.kill()
    broker.start()
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for name in names:
            wire.publish(1, "", name, b"m", PERSISTENT)
            wire.expect(commands.Basic.Ack)
    for name in names:
        file = queue_directory(broker.data_dir, name) / "epochs"
        assert file.read_text().startswith("1 1\n2 1\n3 1")


def test_a_name_that_was_cut_is_written_again(on_disk: DiskFactory) -> None:
    broker, _ = on_disk()
    broker.start()
    declare(broker, "q")
    broker.kill()
    file = queue_directory(broker.data_dir, "q") / ".queue"
    file.write_text("")

    broker.start()

    assert file.read_text() == "q"


def test_a_directory_that_a_start_makes_is_synced_before_a_confirm(on_disk: DiskFactory) -> None:
    """A loss of power may leave the record of a queue without its directory. Nothing was declared
    behind the start, so nobody waited for its name."""
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    declare(broker, "q")
    broker.kill()
    rmtree(queue_directory(broker.data_dir, "q"))
    broker.start()
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", "q", b"m", PERSISTENT)
        wire.expect(commands.Basic.Ack)
        confirmed_ns = time.monotonic_ns()

    records = [each for each in disk.records() if each.time_ns < confirmed_ns]
    made = max(at for at, each in enumerate(records) if each.kind is Call.MKDIR)
    assert records[made].path == place("q")
    synced = [each for each in records[made:] if each.kind is Call.SYNCED]
    assert any(each.path == VHOST or not each.inode for each in synced)
