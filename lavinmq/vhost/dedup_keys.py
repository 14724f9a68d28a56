"""The keys of duplicates of one virtual host: which exchange or queue has a cache, and its file.

Called by `vhost.py`; what arguments mean and what is in a file is in `dedup.py`.
Source: docs/deduplication.md.
"""

from collections.abc import Iterable
from pathlib import Path

from lavinmq import _core
from lavinmq.files.changes import Changes
from lavinmq.files.saving import Disk
from lavinmq.process.log import Log
from lavinmq.vhost import dedup
from lavinmq.vhost.destination import Destination
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.queue import Queue


class DedupKeys:
    """The caches of one virtual host.

    Args: directory: of the virtual host; loop: of the message path; log: that of the virtual host.
    """

    def __init__(self, directory: Path, loop: _core.Loop, log: Log, changes: Changes) -> None:
        self._directory = directory
        self._loop = loop
        self._log = log
        self._changes = changes
        self._left: set[Path] = set()
        """Files of exchanges that are no more, which the disk has kept from being removed."""
        self._unread: set[Queue] = set()
        """Queues that a start has found closed: their keys are read when they are restarted."""

    def make_way(self, exchange: str) -> None:
        """A durable exchange of that name is going to be made: keys of an earlier one must not be
        found. Raises: OSError."""
        path = dedup.exchange_file(self._directory, exchange)
        if path in self._left:
            dedup.remove(path, self._changes)
            self._left.discard(path)

    def give(self, thing: Destination) -> None:
        """Give it a cache of keys, if its arguments ask for one."""
        if not dedup.is_wanted(thing.arguments):
            return
        path = self._file_of(thing) if thing.is_stored else None
        thing.core.set_dedup(dedup.cache_for(thing.arguments, self._loop, path))
        note = dedup.clamp_note(thing.arguments)
        if note is not None:
            self._log.warning("%r: %s", thing.name, note)

    def load(self, thing: Destination) -> None:
        """Read the keys that it had when the broker ended."""
        note = None if thing.dedup is None else dedup.load(thing.dedup, self._file_of(thing))
        if note is not None:
            self._log.warning("%r: %s", thing.name, note)

    def leave(self, queue: Queue) -> None:
        """Its files cannot be read: so it has no use for keys, before it is restarted."""
        if queue.dedup is not None:
            self._unread.add(queue)

    async def load_left(self, queue: Queue, disk: Disk) -> None:
        """It is going to be restarted: read its keys, if that was not done at the start. Those of a
        queue that was closed later are in memory."""
        if queue not in self._unread or queue.dedup is None:
            return
        self._unread.discard(queue)
        note = await dedup.load_later(queue.dedup, self._file_of(queue), disk)
        if note is not None:
            self._log.warning("%r: %s", queue.name, note)

    def load_exchanges(self, exchanges: Iterable[Exchange]) -> None:
        """Read those of all exchanges there are, and remove what belongs to others."""
        known = set()
        for exchange in exchanges:
            self.load(exchange)
            known.add(self._file_of(exchange))
        self._left.update(dedup.remove_others(self._directory, known, self._changes))

    def close(self, thing: Destination) -> None:
        """Its messages are written. Keys that cannot be are lost, which stops nothing."""
        try:
            if thing.dedup is not None:
                thing.dedup.close()
        except OSError as error:
            self._log.error("deduplication keys of %r are lost: %s", thing.name, error)

    def drop(self, thing: Destination) -> None:
        """It is deleted. The file of a queue goes with its directory."""
        if thing.dedup is None:
            return
        thing.dedup.release()
        try:
            if isinstance(thing, Queue):
                self._unread.discard(thing)
            elif isinstance(thing, Exchange):
                dedup.remove(self._file_of(thing), self._changes)
        except OSError as error:
            self._left.add(self._file_of(thing))
            self._log.error("keys of the deleted exchange %r stay: %s", thing.name, error)

    def _file_of(self, thing: Destination) -> Path:
        if isinstance(thing, Queue):
            return Path(thing.directory) / dedup.FILE
        return dedup.exchange_file(self._directory, thing.name)
