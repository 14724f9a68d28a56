"""Writes the files of stored offsets anew, when they are full or hold what is forgotten.

A thread writes and syncs the copy; the loop adds what was acknowledged meanwhile and puts it in
place. Looked after every half minute, and when somebody forgets an offset and waits for that. Of
one stream one thread writes at a time: there is one name for the copy.
"""

import asyncio
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
        self._writing: dict[Queue, asyncio.Task[OSError | None]] = {}

    def look(self, queue: Queue) -> None:
        """Begin to write the file of a queue anew, if it is due."""
        if queue.is_stream and queue.core.is_offsets_due:
            self._tasks.start(self._written(queue))

    async def saved(self, queue: Queue) -> None:
        """Return when what is forgotten now is forgotten on disk as well.

        Raises: OSError; then it is tried again later.
        """
        await self.ended(queue)  # it began before
        if queue not in self._writing and queue.core.is_offsets_due:
            # Its thread goes on when who wants it has gone: so does the task.
            self._writing[queue] = self._tasks.start(self._write(queue, queue.core.begin_offsets()))
        if queue in self._writing:
            error = await asyncio.shield(self._writing[queue])
            if error is not None:
                raise error

    async def ended(self, queue: Queue) -> None:
        """Return when no thread writes the file any more; of a closed stream, none begins."""
        if queue in self._writing:
            await asyncio.wait([self._writing[queue]])

    async def _write(self, queue: Queue, text: bytes) -> OSError | None:
        """Write the file anew, once. Returns why that failed."""
        path = f"{queue.directory}/{TEMPORARY}"
        n_written = -1
        try:
            await self._disk.run(partial(write, path, text, self._disk.changes))
            n_written = len(text)
        except OSError as error:
            return error
        finally:
            del self._writing[queue]
            failure = _end(queue, n_written)
        return failure

    async def _written(self, queue: Queue) -> None:
        try:
            await self.saved(queue)
        except OSError as error:
            _log.error("offsets of stream %r are not compacted: %s", queue.name, error)


def _end(queue: Queue, n_written: int) -> OSError | None:
    """The file takes its place; negative: there is none. Returns why it does not."""
    if queue.core.is_closed:
        return OSError(f"stream '{queue.name}' was closed meanwhile")
    try:
        queue.core.end_offsets(n_written)
    except OSError as error:
        return error
    return None


def write(path: str, text: bytes, changes: Changes) -> None:
    """Write and sync a copy, in a thread. Raises: OSError."""
    fd = changes.open(path, os.O_CREAT | os.O_TRUNC)
    try:
        changes.write(path, fd, text, 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
