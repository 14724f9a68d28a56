"""Takes a snapshot of a running broker's files, while it serves.

Threads link the files and take in what changes meanwhile; the loop's thread takes in the last of
it, which makes the moment. Source: docs/backup.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.files.snapshot import Snapshot, SnapshotError
from lavinmq.process.worker import aside

if TYPE_CHECKING:
    from lavinmq.broker import Broker

MOST_NOTES_BYTES: Final = 64 << 20
MOST_TRIES: Final = 1000
"""Of taking in what changes: each time it is what came during the time before."""
LOOK_S: Final = 0.05


class Taking:
    """A snapshot from its beginning to its release.

    Args: position: says how far something has come that hears of the same changes; is_backup: it is
        for a backup, which may take as long as its client likes: there is one at a time, and nodes
        that join do not wait for it.
    """

    def __init__(
        self, broker: Broker, position: Callable[[], int] = int, *, is_backup: bool = False
    ) -> None:
        self._position = position
        self._broker = broker
        self._is_backup = is_backup
        self.since = self.until = 0
        """Positions between which its moment is: what came before the first is in it, nothing
        behind the second."""
        self._loop = broker.loop
        self._root = os.fspath(broker.config.data_dir)
        self._is_mine = False
        self._journal: _core.Journal | None = None
        self.snapshot = Snapshot(self._root)

    async def take(self) -> None:
        """Take it. Raises: SnapshotError, OSError: there is none, and nothing to release."""
        if self._is_backup:
            if self._broker.is_backed_up:
                raise SnapshotError("another backup is being made")
            self._broker.is_backed_up = True
        self._loop.n_snapshots += 1
        self._is_mine = True
        try:
            while self._loop.n_compactions:
                await asyncio.sleep(LOOK_S)
            await self._take()
        except BaseException:
            await self.release()
            raise

    async def _take(self) -> None:
        try:
            journal = _core.Journal(self._loop, self._root, MOST_NOTES_BYTES)
        except RuntimeError as error:
            raise SnapshotError(str(error)) from None
        self._journal = journal
        await aside(self.snapshot.scan)
        for _ in range(MOST_TRIES):
            await aside(self.snapshot.take_in, journal.take())
            if journal.is_overrun:
                raise SnapshotError("files change faster than they are looked at")
            self.since = self._position()
            left = journal.take()
            if self.snapshot.finish(left):
                self.until = self._position()
                return
            await aside(self.snapshot.take_in, left)
        raise SnapshotError("files change too fast")

    def look(self) -> None:
        """Learn what has been cut since the moment. From any thread."""
        if self._journal is not None:
            self.snapshot.take_in_later(self._journal.take())

    async def release(self) -> None:
        """Let go of the files. Idempotent."""
        if self._is_mine:
            self._is_mine = False
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            try:
                await asyncio.shield(aside(self.snapshot.release))
            finally:
                self._loop.n_snapshots -= 1
                if self._is_backup:
                    self._broker.is_backed_up = False
