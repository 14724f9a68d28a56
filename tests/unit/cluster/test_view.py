"""What readers of a follower see: at each position of the log exactly what was written then.

A writer's changes go by a feed to a follower's directory, in threads, while a view of that one is
taken from position to position.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lavinmq import _core
from lavinmq.auth.users import UserStore
from lavinmq.broker import Broker
from lavinmq.cluster.view import View
from lavinmq.config.values import from_keywords
from lavinmq.fieldtable import FieldTable
from lavinmq.files import stream_files, vhosts
from lavinmq.files.definitions import DefinitionsFile, QueueDef
from lavinmq.files.directories import hashed
from lavinmq.files.saving import Disk
from lavinmq.files.stream_files import StreamFiles
from lavinmq.files.vhosts import VHostDef
from tests.support.core import Bench, publish
from tests.unit.cluster.test_changes import Copy, Leader, until

STREAM = FieldTable({"x-queue-type": "stream"})
Offsets = tuple[int, int]
"""The first and the next one of a stream."""


class Writer(Bench):
    """Streams of the virtual host `/`, with all that a broker keeps of them."""

    def __init__(self, leader: Leader) -> None:
        super().__init__(leader.root)
        self.leader = leader
        self.streams: dict[str, _core.Queue] = {}
        self.home = leader.root / hashed("/")
        _core.observe_copies(self.loop, str(leader.root), leader.feed.note, leader.feed.address)
        self.disk = Disk()
        self.disk.changes = leader.changes
        leader.changes.make_directory(self.home)
        vhosts.save(leader.root, [VHostDef("/")], self.disk)
        self.users = UserStore(leader.root, "guest", "", True, "guest", self.disk)
        self.users.load()
        self.definitions = DefinitionsFile(self.home / "definitions.amqp", leader.changes)
        self.definitions.load()

    def declare(self, name: str) -> None:
        """A stream, and a queue that is none."""
        self.definitions.append_declare_queue(QueueDef(name, arguments=STREAM))
        self.definitions.append_declare_queue(QueueDef(f"{name}-queue"))
        directory = self.home / hashed(name)
        self.leader.changes.make_directory(directory)
        core = _core.Queue(self.loop, str(directory), 4096, True, is_stream=True)
        core.load()
        self.streams[name] = core
        self.exchange.bind(name.encode(), b"", core)

    def delete(self, name: str) -> None:
        """The stream goes, and its files."""
        self.definitions.append_delete_queue(name)
        core = self.streams.pop(name)
        self.exchange.unbind(name.encode(), b"", core)
        core.delete()
        directory = self.home / hashed(name)
        doomed = directory.with_name(f"{directory.name}.doomed")
        self.leader.changes.rename(directory, doomed)
        for each in list(doomed.iterdir()):
            self.leader.changes.unlink(each)
        self.leader.changes.remove_directory(doomed)

    def fill(self, name: str, n: int, size: int) -> None:
        """Publish so many messages."""
        for number in range(n):
            self.send(publish(name.encode(), bytes([number % 256]) * size))
        self.run()

    def mark(self) -> tuple[int, dict[str, Offsets]]:
        """A position of the log, and what there is then."""
        self.run()
        found = {name: (each.first_offset, each.next_offset) for name, each in self.streams.items()}
        return self.leader.feed.mark(), found

    def close(self) -> None:
        """Let go of everything."""
        self.definitions.close()
        for each in self.streams.values():
            each.delete()
        super().close()


class Reading:
    """A view of a follower's directory."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        config = from_keywords({"data_dir": str(copy.root)})
        events = asyncio.get_running_loop()
        self.broker = Broker(config, events, lambda path, error: None, lambda: None)
        self.broker.loop.is_reading = True
        self.view = View(
            self.broker, copy.follower.ring, str(copy.root), copy.follower.applied
        )  # fmt: skip

    def wait(self, position: int) -> None:
        """Until the follower has come to a position."""
        until(lambda: self.copy.follower.synced >= position)

    async def step(self, position: int) -> None:
        """Come to a position, once the follower has."""
        self.wait(position)
        await self.view.step(position)

    def core(self, name: str) -> _core.Queue | None:
        """A stream that is shown."""
        vhost = self.broker.vhosts.get("/")
        queue = vhost.queues.get(name) if vhost is not None else None
        return None if queue is None else queue.core

    def offsets(self) -> dict[str, Offsets]:
        """Of all streams that are shown."""
        queues = self.broker.vhosts["/"].queues if "/" in self.broker.vhosts else {}
        return {n: (q.core.first_offset, q.core.next_offset) for n, q in queues.items()}

    def close(self) -> None:
        """Let go of everything."""
        self.broker.loop.stop()
        for name in list(self.broker.vhosts):
            self.broker.vhosts.drop_view(name)


def records(core: _core.Queue, first: int, end: int) -> bytes:
    """All from one offset to below another one."""
    found, at = b"", first
    while at < end:
        block, at, *_ = _core.raw_records(core, at, end)
        found += block[16:]
    return found


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """And what carries its changes."""
    with ExitStack() as stack:
        leader = stack.enter_context(closing(Leader(tmp_path / "leader")))
        yield stack.enter_context(closing(Writer(leader)))


@pytest.fixture
def copy(writer: Writer, tmp_path: Path) -> Iterator[Copy]:
    """A follower from now on."""
    with closing(Copy(writer.leader, tmp_path / "copy")) as made:
        made.connect()
        yield made


class Story:
    """Any changes by a seed, and a view that follows them from one position to another."""

    def __init__(self, writer: Writer, reading: Reading, seed: int) -> None:
        self.writer = writer
        self.reading = reading
        self.chance = random.Random(seed)
        self.marks: list[tuple[int, dict[str, Offsets]]] = []
        self.lives: dict[int, dict[str, _core.Queue]] = {}

    def change(self) -> None:
        """One."""
        chance, writer = self.chance, self.writer
        kind, name = chance.choice("cfffffrd"), chance.choice("abc")
        if kind == "c" and name not in writer.streams:
            writer.declare(name)
        elif name not in writer.streams:
            return
        elif kind == "d":
            writer.delete(name)
        elif kind == "r":
            writer.streams[name].set_stream_limits(max_length=chance.randrange(1, 50))
            writer.run()
        else:
            writer.fill(name, chance.randrange(60), chance.randrange(300))
            writer.fill(name, int(chance.random() < 0.1), 300 << 10)

    def change_some(self) -> None:
        """And note what there is then."""
        for _ in range(self.chance.randrange(1, 4)):
            self.change()
        self.marks.append(self.writer.mark())
        self.lives[self.marks[-1][0]] = dict(self.writer.streams)

    async def look(self) -> None:
        """Come to any position."""
        at = self.chance.randrange(len(self.marks))
        del self.marks[:at]
        position, there = self.marks[0]
        await self.reading.step(position)
        for name, (first, end) in self.reading.offsets().items():
            if end == there[name][1]:
                assert there[name][0] <= first
            else:
                assert self.is_gone(name, end, self.lives[position][name])

    def is_gone(self, name: str, offset: int, core: _core.Queue) -> bool:
        """Whether retention, or a deletion, has taken the files before they could be looked at."""
        return self.writer.streams.get(name) is not core or core.first_offset > offset

    async def come_to_the_end(self) -> None:
        """All that is there is shown in the end."""
        for _ in range(3):  # what is found is shown once the log has come to that
            await self.reading.step(self.writer.mark()[0])
        position, there = self.writer.mark()
        await self.reading.step(position)
        assert self.reading.offsets() == there
        assert self.reading.view.is_whole
        for name, core in self.writer.streams.items():
            shown = self.reading.core(name)
            assert shown is not None
            assert records(shown, *there[name]) == records(core, *there[name])


@pytest.mark.parametrize("seed", range(4))
def test_a_view_shows_what_there_was_at_its_position(writer: Writer, copy: Copy, seed: int) -> None:
    async def follow() -> None:
        with closing(Reading(copy)) as reading:
            story = Story(writer, reading, seed)
            for _ in range(30):
                story.change_some()
                if story.chance.random() < 0.5:
                    await story.look()
            await story.come_to_the_end()

    writer.declare("a")
    asyncio.run(follow())


def test_a_view_of_what_was_there_before_it_begins(writer: Writer, tmp_path: Path) -> None:
    writer.declare("a")
    writer.fill("a", 200, 100)

    async def follow(copy: Copy) -> None:
        with closing(Reading(copy)) as reading:
            position, there = writer.mark()
            await reading.step(position)
            assert reading.offsets() == there
            assert set(there) == {"a"}  # and not the queue

    with closing(Copy(writer.leader, tmp_path / "copy")) as copy:
        copy.connect()
        asyncio.run(follow(copy))


def test_a_view_that_the_log_has_left_behind_is_missed(writer: Writer, copy: Copy) -> None:
    async def follow() -> None:
        with closing(Reading(copy)) as reading:
            await reading.step(writer.mark()[0])
            for _ in range(10):
                writer.leader.append("x", bytes(1 << 20))
                position = writer.mark()[0]
                reading.wait(position)
            with pytest.raises(LookupError):
                await reading.step(position)

    asyncio.run(follow())


def test_users_are_those_of_the_files(writer: Writer, copy: Copy) -> None:
    async def follow() -> None:
        with closing(Reading(copy)) as reading:
            await reading.step(writer.mark()[0])
            user = reading.broker.users.get("guest")
            assert user is not None
            assert user.can_read("/", "x")
            writer.users.set_permissions("guest", "/", "", "only", "")
            writer.users.save()
            await reading.step(writer.mark()[0])
            assert user.can_read("/", "x")  # read a moment ago
            reading.view._users_at = 0
            await reading.step(writer.mark()[0])
            assert not user.can_read("/", "x")
            assert user.can_read("/", "only")

    asyncio.run(follow())


def test_a_stream_whose_directory_cannot_be_read_costs_the_others_nothing(
    writer: Writer, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(directory: str) -> StreamFiles | None:
        if directory.endswith(hashed("bad")):
            raise OSError(5, "Input/output error", directory)
        return look(directory)

    look = stream_files.look

    async def follow() -> None:
        with closing(Reading(copy)) as reading:
            for name in ("bad", "good"):
                writer.declare(name)
                writer.fill(name, 5, 100)
            position, held = writer.mark()
            with monkeypatch.context() as broken:
                broken.setattr(stream_files, "look", fails)
                for _ in range(3):
                    await reading.step(position)
                assert reading.offsets() == {"good": held["good"]}
            for _ in range(3):
                await reading.step(writer.mark()[0])
            assert reading.offsets() == held

    asyncio.run(follow())
