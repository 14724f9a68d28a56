"""A virtual host: exchanges and queues by name, and the rules for declaring and deleting them.

Every method that a client can reach checks names, existence and permissions in the order that
clients see, changes the state, and records what is durable. It returns whether something was
recorded, so that the caller can answer once that is on disk. Runs on the loop thread. Longer than
500 lines: what a declaration or a deletion sets in motion stands in one place, in its order.
Source: docs/protocol.md, docs/durability.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from lavinmq import _core
from lavinmq.arguments import exchange_types
from lavinmq.arguments.names import check_name, check_prefix, failed, missing, refused
from lavinmq.arguments.stream import is_stream
from lavinmq.auth.identity import Identity
from lavinmq.errors import ChannelError, DefinitionsError, ReplyCode, low_on_disk
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.files.definitions import BindingDef, ExchangeDef, News, QueueDef
from lavinmq.files.deleted import DOOMED
from lavinmq.files.directories import hashed, make_directory, write_text
from lavinmq.files.saving import Disk
from lavinmq.process import log
from lavinmq.process.portions import Portions
from lavinmq.stats.churn import Churn
from lavinmq.stats.totals import Totals
from lavinmq.vhost import dedup, loading, rights, subscribing
from lavinmq.vhost.ahead import Ahead
from lavinmq.vhost.alternates import Alternates
from lavinmq.vhost.bindings import Bindings
from lavinmq.vhost.bridge import Bridge
from lavinmq.vhost.declarations import BUILT_IN, check_queue, checked_exchange
from lavinmq.vhost.dedup_keys import DedupKeys
from lavinmq.vhost.delayed import DelayedExchanges
from lavinmq.vhost.destination import Destination, Source
from lavinmq.vhost.exchange import Exchange, is_delayed, raw_key
from lavinmq.vhost.expiry import QueueExpiry
from lavinmq.vhost.history import Histories
from lavinmq.vhost.new_queue import Declared, DeclaredExchange, NewQueue
from lavinmq.vhost.operators import Operators
from lavinmq.vhost.publishing import Publishing
from lavinmq.vhost.queue import Actor, Owner, Queue, QueueConsumer, path_of
from lavinmq.vhost.queue_files import Look, QueueFiles, can_be_ready
from lavinmq.vhost.recorded import Recorded, storing
from lavinmq.vhost.replies import ReplyQueues
from lavinmq.vhost.rules import VHostRules
from lavinmq.vhost.store_news import StoreNews

T = TypeVar("T")
DELAYED: Final = "amq.delayed"
"""What names of queues begin with that belong to exchanges."""
WARMED: Final = 64
"""Directories that a thread reads at once before the loop does."""


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
        bridge: the exchange that shares its topics with MQTT, unless a parameter names another.
    """

    def __init__(
        self, name: str, data_dir: Path, loop: _core.Loop, segment_size: int, max_deleted: int,
        hash_algorithm: str, call_soon: Callable[..., Any], consumer_timeout_ms: int = 0,
        churn: Churn | None = None, disk: Disk | None = None, *, is_clean: bool = False,
        bridge: str = "",
    ) -> None:  # fmt: skip
        self.name = name
        self.directory = data_dir / hashed(name)
        self.core = _core.Vhost()
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.connections: set[Member] = set()
        self.totals = Totals(self, churn)
        self._loop = loop
        self._segment_size = segment_size
        self._hash_algorithm = hash_algorithm
        self._is_loading = True
        self.ahead: Ahead | None = None
        """What was read of it ahead, while it stands ready; see `stand_by`."""
        self.is_abandoned = False
        """Whether all that was in it has been let go of."""
        self._log = log.get("lmq.vhost", vhost=name)
        disk = disk or Disk()
        self._changes = disk.changes
        self.portions = Portions(call_soon)
        self.recorded = Recorded(
            self.directory, self.exchanges, self.queues, loop, disk, max_deleted, self._log
        )
        self.on_session_end: Callable[[Queue], object] | None = None
        """Is told of each queue of a client of MQTT that has gone."""
        self.on_parameters: Callable[[], object] | None = None
        """Is told when what parameters say of MQTT may have changed."""
        self.on_links: Callable[[], object] | None = None
        """Is told when parameters have changed that move messages, and when all of it goes."""
        self.on_resource: Callable[[Exchange | Queue], object] | None = None
        """Is told when an exchange or queue has other features, and when it is gone."""
        self._keys = DedupKeys(self.directory, loop, self._log, disk.changes)
        self._news = StoreNews(self._log)
        self.files = QueueFiles(
            self.directory, loop, self.recorded, self._keys, self._news, disk, self._log,
            is_clean=is_clean,
        )  # fmt: skip
        self._alternates = Alternates(self.core, self.exchanges)
        self._histories = Histories(loop, self.files.transient, self.portions)
        self.bindings = Bindings(
            name, self.exchanges, self.queues, self.core, self._alternates, self.recorded,
            self.portions, self._histories, self._drop_if_unused,
        )  # fmt: skip
        self.reply_queues = ReplyQueues(
            self.exchanges, loop, self.files.transient, segment_size, self.files.remove
        )
        self.publishing = Publishing(name, self.exchanges)
        self.operators = Operators(
            self.queues, self.recorded, self.files, consumer_timeout_ms, self._log, disk
        )
        self.rules: VHostRules = VHostRules(
            self.directory, name, self.queues, self.exchanges, call_soon, self._queue_changed,
            self._exchange_changed, disk,
        )  # fmt: skip
        self.bridge: Bridge = Bridge(self.core, self.exchanges, self.rules.parameters, bridge)
        self.bridge.on_change = self._parameters_changed
        self.rules.parameters.on_change = self._parameters_changed
        self._delayed = DelayedExchanges(
            self.queues, self._new_queue, self.files, self.core, loop, call_soon, self._log
        )
        self._expiry = QueueExpiry(loop.events, self._expired)

    # --- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Load definitions and messages, or what of them is not ready. Raises: DefinitionsError,
        OSError."""
        make_directory(self.directory, self._changes)
        write_text(self.directory / ".vhost", self.name, self._changes)
        self.files.open()
        if self.ahead is None:
            self._load()
        else:
            self._take_over(self.ahead)
        self._delayed.release_left(list(self.exchanges.values()))
        self.files.remove_left(self.queues.values())
        self._is_loading = False
        self.recorded.compact()

    def _load(self) -> None:
        self.rules.load()
        stored = self.recorded.open()
        add = self._load_exchange
        _all(loading.load_exchanges(stored.exchanges, add, self.recorded, self._log))
        self._keys.load_exchanges(self.exchanges.values())
        self._add_built_in()
        loading.load_queues(stored.queues, self.files.stored, self._load_queue)
        self.files.open_streams()
        _all(loading.load_bindings(stored.bindings, self.bindings, self.recorded, self._log))

    # --- life, of one that stands ready ---------------------------------------------------------

    def stand_by(self, ahead: Ahead) -> Iterator[list[str] | None]:
        """Load all that can be read ahead, in short steps. Nothing is written, and nobody is told
        of anything: what is not as it should be is left to `open`. On an event loop that stands
        still.

        Yields: directories that are read next, for a thread to read them before; or None.
        Raises: DefinitionsError, OSError: nothing of it can be ready.
        """
        self.ahead = self.files.ahead = ahead
        stored = ahead.definitions.stored
        self.rules.load_ahead()
        yield from loading.load_exchanges(
            stored.exchanges, self._load_exchange, self.recorded, self._log
        )
        self._add_built_in()
        for at, queue in enumerate(stored.queues):
            if at % WARMED == 0:
                few = stored.queues[at : at + WARMED]
                yield [f"{self.files.stored}/{hashed(each.name)}" for each in few]
            path = f"{self.files.stored}/{hashed(queue.name)}"
            yield from self.files.load_ahead(ahead, self._stored_queue(queue, path), path)
            yield None
        yield from loading.load_bindings(stored.bindings, self.bindings, self.recorded, self._log)
        for rows in (stored.exchanges, stored.queues, stored.bindings):
            yield from _emptied(rows)
        ahead.n_ready = len(ahead.queues)

    def drop(self) -> Iterator[None]:
        """Let go of what stands ready, in short steps; `abandon` has to follow. Nothing of it leads
        to the rest any more: a node that follows may have no collector of garbage."""
        if self.ahead is not None:
            self.ahead.queues.clear()
            self.ahead.tried.clear()
        self._expiry.stop()  # it would be the last one that has the queues
        for exchange in self.exchanges.values():
            yield from exchange.emptied()
        while self.queues:
            self.queues.popitem()[1].core.delete()
            yield
        self.exchanges.clear()

    def catch_up(self, news: list[News], *, is_read: bool) -> Iterator[list[str] | None]:
        """Have what stands ready be as definitions have become, in short steps. Args: is_read:
        whether new queues are read as well. Yields: as `stand_by`. Raises: DefinitionsError,
        OSError, ValueError: it has to be read anew."""
        ahead = self.ahead
        if ahead is None:
            return
        if self.recorded.leaves_out:
            raise DefinitionsError("there is something that this release does not have")
        news.reverse()
        while news:
            is_there, what = news.pop()
            if isinstance(what, BindingDef):
                if not is_there:
                    self.bindings.unload(what)
                elif not self.bindings.load(what):
                    raise DefinitionsError(f"no {what.source!r} or {what.destination!r}")
            elif isinstance(what, ExchangeDef):
                if what.name in self.exchanges:
                    raise DefinitionsError(f"there is an exchange {what.name!r}")
                yield from loading.load_exchanges(
                    (what,), self._load_exchange, self.recorded, self._log
                )
            elif not is_there:
                yield from self._lose(ahead, what.name)
            elif what.name in self.queues or what.name.startswith(DELAYED):
                raise DefinitionsError(f"there is a queue {what.name!r}")
            else:
                path = f"{self.files.stored}/{hashed(what.name)}"
                queue = self._stored_queue(what, path)
                if is_read:
                    yield [path]
                    yield from self.files.load_ahead(ahead, queue, path)
            yield None
        self.exchanges[subscribing.EXCHANGE].deserted.clear()  # whoever served has seen to these
        ahead.end()

    def _lose(self, ahead: Ahead, name: str) -> Iterator[None]:
        """A queue of what stands ready is gone. Raises: DefinitionsError: more goes with it."""
        queue = self.queues.get(name)
        if queue is None:
            return
        if queue.is_internal:
            raise DefinitionsError(f"queue {name!r} belongs to an exchange")
        yield from self.bindings.unload_to(queue)
        if not queue.is_session:
            self.exchanges[""].core.unbind(raw_key(name), b"", queue.core)
        del self.queues[name]
        ahead.forget(queue)
        self._expiry.forget(queue)
        self._let_go(queue)

    def stands_ready(self) -> bool:
        """Whether what was read ahead is so, now that nobody else changes the files; what was
        defined in the end is made up for. Raises: DefinitionsError, OSError, ValueError: it is
        not."""
        ahead = self.ahead
        if ahead is None:
            return False
        for _ in ahead.steps:
            pass
        if not ahead.is_so:
            news = ahead.news() if ahead.begin() else None
            if news is None:
                return False
            for _ in self.catch_up(news, is_read=False):
                pass
        return ahead.is_whole

    def look_again(self, since: int) -> Iterator[list[str] | None]:
        """Read queues again that have changed since they were read, and rest since a position of
        the log. Yields: as `stand_by`."""
        ahead = self.ahead
        if ahead is None:
            return
        n_ready = 0
        for queue in list(self.queues.values()):
            if can_be_ready(queue) and not ahead.has(queue) and ahead.is_news(queue, since):
                ahead.queues.pop(queue, None)
                yield [queue.directory]
                queue.core.forget()
                yield from self.files.load_ahead(ahead, queue, queue.directory)
            n_ready += queue in ahead.queues and ahead.has(queue)
            yield None
        ahead.n_ready = n_ready

    def _take_over(self, ahead: Ahead) -> None:
        """Nobody else changes the files any more: read what has changed, and serve all of it."""
        self.ahead = self.files.ahead = None
        for say in ahead.lines:
            say()
        self.recorded.take(ahead.definitions.size, ahead.definitions.deleted)
        ahead.close()
        self._expiry.restart()
        self.rules.load_parameters()
        self.bridge.look()
        self._keys.load_exchanges(self.exchanges.values())
        n_read = 0
        for queue in list(self.queues.values()):
            is_ready = ahead.has(queue)
            n_read += not is_ready
            self.files.take_over(queue, is_ready=is_ready)
        self.files.open_streams()
        self._log.info("%d of %d queues stood ready", len(self.queues) - n_read, len(self.queues))

    def _load_exchange(self, stored: ExchangeDef) -> None:
        self._add_exchange(
            stored.name, stored.type, stored.durable, stored.auto_delete, stored.internal,
            stored.arguments,
        )  # fmt: skip

    def _load_queue(self, stored: QueueDef, directory: str, look: Look) -> None:
        self.files.load(self._stored_queue(stored, directory), directory, look)

    def _stored_queue(self, stored: QueueDef, directory: str) -> Queue:
        return self._add_queue(
            stored.name, True, stored.auto_delete, None, stored.arguments, directory
        )

    def _add_built_in(self) -> None:
        absent = [(name, kind) for name, kind in BUILT_IN if name not in self.exchanges]
        for name, kind in absent:
            self._add_exchange(name, kind, durable=True)
            self.recorded.file.append_declare_exchange(ExchangeDef(name, kind))
        if absent:
            self.recorded.file.sync()

        if subscribing.EXCHANGE not in self.exchanges:
            self._add_exchange(subscribing.EXCHANGE, exchange_types.MQTT, internal=True)

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
            self.recorded.file.sync()
            self.files.remove_deleted()
        finally:
            self.abandon()
        self.files.remove_transient()
        if failure is not None:
            raise failure

    @property
    def has_closed_streams(self) -> bool:
        """Whether a stream cannot be used: what its readers have had may not be on disk."""
        return any(queue.is_stream and queue.core.is_closed for queue in self.queues.values())

    def abandon(self) -> None:
        """Let go of all files and memory without writing, as if the process had died. Idempotent.

        What was loaded, or written so far, stays in the files."""
        self.is_abandoned = True
        self._expiry.stop()
        self._histories.stop()
        self.rules.stop()
        self.files.abandon()
        if self.ahead is not None:
            self.ahead.close()
        for queue in (*self.queues.values(), *self.reply_queues.values()):
            queue.core.delete()
        for cache in [each.dedup for each in self._destinations() if each.dedup is not None]:
            cache.release()
        self.recorded.close()

    def release(self) -> None:
        """It is abandoned, and the next one of its name gets the same directory: wait for threads
        that still write a file there. In a thread."""
        self.rules.release()
        self.recorded.file.release()

    def deleting(self) -> Iterator[None]:
        """End the connections and take everything away, in short steps; nobody gets here any more.
        `abandon` has to follow."""
        self._expiry.stop()
        self._histories.stop()
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

    def doomed(self) -> Path:
        """The name that its directory is to have at last, which no start takes for that of a
        virtual host."""
        return self.directory.with_name(f"{self.directory.name}{DOOMED}{time.time_ns()}")

    def report(self) -> None:
        """Log what is new about queues whose files could not be read or written."""
        self._news.report(self.queues.values())
        dedup.report(self._log, self._destinations())

    def _destinations(self) -> Iterator[Destination]:
        yield from self.queues.values()
        yield from self.exchanges.values()

    # --- exchanges ----------------------------------------------------------------------------

    def _add_exchange(
        self, name: str, type_: str, durable: bool = False, auto_delete: bool = False,
        internal: bool = False, arguments: FieldTable = EMPTY,
    ) -> Exchange:  # fmt: skip
        exchange = Exchange(
            name, type_, durable, auto_delete, internal, arguments, self._hash_algorithm
        )
        self.exchanges[exchange.name] = exchange
        self.core.add(raw_key(exchange.name), exchange.core)
        self._keys.give(exchange)
        self._histories.give(exchange)
        self._alternates.tell_users_of(exchange.name, exchange)
        self._exchange_changed(exchange)
        self.rules.apply_to_exchange(exchange)
        self.bridge.look()
        self.core.touch()
        return exchange

    def _parameters_changed(self) -> None:
        """Parameters have changed, or what they name has come or gone."""
        self.bridge.look()
        if self.on_parameters is not None:
            self.on_parameters()
        if self.on_links is not None:
            self.on_links()

    def _queue_changed(self, queue: Queue) -> None:
        """A queue has new features."""
        self._expiry.changed(queue)
        self.operators.set_timeout(queue)
        if self.on_resource is not None:
            self.on_resource(queue)

    def _exchange_changed(self, exchange: Exchange) -> None:
        """An exchange is new, or has new features."""
        self._alternates.link(exchange)
        self._delayed.changed(exchange, is_new=not self._is_loading)
        if self.on_resource is not None:
            self.on_resource(exchange)

    def declare_exchange(
        self, actor: Actor, name: str, type_: str, passive: bool, durable: bool, auto_delete: bool,
        internal: bool, arguments: FieldTable, *, is_restored: bool = False,
    ) -> DeclaredExchange:  # fmt: skip
        """exchange.declare. Returns: whether it was recorded; or, of a new durable one, what has to
        be waited for before it exists, if anything. Raises: ChannelError.

        Args: is_restored: it comes from an export, and may have a reserved name.
        """
        again = partial(
            self.declare_exchange, actor, name, type_, passive, durable, auto_delete, internal,
            arguments, is_restored=is_restored,
        )  # fmt: skip
        check_name("Exchange", name)
        if not name:
            raise refused("Not allowed to declare the default exchange")
        existing = self.exchanges.get(name)
        if existing is not None:
            given = ExchangeDef(name, type_, durable, auto_delete, internal, arguments).resolved()
            if passive or existing.is_same(given):
                return existing.durable and self.recorded.is_syncing
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
        type_, arguments = checked_exchange(name, type_, arguments)
        if arguments.get("x-delayed-exchange") is True and not is_restored:
            self._check_queue_limit()  # its messages wait in a queue
        if self.recorded.is_left_out(name):
            raise failed(f"Exchange '{name}' is of a kind that this release does not have")
        features = self.rules.features_of_exchange(name, type_, arguments)
        if durable:
            with storing(f"exchange '{name}'"):
                wish = self._delayed.wish(name, is_delayed=is_delayed(arguments, features))
            if wish is not None:
                return self._when_made(wish, again)
            with storing(f"exchange '{name}'"):
                self._keys.make_way(name)
                self.recorded.file.append_declare_exchange(
                    ExchangeDef(name, type_, True, auto_delete, internal, arguments)
                )
        self._add_exchange(name, type_, durable, auto_delete, internal, arguments)
        return durable

    def own_exchange(self, name: str, type_: str) -> Exchange:
        """The internal exchange of that name to which the broker itself publishes; made when there
        is none. Raises: ChannelError 406 when it cannot be stored."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            with storing(f"exchange '{name}'"):
                self.recorded.file.append_declare_exchange(
                    ExchangeDef(name, type_, True, False, True)
                )
            exchange = self._add_exchange(name, type_, durable=True, internal=True)
        return exchange

    def delete_exchange(self, actor: Actor, name: str, if_unused: bool) -> bool:
        """exchange.delete; a missing one is no error. Returns: whether it was recorded."""
        check_name("Exchange", name)
        if not name:
            raise refused("Not allowed to delete the default exchange")
        check_prefix(name)
        rights.check_delete(actor.user, self.name, "exchange", name)
        exchange = self.exchanges.get(name)
        if exchange is None:
            return False
        if if_unused and exchange.is_used:
            raise failed(f"Exchange '{name}' in use")
        return self._remove_exchange(exchange)

    def _remove_exchange(self, exchange: Exchange) -> bool:
        """Returns: whether it was recorded. Raises: ChannelError 406, and nothing has happened."""
        if exchange.durable:
            with storing(f"the deletion of exchange '{exchange.name}'"):
                self.recorded.file.append_delete_exchange(exchange.name)
        self._delayed.remove(exchange)
        del self.exchanges[exchange.name]
        self.core.remove(raw_key(exchange.name))
        self.bridge.look()
        self.bindings.drop_to(exchange)
        self.bindings.drop_from(exchange)
        self._alternates.tell_users_of(exchange.name, None)
        self._alternates.unlink(exchange)
        self.core.touch()
        self._keys.drop(exchange)
        self.recorded.compact_if_due()
        if self.on_resource is not None:
            self.on_resource(exchange)
        return exchange.durable

    def _drop_if_unused(self, source: Source) -> bool:
        """An auto-delete exchange goes with its last binding, what is shared with its last member.
        Returns: whether it was recorded."""
        exchange = self.exchanges.get(source.name)
        if exchange is source and exchange.deserted:
            return self._drop_deserted(exchange)
        if exchange is not source or not exchange.auto_delete or exchange.bindings:
            return False
        try:
            return self._remove_exchange(exchange)
        except ChannelError as error:
            self._log.error("auto-delete exchange %r stays: %s", exchange.name, error)
            return False

    def _drop_deserted(self, exchange: Exchange) -> bool:
        """The queues of shared subscriptions go that have no members. Returns: whether that was
        recorded."""
        is_recorded = False
        while exchange.deserted:
            name = subscribing.queue_of(self.queues, exchange.deserted.pop())
            queue = None if name is None else self.queues.get(name)
            try:
                is_recorded |= queue is not None and self.remove_queue(queue)[0]
            except ChannelError as error:
                self._log.error("queue %r stays: %s", name, error)
        return is_recorded

    # --- queues -------------------------------------------------------------------------------

    def declare_queue(
        self, actor: Actor, name: str, passive: bool, durable: bool, exclusive: bool,
        auto_delete: bool, arguments: FieldTable, *, is_restored: bool = False,
    ) -> Declared:  # fmt: skip
        """queue.declare. Returns: the queue, and whether the answer has to wait for the disk: it
        was recorded, now or by who has no answer yet either. Or, of a new durable queue, what has
        to be waited for before it exists. Raises: ChannelError.

        Args: is_restored: it comes from an export, and may have a reserved name; the limit has
            been looked at.
        """
        if name:
            check_name("Queue", name)
        if name not in self.queues:
            if passive:
                raise missing(f"Queue '{name}' doesn't exists in vhost '{self.name}'")
            if not is_restored:
                check_prefix(name)
        return self._declare_queue(
            actor, name or "amq.gen-" + secrets.token_urlsafe(24), passive, durable, exclusive,
            auto_delete, arguments, is_restored,
        )  # fmt: skip

    def _declare_queue(
        self, actor: Actor, name: str, passive: bool, durable: bool, exclusive: bool,
        auto_delete: bool, arguments: FieldTable, is_restored: bool,
    ) -> Declared:  # fmt: skip
        """The same with a name, which may be a reserved one; once more when there is a directory:
        others may have changed what counts."""
        queue = self.queues.get(name)
        if queue is not None:
            self._redeclare(actor, queue, passive, durable, exclusive, auto_delete, arguments)
            self._expiry.used(queue)
            return queue, queue.is_stored and self.recorded.is_syncing
        rights.check_declare_queue(actor.user, self.name, name, arguments)
        if not is_restored:
            self._check_queue_limit()
        if self._loop.is_held:
            raise low_on_disk("Server low on disk space, can not create queue")
        check_queue(durable, exclusive, auto_delete, arguments)
        if self.recorded.is_left_out(name):
            raise failed(f"Queue '{name}' is of a kind that this release does not have")
        again = partial(
            self._declare_queue, actor, name, passive, durable, exclusive, auto_delete, arguments,
            is_restored,
        )  # fmt: skip
        owner = actor if exclusive else None
        return self._make_queue(name, durable, auto_delete, owner, arguments, again)

    def declare_session(self, name: str, durable: bool, arguments: FieldTable) -> Declared:
        """The queue of a client of MQTT, which has been let in: as `declare_queue`, whatever rights
        and reserved names say."""
        queue = self.queues.get(name)
        if queue is not None:
            return queue, queue.is_stored and self.recorded.is_syncing
        self._check_queue_limit()
        if self._loop.is_held:
            raise low_on_disk("Server low on disk space, can not create queue")
        again = partial(self.declare_session, name, durable, arguments)
        return self._make_queue(name, durable, not durable, None, arguments, again)

    def change_session(self, queue: Queue, arguments: FieldTable) -> bool:
        """A session is to live by other arguments. Returns: whether it was recorded.

        Raises: ChannelError 406."""
        if queue.arguments == arguments:
            return False
        if queue.is_stored:
            with storing(f"queue '{queue.name}'"):
                self.recorded.file.append_declare_queue(
                    QueueDef(queue.name, True, False, queue.auto_delete, arguments)
                )
        queue.arguments = arguments
        self.rules.apply_to_queue(queue)
        return queue.is_stored

    def _make_queue(
        self, name: str, durable: bool, auto_delete: bool, owner: Owner | None,
        arguments: FieldTable, again: Callable[[], Declared],
    ) -> Declared:  # fmt: skip
        """A queue that may be; `again` goes on once it has a directory."""
        is_stored = durable and owner is None
        directory = None
        if is_stored:
            with storing(f"queue '{name}'"):
                directory = self.files.found(name)
                if directory is not None:
                    self._record_queue(QueueDef(name, True, False, auto_delete, arguments))
            if directory is None:
                wish = partial(self.files.wish, name, is_stream=is_stream(arguments))
                return self._when_made(wish, again)
        kind = arguments.get("x-queue-type", "classic")
        if kind not in ("classic", "stream", "mqtt"):
            self._log.notice(
                "queue %r of type %r is an ordinary queue here; it is durable if declared so",
                name, kind,
            )  # fmt: skip
        self.totals.churn.count("queue_declared")
        queue = self._add_queue(name, durable, auto_delete, owner, arguments)
        if directory is not None and queue.is_stream:
            self.files.begin_stream(queue, directory)
        return queue, is_stored

    def _record_queue(self, queue: QueueDef) -> None:
        """Raises: DefinitionsError; its directory is not taken then."""
        self.recorded.file.append_declare_queue(queue)
        self.files.take(queue.name)

    def _when_made(
        self, wish: Callable[[Callable[[], object]], object], again: Callable[[], T | NewQueue[T]]
    ) -> T | NewQueue[T]:
        """The declaration, once there is a directory: at once where nobody is served yet."""
        if self.files.is_beside:
            return NewQueue(wish, again)
        outcome: list[T | NewQueue[T]] = []
        wish(lambda: outcome.append(again()))
        return outcome[0]

    def _check_queue_limit(self) -> None:
        """Raises: ChannelError 403 when there may be no further queue."""
        limit = self.rules.limits.max_queues
        if limit is not None and len(self.queues) >= limit:
            raise refused(f"queue limit in vhost '{self.name}' ({limit}) is reached")

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
            raise rights.locked(self.name, queue)
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
        arguments: FieldTable, directory: str = "",
    ) -> Queue:  # fmt: skip
        queue = self._new_queue(name, durable, auto_delete, owner, arguments, directory)
        self._keys.give(queue)
        self.queues[name] = queue
        if owner is not None:
            owner.exclusive_queues.add(queue)
        if not queue.is_session:  # else anybody could send its client anything, of any topic
            self.exchanges[""].core.bind(raw_key(name), b"", queue.core)
        self.operators.set_timeout(queue)
        self.rules.apply_to_queue(queue)
        return queue

    def _new_queue(
        self, name: str, durable: bool, auto_delete: bool, owner: Owner | None,
        arguments: FieldTable, directory: str = "",
    ) -> Queue:  # fmt: skip
        """A queue that nobody knows yet. Args: directory: its path, of who has made it already."""
        stored = durable and owner is None
        root = self.files.stored if stored else self.files.transient
        life = 0 if stored else self.files.new_life()
        priority = arguments.get("x-max-priority")
        core = _core.Queue(
            self._loop, directory or path_of(root, name, life), self._segment_size, stored,
            name=raw_key(name)[:255], vhost=self.core,
            max_priority=priority if type(priority) is int and 0 <= priority <= 255 else -1,
            is_stream=is_stream(arguments),
        )  # fmt: skip
        return Queue(name, core, durable, auto_delete, owner, arguments)

    def delete_queue(
        self, actor: Actor, name: str, if_unused: bool, if_empty: bool
    ) -> tuple[int, bool, list[QueueConsumer]]:
        """queue.delete; a missing one is no error.

        Returns: ready messages it had, whether it was recorded, consumers to tell.
        """
        check_name("Queue", name)
        rights.check_delete(actor.user, self.name, "queue", name)
        queue = self.queues.get(name)
        if queue is None:
            return 0, self.recorded.is_syncing, []
        rights.check_not_internal(self.name, queue)
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
            with storing(f"the deletion of queue '{queue.name}'"):
                self.recorded.file.append_delete_queue(queue.name)
        consumers = queue.take_consumers()
        self.bindings.drop_to(queue)
        if not queue.is_session:
            self.exchanges[""].core.unbind(raw_key(queue.name), b"", queue.core)
        del self.queues[queue.name]
        self.totals.churn.count("queue_deleted")
        self._expiry.forget(queue)
        if queue.owner is not None:
            queue.owner.exclusive_queues.discard(queue)
        self._keys.drop(queue)
        if queue.core.delete():
            self.files.remove(queue)
        if queue.is_session and self.on_session_end is not None:
            self.on_session_end(queue)
        if self.on_resource is not None:
            self.on_resource(queue)
        self.recorded.compact_if_due()
        stops = _each(consumers.copy(), methodcaller("stop"))
        self.portions.begin_unless_few(stops, len(consumers))
        return queue.is_stored, consumers

    def tell_cancelled(self, consumers: list[QueueConsumer]) -> None:
        """Tell clients that their consumers have been cancelled, because the queue is gone."""
        notices = _each(consumers, methodcaller("cancelled"))
        self.portions.begin_unless_few(notices, len(consumers))

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

    def left(self, queue: Queue, ago_s: float = 0.0) -> None:
        """The client of a session has gone: it expires so many seconds after that."""
        self._expiry.left(queue, ago_s)

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

    # --- streams whose files somebody else writes ---------------------------------------------

    def new_view(self, stored: QueueDef) -> Queue:
        """A stream to read, which nobody knows before `show`."""
        return self._new_queue(stored.name, True, stored.auto_delete, None, stored.arguments)

    def show(self, queue: Queue) -> None:
        """From now on it can be read."""
        self.queues[queue.name] = queue
        self.operators.set_timeout(queue)

    def hide(self, queue: Queue) -> None:
        """It cannot be read any more: its consumers are told."""
        if self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
        consumers = queue.take_consumers()
        queue.core.delete()
        for consumer in consumers:
            consumer.stop()
            consumer.cancelled()

    # --- messages -----------------------------------------------------------------------------

    def purge(self, actor: Actor, name: str) -> _core.Purge:
        """queue.purge. Returns: what deletes the ready messages. Raises: ChannelError."""
        check_name("Queue", name)
        rights.check_purge(actor.user, self.name, name)
        queue = self.queues.get(name)
        if queue is None:
            raise missing(f"Queue '{name}' not found in vhost '{self.name}'")
        if queue.is_locked_to(actor):
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, f"Queue '{name}' is exclusive")
        return _core.Purge(queue.core)


def _emptied(rows: list[Any]) -> Iterator[None]:
    """Let go of very many, one in each step."""
    while rows:
        rows.pop()
        yield


def _all(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def _each(consumers: list[QueueConsumer], call: Callable[[QueueConsumer], None]) -> Iterator[None]:
    """A call in each step, which lets go of the consumer: very many freed in one go take long."""
    consumers.reverse()
    while consumers:
        call(consumers.pop())
        yield
