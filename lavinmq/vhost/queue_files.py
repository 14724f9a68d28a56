"""The files of the queues of one virtual host: made, read, and removed once nobody needs them.

On the loop thread; what is long is done in portions or beside the loop.
Source: docs/formats.md, docs/durability.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lavinmq import _core
from lavinmq.files import stream_epochs
from lavinmq.files.deleted import DOOMED, DeletedFiles
from lavinmq.files.directories import (
    TRANSIENT,
    hashed,
    is_empty,
    remove_tree,
    set_aside,
    write_text,
)
from lavinmq.files.saving import Disk
from lavinmq.process.log import Log
from lavinmq.process.portions import Portions
from lavinmq.vhost import pause, stream_identity
from lavinmq.vhost.dedup_keys import DedupKeys
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.recorded import Recorded
from lavinmq.vhost.store_news import StoreNews


class QueueFiles:
    """What the queues of one virtual host have on disk.

    Args:
        directory: of the virtual host, with a directory for each stored queue; those of the others
            are in `transient` below it.
        loop: whose worker syncs.
        recorded: says when a deletion is on disk.
        keys: the files of duplicates.
        news: what is said of files that cannot be read.
        disk: see `files/saving.py`.
        portions: in which directories are removed.
        log: that of the virtual host.
        is_clean: whether an orderly stop has synced all that is there.
    """

    def __init__(
        self, directory: Path, loop: _core.Loop, recorded: Recorded, keys: DedupKeys,
        news: StoreNews, disk: Disk, portions: Portions, log: Log, *, is_clean: bool,
    ) -> None:  # fmt: skip
        self.directory = directory
        # Shared by all queues, which would else have a path each.
        self.stored = str(directory)
        self.transient = f"{directory}/{TRANSIENT}"
        self._loop = loop
        self._recorded = recorded
        self._keys = keys
        self._news = news
        self._disk = disk
        self._log = log
        self._is_clean = is_clean
        self._deleted = DeletedFiles(directory, portions, log, disk.changes)

    def open(self) -> None:
        """Before any queue is made: what was transient is gone. Raises: OSError."""
        if not is_empty(self.transient):  # that of a new virtual host was made with it
            self.remove_transient()
            self._disk.changes.make_directory(self.transient)

    def remove_left(self) -> None:
        """Once all queues are loaded: remove what a crash has left of deleted ones."""
        self._deleted.remove_left()

    def remove_deleted(self) -> None:
        """All deletions are on disk, and nobody is served any more. Raises: OSError."""
        self._deleted.finish()

    def remove_transient(self) -> None:
        """Remove what ends with the broker. Raises: OSError."""
        remove_tree(Path(self.transient), self._disk.changes)

    def abandon(self) -> None:
        """Nothing is removed from now on."""
        self._deleted.forget()

    # --- a queue comes ------------------------------------------------------------------------

    def make(self, name: str) -> None:
        """An empty directory for a new durable queue. One that is there is set aside, not reused:
        its messages must not appear in the new queue, and are not ours to throw away."""
        directory = self.directory / hashed(name)
        try:
            self._disk.changes.make_directory(directory)
        except FileExistsError:
            self.make_way(name)
            self._disk.changes.make_directory(directory)
        self._recorded.name_added()
        write_text(directory / ".queue", name, self._disk.changes)

    def make_way(self, name: str) -> None:
        """Have nothing there where a new queue of that name is going to be. Raises: OSError."""
        directory = self.directory / hashed(name)
        self._deleted.make_way(directory)
        aside = set_aside(directory, self._disk.changes)
        if aside is not None:
            self._log.warning("files of an earlier queue %r were left: now in %s", name, aside)

    def load(self, queue: Queue) -> None:
        """Read what the directory of a durable queue holds, and make one where there is none."""
        directory = Path(queue.directory)
        self._recorded.name_added()
        try:
            if not directory.is_dir():
                self._disk.changes.make_directory(directory)
            write_text(directory / ".queue", queue.name, self._disk.changes)
        except OSError as error:
            self._log.warning("queue %r: %s", queue.name, error)
        queue.core.is_paused = self._is_paused(queue)
        is_stream = queue.is_stream
        try:
            self._note(queue, queue.core.load(is_synced=self._is_clean, is_held=is_stream))
            if is_stream and self._is_clean:
                queue.core.epochs = stream_epochs.load(queue.directory)
            elif is_stream:
                self._begin_epoch(queue, os.fsync)
            if is_stream:
                queue.core.open()
        except (OSError, ValueError) as error:
            self._log.error("queue %r is closed, its files are left alone: %s", queue.name, error)
            self._news.report_damage(queue)
        else:
            self._keys.load(queue)
            self.identify(queue)

    def _is_paused(self, queue: Queue) -> bool:
        """Whether an operator has paused it; in doubt it is: who knows better resumes it."""
        try:
            return pause.is_marked(queue.directory, self._disk.changes)
        except OSError as error:
            self._log.error(
                "queue %r is paused, because it cannot be read whether it was: %s",
                queue.name,
                error,
            )
            return True

    def restart(self, queue: Queue) -> None:
        """Read the files of a closed queue again. A stream is served once that is synced.

        Raises: ValueError or OSError, naming the file, when that cannot be read: it stays closed.
        """
        self._news.forget(queue)
        self._note(queue, queue.core.restart(is_held=queue.is_stream))
        if queue.is_stream:
            self._begin_epoch(queue, lambda fd: self._loop.sync_file(fd, _nothing))
            self._recorded.when_synced(queue.core.open)

    def identify(self, queue: Queue, *, is_new: bool = False) -> None:
        """Give a stream what tells it from others of its name, unless it has that; that of a new
        one is on disk when its declaration is."""
        if not queue.is_stream or queue.core.created:
            return
        try:
            queue.core.created = stream_identity.make(queue.directory, self._disk.changes)
            if is_new:
                self._recorded.sync_directory(queue.directory)
        except OSError as error:
            self._log.warning("the identity of stream %r cannot be stored: %s", queue.name, error)

    def _begin_epoch(self, queue: Queue, sync: Callable[[int], object]) -> None:
        """A stream was loaded without an orderly stop before: offsets from here on may have been
        given before. It is not to be served before the epoch is on disk. Raises: OSError."""
        first = queue.core.next_offset
        queue.core.epochs = epochs = stream_epochs.begin(
            queue.directory, first, sync, self._disk.changes
        )
        self._log.info("stream %r: epoch %d begins at offset %d", queue.name, epochs[-1][0], first)

    def _note(self, queue: Queue, notes: list[str]) -> None:
        """Log what loading a queue has put right, and what it could not read."""
        for note in notes:
            self._log.warning("queue %r: %s", queue.name, note)
        self._news.report_damage(queue)

    # --- a queue goes -------------------------------------------------------------------------

    def remove(self, queue: Queue, *, is_large: bool = False) -> None:
        """Those of a stored queue stay until its deletion is on disk. Many go behind the loop;
        what a crash leaves of them goes at the next start. What cannot be removed stays, and is set
        aside by a queue of the same name."""
        directory = Path(queue.directory)
        if queue.is_stored:
            self._recorded.when_synced(self._deleted.add(directory))
            return
        try:
            if is_large and self._disk.is_running:
                doomed = Path(self.transient) / f"{directory.name}{DOOMED}{time.time_ns()}"
                self._disk.changes.rename(directory, doomed)
                self._disk.submit(
                    partial(remove_tree, doomed, self._disk.changes),
                    partial(self._removed, queue.name),
                )
            else:
                remove_tree(directory, self._disk.changes)
        except OSError as error:
            self._removed(queue.name, None, error)

    def _removed(self, name: str, _: None, error: OSError | None) -> None:
        if error is not None:
            self._log.error("files of the deleted queue %r stay: %s", name, error)


def _nothing() -> None:
    """It is synced before what somebody waits for."""
