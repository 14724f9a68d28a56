"""Files of stored offsets that are written anew by a thread: one at a time, whatever happens."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from lavinmq import _core
from lavinmq.auth.tasks import Tasks
from lavinmq.files.saving import Disk
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.stored_offsets import StoredOffsets
from tests.support.streams import NAME, StreamBench, stored_offsets


class HeldDisk(Disk):
    """What is to be written waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[asyncio.Event] = []

    async def run(self, work: Callable[[], Any]) -> Any:
        """As the real one, but for the wait."""
        self.held.append(asyncio.Event())
        await self.held[-1].wait()
        return work()


class Stream:
    """A queue, as far as it is looked at here."""

    def __init__(self, core: _core.Queue, directory: Path) -> None:
        self.name = NAME
        self.core = core
        self.directory = str(directory)


class Scene:
    """A stream with a stored offset, whose file is written anew."""

    def __init__(self, bench: StreamBench) -> None:
        self.bench = bench
        self.disk = HeldDisk()
        self.tasks = Tasks(asyncio.get_running_loop())
        self.offsets = StoredOffsets(self.disk, self.tasks)
        self.file = bench.directory / NAME / "consumer_offsets"
        self.queue = cast("Queue", Stream(bench.core, self.file.parent))

    def forget(self, tag: bytes) -> asyncio.Task[None]:
        """As the request does; it is over when that is on disk."""
        assert self.bench.core.store_offset(tag, 0)
        return asyncio.create_task(self.offsets.saved(self.queue))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StreamBench]:
    with closing(StreamBench(tmp_path / "data", 4096)) as made:
        for number in range(9):
            made.publish(b"%d" % number)
        made.run()
        for tag in (b"one", b"two", b"kept"):
            assert made.core.store_offset(tag, 3)
        made.run()
        yield made


async def turns() -> None:
    for _ in range(9):
        await asyncio.sleep(0)


def tags(data: bytes) -> list[bytes]:
    """Whose offsets are in a file that was written anew: each is 3."""
    found = []
    while data:
        tag, offset = struct.unpack(f"<{data[0]}sq", data[1 : 9 + data[0]])
        assert offset == 3
        found.append(tag)
        data = data[9 + len(tag) :]
    return sorted(found)


def test_what_is_forgotten_while_the_file_is_written_is_waited_for(bench: StreamBench) -> None:
    """Who forgot another offset meanwhile was answered while the disk had it still."""

    async def scenario() -> None:
        scene = Scene(bench)
        one = scene.forget(b"one")
        await turns()
        two = scene.forget(b"two")
        await turns()
        assert not one.done() and not two.done()

        scene.disk.held[0].set()
        await turns()
        assert one.done() and not two.done()
        assert len(scene.disk.held) == 2

        scene.disk.held[1].set()
        await two
        assert tags(scene.file.read_bytes()) == [b"kept"]

    asyncio.run(scenario())


def test_nobody_else_writes_while_a_thread_does_though_its_client_has_gone(
    bench: StreamBench,
) -> None:
    """The next one began, and wrote the same file at the same time."""

    async def scenario() -> None:
        scene = Scene(bench)
        scene.forget(b"one").cancel()
        gone = scene.forget(b"one")
        await turns()
        gone.cancel()
        two = scene.forget(b"two")
        await turns()
        assert gone.cancelled() and len(scene.disk.held) == 1

        for number in range(2):
            scene.disk.held[number].set()
            await turns()
        assert two.done() and tags(scene.file.read_bytes()) == [b"kept"]

    asyncio.run(scenario())


def test_a_stream_is_read_again_when_its_file_is_written(bench: StreamBench) -> None:
    """Read meanwhile, it began to write the same file, and the thread of before went on."""

    async def scenario() -> None:
        scene = Scene(bench)
        one = scene.forget(b"one")
        await turns()
        _close_by_failure(bench, scene.file.parent)
        ended = asyncio.create_task(scene.offsets.ended(scene.queue))
        await turns()
        assert not ended.done()

        scene.disk.held[0].set()
        await ended
        with pytest.raises(OSError, match="closed"):
            await one
        list(_core.Restart(bench.core))
        assert not bench.core.is_closed
        assert stored_offsets(bench.core) == {b"one": 3, b"two": 3, b"kept": 3}
        two = scene.forget(b"two")
        await turns()
        scene.disk.held[1].set()
        await two
        assert tags(scene.file.read_bytes()) == [b"kept", b"one"]

    asyncio.run(scenario())


def _close_by_failure(bench: StreamBench, directory: Path) -> None:
    """There is no directory when the next segment is to be made."""
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.touch()
    for _ in range(9):
        bench.publish(bytes(1000))
        bench.run()
    directory.unlink()
    aside.rename(directory)
    assert bench.core.is_closed
