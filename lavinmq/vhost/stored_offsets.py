"""Writes the files of stored offsets anew, when they are full or hold what is forgotten.

A thread writes and syncs the copy; the loop adds what was acknowledged meanwhile and puts it in
place. Looked after every half minute, and when somebody forgets an offset and waits for that.
"""

import os
from functools import partial
from typing import Final

from lavinmq.auth.tasks import Tasks
from lavinmq.files.changes import Changes
from lavinmq.files.saving import Disk
from lavinmq.process import log
from lavinmq.vhost.queue import Queue

TEMPORARY: Final = "consumer_offsets.tmp"
_log = log.get("lmq.stored_offsets")


class StoredOffsets:
    """The files of all streams. Args: tasks: of those who wait for the disk."""

    def __init__(self, disk: Disk, tasks: Tasks) -> None:
        self._disk = disk
        self._tasks = tasks

    def look(self, queue: Queue) -> None:
        """Begin to write the file of a queue anew, if it is due."""
        if queue.is_stream and queue.core.is_offsets_due:
            self._tasks.start(self._written(queue))

    async def saved(self, queue: Queue) -> None:
        """Return when what is forgotten now is forgotten on disk as well.

        Raises: OSError; then it is tried again later.
        """
        # One that is under way began before, or for us: then another one is not due.
        while queue.core.is_offsets_due:
            text = queue.core.begin_offsets()
            try:
                await self._disk.run(
                    partial(write, f"{queue.directory}/{TEMPORARY}", text, self._disk.changes)
                )
            except BaseException:
                queue.core.end_offsets(-1)
                raise
            queue.core.end_offsets(len(text))

    async def _written(self, queue: Queue) -> None:
        try:
            await self.saved(queue)
        except OSError as error:
            _log.error("offsets of stream %r are not compacted: %s", queue.name, error)


def write(path: str, text: bytes, changes: Changes) -> None:
    """Write and sync a copy, in a thread. Raises: OSError."""
    fd = changes.open(path, os.O_CREAT | os.O_TRUNC)
    try:
        changes.write(path, fd, text, 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
