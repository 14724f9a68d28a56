"""A virtual host: exchanges and queues by name, and the rules for declaring, binding, deleting.

Every method that a client can reach checks names, existence and permissions in the order that
clients see, changes the state, and records what is durable. It returns whether something was
recorded, so that the caller can answer once that is on disk. Runs on the loop thread. Longer than
500 lines: the methods are many and short, and all of them work on the same few dictionaries.
Source: AMQP reference, sections 7, 9 and 21; storage reference, sections 1 and 8.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from lavinmq import _core
from lavinmq.arguments import hash as hash_arguments
from lavinmq.arguments import queue as queue_arguments
from lavinmq.arguments.names import (
    REPLY_PREFIX,
    check_name,
    check_prefix,
    failed,
    missing,
    refused,
)
from lavinmq.arguments.stream import check_declaration, is_stream
from lavinmq.auth.identity import Identity
from lavinmq.auth.topics import KeyRights
from lavinmq.errors import ChannelError, DefinitionsError, ReplyCode
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.files import stream_epochs
from lavinmq.files.datadir import DIRECTORY_MODE
from lavinmq.files.definitions import (
    DELAYED_TYPES,
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
from lavinmq.files.deleted import DOOMED, DeletedFiles
from lavinmq.files.directories import hashed, make_directory, remove_tree, set_aside, write_text
from lavinmq.files.saving import Disk
from lavinmq.policy.features import mistyped
from lavinmq.process import log
from lavinmq.process.portions import Portions
from lavinmq.stats.churn import Churn
from lavinmq.stats.totals import Totals
from lavinmq.vhost import dedup, delayed, pause, rights, stream_identity
from lavinmq.vhost.alternates import Alternates
from lavinmq.vhost.dedup_keys import DedupKeys
from lavinmq.vhost.exchange import KINDS, Destination, Exchange, raw_key, unserved
from lavinmq.vhost.expiry import QueueExpiry
from lavinmq.vhost.queue import Owner, Queue, QueueConsumer
from lavinmq.vhost.rules import VHostRules
from lavinmq.vhost.store_news import StoreNews

BUILT_IN: Final = (
    ("", "direct"), ("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic"),
    ("amq.headers", "headers"), ("amq.match", "headers"),
)  # fmt: skip
"""Exchanges that every virtual host has, all durable."""

AT_ONCE: Final = 64
"""Bindings or consumers that go together with their queue; of more most go later."""

FEW_SEGMENTS: Final = 2
"""The files of a queue with more are removed behind the loop."""


class BindingLimits(NamedTuple):
    """How many bindings there may be, 0: any number."""

    per_queue: int = 0
    per_vhost: int = 0


class Actor(Owner, Protocol):
    """Who asks: a connection with its user."""

    user: Identity


class Member(Protocol):
    """A connection, as far as the virtual host is concerned that it is open to."""

    user: Identity

    def expel(self, code: ReplyCode, text: str) -> None:
        """End it; nothing more is done for it."""


class VHost:
    """One virtual host.

    Args:
        name: its name; the directory under `data_dir` follows from it.
        loop: the message path's shared state.
        segment_size: bytes of a finished segment file.
        max_deleted: deletions in the definitions file after which it is compacted.
        hash_algorithm: of consistent hash exchanges that name none: "ring" or "jump".
        call_soon: of the event loop.
        consumer_timeout_ms: of queues that name none, 0 = for ever.
        churn: of the whole broker.
        disk: see `files/saving.py`.
        is_clean: whether an orderly stop has synced all that is in the directory.
    """

    def __init__(
        self, name: str, data_dir: Path, loop: _core.Loop, segment_size: int, max_deleted: int,
        hash_algorithm: str, call_soon: Callable[..., Any], consumer_timeout_ms: int = 0,
        churn: Churn | None = None, disk: Disk | None = None, *, is_clean: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.directory = data_dir / hashed(name)
        # Shared by all queues, which would else have a path each.
        self._stored = str(self.directory)
        self._transient = f"{self._stored}/transient"
        self.core = _core.Vhost()
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.reply_queues: dict[str, Queue] = {}
        self.connections: set[Member] = set()
        self.totals = Totals(self, churn)
        self.rules = VHostRules(
            self.directory, name, self.queues, self.exchanges, call_soon, self._queue_changed,
            self._exchange_changed, disk,
        )  # fmt: skip
        self._loop = loop
        self._disk = disk or Disk()
        self._segment_size = segment_size
        self._max_deleted = self._compact_above = max_deleted
        self._hash_algorithm = hash_algorithm
        self._consumer_timeout_ms = consumer_timeout_ms
        self._file = DefinitionsFile(self.directory / "definitions.amqp")
        self._directory_fd = -1
        self._is_directory_changed = True
        self._n_syncing = 0  # answers that wait for the disk
        self._is_loading = True
        self._is_clean = is_clean
        # What this release cannot apply stays in the file, for one that can.
        self._kept = Definitions()
        self._kept_names: set[str] = set()
        self._log = log.get("lmq.vhost", vhost=name)
        self._alternates = Alternates(self.core, self.exchanges)
        self._delayed = delayed.DelayedExchanges(self, loop, call_soon, self._log)
        self._keys = DedupKeys(self.directory, loop, self._log)
        self._news = StoreNews(self._log)
        self._expiry = QueueExpiry(loop.events, self._expired)
        self.portions = Portions(call_soon)
        self.binding_limits = BindingLimits()
        self._n_bindings = 0
        self._deleted = DeletedFiles(self.directory, self.portions, self._log)

    # --- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Load definitions and messages. Raises: DefinitionsError, OSError."""
        make_directory(self.directory)
        write_text(self.directory / ".vhost", self.name)
        remove_tree(Path(self._transient))
        os.makedirs(self._transient, mode=DIRECTORY_MODE, exist_ok=True)
        self._directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.rules.load()
        stored = self._file.load()
        self._load_exchanges(stored)
        for queue in stored.queues:
            self._load_queue(queue)
        for binding in stored.bindings:
            self._load_binding(binding)
        self._delayed.release_left(list(self.exchanges.values()))
        self._deleted.remove_left()
        self._is_loading = False
        if self._file.deleted:
            self._file.compact(self._definitions())

    def close(self) -> None:
        """Write everything out. Raises: OSError naming the queue that could not be written."""
        failure: OSError | None = None
        for queue in self.queues.values():
            was_closed = queue.core.is_closed
            try:
                queue.core.close()
                if not was_closed:
                    self._keys.close(queue)
            except OSError as error:
                self._log.error("queue %r: %s", queue.name, error)
                failure = error
        if failure is None:
            for exchange in self.exchanges.values():
                self._keys.close(exchange)
        try:
            self._file.sync()
            self._deleted.finish()
        finally:
            self.abandon()
        remove_tree(Path(self._transient))
        if failure is not None:
            raise failure

    @property
    def has_closed_streams(self) -> bool:
        """Whether a stream cannot be used: what its readers have had may not be on disk."""
        return any(queue.is_stream and queue.core.is_closed for queue in self.queues.values())

    def abandon(self) -> None:
        """Let go of all files and memory without writing, as if the process had died. Idempotent.

        What was loaded, or written so far, stays in the files."""
        self._expiry.stop()
        self._deleted.forget()
        for queue in (*self.queues.values(), *self.reply_queues.values()):
            queue.core.delete()
        for cache in [thing.dedup for thing in self._destinations() if thing.dedup is not None]:
            cache.release()
        self._file.close()
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    def deleting(self) -> Iterator[None]:
        """End the connections and take everything away, in short steps; nobody gets here any more.
        `doom` has to follow."""
        self._expiry.stop()
        for connection in list(self.connections):
            if connection in self.connections:
                connection.expel(ReplyCode.CONNECTION_FORCED, "VHost deleted")
            yield
        self.totals.churn.count("queue_deleted", len(self.queues))
        for queues in (self.queues, self.reply_queues):
            while queues:
                queue = queues.pop(next(reversed(queues)))
                for consumer in queue.take_consumers():
                    consumer.stop()
                    yield
                self._let_go(queue)
                yield
        while self.exchanges:
            exchange = self.exchanges.pop(next(reversed(self.exchanges)))
            while exchange.bindings:
                exchange.bindings.popitem()
                yield
            if exchange.dedup is not None:
                exchange.dedup.release()
            yield
        self.core.touch()

    def _let_go(self, queue: Queue) -> None:
        queue.core.delete()
        if queue.dedup is not None:
            queue.dedup.release()

    def doom(self) -> Path:
        """The last step of the deletion. Nothing is written from now on.

        Returns: the directory with all that is left, under another name, which no start takes for
            that of a virtual host; the caller removes it.
        Raises: OSError when it cannot be renamed; all else has been done then.
        """
        self.abandon()
        doomed = self.directory.with_name(f"{self.directory.name}{DOOMED}{time.time_ns()}")
        self.directory.rename(doomed)
        return doomed

    def when_synced(self, callback: Any) -> None:
        """Call `callback()` once the definitions recorded so far are on disk."""
        if self._is_directory_changed:
            self._is_directory_changed = False
            self._loop.sync_file(self._directory_fd, _nothing)
        self._n_syncing += 1
        *others, last = self._file.filenos()
        for fd in others:
            self._loop.sync_file(fd, _nothing)
        self._loop.sync_file(last, partial(self._synced, callback))

    @property
    def is_syncing(self) -> bool:
        """Whether something was recorded that is not on disk: who asks for what is so already must
        not have an answer before those that made it so."""
        return self._n_syncing > 0

    def _synced(self, callback: Callable[[], object]) -> None:
        self._n_syncing -= 1
        callback()

    def report(self) -> None:
        """Log what is new about queues whose files could not be read or written."""
        self._news.report(self.queues.values())
        dedup.report(self._log, self._destinations())

    def _load_exchanges(self, stored: Definitions) -> None:
        for exchange in stored.exchanges:
            if not exchange.name and exchange.type != "direct":
                self._log.warning("the default exchange has type %r: ignored", exchange.type)
                continue
            if exchange.type not in KINDS:
                self._log.warning(
                    "exchange %r has type %r, which this release does not have: it is left out",
                    exchange.name, exchange.type,
                )  # fmt: skip
                self._kept.exchanges.append(exchange)
                self._kept_names.add(exchange.name)
                continue
            wrong = mistyped(exchange.arguments, "alternate-exchange")
            if wrong is not None:
                self._log.warning("exchange %r: %s is no text: left out", exchange.name, wrong)
            if exchange.type == "x-consistent-hash":
                reason = hash_arguments.complaint(exchange.arguments)
                if reason is not None:
                    self._log.warning(
                        "exchange %r hashes the routing key: %s", exchange.name, reason
                    )
            self._add_exchange(
                Exchange(exchange.name, exchange.type, exchange.durable, exchange.auto_delete,
                         exchange.internal, exchange.arguments, self._hash_algorithm)
            )  # fmt: skip
        self._keys.load_exchanges(self.exchanges.values())
        absent = [(name, kind) for name, kind in BUILT_IN if name not in self.exchanges]
        for name, kind in absent:
            self._add_exchange(Exchange(name, kind, durable=True))
            self._file.append_declare_exchange(ExchangeDef(name, kind))
        if absent:
            self._file.sync()

    def _load_queue(self, stored: QueueDef) -> None:
        if stored.arguments.get("x-queue-type") == "mqtt":
            self._log.warning(
                "queue %r is an MQTT session, which this release does not have: it is "
                "left out, its files are kept", stored.name,
            )  # fmt: skip
            self._kept.queues.append(stored)
            self._kept_names.add(stored.name)
            return
        queue = self._add_queue(stored.name, True, stored.auto_delete, None, stored.arguments)
        self._load_messages(queue)

    def _load_messages(self, queue: Queue) -> None:
        """Read what the directory of a durable queue holds, and make one where there is none."""
        directory = Path(queue.directory)
        try:
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            queue.core.is_paused = pause.is_marked(queue.directory)
            write_text(directory / ".queue", queue.name)
        except OSError as error:
            self._log.warning("queue %r: %s", queue.name, error)
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
            self._identify(queue)

    def _begin_epoch(self, queue: Queue, sync: Callable[[int], object]) -> None:
        """A stream was loaded without an orderly stop before: offsets from here on may have been
        given before. It is not to be served before the epoch is on disk. Raises: OSError."""
        first = queue.core.next_offset
        queue.core.epochs = epochs = stream_epochs.begin(queue.directory, first, sync)
        self._log.info("stream %r: epoch %d begins at offset %d", queue.name, epochs[-1][0], first)

    def _note(self, queue: Queue, notes: list[str]) -> None:
        """Log what loading a queue has put right, and what it could not read."""
        for note in notes:
            self._log.warning("queue %r: %s", queue.name, note)
        self._news.report_damage(queue)

    def _load_binding(self, stored: BindingDef) -> None:
        exchange = self.exchanges.get(stored.source)
        to: Destination | None = (
            self.queues.get(stored.destination) if stored.destination_type == "queue"
            else self.exchanges.get(stored.destination)
        )  # fmt: skip
        if exchange is None or to is None:
            self._log.warning(
                "binding from %r to %r is left out", stored.source, stored.destination
            )
            self._kept.bindings.append(stored)
            return
        try:
            self._n_bindings += exchange.bind(to, stored.routing_key, stored.arguments)
        except ValueError as error:
            self._log.warning("binding from %r to %r: %s", stored.source, stored.destination, error)
            self._kept.bindings.append(stored)

    def _definitions(self) -> Definitions:
        """Everything that is durable, for compaction at the start."""
        return Definitions(
            [*self._durable_exchanges(), *self._kept.exchanges],
            [*self._durable_queues(), *self._kept.queues],
            [*self._durable_bindings(), *self._kept.bindings],
        )

    def _records(self) -> Iterator[bytes]:
        """The same, one record after the other, while things come and go."""
        yield from map(exchange_record, self._durable_exchanges())
        yield from map(exchange_record, self._kept.exchanges)
        yield from map(queue_record, self._durable_queues())
        yield from map(queue_record, self._kept.queues)
        yield from map(binding_record, self._durable_bindings())
        yield from map(binding_record, self._kept.bindings)

    def _durable_exchanges(self) -> Iterator[ExchangeDef]:
        for x in list(self.exchanges.values()):
            if x.durable and self.exchanges.get(x.name) is x:
                yield ExchangeDef(x.name, x.type, True, x.auto_delete, x.internal, x.arguments)

    def _durable_queues(self) -> Iterator[QueueDef]:
        for q in list(self.queues.values()):
            if q.is_stored and not q.is_internal and self.queues.get(q.name) is q:
                yield QueueDef(q.name, True, False, q.auto_delete, q.arguments)

    def _durable_bindings(self) -> Iterator[BindingDef]:
        for x in list(self.exchanges.values()):
            if not (x.durable and x.name) or self.exchanges.get(x.name) is not x:
                continue
            for to, key, arguments in list(x.live_bindings()):
                there = self.queues if isinstance(to, Queue) else self.exchanges
                if to.is_stored and there.get(to.name) is to:
                    yield _binding_def(x, to, key, arguments)

    def _compact_if_due(self) -> None:
        """After a deletion: compact when enough have gathered. The file is as good without, so a
        disk that refuses is asked again only when there are twice as many."""
        if self._file.deleted <= self._compact_above or self._file.copy is not None:
            return
        if self._disk.is_running:
            Compaction(
                self._file, self._records(), self._disk, self._compacted, self._sync_again
            ).start()
            return
        try:
            self._file.compact(self._definitions())
            self._compacted("")
        except DefinitionsError as error:
            self._compacted(str(error))

    def _sync_again(self) -> None:
        """The loop does it once more: a sync that fails there ends the broker."""
        self._loop.sync_file(self._directory_fd, _nothing)

    def _compacted(self, failure: str) -> None:
        self._compact_above = self._file.deleted * 2 if failure else self._max_deleted
        if failure:
            self._log.error("definitions are not compacted: %s", failure)

    # --- exchanges ----------------------------------------------------------------------------

    def _add_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        self.core.add(raw_key(exchange.name), exchange.core)
        self._keys.give(exchange)
        self._alternates.tell_users_of(exchange.name, exchange)
        self._exchange_changed(exchange)
        self.rules.apply_to_exchange(exchange)
        self.core.touch()

    def _queue_changed(self, queue: Queue) -> None:
        """A queue has new features."""
        self._expiry.changed(queue)
        self._set_timeout(queue)

    def _exchange_changed(self, exchange: Exchange) -> None:
        """An exchange is new, or has new features."""
        self._alternates.link(exchange)
        self._delayed.changed(exchange, is_new=not self._is_loading)

    def declare_exchange(
        self, actor: Actor, name: str, type_: str, passive: bool, durable: bool, auto_delete: bool,
        internal: bool, arguments: FieldTable, *, is_restored: bool = False,
    ) -> bool:  # fmt: skip
        """exchange.declare. Returns: whether it was recorded. Raises: ChannelError.

        Args: is_restored: it comes from an export, and may have a reserved name.
        """
        check_name("Exchange", name)
        if not name:
            raise refused("Not allowed to declare the default exchange")
        existing = self.exchanges.get(name)
        if existing is not None:
            given = ExchangeDef(name, type_, durable, auto_delete, internal, arguments).settled()
            if passive or existing.is_same(given):
                return existing.durable and self.is_syncing
            rights.check_declare_exchange(actor.user, self.name, name, arguments)
            raise failed(
                f"Existing exchange '{name}' declared with other arguments: "
                + existing.difference(given, self.name)
            )
        if passive:
            raise missing(f"Exchange '{name}' doesn't exists in vhost '{self.name}'")
        if not is_restored:
            check_prefix(name)
        rights.check_declare_exchange(actor.user, self.name, name, arguments)
        type_, arguments = settled(name, type_, arguments)
        if name in self._kept_names:
            raise failed(f"Exchange '{name}' is of a kind that this release does not have")
        if durable:
            with _storing(f"exchange '{name}'"):
                dedup.remove(dedup.exchange_file(self.directory, name))
                self._file.append_declare_exchange(
                    ExchangeDef(name, type_, True, auto_delete, internal, arguments)
                )
        self._add_exchange(
            Exchange(name, type_, durable, auto_delete, internal, arguments, self._hash_algorithm)
        )
        return durable

    def own_exchange(self, name: str, type_: str) -> Exchange:
        """The internal exchange of that name to which the broker itself publishes; made when there
        is none. Raises: ChannelError 406 when it cannot be stored."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            with _storing(f"exchange '{name}'"):
                self._file.append_declare_exchange(ExchangeDef(name, type_, True, False, True))
            exchange = Exchange(name, type_, durable=True, internal=True)
            self._add_exchange(exchange)
        return exchange

    def delete_exchange(self, actor: Actor, name: str, if_unused: bool) -> bool:
        """exchange.delete; a missing one is no error. Returns: whether it was recorded."""
        check_name("Exchange", name)
        if not name:
            raise refused("Not allowed to delete the default exchange")
        check_prefix(name)
        exchange = self.exchanges.get(name)
        if exchange is None:
            return False
        if not actor.user.can_configure(self.name, name):
            raise refused(
                f"User '{actor.user.name}' doesn't have permissions to delete exchange '{name}'"
            )
        if if_unused and exchange.is_used:
            raise failed(f"Exchange '{name}' in use")
        return self._remove_exchange(exchange)

    def _remove_exchange(self, exchange: Exchange) -> bool:
        """Returns: whether it was recorded. Raises: ChannelError 406, and nothing has happened."""
        if exchange.durable:
            with _storing(f"the deletion of exchange '{exchange.name}'"):
                self._file.append_delete_exchange(exchange.name)
        self._delayed.remove(exchange)
        del self.exchanges[exchange.name]
        self.core.remove(raw_key(exchange.name))
        self._unbind_everywhere(exchange)
        self._drop_bindings(exchange)
        self._alternates.tell_users_of(exchange.name, None)
        self._alternates.unlink(exchange)
        self.core.touch()
        self._keys.drop(exchange)
        self._compact_if_due()
        return exchange.durable

    # --- queues -------------------------------------------------------------------------------

    def declare_queue(
        self, actor: Actor, name: str, passive: bool, durable: bool, exclusive: bool,
        auto_delete: bool, arguments: FieldTable, *, is_restored: bool = False,
    ) -> tuple[Queue, bool]:  # fmt: skip
        """queue.declare. Returns: the queue, and whether the answer has to wait for the disk: it
        was recorded, now or by who has no answer yet either. Raises: ChannelError.

        Args: is_restored: it comes from an export, and may have a reserved name; the limit has
            been looked at.
        """
        if name:
            check_name("Queue", name)
        queue = self.queues.get(name)
        if queue is not None:
            self._redeclare(actor, queue, passive, durable, exclusive, auto_delete, arguments)
            self._expiry.used(queue)
            return queue, queue.is_stored and self.is_syncing
        if passive:
            raise missing(f"Queue '{name}' doesn't exists in vhost '{self.name}'")
        if not is_restored:
            check_prefix(name)
        if not name:
            name = "amq.gen-" + secrets.token_urlsafe(24)
        rights.check_declare_queue(actor.user, self.name, name, arguments)
        limit = self.rules.limits.max_queues
        if limit is not None and len(self.queues) >= limit and not is_restored:
            raise refused(f"queue limit in vhost '{self.name}' ({limit}) is reached")
        if self._loop.is_held:
            raise failed("Server low on disk space, can not create queue")
        check_queue(durable, exclusive, auto_delete, arguments)
        kind = arguments.get("x-queue-type", "classic")
        if kind not in ("classic", "stream"):
            self._log.notice(
                "queue %r of type %r is an ordinary queue here; it is durable if declared so",
                name, kind,
            )  # fmt: skip
        if name in self._kept_names:
            raise failed(f"Queue '{name}' is of a kind that this release does not have")
        is_stored = durable and not exclusive
        if is_stored:
            with _storing(f"queue '{name}'"):
                self._make_directory(name)
                self._file.append_declare_queue(QueueDef(name, True, False, auto_delete, arguments))
        owner = actor if exclusive else None
        self.totals.churn.count("queue_declared")
        queue = self._add_queue(name, durable, auto_delete, owner, arguments)
        if queue.is_stream:
            queue.core.epochs = [stream_epochs.FIRST]
        self._identify(queue, is_new=True)
        return queue, is_stored

    def _identify(self, queue: Queue, *, is_new: bool = False) -> None:
        """Give a stream what tells it from others of its name, unless it has that; that of a new
        one is on disk when its declaration is."""
        if not queue.is_stream or queue.core.created:
            return
        try:
            queue.core.created = stream_identity.make(queue.directory)
            if is_new:
                self._sync_directory(queue)
        except OSError as error:
            self._log.warning("stream %r has no identity now: %s", queue.name, error)

    def _make_directory(self, name: str) -> None:
        """An empty directory for a new durable queue. One that is there is set aside, not reused:
        its messages must not appear in the new queue, and are not ours to throw away."""
        directory = self.directory / hashed(name)
        try:
            os.mkdir(directory, DIRECTORY_MODE)
        except FileExistsError:
            self.make_way(directory, name)
            os.mkdir(directory, DIRECTORY_MODE)
        self._is_directory_changed = True
        write_text(directory / ".queue", name)

    def make_way(self, directory: Path, name: str) -> None:
        """A new queue of that name is going to have this directory. Raises: OSError."""
        self._deleted.make_way(directory)
        aside = set_aside(directory)
        if aside is not None:
            self._log.warning("files of an earlier queue %r were left: now in %s", name, aside)

    def _redeclare(
        self, actor: Actor, queue: Queue, passive: bool, durable: bool, exclusive: bool,
        auto_delete: bool, arguments: FieldTable,
    ) -> None:  # fmt: skip
        locked = queue.is_locked_to(actor)
        if not locked and (
            passive or queue.is_same(durable, auto_delete, arguments, exclusive=exclusive)
        ):
            return
        if not passive:
            rights.check_declare_queue(actor.user, self.name, queue.name, arguments)
        where = f"'{queue.name}' in vhost '{self.name}'"
        if locked:
            raise self.locked(queue)
        if queue.exclusive and not exclusive:
            raise ChannelError(
                ReplyCode.RESOURCE_LOCKED, f"Exclusive queue {where}, declared without exclusive"
            )
        if exclusive and not queue.exclusive:
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, f"Not an exclusive queue: {where}")
        raise failed(
            f"Existing queue '{queue.name}' declared with other arguments: "
            + queue.difference(durable, auto_delete, arguments, self.name)
        )

    def _add_queue(
        self, name: str, durable: bool, auto_delete: bool, owner: Owner | None,
        arguments: FieldTable,
    ) -> Queue:  # fmt: skip
        queue = self._new_queue(name, durable, auto_delete, owner, arguments)
        self._keys.give(queue)
        self.queues[name] = queue
        if owner is not None:
            owner.exclusive_queues.add(queue)
        self.exchanges[""].core.bind(raw_key(name), b"", queue.core)
        self._set_timeout(queue)
        self.rules.apply_to_queue(queue)
        return queue

    def _new_queue(
        self, name: str, durable: bool, auto_delete: bool, owner: Owner | None,
        arguments: FieldTable,
    ) -> Queue:  # fmt: skip
        """A queue that nobody knows yet."""
        stored = durable and owner is None
        parent = self._stored if stored else self._transient
        priority = arguments.get("x-max-priority")
        core = _core.Queue(
            self._loop, f"{parent}/{hashed(name)}", self._segment_size, stored,
            name=raw_key(name)[:255], vhost=self.core,
            max_priority=priority if type(priority) is int and 0 <= priority <= 255 else -1,
            is_stream=is_stream(arguments),
        )  # fmt: skip
        return Queue(name, core, parent, durable, auto_delete, owner, arguments)

    def make_internal(self, name: str, durable: bool, arguments: FieldTable) -> Queue:
        """The queue of a delayed exchange."""
        return self._new_queue(name, durable, False, None, arguments)

    def load_internal(self, queue: Queue) -> None:
        """Read what the queue of a delayed exchange holds."""
        self._load_messages(queue)
        self._is_directory_changed = True

    def delete_queue(
        self, actor: Actor, name: str, if_unused: bool, if_empty: bool
    ) -> tuple[int, bool, list[QueueConsumer]]:
        """queue.delete; a missing one is no error.

        Returns: ready messages it had, whether it was recorded, consumers to tell.
        """
        check_name("Queue", name)
        queue = self.queues.get(name)
        if queue is None:
            return 0, self.is_syncing, []
        if not actor.user.can_configure(self.name, name):
            raise refused(
                f"User '{actor.user.name}' doesn't have permissions to delete queue '{name}'"
            )
        self.check_usable(queue)
        if queue.is_locked_to(actor):
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, f"Queue '{name}' is exclusive")
        if if_unused and queue.consumers:
            raise failed(f"Queue '{name}' in use")
        if if_empty and queue.core.ready:
            raise failed(f"Queue '{name}' is not empty")
        return queue.core.ready, *self.remove_queue(queue)

    def remove_queue(self, queue: Queue) -> tuple[bool, list[QueueConsumer]]:
        """Take a queue away, whatever it holds.

        Returns: whether it was recorded, consumers to tell: they get nothing any more.
        Raises: ChannelError 406 when the disk refuses the record of a stored queue; it stays then.
        """
        if queue.is_stored:
            with _storing(f"the deletion of queue '{queue.name}'"):
                self._file.append_delete_queue(queue.name)
        consumers = queue.take_consumers()
        self._unbind_everywhere(queue)
        self.exchanges[""].core.unbind(raw_key(queue.name), b"", queue.core)
        del self.queues[queue.name]
        self.totals.churn.count("queue_deleted")
        self._expiry.forget(queue)
        if queue.owner is not None:
            queue.owner.exclusive_queues.discard(queue)
        self._keys.drop(queue)
        is_large = queue.core.n_segments > FEW_SEGMENTS
        if queue.core.delete():
            self.remove_files(queue, is_large=is_large)
        self._compact_if_due()
        self._spread(consumers.copy(), methodcaller("stop"))
        return queue.is_stored, consumers

    def tell_cancelled(self, consumers: list[QueueConsumer]) -> None:
        """Tell clients that their consumers have been cancelled, because the queue is gone."""
        self._spread(consumers, methodcaller("cancelled"))

    def _spread(
        self, consumers: list[QueueConsumer], call: Callable[[QueueConsumer], None]
    ) -> None:
        """Call for a few consumers now, for very many in portions; the list is empty then."""
        is_long = len(consumers) > AT_ONCE
        steps = _each(consumers, call)
        if is_long:
            self.portions.begin(steps)
        else:
            _exhaust(steps)

    def remove_files(self, queue: Queue, *, is_large: bool = False) -> None:
        """Those of a stored queue stay until its deletion is on disk. Many go behind the loop;
        what a crash leaves of them goes at the next start. What cannot be removed stays, and is set
        aside by a queue of the same name."""
        if queue.is_stored:
            self.when_synced(self._deleted.add(Path(queue.directory)))
            return
        directory = Path(queue.directory)
        try:
            if is_large and self._disk.is_running:
                doomed = Path(self._transient) / f"{directory.name}{DOOMED}{time.time_ns()}"
                directory.rename(doomed)
                self._disk.submit(partial(remove_tree, doomed), partial(self._removed, queue.name))
            else:
                remove_tree(directory)
        except OSError as error:
            self._removed(queue.name, None, error)

    def _removed(self, name: str, _: None, error: OSError | None) -> None:
        if error is not None:
            self._log.error("files of the deleted queue %r stay: %s", name, error)

    def consumer_left(self, queue: Queue, consumer: QueueConsumer) -> None:
        """A consumer was cancelled or lost; an auto-delete queue goes with its last one."""
        if queue.remove_consumer(consumer):
            if not queue.consumers:
                self._expiry.used(queue)
            is_over = queue.auto_delete and not queue.consumers and not queue.core.is_closed
            if is_over and self.queues.get(queue.name) is queue:
                try:
                    self.remove_queue(queue)
                except ChannelError as error:
                    self._log.error("auto-delete queue %r stays: %s", queue.name, error)

    def get_used(self, queue: Queue) -> None:
        """A message of the queue was asked for by basic.get."""
        self._expiry.used(queue)

    def _expired(self, queue: Queue) -> None:
        """Nobody has used the queue for its time."""
        try:
            self.remove_queue(queue)
            self._log.info("queue %r has expired", queue.name)
        except ChannelError as error:
            self._log.error("expired queue %r stays: %s", queue.name, error)
            self._expiry.used(queue)

    # --- operators ----------------------------------------------------------------------------

    def is_unusable(self, name: str) -> bool:
        """Whether a queue or an exchange of that name is in the files that is left out here."""
        return name in self._kept_names

    def pause_queue(self, name: str) -> None:
        """Deliver nothing from a queue, also after a restart; it goes on taking messages.

        Raises: KeyError when there is none; OSError when the disk refuses the mark.
        """
        queue = self.queues[name]
        if queue.is_stored:
            pause.mark(queue.directory)
            self._sync_directory(queue)
        queue.core.is_paused = True
        self._log.info("queue %r is paused", name)

    def resume_queue(self, name: str) -> None:
        """Deliver again. Raises: KeyError; OSError when the mark cannot be removed."""
        queue = self.queues[name]
        if queue.is_stored:
            pause.unmark(queue.directory)
            self._sync_directory(queue)
        queue.core.is_paused = False
        self._log.info("queue %r is resumed", name)

    def _sync_directory(self, queue: Queue) -> None:
        fd = os.open(queue.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._loop.sync_file(fd, _nothing)
        finally:
            os.close(fd)

    def restart_queue(self, name: str) -> None:
        """Read the files of a closed queue again. Its consumers are told that they are cancelled.
        A stream is served once `when_synced` says so: who waits for that finds it running.

        Raises: KeyError when there is none; ValueError when it is not closed or has no files that
            outlive the broker; ValueError or OSError, naming the file, when that cannot be read: it
            stays closed then.
        """
        queue = self.queues[name]
        if not queue.core.is_closed:
            raise ValueError(f"queue '{name}' is running")
        if not queue.is_stored:
            raise ValueError(f"queue '{name}' has nothing on disk to start from")
        for consumer in queue.take_consumers():
            consumer.stop()
            consumer.cancelled()
        self._news.forget(queue)
        self._note(queue, queue.core.restart(is_held=queue.is_stream))
        if queue.is_stream:
            self._begin_epoch(queue, lambda fd: self._loop.sync_file(fd, _nothing))
            self.when_synced(queue.core.open)
        self._log.notice(
            "queue %r is restarted with %d messages; while it was closed it missed %d that were"
            " published without confirms", name, queue.core.ready, queue.core.take_missed(),
        )  # fmt: skip

    def set_consumer_timeout(self, timeout_ms: int) -> None:
        """How long a delivery may stay unacked where the queue does not say, 0 = for ever."""
        if timeout_ms != self._consumer_timeout_ms:
            self._consumer_timeout_ms = timeout_ms
            for queue in self.queues.values():
                self._set_timeout(queue)

    def _set_timeout(self, queue: Queue) -> None:
        own = queue.features.consumer_timeout_ms
        queue.core.consumer_timeout_ms = self._consumer_timeout_ms if own is None else own

    # --- bindings -----------------------------------------------------------------------------

    def bind(
        self, actor: Actor, queue_name: str, exchange_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """queue.bind. Returns: whether it was recorded. Raises: ChannelError."""
        check_name("Queue", queue_name)
        check_name("Exchange", exchange_name)
        queue, exchange = self.queues.get(queue_name), self.exchanges.get(exchange_name)
        if queue is None:
            raise missing(f"Queue '{queue_name}' not found in vhost '{self.name}'")
        if exchange is None:
            raise missing(f"Exchange '{exchange_name}' not found in vhost '{self.name}'")
        self._check_may_bind(actor, queue, exchange, f"User '{actor.user.name}'", key)
        return self._bind(exchange, queue, key, arguments)

    def unbind(
        self, actor: Actor, queue_name: str, exchange_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """queue.unbind; what is missing is no error. Returns: whether it was recorded."""
        check_name("Queue", queue_name)
        check_name("Exchange", exchange_name)
        queue, exchange = self.queues.get(queue_name), self.exchanges.get(exchange_name)
        if queue is None or exchange is None:
            return False
        self._check_may_bind(actor, queue, exchange, "User", key)
        return self._unbind(exchange, queue, key, arguments)

    def bind_exchange(
        self, actor: Actor, to_name: str, from_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """exchange.bind. Returns: whether it was recorded. Raises: ChannelError."""
        for name in (to_name, from_name):
            if name not in self.exchanges:
                raise missing(f"Exchange '{name}' doesn't exists in vhost '{self.name}'")
        source = self.exchanges[from_name]
        topic = key if source.is_topic else None
        rights.check_bind_exchange(actor.user, self.name, to_name, from_name, "bind to", topic)
        return self._bind(source, self.exchanges[to_name], key, arguments)

    def unbind_exchange(
        self, actor: Actor, to_name: str, from_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """exchange.unbind; what is missing is no error. Returns: whether it was recorded."""
        if to_name not in self.exchanges or from_name not in self.exchanges:
            return False
        source = self.exchanges[from_name]
        topic = key if source.is_topic else None
        rights.check_bind_exchange(actor.user, self.name, to_name, from_name, "unbind from", topic)
        return self._unbind(source, self.exchanges[to_name], key, arguments)

    def _bind(self, exchange: Exchange, to: Destination, key: str, arguments: FieldTable) -> bool:
        if (to, key, arguments) not in exchange.bindings:
            self._check_binding_limits(to)
        try:
            is_new = exchange.bind(to, key, arguments)
        except ValueError as error:
            raise failed(str(error)) from error
        self._n_bindings += is_new
        self._touch_nested(exchange)
        if not (exchange.durable and to.is_stored):
            return False
        if not is_new:
            return self.is_syncing
        try:
            self._file.append_bind(_binding_def(exchange, to, key, arguments))
        except DefinitionsError as error:
            self._n_bindings -= exchange.unbind(to, key, arguments)
            raise _not_stored("the binding", error) from error
        return True

    def _check_binding_limits(self, to: Destination) -> None:
        """Raises: ChannelError 406 when there may be no further binding."""
        limits = self.binding_limits
        if limits.per_queue and len(to.incoming) >= limits.per_queue:
            raise failed(
                f"'{to.name}' has {limits.per_queue} bindings, as many as may be"
                " (max_bindings_per_queue)"
            )
        if limits.per_vhost and self._n_bindings >= limits.per_vhost:
            raise failed(
                f"vhost '{self.name}' has {limits.per_vhost} bindings, as many as may be"
                " (max_bindings_per_vhost)"
            )

    def _unbind(self, exchange: Exchange, to: Destination, key: str, arguments: FieldTable) -> bool:
        if (to, key, arguments) not in exchange.bindings:
            try:
                exchange.unbind(to, key, arguments)  # a key that no binding can have is refused
            except ValueError as error:
                raise failed(str(error)) from error
            return False
        recorded = exchange.durable and to.is_stored
        if recorded:
            with _storing("the end of the binding"):
                self._file.append_unbind(_binding_def(exchange, to, key, arguments))
        self._n_bindings -= exchange.unbind(to, key, arguments)
        self._touch_nested(exchange)
        self._compact_if_due()
        return self._drop_if_unused(exchange) or recorded

    def _destinations(self) -> Iterator[Destination]:
        yield from self.queues.values()
        yield from self.exchanges.values()

    def _unbind_everywhere(self, to: Destination) -> None:
        """A destination goes: so do its bindings; their deletion is implied by its own record.

        Of very many most go while others are served; nothing is routed by them any more."""
        if len(to.incoming) > AT_ONCE:
            _core.vanish(to.core)
            self.core.touch()
            self.portions.begin(self._unbinding(to))
        else:
            _exhaust(self._unbinding(to))

    def _unbinding(self, to: Destination) -> Iterator[None]:
        while to.incoming:  # the newest first: it is found at once
            exchange, key, arguments = next(reversed(to.incoming))
            self._n_bindings -= exchange.unbind(to, key, arguments)
            self._touch_nested(exchange)
            self._drop_if_unused(exchange)
            yield

    def _dropping(self, exchange: Exchange) -> Iterator[None]:
        while exchange.bindings:
            self._n_bindings -= exchange.unbind(*next(reversed(exchange.bindings)))
            yield

    def _drop_bindings(self, exchange: Exchange) -> None:
        """An exchange has gone, to which nobody can publish any more: so do its own bindings."""
        if len(exchange.bindings) > AT_ONCE:
            _core.vanish(exchange.core)
            self.portions.begin(self._dropping(exchange))
        else:
            _exhaust(self._dropping(exchange))

    def _touch_nested(self, exchange: Exchange) -> None:
        """Routes kept by publishers to other exchanges may lead through this one."""
        if exchange.incoming or exchange.name in self._alternates:
            self.core.touch()

    def check_usable(self, queue: Queue) -> None:
        """Messages of a delayed exchange wait in an internal queue. Raises: ChannelError 403."""
        if queue.is_internal:
            raise refused(f"Queue '{queue.name}' in vhost '{self.name}' is internal")

    def _check_may_bind(
        self, actor: Actor, queue: Queue, exchange: Exchange, who: str, key: str
    ) -> None:
        topic = key if exchange.is_topic else None
        rights.check_bind(actor.user, self.name, exchange.name, queue.name, who, topic)
        if exchange.waiting is queue:
            raise failed(
                f"Cannot bind delayed exchange '{exchange.name}' to its internal delayed queue"
                f" '{queue.name}'"
            )
        self.check_usable(queue)
        if queue.is_locked_to(actor):
            raise self.locked(queue)
        if not exchange.name:
            raise refused("Access refused to ")

    def locked(self, queue: Queue) -> ChannelError:
        """405, for the exclusive queue of another connection."""
        return ChannelError(
            ReplyCode.RESOURCE_LOCKED,
            f"Exclusive queue '{queue.name}' in vhost '{self.name}', of another connection",
        )

    def _drop_if_unused(self, exchange: Exchange) -> bool:
        """An auto-delete exchange goes with its last binding. Returns: whether it was recorded."""
        if not exchange.auto_delete or exchange.bindings or exchange.name not in self.exchanges:
            return False
        try:
            return self._remove_exchange(exchange)
        except ChannelError as error:
            self._log.error("auto-delete exchange %r stays: %s", exchange.name, error)
            return False

    # --- direct reply-to ----------------------------------------------------------------------

    def add_reply_queue(self) -> Queue:
        """An unlisted queue behind an address that cannot be guessed, for one channel's replies.

        It is found by the default exchange only: nobody else can consume, bind or delete it."""
        name = REPLY_PREFIX + secrets.token_urlsafe(24)
        directory = f"{self._transient}/{hashed(name)}"
        core = _core.Queue(self._loop, directory, self._segment_size, False)
        queue = Queue(name, core, self._transient, False, False, None, EMPTY)
        self.exchanges[""].core.bind(raw_key(name), b"", core)
        self.reply_queues[name] = queue
        return queue

    def remove_reply_queue(self, queue: Queue) -> None:
        """Its consumer has gone: the address is void."""
        del self.reply_queues[queue.name]
        self.exchanges[""].core.unbind(raw_key(queue.name), b"", queue.core)
        if queue.core.delete():
            self.remove_files(queue)

    # --- messages -----------------------------------------------------------------------------

    def purge(self, actor: Actor, name: str) -> _core.Purge:
        """queue.purge. Returns: what deletes the ready messages. Raises: ChannelError."""
        check_name("Queue", name)
        queue = self.queues.get(name)
        if queue is None:
            raise missing(f"Queue '{name}' not found in vhost '{self.name}'")
        if not actor.user.can_read(self.name, name):
            raise refused(
                f"User '{actor.user.name}' doesn't have write permissions to queue '{name}'"
            )
        if queue.is_locked_to(actor):
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, f"Queue '{name}' is exclusive")
        return _core.Purge(queue.core)

    def publishable(self, user: Identity, name: str, keys: Iterable[str] = ()) -> Exchange:
        """The exchange, when the user may publish to it with these routing keys.

        Raises: ChannelError.
        """
        rights.check_publish(user, self.name, name)
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise missing(f"No exchange '{name}' in vhost '{self.name}'")
        self._check_not_internal(exchange)
        granted = self.key_rights(user, name)
        if granted is not None:
            rights.check_keys(user, granted, name, keys)
        return exchange

    def check_letter(self, user: Identity, name: str, keys: Collection[str]) -> Exchange | None:
        """Refuse a message that says where it goes when it dies, as if it were published there now.

        Rights are asked by the name, since the exchange may come later. Where not every key is
        allowed it has to name the one of its letter: those of a queue are somebody else's choice.
        Returns: the exchange, None when there is none yet. Raises: ChannelError 403.
        """
        rights.check_publish(user, self.name, name)
        exchange = self.exchanges.get(name)
        if exchange is not None:
            self._check_not_internal(exchange)
        granted = self.key_rights(user, name)
        if granted is not None and not keys:
            raise refused(
                f"User '{user.name}' has to name the routing key of dead letters for exchange"
                f" '{name}'"
            )
        if granted is not None:
            rights.check_keys(user, granted, name, keys)
        return exchange

    def key_rights(self, user: Identity, name: str) -> KeyRights | None:
        """What a user may do with the keys of an exchange of that name, which need not exist; None
        when every key may be published."""
        exchange = self.exchanges.get(name)
        granted = None if exchange is not None and not exchange.is_topic else (
            user.key_rights(self.name, name)
        )  # fmt: skip
        return None if granted is None or granted.is_any_written else granted

    def _check_not_internal(self, exchange: Exchange) -> None:
        if exchange.internal:
            raise refused(f"Exchange '{exchange.name}' in vhost '{self.name}' is internal")


def _each(consumers: list[QueueConsumer], call: Callable[[QueueConsumer], None]) -> Iterator[None]:
    """A call in each step, which lets go of the consumer: very many freed in one go take long."""
    consumers.reverse()
    while consumers:
        call(consumers.pop())
        yield


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def check_queue(durable: bool, exclusive: bool, auto_delete: bool, arguments: FieldTable) -> None:
    """Refuse properties that no queue can have. Raises: ChannelError."""
    if is_stream(arguments):
        check_declaration(durable, exclusive, auto_delete, arguments)
    queue_arguments.check(arguments)
    if arguments.get("x-queue-type") == "mqtt":
        raise ChannelError(
            ReplyCode.NOT_IMPLEMENTED, "x-queue-type mqtt is not part of this release"
        )


def settled(name: str, type_: str, arguments: FieldTable) -> tuple[str, FieldTable]:
    """The type and arguments with which an exchange lives. Raises: ChannelError 406."""
    if type_ in DELAYED_TYPES:
        wanted = arguments.get("x-delayed-type")
        if wanted is None:
            raise failed("Missing required argument 'x-delayed-type'")
        if not isinstance(wanted, str) or wanted not in KINDS:
            raise failed(f"unknown exchange type '{wanted!s}'{unserved(str(wanted))}")
        settled = ExchangeDef(name, type_, arguments=arguments).settled()
        type_, arguments = settled.type, settled.arguments
    if type_ not in KINDS:
        raise failed(f"unknown exchange type '{type_}'{unserved(type_)}")
    if arguments.get("x-delayed-exchange") is True and len(raw_key(name)) > delayed.MAX_NAME:
        raise failed(f"the name of a delayed exchange has at most {delayed.MAX_NAME} bytes")
    wrong = mistyped(arguments, "alternate-exchange")
    if wrong is not None:
        raise failed(f"{wrong} header not a string")
    if type_ == "headers" and arguments.get("x-match", "all") not in ("all", "any"):
        raise failed("x-match must be 'any' or 'all'")
    if type_ == "x-consistent-hash":
        hash_arguments.check(arguments)
    dedup.check_exchange(arguments)
    return type_, arguments


@contextmanager
def _storing(what: str) -> Iterator[None]:
    """Turn a disk that refuses into 406: what could not be recorded has not happened."""
    try:
        yield
    except (DefinitionsError, OSError) as error:
        raise _not_stored(what, error) from error


def _not_stored(what: str, error: Exception) -> ChannelError:
    """406 for what the disk refused."""
    return failed(f"{what} cannot be stored: {error}")


def _nothing() -> None:
    """The directory is synced together with the file."""


def _binding_def(
    exchange: Exchange, to: Destination, key: str, arguments: FieldTable
) -> BindingDef:
    """A binding as it is recorded."""
    kind: Literal["queue", "exchange"] = "queue" if isinstance(to, Queue) else "exchange"
    return BindingDef(exchange.name, to.name, kind, key, arguments)
