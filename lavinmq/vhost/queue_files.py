"""The files of the queues of one virtual host: made, read, and removed once nobody needs them.

On the loop thread; directories of durable queues are made, renamed and removed beside the loop.
Source: docs/formats.md, docs/durability.md.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from lavinmq import _core
from lavinmq.files import stream_epochs
from lavinmq.files.deleted import DeletedFiles
from lavinmq.files.directories import (
    TRANSIENT,
    hashed,
    is_empty,
    remove_tree,
    set_aside,
    write_text,
)
from lavinmq.files.read_ahead import read_ahead
from lavinmq.files.saving import Disk
from lavinmq.process.log import Log
from lavinmq.process.portions import PORTION_S, others_first
from lavinmq.process.worker import outcome
from lavinmq.vhost import new_queue, pause, stored_offsets, stream_identity
from lavinmq.vhost.ahead import Ahead
from lavinmq.vhost.dedup_keys import DedupKeys
from lavinmq.vhost.new_queue import Directory, Making
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.recorded import Recorded
from lavinmq.vhost.store_news import StoreNews

Entries: TypeAlias = "dict[str, _core.Entry]"
"""Of a directory, by name."""
Look: TypeAlias = "Callable[[], Entries | None]"
"""Tells what is in a directory; None: it is not there. Raises: OSError."""
NAME_FILE: Final = ".queue"
MOST_DELAYED: Final = 256 << 10
"""Bytes of delayed messages that are read ahead: their index is made in one step."""
FEW_STREAMS: Final = 4
"""Whose files are synced one by one; one sync of the file system is cheaper than those of more."""


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
        log: that of the virtual host.
        is_clean: whether an orderly stop has synced all that is there.
    """

    def __init__(
        self, directory: Path, loop: _core.Loop, recorded: Recorded, keys: DedupKeys,
        news: StoreNews, disk: Disk, log: Log, *, is_clean: bool,
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
        self._deleted = DeletedFiles(directory, disk, log)
        self._makings: dict[str, Making] = {}
        self._held: list[Queue] = []
        """Streams that are loaded and not served yet."""
        self._begun: set[str] = set()
        """Of these, who has begun an epoch, which is not on disk yet."""
        self._lives = itertools.count(1)
        self.ahead: Ahead | None = None
        """What is read ahead, and left closed, while another node's changes come to the files."""

    def open(self) -> None:
        """Before any queue is made: what was transient is gone. Raises: OSError."""
        if not is_empty(self.transient):  # that of a new virtual host was made with it
            self.remove_transient()
            self._disk.changes.make_directory(self.transient)

    def remove_left(self, queues: Iterable[Queue]) -> None:
        """Once all queues are loaded: remove what a crash has left of deleted ones."""
        self._deleted.remove_left(queue.name for queue in queues)

    def remove_deleted(self) -> None:
        """All deletions are on disk, and nobody is served any more. Raises: OSError."""
        self._deleted.finish()

    def remove_transient(self) -> None:
        """Remove what ends with the broker. Raises: OSError."""
        remove_tree(Path(self.transient), self._disk.changes)

    def new_life(self) -> int:
        """A number for the directory of a queue that is not stored. The next queue of its name has
        another one, and need not wait until the files of this one are gone."""
        return next(self._lives)

    def abandon(self) -> None:
        """Nothing is removed from now on."""
        self._deleted.forget()

    # --- a queue comes ------------------------------------------------------------------------

    def wish(
        self, name: str, callback: Callable[[], object], *, is_stream: bool, is_held: bool = False
    ) -> None:
        """Have a directory for a new durable queue, and call back once it has been made or cannot
        be: `found` says within the call what has come of it. Who wishes for the same meanwhile is
        called back, too. Args: is_held: it is kept until somebody takes it, or `release`."""
        making = self._makings.get(name)
        if making is not None:
            making.is_held = making.is_held or is_held
            making.when_over(callback)
            return
        making = self._makings[name] = Making()
        making.is_held = is_held
        making.when_over(callback)
        path = f"{self.stored}/{hashed(name)}"
        self._deleted.make_way(path)
        self._disk.names.add(
            partial(
                new_queue.make_directory, path, name, self._disk.changes, is_stream=is_stream
            ),
            partial(self._made, name, making),
        )  # fmt: skip

    def found(self, name: str) -> Directory | None:
        """The directory that was made for a new queue; None: there is none, or not yet.

        Raises: OSError saying why it could not be made.
        """
        making = self._makings.get(name)
        if making is None or not making.is_over:
            return None
        if making.error is not None:
            raise making.error
        return making.directory

    def take(self, name: str) -> None:
        """The queue exists: its directory is synced with its record."""
        making = self._makings.pop(name)
        if making.directory is not None:
            self._tell_aside(name, making.directory.aside)
        self._recorded.name_added()

    def sync_names(self) -> None:
        """Have directories that were taken on disk before a message in them is confirmed."""
        self._recorded.sync_names()

    @property
    def is_beside(self) -> bool:
        """Whether directories are made beside the loop, so that who wants one has to wait."""
        return self._disk.is_running

    async def prepare(self, names: Collection[tuple[str, bool]]) -> None:
        """Make directories of queues that are going to be declared soon, and keep them until
        `release`. Args: names: each with whether it is that of a stream."""
        n_left = len(names)
        over: asyncio.Future[None] | None = None

        def one_over() -> None:
            nonlocal n_left
            n_left -= 1
            if n_left == 0 and over is not None and not over.done():
                over.set_result(None)

        for name, is_stream in names:
            self.wish(name, one_over, is_stream=is_stream, is_held=True)
        if n_left:
            over = asyncio.get_running_loop().create_future()
            await over

    def release(self, name: str) -> None:
        """Nobody is going to declare it any more, unless that has happened."""
        making = self._makings.get(name)
        if making is not None and making.is_held:
            making.is_held = False
            if making.is_over:
                self._drop(name, making)

    def _made(
        self, name: str, making: Making, directory: Directory | None, error: OSError | None
    ) -> None:
        if error is None:
            self._deleted.forget_name(f"{self.stored}/{hashed(name)}")
        try:
            making.finish(directory, error)
        finally:
            if not making.is_held:
                self._drop(name, making)

    def _drop(self, name: str, making: Making) -> None:
        """Forget it, and remove what no queue has taken."""
        if self._makings.get(name) is not making:
            return
        del self._makings[name]
        if making.directory is not None:
            self._deleted.add(f"{self.stored}/{hashed(name)}")()

    def make_way(self, name: str) -> None:
        """Have nothing there where a new queue of that name is going to be. Raises: OSError."""
        directory = self.directory / hashed(name)
        self._deleted.make_way(str(directory))
        self._tell_aside(name, set_aside(directory, self._disk.changes))
        self._deleted.forget_name(str(directory))

    def is_left(self, name: str) -> bool:
        """Whether a deleted queue may have left a directory of its name. Raises: OSError, once,
        saying why that could not be set aside."""
        return self._deleted.is_named(f"{self.stored}/{hashed(name)}")

    def set_aside(self, name: str, callback: Callable[[], object]) -> None:
        """Have what a deleted queue has left lose its name, and call back: `is_left` says within
        the call what has come of it."""
        making = self._makings.get(name)
        if making is not None and not making.is_over:  # that sets it aside, and is not to be itself
            making.when_over(callback)
            return
        path = f"{self.stored}/{hashed(name)}"
        self._deleted.set_aside(path, partial(self._set_aside, name, callback))

    def _set_aside(self, name: str, callback: Callable[[], object], aside: Path | None) -> None:
        self._recorded.name_added()
        self._tell_aside(name, aside)
        callback()

    def _tell_aside(self, name: str, aside: Path | None) -> None:
        if aside is not None:
            self._log.warning("files of an earlier queue %r were left: now in %s", name, aside)

    def load(self, queue: Queue, directory: str, look: Look | None = None) -> None:
        """Read what the directory of a durable queue holds, and make one where there is none. Args:
        look: tells what is in it, if somebody knows."""
        if self.ahead is not None:
            for _ in self.load_ahead(self.ahead, queue, directory):
                pass
            return
        look = look or partial(_core.entries_in, directory)
        entries = self._entries_of(queue, directory, look)
        if self._is_paused(queue, directory, entries):
            queue.core.is_paused = True
        is_stream = queue.is_stream
        try:
            notes = queue.core.load(entries, is_synced=self._is_clean, is_held=is_stream)
            self._note(queue, notes)
            if is_stream and self._begin_epoch(queue, is_clean=self._is_clean):
                self._begun.add(queue.name)
        except (OSError, ValueError) as error:
            self._unread(queue, error)
            return
        self._keys.load(queue)
        if is_stream:
            self.identify(queue)
            self._held.append(queue)

    def load_ahead(self, ahead: Ahead, queue: Queue, directory: str) -> Iterator[None]:
        """The same of a queue that nobody is served by yet, and of files that may change meanwhile:
        it is ready if they were as an orderly load leaves them. A segment in each step."""
        if not can_be_ready(queue):
            return
        core = queue.core
        ahead.tried[queue] = at = ahead.place.position()
        n_refused = self._loop.n_kept_out
        try:
            entries = _core.entries_in(directory)
            if entries is None or not _is_named(queue, entries.get(NAME_FILE)):
                return
            if queue.is_internal and sum(each.size for each in entries.values()) > MOST_DELAYED:
                return
            core.is_paused = pause.is_marked(directory, entries, self._disk.changes)
            if sum(name.startswith(("msgs.", "prio.")) for name in entries) < 2:
                notes = core.load(entries, is_held=True)
            else:
                core.forget()
                steps = _core.Restart(core, is_held=True)
                for _ in steps:
                    yield
                notes = steps.notes
        except (OSError, ValueError):
            return
        was_refused = self._loop.n_kept_out != n_refused
        if not (notes or was_refused or core.take_damage() or core.lost or core.read_error):
            ahead.queues[queue] = at
            del ahead.tried[queue]

    def take_over(self, queue: Queue, *, is_ready: bool) -> None:
        """Serve a queue of which all was read ahead, or read it now."""
        if is_ready:
            queue.core.open()
            return
        if queue.core.is_closed:  # something was read of it
            queue.core.forget()
        if queue.core.is_paused:
            queue.core.is_paused = False
        self.load(queue, queue.directory)

    def open_streams(self) -> None:
        """Serve the streams that were loaded, once the epochs that they have begun are on disk."""
        held, self._held = self._held, []
        begun, self._begun = self._begun, set()
        outcomes: dict[int, OSError | None] = {}
        for queue in held:
            try:
                if queue.name in begun:
                    self._sync_epochs(queue, outcomes if len(held) > FEW_STREAMS else None)
                queue.core.open()
            except OSError as error:
                self._unread(queue, error)

    def _sync_epochs(self, queue: Queue, outcomes: dict[int, OSError | None] | None) -> None:
        """Have the epochs of a stream on disk; where `outcomes` are noted, by way of the file
        system, once for each of them. Raises: OSError."""
        if outcomes is None:
            stream_epochs.sync(queue.directory)
            return
        device = os.stat(queue.directory).st_dev
        if device not in outcomes:
            outcomes[device] = outcome(partial(_core.sync_file_system, queue.directory))[1]
        failure = outcomes[device]  # the kernel tells it once
        if failure is not None:
            raise failure

    def _unread(self, queue: Queue, error: OSError | ValueError) -> None:
        self._log.error("queue %r is closed, its files are left alone: %s", queue.name, error)
        self._news.report_damage(queue)
        self._keys.leave(queue)

    def _entries_of(self, queue: Queue, directory: str, look: Look) -> Entries | None:
        """What is in the directory of a queue, which has a file with its name; None: the disk does
        not say."""
        entries: Entries | None = None
        try:
            entries = look()
            if entries is None:
                entries = {}
                self._disk.changes.make_directory(directory)
                self._recorded.name_added()
                self._recorded.sync_names()  # nobody is going to declare it
            if not _is_named(queue, entries.get(NAME_FILE)):
                write_text(f"{directory}/{NAME_FILE}", queue.name, self._disk.changes)
        except OSError as error:
            self._log.warning("queue %r: %s", queue.name, error)
        return entries

    def _is_paused(self, queue: Queue, directory: str, entries: Entries | None) -> bool:
        """Whether an operator has paused it; in doubt it is: who knows better resumes it."""
        try:
            if entries is None:
                raise OSError("its directory cannot be read")
            return pause.is_marked(directory, entries, self._disk.changes)
        except OSError as error:
            self._log.error(
                "queue %r is paused, because it cannot be read whether it was: %s",
                queue.name,
                error,
            )
            return True

    async def read_ahead(self, queue: Queue) -> None:
        """Have a thread read what `restart` is going to, so that the loop need not wait for it."""
        await self._disk.run(partial(read_ahead, Path(queue.directory)))

    async def restart(self, queue: Queue) -> None:
        """Read the files of a closed queue again, in portions. A stream is served once that is
        synced.

        Raises: ValueError or OSError, naming the file, when that cannot be read, or it is deleted
            meanwhile: it stays closed.
        """
        self._news.forget(queue)
        await self._keys.load_left(queue, self._disk)
        steps = _core.Restart(queue.core, is_held=queue.is_stream)
        until = time.perf_counter() + PORTION_S
        for _ in steps:
            if time.perf_counter() >= until:
                await others_first()
                until = time.perf_counter() + PORTION_S
        self._note(queue, steps.notes)
        offsets = steps.offsets()
        if offsets is not None:
            path = f"{queue.directory}/{stored_offsets.TEMPORARY}"
            await self._disk.run(partial(stored_offsets.write, path, offsets, self._disk.changes))
            steps.take_offsets(len(offsets))
        if queue.is_stream:
            self._begin_epoch(queue)
            stream_epochs.sync(queue.directory, lambda fd: self._loop.sync_file(fd, _nothing))
            self._recorded.when_synced(queue.core.open)

    def identify(self, queue: Queue) -> None:
        """Give a stream what tells it from others of its name, unless it has that."""
        if not queue.is_stream or queue.core.created:
            return
        try:
            queue.core.created = stream_identity.make(queue.directory, self._disk.changes)
        except OSError as error:
            self._no_identity(queue, error)

    def begin_stream(self, queue: Queue, directory: Directory) -> None:
        """A new stream: what tells it from others is on disk when its declaration is."""
        queue.core.epochs = [stream_epochs.FIRST]
        queue.core.created = directory.identity
        if directory.error is not None:
            self._no_identity(queue, directory.error)
            return
        self.identify(queue)  # when who else declared it wanted no stream
        try:
            self._recorded.sync_directory(queue.directory)
        except OSError as error:
            self._no_identity(queue, error)

    def _no_identity(self, queue: Queue, error: OSError) -> None:
        self._log.warning("the identity of stream %r cannot be stored: %s", queue.name, error)

    def _begin_epoch(self, queue: Queue, *, is_clean: bool = False) -> bool:
        """A stream was loaded: where offsets may have been given before, an epoch begins. It is not
        to be served before that is on disk.

        Args: is_clean: an orderly stop came before. Returns: whether one has begun. Raises:
            OSError.
        """
        damaged, changed = queue.core.damaged_offsets
        if is_clean or changed:
            queue.core.epochs = epochs = stream_epochs.load(queue.directory)
            if any(first == damaged for _, first in epochs):
                changed = 0  # what was damaged then is damaged still
            if is_clean and not changed:
                return False
        first = changed or queue.core.next_offset
        epochs = stream_epochs.begin(queue.directory, first, self._disk.changes)
        queue.core.epochs = epochs
        self._log.info("stream %r: epoch %d begins at offset %d", queue.name, epochs[-1][0], first)
        return True

    def _note(self, queue: Queue, notes: list[str]) -> None:
        """Log what loading a queue has put right, and what it could not read."""
        for note in notes:
            self._log.warning("queue %r: %s", queue.name, note)
        self._news.report_damage(queue)

    # --- a queue goes -------------------------------------------------------------------------

    def remove(self, queue: Queue) -> None:
        """Those of a stored queue stay until its deletion is on disk. All go beside the loop; what
        a crash leaves of them goes at the next start. What cannot be removed stays, and is set
        aside by a queue of the same name."""
        if queue.is_stored:
            # A new exchange may have the name of the one whose messages are in there.
            renamed = self._recorded.name_added if queue.is_internal else bool
            self._recorded.when_synced(self._deleted.add(queue.directory, renamed))
            return
        remove = partial(remove_tree, Path(queue.directory), self._disk.changes)
        removed = partial(self._removed, queue.name)
        if self._disk.is_running:
            self._disk.removals.add(remove, removed)
        else:
            removed(*outcome(remove))

    def _removed(self, name: str, _: None, error: OSError | None) -> None:
        if error is not None:
            self._log.error("files of the deleted queue %r stay: %s", name, error)


def can_be_ready(queue: Queue) -> bool:
    """Whether a queue can be loaded ahead: streams begin an epoch when they are, and the keys of
    duplicates are in a file of their own."""
    return not queue.is_stream and queue.dedup is None


def _nothing() -> None:
    """It is synced before what somebody waits for."""


def _is_named(queue: Queue, name: _core.Entry | None) -> bool:
    """Whether the file with its name is there. A loss of power leaves none of the right length that
    is wrong, and nothing depends on it. Raises: OSError."""
    if name is None:
        return False
    return name.size == len(queue.name.encode("utf-8", "surrogateescape"))
