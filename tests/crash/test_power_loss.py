"""The power goes while a broker works: rebuild what the disk may hold then, and start on it.

One run under load gives a log of all file calls. It is cut at random moments; what was not synced
by then survives in part. Everything confirmed before the cut must be there, and nothing may stop
the start. A failure names its seed. Where single pages may be lost, a message that was not
confirmed may come back with a damaged body: the format of the files has no checksums.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.crash.books import Books, messages_found
from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.load import (
    DAMAGED,
    Client,
    Consumer,
    Declarer,
    Publisher,
    Stream,
    TransactionalPublisher,
)
from tests.crash.workload import Workload
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk, Record
from tests.support.patience import PATIENCE
from tests.support.power_loss import Reading, Survivors
from tests.support.wire import Wire

SHORT_CUTS, LONG_CUTS = 8, 400
SYNC_US = 3000
QUEUES = ("power-0", "power-1", "power-tx")
ENOUGH = 300
RUN_TIMEOUT_S = 20.0 * PATIENCE

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]


@dataclass(slots=True)
class Run:
    """What was done to a broker and, by it, to its disk."""

    records: list[Record]
    books: Books = field(default_factory=Books)
    declared: list[tuple[int, str]] = field(default_factory=list)
    """When a queue's declaration was answered, and its name."""

    def rebuild(self, cut: int, root: Path, chance: random.Random, *, reading: Reading) -> None:
        """Make `root` what may be left when the power goes after `cut` calls."""
        survivors = Survivors(self.records[:cut], reading=reading)
        survivors.write(root, chance)

    def next_call_ns(self, cut: int) -> int:
        """Until when the disk stayed as it was after `cut` calls."""
        return self.records[cut].time_ns if cut < len(self.records) else time.monotonic_ns()


class QueueDeclarer(Declarer):
    """Declares durable queues one after the other."""

    def __init__(self, port: int) -> None:
        self.declared: list[tuple[int, str]] = []
        super().__init__(port, self._declare, commands.Queue.DeclareOk)

    def _declare(self, number: int) -> commands.Queue.Declare:
        if number:
            self.declared.append((time.monotonic_ns(), f"declared-{number - 1}"))
        time.sleep(0.01)
        return commands.Queue.Declare(queue=f"declared-{number}", durable=True)


def clients_of(port: int, seed: int) -> tuple[list[Publisher], list[Consumer], QueueDeclarer]:
    publishers = [
        Publisher(port, [Stream(f"p{at}-{queue}", queue) for queue in QUEUES[:2]], seed + at)
        for at in range(2)
    ]
    publishers.append(TransactionalPublisher(port, Stream("tx", QUEUES[2]), seed))
    # Nobody takes from the first queue: there a loss cannot hide behind an ack.
    consumers = [Consumer(port, QUEUES[1], 20, 3), Consumer(port, QUEUES[2], 50, 7)]
    return publishers, consumers, QueueDeclarer(port)


def run_under_load(broker: Broker, disk: Disk, seed: int) -> Run:
    """Start, work until enough was confirmed, and end it all."""
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    broker.start()
    with Wire.open(broker.port) as wire:
        for queue in QUEUES:
            declare = commands.Queue.Declare(queue=queue, durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
    publishers, consumers, declarer = clients_of(broker.port, seed)
    clients: list[Client] = [*publishers, *consumers, declarer]
    for client in clients:
        client.start()
    streams = [stream for publisher in publishers for stream in publisher.streams.values()]
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while any(stream.confirmed < ENOUGH for stream in streams) or declarer.done < 10:
        assert time.monotonic() < deadline, "no progress"
        assert all(client.is_alive() for client in clients), [each.error for each in clients]
        time.sleep(0.001)
    broker.kill()
    for client in clients:
        client.finish()
    run = Run(disk.records(), declared=declarer.declared)
    run.books.add(streams, consumers)
    return run


def cuts_of(run: Run, chance: random.Random, count: int) -> Iterable[int]:
    """Numbers of calls after which the power goes: the last one, those behind a sync, others."""
    synced = [at for at, record in enumerate(run.records, 1) if record.kind is Call.SYNCED]
    yield len(run.records)
    for number in range(1, count):
        yield chance.choice(synced) if number % 2 else chance.randrange(len(run.records))


def check_after(run: Run, cut: int, broker: Broker, *, reading: Reading) -> None:
    """Start the broker on what is left; compare it with what was confirmed before the cut."""
    before_ns = run.next_call_ns(cut)
    broker.start()
    there = [queue for queue in QUEUES if is_there(broker.port, queue)]
    found = messages_found(broker.port, there, count_is_exact=False)
    if reading is Reading.POSIX:
        found = {queue: [each for each in found[queue] if each != DAMAGED] for queue in found}
    run.books.check(found, before_ns=before_ns, acks_may_be_lost=True)
    for answered_ns, name in run.declared:
        assert answered_ns >= before_ns or is_there(broker.port, name), f"{name} is lost"
    assert "is closed" not in broker.log_text()
    assert broker.stop() == 0


def is_there(port: int, queue: str) -> bool:
    with Wire.open(port) as wire:
        wire.send(1, commands.Queue.Declare(queue=queue, passive=True))
        return isinstance(wire.receive().method, commands.Queue.DeclareOk)


def check_cuts(
    run: Run,
    seed: int,
    count: int,
    directory: Path,
    broker_factory: BrokerFactory,
    reading: Reading,
) -> None:
    chance = random.Random(seed)
    for number, cut in enumerate(cuts_of(run, chance, count)):
        print(f"seed {seed}, cut {number}: after call {cut} of {len(run.records)}")
        root = directory / f"cut-{number}"
        run.rebuild(cut, root, chance, reading=reading)
        check_after(run, cut, broker_factory(data_dir=root, start=False), reading=reading)


@EVERY_READING
def test_what_was_confirmed_survives_a_loss_of_power(
    on_disk: DiskFactory,
    tmp_path: Path,
    broker_factory: BrokerFactory,
    is_long: bool,
    reading: Reading,
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    run = run_under_load(*on_disk(log=True), seed)

    check_cuts(run, seed, LONG_CUTS if is_long else SHORT_CUTS, tmp_path, broker_factory, reading)


@EVERY_READING
def test_what_was_answered_survives_a_loss_of_power_wherever_it_comes(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """In a workload that makes the broker touch its disk in every way."""
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    broker, disk = on_disk(log=True, segment_size=4096)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US // 10)
    workload = Workload()
    assert workload.run(broker)
    records = disk.records()

    for number in range(LONG_CUTS if is_long else SHORT_CUTS):
        cut = chance.randrange(1, len(records) + 1) if number else len(records)
        print(f"seed {seed}, cut {number}: after call {cut} of {len(records)}")
        root = tmp_path / f"cut-{number}"
        Survivors(records[:cut], reading=reading).write(root, chance)
        before_ns = records[cut].time_ns if cut < len(records) else time.monotonic_ns()
        workload.check_at(
            broker_factory(data_dir=root, start=False), before_ns,
            may_be_damaged=reading is Reading.POSIX,
        )  # fmt: skip


def test_without_syncs_a_loss_of_power_does_lose_what_was_confirmed(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    """The simulation must be able to find a loss."""
    run = run_under_load(*on_disk("--no-sync", log=True), seed=1)

    with pytest.raises(AssertionError, match="lost"):
        check_cuts(run, 1, SHORT_CUTS, tmp_path, broker_factory, reading=Reading.JOURNALING)


def test_the_log_of_the_disk_tells_all_that_was_done_to_it(
    on_disk: DiskFactory, tmp_path: Path
) -> None:
    broker, disk = on_disk(log=True)
    broker.start()
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        for number in range(100):
            wire.publish(1, "", "q", b"s:%d:" % number + bytes(1000))
    broker.restart()
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Queue.Declare(queue="gone", durable=True), commands.Queue.DeclareOk)
        wire.call(1, commands.Queue.Delete(queue="gone"), commands.Queue.DeleteOk)
        for _ in range(50):
            wire.call(1, commands.Basic.Get(queue="q", no_ack=True), commands.Basic.GetOk)
    broker.stop()

    Survivors(disk.records()).write_all(tmp_path / "rebuilt")

    assert tree_of(tmp_path / "rebuilt") == tree_of(broker.data_dir)


def tree_of(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


MAKE_HOLES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, bytes(range(1, 256)) * 100)
assert libc.fallocate(fd, 3, ctypes.c_long(4096), ctypes.c_long(8192)) == 0  # a hole
assert libc.fallocate(fd, 1, ctypes.c_long(40000), ctypes.c_long(5000)) == 0  # room behind
assert libc.fallocate(fd, 0, ctypes.c_long(20000), ctypes.c_long(9000)) == 0  # a longer file
assert libc.fallocate(fd, 16, ctypes.c_long(0), ctypes.c_long(4096)) == -1  # zeroing is refused
os.pwrite(fd, b"again", 5000)
"""


@pytest.fixture
def holes(disk_shim: Path, tmp_path: Path) -> Iterator[tuple[Path, list[Record]]]:
    """A directory with a file that has a hole, and the log of how it came to be."""
    root = tmp_path / "data"
    root.mkdir()
    with closing(Disk(disk_shim, root, tmp_path)) as disk:
        disk.plan(Action.NOTHING, Call.CHANGES)
        command = [sys.executable, "-c", MAKE_HOLES, str(root / "file")]
        subprocess.run(command, check=True, env=os.environ | disk.env(log=True))
        yield root, disk.records()


def test_the_log_of_the_disk_tells_of_holes_and_of_room_made_ahead(
    holes: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    root, records = holes
    assert [record.kind for record in records if record.data and record.kind is not Call.WRITE] == [
        Call.PUNCH, Call.ALLOCATE, Call.ALLOCATE
    ]  # fmt: skip

    Survivors(records).write_all(tmp_path / "rebuilt")

    assert tree_of(tmp_path / "rebuilt") == tree_of(root)


def test_a_hole_may_survive_the_data_that_was_written_before_it(
    holes: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    _, records = holes
    first = next(at for at, record in enumerate(records, 1) if record.kind is Call.WRITE)
    synced = [  # the file is on disk as it was first written
        *records[:first],
        replace(records[first - 1], kind=Call.SYNC, data=b""),
        replace(records[first - 1], kind=Call.SYNCED, data=b""),
        replace(records[first - 1], data=b"\0" * 9),
        *records[first:],
    ]
    found = set()
    for seed in range(40):
        root = tmp_path / f"rebuilt-{seed}"
        Survivors(synced, reading=Reading.METADATA_FIRST).write(root, random.Random(seed))
        content = (root / "file").read_bytes()
        found.add((content[:9] == bytes(9), content[4096:4200] == bytes(104), len(content)))

    assert (False, True, 29000) in found
    assert (False, False, 25500) in found
    assert (True, False, 25500) in found


OTHER_NAMES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)  # as the dynamic linker finds them
root, name, call = sys.argv[1:]
path, below, flags, room = f"{root}/file".encode(), b"file", os.O_RDONLY, ctypes.c_size_t(64)
directory = os.open(os.path.dirname(root), os.O_RDONLY)  # outside: not counted
within = os.path.basename(root).encode() + b"/file"
fd = int(os.environ["FILE"]) if "FILE" in os.environ else -1
data, stat = ctypes.create_string_buffer(64), ctypes.create_string_buffer(256)
at = ctypes.c_long(1)
found = eval(call, globals() | {"f": getattr(libc, name)})
assert found >= 0, os.strerror(ctypes.get_errno())
sys.stdout.buffer.write(data.value or stat.raw[48:56])  # what was read, or the size
"""
SIZE = len(b"content").to_bytes(8, "little")


@pytest.mark.parametrize(
    ("names", "call", "kind", "told"),
    [
        (("__open_2", "__open64_2"), "f(path, flags)", Call.OPEN_READ, bytes(8)),
        (("__openat_2", "__openat64_2"), "f(-100, path, flags)", Call.OPEN_READ, bytes(8)),
        (("__xstat", "__xstat64", "__lxstat", "__lxstat64"), "f(1, path, stat)", Call.STAT, SIZE),
        (("__fxstatat", "__fxstatat64"), "f(1, -100, path, stat, 0)", Call.STAT, SIZE),
        (("__read_chk",), "f(fd, data, room, room)", Call.READ, b"content"),
        (("__pread_chk", "__pread64_chk"), "f(fd, data, room, at, room)", Call.READ, b"ontent"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_the_shim_sees_calls_by_the_names_that_other_executables_use(
    names: tuple[str, ...], call: str, kind: Call, told: bytes, disk_shim: Path, tmp_path: Path
) -> None:
    """One that is linked with an older C library, or checks its buffers, does not call `open`."""
    root = tmp_path / "data"
    root.mkdir()
    (root / "file").write_bytes(b"content")
    with closing(Disk(disk_shim, root, tmp_path)) as disk, (root / "file").open("rb") as file:
        for name in names:
            file.seek(0)
            disk.plan(Action.NOTHING, kind)
            found = subprocess.run(
                [sys.executable, "-c", OTHER_NAMES, str(root), name, call], check=True,
                env=os.environ | disk.env() | {"FILE": str(file.fileno())},
                pass_fds=[file.fileno()], stdout=subprocess.PIPE,
            )  # fmt: skip

            assert (name, disk.matched, found.stdout) == (name, 1, told)


def call_of(kind: Call, path: str, inode: int, **more: Any) -> Record:
    """One of a log that nobody has made."""
    given = {
        "target": "", "offset": 0, "data": b"", "created": False, "emptied": False,
        "of_directory": False, "keeps_size": False, "number": 0,
    }  # fmt: skip
    return Record(0, kind, path, inode=inode, **given | more)


def sync_of(path: str, inode: int, *, of_directory: bool = False) -> list[Record]:
    return [
        call_of(kind, path, inode, of_directory=of_directory) for kind in (Call.SYNC, Call.SYNCED)
    ]


def trees_after(records: list[Record], reading: Reading, tmp_path: Path) -> set[str]:
    """What may be left: the paths below the root and what is in them."""
    found = set()
    for seed in range(60):
        root = tmp_path / f"{reading.value}-{seed}"
        Survivors(records, reading=reading).write(root, random.Random(seed))
        tree = {path: data for path, data in tree_of(root).items() if data is not None}
        found.add(" ".join(f"{path}={data.decode()}" for path, data in tree.items()))
    return found


MARKED = [
    call_of(Call.MKDIR, "q", 0),
    call_of(Call.OPEN, "q/paused", 7, created=True),
    call_of(Call.WRITE, "q/paused", 7, data=b"x"),
]


def test_a_synced_file_is_durable_by_posix_only_when_the_names_that_lead_to_it_are(
    tmp_path: Path,
) -> None:
    file, within, above = (
        sync_of("q/paused", 7), sync_of("q", 2, of_directory=True),
        sync_of("", 1, of_directory=True),
    )  # fmt: skip

    def left(*syncs: list[Record]) -> set[str]:
        return trees_after([*MARKED, *(each for sync in syncs for each in sync)], Reading.POSIX,
                           tmp_path)  # fmt: skip

    assert left(file) == left(file, within) == left(file, above) == {"", "q/paused=x"}
    assert left(file, within, above) == {"q/paused=x"}
    assert "q/paused=" in left(within, above)  # its name, and nothing of what is in it


def test_a_name_that_came_while_its_directory_was_being_synced_is_not_durable_by_that(
    tmp_path: Path,
) -> None:
    begun, ended = sync_of("", 1, of_directory=True)
    mark = call_of(Call.OPEN, "paused", 7, created=True)

    for reading in Reading:
        assert trees_after([begun, mark, ended], reading, tmp_path) == {"", "paused="}
        assert trees_after([mark, begun, ended], reading, tmp_path) == {"paused="}


def test_a_sync_of_all_that_ends_late_takes_nothing_back(tmp_path: Path) -> None:
    """It has begun before the file was written, whose own sync had ended meanwhile."""
    begun, ended = sync_of("", 0)
    records = [
        *MARKED[:2], *sync_of("q/paused", 7), begun, MARKED[2], *sync_of("q/paused", 7), ended
    ]  # fmt: skip

    for reading in (Reading.JOURNALING, Reading.METADATA_FIRST):
        assert trees_after(records, reading, tmp_path) == {"q/paused=x"}
