"""A definitions file that is written anew in a thread, while its virtual host is deleted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lavinmq.files.changes import Changes, Name
from lavinmq.files.definitions import DefinitionsFile, QueueDef, queue_record
from lavinmq.files.definitions_compaction import Compaction
from lavinmq.files.saving import Disk


class HeldChanges(Changes):
    """Threads wait in one of the calls until the test lets them go on."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self._held = held
        self.is_there = threading.Event()
        self.goes_on = threading.Event()

    def open(self, path: Name, flags: int) -> int:
        """As the real one."""
        self._hold("open")
        return super().open(path, flags)

    def rename_unnoted(self, path: Name, target: Name) -> None:
        """As the real one."""
        self._hold("rename")
        super().rename_unnoted(path, target)

    def _hold(self, call: str) -> None:
        if call == self._held and threading.current_thread() is not threading.main_thread():
            self.is_there.set()
            assert self.goes_on.wait(60)


def records() -> Iterator[bytes]:
    yield queue_record(QueueDef("of the old one"))


@pytest.mark.parametrize("held", ["open", "rename"])
def test_a_thread_of_a_deleted_host_leaves_the_files_of_the_next_one_alone(
    tmp_path: Path, held: str
) -> None:
    """It found the next one in the directory: its copy came there, or took what was the next one's
    copy for its own and put that in place."""
    directory = tmp_path / "host"
    directory.mkdir()

    async def scenario() -> None:
        events = asyncio.get_running_loop()
        disk = Disk(events)
        disk.changes = changes = HeldChanges(held)
        disk.start()
        file = DefinitionsFile(directory / "definitions.amqp", changes)
        file.load()
        Compaction(file, records(), disk, lambda _: None, lambda: None).start()
        await asyncio.to_thread(partial(changes.is_there.wait, 60))

        file.close()
        events.call_soon(changes.goes_on.set)
        await disk.run(file.release)
        directory.rename(tmp_path / "deleted")
        directory.mkdir()
        for name in ("definitions.amqp", "definitions.amqp.tmp"):
            (directory / name).write_text("of the next one")
        await asyncio.to_thread(disk.stop)
        for _ in range(9):
            await asyncio.sleep(0)

    asyncio.run(scenario())

    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        "definitions.amqp": "of the next one",
        "definitions.amqp.tmp": "of the next one",
    }
