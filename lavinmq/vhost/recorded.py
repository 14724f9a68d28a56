"""What is durable of one virtual host: the definitions file, and when it is on disk.

Who changes something appends a record; the answer to the client waits for `when_synced`. What this
release cannot apply stays in the file, for one that can. After many deletions the file is written
anew, without them. On the loop thread. Source: docs/formats.md, docs/durability.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lavinmq import _core
from lavinmq.arguments.names import failed
from lavinmq.errors import ChannelError, DefinitionsError
from lavinmq.fieldtable import FieldTable
from lavinmq.files.definitions import (
    BindingDef,
    Definitions,
    DefinitionsFile,
    ExchangeDef,
    QueueDef,
    binding_record,
    exchange_record,
    queue_record,
)
from lavinmq.files.definitions_compaction import Compaction
from lavinmq.files.saving import Disk
from lavinmq.process.log import Log
from lavinmq.vhost import subscribing
from lavinmq.vhost.destination import Destination
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.queue import Queue


class Recorded:
    """The records of one virtual host. Call `open` first.

    Args:
        directory: of the virtual host.
        exchanges, queues: what exists, by name; looked at, never changed.
        loop: whose worker syncs.
        disk: see `files/saving.py`.
        max_deleted: deletions in the file after which it is written anew.
        log: that of the virtual host.
    """

    def __init__(
        self, directory: Path, exchanges: Mapping[str, Exchange], queues: Mapping[str, Queue],
        loop: _core.Loop, disk: Disk, max_deleted: int, log: Log,
    ) -> None:  # fmt: skip
        self.file = DefinitionsFile(directory / "definitions.amqp", disk.changes)
        self._directory = directory
        self._directory_fd = -1
        self._has_new_names = True
        self._n_syncing = 0  # answers that wait for the disk
        self._exchanges = exchanges
        self._queues = queues
        self._loop = loop
        self._disk = disk
        self._max_deleted = self._compact_above = max_deleted
        self._log = log
        self._left_out = Definitions()
        self._names_left_out: set[str] = set()

    def open(self) -> Definitions:
        """Read the file. Raises: DefinitionsError, OSError."""
        self._directory_fd = _directory_fd(self._directory)
        return self.file.load()

    def take(self, size: int, deleted: int) -> None:
        """Go on with the file as it was read: see `DefinitionsFile.take`. Raises: OSError."""
        self._directory_fd = _directory_fd(self._directory)
        self.file.take(size, deleted)

    def close(self) -> None:
        """Let go of the files without writing. Idempotent."""
        self.file.close()
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    # --- when it is on disk -------------------------------------------------------------------

    def when_synced(self, callback: Callable[[], object]) -> None:
        """Call back once what was recorded so far is on disk."""
        self.sync_names()
        self._n_syncing += 1
        *others, last = self.file.filenos()
        for fd in others:
            self._loop.sync_file(fd, _nothing)
        self._loop.sync_file(last, partial(self._synced, callback))

    @property
    def is_syncing(self) -> bool:
        """Whether something was recorded that is not on disk: who asks for what is so already must
        not have an answer before those that made it so."""
        return self._n_syncing > 0

    def name_added(self) -> None:
        """There is a new name in the directory, to be synced together with the file."""
        self._has_new_names = True

    def sync_names(self) -> None:
        """Sync new names before the next answer or confirm, whether or not anything is recorded."""
        if self._has_new_names and self._directory_fd >= 0:
            self._has_new_names = False
            self._loop.sync_file(self._directory_fd, _nothing)

    def sync_directory(self, path: str) -> None:
        """Sync another directory before the next answer. Raises: OSError when it is not there."""
        fd = _directory_fd(path)
        try:
            self._loop.sync_file(fd, _nothing)
        finally:
            os.close(fd)

    def _synced(self, callback: Callable[[], object]) -> None:
        self._n_syncing -= 1
        callback()

    # --- what is left out ---------------------------------------------------------------------

    def leave_out(self, stored: ExchangeDef | QueueDef | BindingDef) -> None:
        """Something from the file that this release cannot apply."""
        match stored:
            case ExchangeDef():
                self._left_out.exchanges.append(stored)
                self._names_left_out.add(stored.name)
            case QueueDef():
                self._left_out.queues.append(stored)
                self._names_left_out.add(stored.name)
            case BindingDef():
                self._left_out.bindings.append(stored)

    def is_left_out(self, name: str) -> bool:
        """Whether a queue or an exchange of that name is in the file, and cannot be used here."""
        return name in self._names_left_out

    @property
    def leaves_out(self) -> bool:
        """Whether anything in the file cannot be used here."""
        return self._left_out != Definitions()

    # --- compaction ---------------------------------------------------------------------------

    def compact(self) -> None:
        """Write the file anew if there is a deletion in it. Raises: DefinitionsError."""
        if self.file.deleted:
            self.file.compact(
                Definitions(
                    list(self._durable_exchanges()), list(self._durable_queues()),
                    list(self._durable_bindings()),
                )
            )  # fmt: skip

    def compact_if_due(self) -> None:
        """After a deletion: compact when enough have gathered. The file is as good without, so a
        disk that refuses is asked again only when there are twice as many."""
        if self.file.deleted <= self._compact_above or self.file.copy is not None:
            return
        if self._disk.is_running:
            Compaction(
                self.file, self._records(), self._disk, self._compacted, self._sync_again
            ).start()
            return
        try:
            self.compact()
            self._compacted("")
        except DefinitionsError as error:
            self._compacted(str(error))

    def _compacted(self, failure: str) -> None:
        self._compact_above = self.file.deleted * 2 if failure else self._max_deleted
        if failure:
            self._log.error("definitions are not compacted: %s", failure)

    def _sync_again(self) -> None:
        """The loop does it once more: a sync that fails there ends the broker."""
        self._loop.sync_file(self._directory_fd, _nothing)

    def _records(self) -> Iterator[bytes]:
        """All that is durable, one record after the other, while things come and go."""
        yield from map(exchange_record, self._durable_exchanges())
        yield from map(queue_record, self._durable_queues())
        yield from map(binding_record, self._durable_bindings())

    def _durable_exchanges(self) -> Iterator[ExchangeDef]:
        for x in list(self._exchanges.values()):
            if x.durable and self._exchanges.get(x.name) is x:
                yield ExchangeDef(x.name, x.type, True, x.auto_delete, x.internal, x.arguments)
        yield from self._left_out.exchanges

    def _durable_queues(self) -> Iterator[QueueDef]:
        for q in list(self._queues.values()):
            if q.is_stored and not q.is_internal and self._queues.get(q.name) is q:
                yield QueueDef(q.name, True, False, q.auto_delete, q.arguments)
        yield from self._left_out.queues

    def _durable_bindings(self) -> Iterator[BindingDef]:
        for x in list(self._exchanges.values()):
            if not (x.records_bindings and x.name) or self._exchanges.get(x.name) is not x:
                continue
            for to, key, arguments in x.live_bindings():
                there: Mapping[str, Any] = self._queues if to.kind == "queue" else self._exchanges
                if to.is_stored and there.get(to.name) is to:
                    yield binding_def(x, to, key, arguments)
        yield from self._left_out.bindings


def binding_def(exchange: Exchange, to: Destination, key: str, arguments: FieldTable) -> BindingDef:
    """A binding as it is recorded."""
    if exchange.is_mqtt:
        key, arguments = subscribing.stored(key, arguments)
    return BindingDef(exchange.name, to.name, to.kind, key, arguments)


@contextmanager
def storing(what: str) -> Iterator[None]:
    """Turn a disk that refuses into 406: what could not be recorded has not happened."""
    try:
        yield
    except (DefinitionsError, OSError) as error:
        raise not_stored(what, error) from error


def not_stored(what: str, error: Exception) -> ChannelError:
    """406 for what the disk refused."""
    return failed(f"{what} cannot be stored: {error}")


def _directory_fd(path: str | Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _nothing() -> None:
    """It is synced before what somebody waits for."""
