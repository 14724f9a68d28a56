"""A virtual host: exchanges and queues by name, and the rules for declaring, binding, deleting.

Every method that a client can reach checks names, existence and permissions in the order that
clients see, changes the state, and records what is durable. It returns whether something was
recorded, so that the caller can answer once that is on disk. Runs on the loop thread.
Source: AMQP reference, sections 7, 9 and 21; storage reference, sections 1 and 8.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import Any, Final, Protocol

from lavinmq import _core, log, queue_arguments
from lavinmq.auth.users import User
from lavinmq.definitions import (
    BindingDef,
    Definitions,
    DefinitionsFile,
    ExchangeDef,
    QueueDef,
)
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.exchange import KINDS, Exchange
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.queue import Owner, Queue, QueueConsumer

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""What a name must not contain: control characters, and bytes that are not UTF-8."""

RESERVED: Final = ("mqtt.", "amq.")
BUILT_IN: Final = (
    ("", "direct"), ("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic"),
    ("amq.headers", "headers"), ("amq.match", "headers"),
)  # fmt: skip
"""Exchanges that every virtual host has, all durable."""


class Actor(Owner, Protocol):
    """Who asks: a connection with its user."""

    user: User


class VHost:
    """One virtual host.

    Args:
        name: its name; the directory under `data_dir` follows from it.
        loop: the message path's shared state.
        segment_size: bytes of a finished segment file.
        max_deleted: deletions in the definitions file after which it is compacted.
    """

    def __init__(
        self, name: str, data_dir: Path, loop: _core.Loop, segment_size: int, max_deleted: int
    ) -> None:
        self.name = name
        self.directory = data_dir / _sha1(name)
        self.core = _core.Vhost()
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self._loop = loop
        self._segment_size = segment_size
        self._max_deleted = max_deleted
        self._file = DefinitionsFile(self.directory / "definitions.amqp")
        self._directory_fd = -1
        # What this release cannot apply stays in the file, for one that can.
        self._kept = Definitions()
        self._log = log.get("lmq.vhost", vhost=name)

    # --- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Load definitions and messages. Raises: DefinitionsError, OSError."""
        self.directory.mkdir(mode=0o755, exist_ok=True)
        _write_text(self.directory / ".vhost", self.name)
        _remove_tree(self.directory / "transient")
        self._directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stored = self._file.load()
        self._load_exchanges(stored)
        for queue in stored.queues:
            self._load_queue(queue)
        for binding in stored.bindings:
            self._load_binding(binding)
        if self._file.deleted:
            self._file.compact(self._definitions())

    def close(self) -> None:
        """Write everything out. Raises: OSError naming the queue that could not be written."""
        failed: OSError | None = None
        for queue in self.queues.values():
            try:
                queue.core.close()
            except OSError as error:
                self._log.error("queue %r: %s", queue.name, error)
                failed = error
        self._file.sync()
        self._file.close()
        os.close(self._directory_fd)
        _remove_tree(self.directory / "transient")
        if failed is not None:
            raise failed

    def when_synced(self, callback: Any) -> None:
        """Call `callback()` once the definitions recorded so far are on disk."""
        self._loop.sync_file(self._directory_fd, _nothing)
        self._loop.sync_file(self._file.fileno(), callback)

    def _load_exchanges(self, stored: Definitions) -> None:
        for exchange in stored.exchanges:
            if exchange.type not in KINDS or exchange.delayed:
                self._log.warning(
                    "exchange %r has type %r, which this release does not have: it is left out",
                    exchange.name, exchange.type,
                )  # fmt: skip
                self._kept.exchanges.append(exchange)
                continue
            self._add_exchange(
                Exchange(exchange.name, exchange.type, exchange.durable, exchange.auto_delete,
                         exchange.internal, exchange.arguments)
            )  # fmt: skip
        missing = [(name, kind) for name, kind in BUILT_IN if name not in self.exchanges]
        for name, kind in missing:
            self._add_exchange(Exchange(name, kind, durable=True))
            self._file.append_declare_exchange(ExchangeDef(name, kind))
        if missing:
            self._file.sync()

    def _load_queue(self, stored: QueueDef) -> None:
        if stored.arguments.get("x-queue-type") in ("stream", "mqtt"):
            self._log.warning("queue %r is a %s, which this release does not have: it is left out",
                              stored.name, stored.arguments["x-queue-type"])  # fmt: skip
            self._kept.queues.append(stored)
            return
        queue = self._add_queue(stored.name, True, stored.auto_delete, None, stored.arguments)
        _write_text(Path(queue.directory) / ".queue", stored.name)
        try:
            queue.core.load()
        except (OSError, ValueError) as error:
            self._log.error("queue %r is closed: %s", stored.name, error)

    def _load_binding(self, stored: BindingDef) -> None:
        exchange = self.exchanges.get(stored.source)
        queue = self.queues.get(stored.destination)
        if stored.destination_type != "queue" or exchange is None or queue is None:
            self._log.warning(
                "binding from %r to %r is left out", stored.source, stored.destination
            )
            self._kept.bindings.append(stored)
            return
        try:
            exchange.bind(queue, stored.routing_key, stored.arguments)
        except ValueError as error:
            self._log.warning("binding from %r to %r: %s", stored.source, stored.destination, error)

    def _definitions(self) -> Definitions:
        """Everything that is durable, for compaction."""
        return Definitions(
            [ExchangeDef(x.name, x.type, True, x.auto_delete, x.internal, x.arguments)
             for x in self.exchanges.values() if x.durable] + self._kept.exchanges,
            [QueueDef(q.name, True, False, q.auto_delete, q.arguments)
             for q in self.queues.values() if q.is_stored] + self._kept.queues,
            [BindingDef(x.name, q.name, "queue", key, arguments)
             for x in self.exchanges.values() if x.durable and x.name
             for q, key, arguments in x.bindings if q.is_stored] + self._kept.bindings,
        )  # fmt: skip

    def _recorded(self) -> bool:
        """After a deletion was recorded: compact when enough have gathered."""
        if self._file.deleted > self._max_deleted:
            self._file.compact(self._definitions())
        return True

    # --- exchanges ----------------------------------------------------------------------------

    def _add_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        self.core.touch()

    def declare_exchange(
        self, actor: Actor, name: str, type_: str, passive: bool, durable: bool, auto_delete: bool,
        internal: bool, arguments: FieldTable,
    ) -> bool:  # fmt: skip
        """exchange.declare. Returns: whether it was recorded. Raises: ChannelError."""
        _check_name("Exchange", name)
        if not name:
            raise _refused("Not allowed to declare the default exchange")
        existing = self.exchanges.get(name)
        if existing is not None:
            if passive or existing.is_same(type_, durable, auto_delete, internal, arguments):
                return False
            raise _failed(f"Existing exchange '{name}' declared with other arguments")
        if passive:
            raise _missing(f"Exchange '{name}' doesn't exists")
        _check_prefix(name)
        if not actor.user.can_configure(self.name, name):
            raise _refused(
                f"User '{actor.user.name}' doesn't have permissions to declare exchange '{name}'"
            )
        if type_ not in KINDS:
            raise _failed(f"unknown exchange type '{type_}'")
        if arguments.get("x-delayed-exchange") is True:
            raise ChannelError(
                ReplyCode.NOT_IMPLEMENTED, "delayed exchanges are not part of this release"
            )
        if type_ == "headers" and arguments.get("x-match", "all") not in ("all", "any"):
            raise _failed("x-match must be 'any' or 'all'")
        self._add_exchange(Exchange(name, type_, durable, auto_delete, internal, arguments))
        if durable:
            self._file.append_declare_exchange(
                ExchangeDef(name, type_, True, auto_delete, internal, arguments)
            )
        return durable

    def delete_exchange(self, actor: Actor, name: str, if_unused: bool) -> bool:
        """exchange.delete; a missing one is no error. Returns: whether it was recorded."""
        _check_name("Exchange", name)
        if not name:
            raise _refused("Not allowed to delete the default exchange")
        _check_prefix(name)
        exchange = self.exchanges.get(name)
        if exchange is None:
            return False
        if not actor.user.can_configure(self.name, name):
            raise _refused(
                f"User '{actor.user.name}' doesn't have permissions to delete exchange '{name}'"
            )
        if if_unused and exchange.bindings:
            raise _failed(f"Exchange '{name}' in use")
        return self._remove_exchange(exchange)

    def _remove_exchange(self, exchange: Exchange) -> bool:
        for queue, key, arguments in list(exchange.bindings):
            exchange.unbind(queue, key, arguments)
        del self.exchanges[exchange.name]
        self.core.touch()
        if not exchange.durable:
            return False
        self._file.append_delete_exchange(exchange.name)
        return self._recorded()

    # --- queues -------------------------------------------------------------------------------

    def declare_queue(
        self, actor: Actor, name: str, passive: bool, durable: bool, exclusive: bool,
        auto_delete: bool, arguments: FieldTable,
    ) -> tuple[Queue, bool]:  # fmt: skip
        """queue.declare. Returns: the queue, and whether it was recorded. Raises: ChannelError."""
        if name:
            _check_name("Queue", name)
        queue = self.queues.get(name)
        if queue is not None:
            self._redeclare(actor, queue, passive, durable, exclusive, auto_delete, arguments)
            return queue, False
        if passive:
            raise _missing(f"Queue '{name}' doesn't exists")
        _check_prefix(name)
        if not name:
            name = "amq.gen-" + secrets.token_urlsafe(24)
        self._check_may_declare(actor.user, name, arguments)
        queue_arguments.check(arguments)
        kind = arguments.get("x-queue-type")
        if isinstance(kind, str) and kind in ("stream", "mqtt"):
            raise ChannelError(
                ReplyCode.NOT_IMPLEMENTED, f"x-queue-type {kind} is not part of this release"
            )
        unused = sorted(queue_arguments.NOT_YET & arguments.keys())
        if unused:
            self._log.warning("queue %r: %s has no effect yet", name, ", ".join(unused))
        owner = actor if exclusive else None
        if durable and not exclusive:  # a left-over must not come back to life
            _remove_tree(self.directory / _sha1(name))
        queue = self._add_queue(name, durable, auto_delete, owner, arguments)
        if not queue.is_stored:
            return queue, False
        _write_text(Path(queue.directory) / ".queue", name)
        self._file.append_declare_queue(QueueDef(name, True, False, auto_delete, arguments))
        return queue, True

    def _redeclare(
        self, actor: Actor, queue: Queue, passive: bool, durable: bool, exclusive: bool,
        auto_delete: bool, arguments: FieldTable,
    ) -> None:  # fmt: skip
        locked = queue.is_locked_to(actor)
        if locked or (queue.exclusive and not exclusive and not passive):
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, "Exclusive queue")
        if passive:
            return
        if exclusive and not queue.exclusive:
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, "Not an exclusive queue")
        given = (durable, auto_delete, _without_default_type(arguments))
        if given != (queue.durable, queue.auto_delete, _without_default_type(queue.arguments)):
            raise _failed(f"Existing queue '{queue.name}' declared with other arguments")

    def _check_may_declare(self, user: User, name: str, arguments: FieldTable) -> None:
        target = arguments.get("x-dead-letter-exchange")
        may = user.can_configure(self.name, name)
        if may and isinstance(target, str):
            may = user.can_write(self.name, target) and user.can_read(self.name, name)
        if not may:
            raise _refused(f"User '{user.name}' doesn't have permissions to queue '{name}'")

    def _add_queue(
        self, name: str, durable: bool, auto_delete: bool, owner: Owner | None,
        arguments: FieldTable,
    ) -> Queue:  # fmt: skip
        stored = durable and owner is None
        parent = self.directory if stored else self.directory / "transient"
        directory = f"{parent}/{_sha1(name)}"
        if stored:
            Path(directory).mkdir(mode=0o755, exist_ok=True)
        elif not parent.exists():
            parent.mkdir(mode=0o755)
        core = _core.Queue(self._loop, directory, self._segment_size, stored)
        queue = Queue(name, core, directory, durable, auto_delete, owner, arguments)
        self.queues[name] = queue
        self.exchanges[""].bind(queue, name, EMPTY)
        return queue

    def delete_queue(
        self, actor: Actor, name: str, if_unused: bool, if_empty: bool
    ) -> tuple[int, bool, list[QueueConsumer]]:
        """queue.delete; a missing one is no error.

        Returns: ready messages it had, whether it was recorded, consumers to tell.
        """
        _check_name("Queue", name)
        queue = self.queues.get(name)
        if queue is None:
            return 0, False, []
        if queue.is_locked_to(actor):
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, f"Queue '{name}' is exclusive")
        if if_unused and queue.consumers:
            raise _failed(f"Queue '{name}' in use")
        if if_empty and queue.core.ready:
            raise _failed(f"Queue '{name}' is not empty")
        if not actor.user.can_configure(self.name, name):
            raise _refused(
                f"User '{actor.user.name}' doesn't have permissions to delete queue '{name}'"
            )
        return queue.core.ready, *self.remove_queue(queue)

    def remove_queue(self, queue: Queue) -> tuple[bool, list[QueueConsumer]]:
        """Take a queue away, whatever it holds.

        Returns: whether it was recorded, consumers to tell.
        """
        consumers, queue.consumers = queue.consumers, []
        for exchange, key, arguments in list(queue.bindings):
            exchange.unbind(queue, key, arguments)
            self._drop_if_unused(exchange)
        del self.queues[queue.name]
        queue.core.delete()
        if queue.is_stored:
            self._file.append_delete_queue(queue.name)
            self._recorded()
        _remove_tree(Path(queue.directory))
        return queue.is_stored, consumers

    def consumer_left(self, queue: Queue, consumer: QueueConsumer) -> None:
        """A consumer was cancelled or lost; an auto-delete queue goes with its last one."""
        if consumer in queue.consumers:
            queue.consumers.remove(consumer)
            if queue.auto_delete and not queue.consumers and self.queues.get(queue.name) is queue:
                self.remove_queue(queue)

    # --- bindings -----------------------------------------------------------------------------

    def bind(
        self, actor: Actor, queue_name: str, exchange_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """queue.bind. Returns: whether it was recorded. Raises: ChannelError."""
        _check_name("Queue", queue_name)
        _check_name("Exchange", exchange_name)
        queue, exchange = self.queues.get(queue_name), self.exchanges.get(exchange_name)
        if queue is None:
            raise _missing(f"Queue '{queue_name}' not found")
        if exchange is None:
            raise _missing(f"Exchange '{exchange_name}' not found")
        self._check_may_bind(actor, queue, exchange, f"User '{actor.user.name}'")
        try:
            is_new = exchange.bind(queue, key, arguments)
        except ValueError as error:
            raise _failed(str(error)) from error
        if not (is_new and exchange.durable and queue.is_stored):
            return False
        self._file.append_bind(BindingDef(exchange_name, queue_name, "queue", key, arguments))
        return True

    def unbind(
        self, actor: Actor, queue_name: str, exchange_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """queue.unbind; what is missing is no error. Returns: whether it was recorded."""
        _check_name("Queue", queue_name)
        _check_name("Exchange", exchange_name)
        queue, exchange = self.queues.get(queue_name), self.exchanges.get(exchange_name)
        if queue is None or exchange is None:
            return False
        self._check_may_bind(actor, queue, exchange, "User")
        if not exchange.unbind(queue, key, arguments):
            return False
        recorded = exchange.durable and queue.is_stored
        if recorded:
            self._file.append_unbind(BindingDef(exchange_name, queue_name, "queue", key, arguments))
            self._recorded()
        return self._drop_if_unused(exchange) or recorded

    def _check_may_bind(self, actor: Actor, queue: Queue, exchange: Exchange, who: str) -> None:
        if not actor.user.can_read(self.name, exchange.name):
            raise _refused(f"{who} doesn't have read permissions to exchange '{exchange.name}'")
        if not actor.user.can_write(self.name, queue.name):
            raise _refused(f"{who} doesn't have write permissions to queue '{queue.name}'")
        if queue.is_locked_to(actor):
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, "Exclusive queue")
        if not exchange.name:
            raise _refused("Access refused to ")

    def _drop_if_unused(self, exchange: Exchange) -> bool:
        """An auto-delete exchange goes with its last binding. Returns: whether it was recorded."""
        if not exchange.auto_delete or exchange.bindings or exchange.name not in self.exchanges:
            return False
        return self._remove_exchange(exchange)

    # --- messages -----------------------------------------------------------------------------

    def purge(self, actor: Actor, name: str) -> int:
        """queue.purge. Returns: ready messages deleted. Raises: ChannelError."""
        _check_name("Queue", name)
        queue = self.queues.get(name)
        if queue is None:
            raise _missing(f"Queue '{name}' not found")
        if not actor.user.can_read(self.name, name):
            raise _refused(
                f"User '{actor.user.name}' doesn't have write permissions to queue '{name}'"
            )
        if queue.is_locked_to(actor):
            raise ChannelError(ReplyCode.RESOURCE_LOCKED, f"Queue '{name}' is exclusive")
        return queue.core.purge()

    def publishable(self, user: User, name: str) -> Exchange:
        """The exchange, when the user may publish to it. Raises: ChannelError."""
        if not user.can_write(self.name, name):
            raise _refused(f"User '{user.name}' not allowed to publish to exchange '{name}'")
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise _missing(f"No exchange '{name}' in vhost '{self.name}'")
        if exchange.internal:
            raise _refused(f"Exchange '{name}' in vhost '{self.name}' is internal")
        return exchange


# --- names, errors, files -------------------------------------------------------------------------


def _check_name(kind: str, name: str) -> None:
    """Names are UTF-8 without control characters. Raises: ChannelError 406."""
    if _CONTROL.search(name):
        raise _failed(f"{kind} name isn't valid")


def _check_prefix(name: str) -> None:
    if name.startswith(RESERVED):
        raise _refused('Prefix ["mqtt.", "amq."] forbidden, please choose another name')


def _without_default_type(arguments: FieldTable) -> FieldTable:
    """`x-queue-type: classic` says what is true anyway."""
    if arguments.get("x-queue-type") != "classic":
        return arguments
    return FieldTable({name: value for name, value in arguments.items() if name != "x-queue-type"})


def _refused(text: str) -> ChannelError:
    return ChannelError(ReplyCode.ACCESS_REFUSED, text)


def _missing(text: str) -> ChannelError:
    return ChannelError(ReplyCode.NOT_FOUND, text)


def _failed(text: str) -> ChannelError:
    return ChannelError(ReplyCode.PRECONDITION_FAILED, text)


def _sha1(name: str) -> str:
    raw = name.encode("utf-8", "surrogateescape")
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()


def _write_text(path: Path, text: str) -> None:
    """Write a file that is there for humans and tools, unless it is right already."""
    raw = text.encode("utf-8", "surrogateescape")
    if not path.exists() or path.read_bytes() != raw:
        path.write_bytes(raw)


def _remove_tree(path: Path) -> None:
    """Remove a directory of plain files and one level of such directories."""
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            _remove_tree(Path(entry.path))
        else:
            os.unlink(entry.path)
    os.rmdir(path)


def _nothing() -> None:
    """The directory is synced together with the file."""
