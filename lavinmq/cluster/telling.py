"""Tells followers that serve readers up to which position all nodes have everything on disk.

A reader of a follower sees no more than that: what it has read is there whoever leads next. One
round after the other, as long as there is something new. On the leader's loop.
Source: docs/clustering.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lavinmq._cluster import Feed, sync_file_systems
from lavinmq.files import file_systems
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.broker import Broker

TELL_S: Final = 0.5
"""Between two rounds."""
WAIT_S: Final = 0.1
"""Between two looks whether all followers have got so far."""
AGAIN_S: Final = 6.0
"""After which a directory that could not be opened is tried again."""
_log = log.get("lmq.cluster")


class Telling:
    """Args: has_readers: whether there is anybody to be told."""

    def __init__(self, broker: Broker, feed: Feed, has_readers: Callable[[], bool]) -> None:
        self._broker = broker
        self._feed = feed
        self._has_readers = has_readers
        self._told = -1
        """Up to which position all followers know."""
        self._round: asyncio.Task[None] | None = None
        self._file_systems: list[int] = []
        """Descriptors of the data directory and of others that it leads to, once they are needed.
        They stay open: what could not be written meanwhile is told by them alone."""

    def look(self) -> None:
        """Begin a round, if there is more to tell than there was."""
        is_busy = self._round is not None and not self._round.done()
        if self._has_readers() and not is_busy and self._feed.changed > self._told:
            self._round = self._broker.events.create_task(self._tell())

    def begin_anew(self) -> None:
        """A follower has come that has got further than what was told before."""
        self._told = -1

    def close(self) -> None:
        """Tell no more. Idempotent."""
        if self._round is not None:
            self._round.cancel()
        while self._file_systems:
            os.close(self._file_systems.pop())

    async def _tell(self) -> None:
        """One round. A confirm waits for the files of its message alone; here all that was changed
        has to be on the disk of this node, too."""
        root, events = self._broker.config.data_dir, self._broker.events
        try:
            if not self._file_systems:
                # There may be very many directories of queues to look at.
                self._file_systems = await events.run_in_executor(None, _opened, root)
        except OSError as error:
            _log.warning("followers do not hear what all have: %s", error)
            await asyncio.sleep(AGAIN_S)
            return
        position = self._feed.mark()
        try:
            await events.run_in_executor(None, sync_file_systems, [*self._file_systems])
        except OSError as error:
            self._broker.disk.on_unsure(root, error.errno or 0)
            return
        while not self._feed.has(position):
            await asyncio.sleep(WAIT_S)
        self._told = position
        self._feed.tell(position)
        self._feed.mark()  # which says so
        await asyncio.sleep(TELL_S)


def _opened(root: str) -> list[int]:
    """Descriptors of a directory, and of each other file system that holds a part of it. Raises:
    OSError: one cannot be opened, and none is then."""
    found: list[int] = []
    try:
        for path in (root, *file_systems.others(root)):
            found.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        for fd in found:
            os.close(fd)
        raise
    return found
