"""The bindings of one virtual host: made, recorded, and taken away with what they lead to.

What a client can reach checks names, existence and permissions in the order that clients see, and
returns whether something was recorded: the answer has to wait for that. Very many bindings go in
portions: nothing is routed by them any more from the first one on. On the loop thread.
Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from lavinmq import _core
from lavinmq.arguments.names import check_name, failed, missing, refused
from lavinmq.errors import DefinitionsError
from lavinmq.fieldtable import FieldTable
from lavinmq.files.definitions import BindingDef
from lavinmq.process.portions import AT_ONCE, Portions
from lavinmq.vhost import rights, subscribing
from lavinmq.vhost.alternates import Alternates
from lavinmq.vhost.destination import Destination, Source
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.history import Histories
from lavinmq.vhost.queue import Actor, Queue
from lavinmq.vhost.recorded import Recorded, binding_def, not_stored, storing
from lavinmq.vhost.subscribing import EXCHANGE, Options


class BindingLimits(NamedTuple):
    """How many bindings there may be, 0: any number."""

    per_queue: int = 0
    per_vhost: int = 0


class Bindings:
    """The bindings of one virtual host.

    Args:
        vhost: its name.
        exchanges, queues: what exists, by name; looked at, never changed.
        core: whose epoch moves when routes may lead elsewhere.
        alternates: which exchanges are reached without a binding.
        recorded: where durable ones are recorded.
        portions: in which very many are taken away.
        histories: what exchanges have kept for who is bound.
        on_unbound: is called with an exchange that has lost a binding, and says whether the
            exchange has gone for it and this was recorded.
    """

    def __init__(
        self, vhost: str, exchanges: Mapping[str, Exchange], queues: Mapping[str, Queue],
        core: _core.Vhost, alternates: Alternates, recorded: Recorded, portions: Portions,
        histories: Histories, on_unbound: Callable[[Source], bool],
    ) -> None:  # fmt: skip
        self.limits = BindingLimits()
        self._vhost = vhost
        self._exchanges = exchanges
        self._queues = queues
        self._core = core
        self._alternates = alternates
        self._recorded = recorded
        self._portions = portions
        self._histories = histories
        self._on_unbound = on_unbound
        self._n = 0

    def bind_queue(
        self, actor: Actor, queue_name: str, exchange_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """queue.bind. Returns: whether it was recorded; `when_in_force` says when the answer may
        come. Raises: ChannelError."""
        check_name("Queue", queue_name)
        check_name("Exchange", exchange_name)
        queue, exchange = self._queues.get(queue_name), self._exchanges.get(exchange_name)
        topic = _topic(exchange, key)
        who = f"User '{actor.user.name}'"
        rights.check_bind(actor.user, self._vhost, exchange_name, queue_name, who, topic)
        if queue is None:
            raise missing(f"Queue '{queue_name}' not found in vhost '{self._vhost}'")
        if exchange is None:
            raise missing(f"Exchange '{exchange_name}' not found in vhost '{self._vhost}'")
        self._check_bindable(actor, queue, exchange)
        return self._bind(exchange, queue, key, arguments)

    def unbind_queue(
        self, actor: Actor, queue_name: str, exchange_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """queue.unbind; what is missing is no error. Returns: whether it was recorded."""
        check_name("Queue", queue_name)
        check_name("Exchange", exchange_name)
        queue, exchange = self._queues.get(queue_name), self._exchanges.get(exchange_name)
        topic = _topic(exchange, key)
        rights.check_bind(actor.user, self._vhost, exchange_name, queue_name, "User", topic)
        if queue is None or exchange is None:
            return False
        self._check_bindable(actor, queue, exchange)
        return self._unbind(exchange, queue, key, arguments)

    def bind_exchange(
        self, actor: Actor, to_name: str, from_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """exchange.bind. As `bind_queue`."""
        topic = _topic(self._exchanges.get(from_name), key)
        rights.check_bind_exchange(actor.user, self._vhost, to_name, from_name, "bind to", topic)
        for name in (to_name, from_name):
            if name not in self._exchanges:
                raise missing(f"Exchange '{name}' doesn't exists in vhost '{self._vhost}'")
        if EXCHANGE in (to_name, from_name):
            raise refused(f"Access refused to {EXCHANGE}")
        return self._bind(self._exchanges[from_name], self._exchanges[to_name], key, arguments)

    def unbind_exchange(
        self, actor: Actor, to_name: str, from_name: str, key: str, arguments: FieldTable
    ) -> bool:
        """exchange.unbind; what is missing is no error. Returns: whether it was recorded."""
        topic = _topic(self._exchanges.get(from_name), key)
        rights.check_bind_exchange(
            actor.user, self._vhost, to_name, from_name, "unbind from", topic
        )
        if to_name not in self._exchanges or from_name not in self._exchanges:
            return False
        return self._unbind(self._exchanges[from_name], self._exchanges[to_name], key, arguments)

    def _check_bindable(self, actor: Actor, queue: Queue, exchange: Exchange) -> None:
        """What stands in the way of somebody who has the rights. Raises: ChannelError."""
        if exchange.waiting is queue:
            raise failed(
                f"Cannot bind delayed exchange '{exchange.name}' to its internal delayed queue"
                f" '{queue.name}'"
            )
        rights.check_usable(self._vhost, queue)
        if queue.is_locked_to(actor):
            raise rights.locked(self._vhost, queue)
        if not exchange.name or exchange.is_mqtt:
            raise refused(f"Access refused to {exchange.name}")

    def load(self, stored: BindingDef) -> bool:
        """Bind what is recorded. Returns: whether both ends are there. Raises: ValueError."""
        exchange, to = self._ends(stored)
        if exchange is None or to is None:
            return False
        self._n += exchange.bind(to, *_meant(exchange, stored))
        self._touch(exchange)
        return True

    def unload(self, stored: BindingDef) -> None:
        """A recorded binding was taken away where nobody is served. Raises: ValueError."""
        exchange, to = self._ends(stored)
        if exchange is not None and to is not None:
            self._n -= exchange.unbind(to, *_meant(exchange, stored))

    def unload_to(self, to: Destination) -> Iterator[None]:
        """The same of all bindings of a destination, one in each step."""
        while to.incoming:
            exchange, key, arguments = next(reversed(to.incoming))
            self._n -= exchange.unbind(to, key, arguments)
            yield

    def _ends(self, stored: BindingDef) -> tuple[Exchange | None, Destination | None]:
        """What a recorded binding leads from and to; None: it is not there."""
        there: Mapping[str, Destination]
        there = self._queues if stored.destination_type == "queue" else self._exchanges
        return self._exchanges.get(stored.source), there.get(stored.destination)

    def subscribe(self, exchange: Exchange, to: Queue, key: str, options: Options) -> bool:
        """Bind a session for its client, whatever rights say; options that it had for the same
        filter are replaced. Returns: whether it was recorded. Raises: ChannelError."""
        arguments = subscribing.arguments_of(options)
        before = exchange.options(to, key)
        if before is None or before == arguments:
            return self._bind(exchange, to, key, arguments)
        exchange.bind(to, key, arguments)
        if not to.is_stored:
            return False
        try:
            # The old one behind the new one, so that there is one at any time.
            self._recorded.file.append_bind(binding_def(exchange, to, key, arguments))
            self._recorded.file.append_unbind(binding_def(exchange, to, key, before))
        except DefinitionsError as error:
            exchange.bind(to, key, before)
            raise not_stored("the subscription", error) from error
        self._recorded.compact_if_due()
        return True

    def unsubscribe(self, exchange: Exchange, to: Queue, key: str) -> bool | None:
        """Unbind a session for its client. Returns: whether that was recorded; None: it was not
        bound. Raises: ChannelError 406."""
        arguments = exchange.options(to, key)
        return None if arguments is None else self._unbind(exchange, to, key, arguments)

    # --- what is permitted ------------------------------------------------------------------

    def _bind(self, exchange: Exchange, to: Destination, key: str, arguments: FieldTable) -> bool:
        if self._may_refuse(exchange, to) and (to, key, arguments) not in exchange.bindings:
            self._check_limits(to)
            self._histories.check(exchange, to)
        try:
            is_new = exchange.bind(to, key, arguments)
        except ValueError as error:
            raise failed(str(error)) from error
        self._n += is_new
        self._touch(exchange)
        is_stored = exchange.records_bindings and to.is_stored
        if not is_new:
            return is_stored and self._recorded.is_syncing
        if is_stored:
            try:
                self._recorded.file.append_bind(binding_def(exchange, to, key, arguments))
            except DefinitionsError as error:
                self._n -= exchange.unbind(to, key, arguments)
                raise not_stored("the binding", error) from error
        if exchange.keeps:
            self._histories.begin(exchange, to)
        return is_stored

    @property
    def are_in_force(self) -> bool:
        """Whether everybody who was bound has what exchanges had kept."""
        return self._histories.are_idle

    def when_in_force(self, recorded: bool, callback: Callable[[], object]) -> None:
        """Call back once bindings made so far are in force, and on disk if one was recorded."""
        then = partial(self._recorded.when_synced, callback) if recorded else callback
        self._histories.when_filled(then)

    def _unbind(self, exchange: Exchange, to: Destination, key: str, arguments: FieldTable) -> bool:
        if (to, key, arguments) not in exchange.bindings:
            try:
                exchange.unbind(to, key, arguments)  # a key that no binding can have is refused
            except ValueError as error:
                raise failed(str(error)) from error
            return False
        is_recorded = exchange.records_bindings and to.is_stored
        if is_recorded:
            with storing("the end of the binding"):
                self._recorded.file.append_unbind(binding_def(exchange, to, key, arguments))
        self._n -= exchange.unbind(to, key, arguments)
        self._touch(exchange)
        self._recorded.compact_if_due()
        return self._on_unbound(exchange) or is_recorded

    def drop_to(self, to: Destination) -> None:
        """A destination goes, and the record of that implies the end of its bindings."""
        n = len(to.incoming)
        if n > AT_ONCE:
            _core.vanish(to.core)
            self._core.touch()
        self._portions.begin_unless_few(self._dropping_to(to), n)

    def drop_from(self, exchange: Exchange) -> None:
        """An exchange has gone, to which nobody can publish any more: so do its own bindings."""
        n = len(exchange.bindings)
        if n > AT_ONCE:
            _core.vanish(exchange.core)
        self._portions.begin_unless_few(self._dropping_from(exchange), n)

    def _dropping_to(self, to: Destination) -> Iterator[None]:
        while to.incoming:  # the newest first: it is found at once
            exchange, key, arguments = next(reversed(to.incoming))
            self._n -= exchange.unbind(to, key, arguments)
            self._touch(exchange)
            self._on_unbound(exchange)
            yield

    def _dropping_from(self, exchange: Exchange) -> Iterator[None]:
        while exchange.bindings:
            self._n -= exchange.unbind(*next(reversed(exchange.bindings)))
            yield

    def _touch(self, exchange: Source) -> None:
        """Routes kept by publishers to other exchanges may lead through this one."""
        if exchange.incoming or exchange.name in self._alternates:
            self._core.touch()

    def _may_refuse(self, exchange: Exchange, to: Destination) -> bool:
        """Whether there is something in the way of a binding that is not there yet."""
        most, most_of_all = self.limits
        return bool(
            exchange.keeps
            or (most and len(to.incoming) >= most)
            or (most_of_all and self._n >= most_of_all)
        )

    def _check_limits(self, to: Destination) -> None:
        """Raises: ChannelError 406 when there may be no further binding."""
        limits = self.limits
        if limits.per_queue and len(to.incoming) >= limits.per_queue:
            raise failed(
                f"'{to.name}' has {limits.per_queue} bindings, as many as may be"
                " (max_bindings_per_queue)"
            )
        if limits.per_vhost and self._n >= limits.per_vhost:
            raise failed(
                f"vhost '{self._vhost}' has {limits.per_vhost} bindings, as many as may be"
                " (max_bindings_per_vhost)"
            )


def _meant(exchange: Exchange, stored: BindingDef) -> tuple[str, FieldTable]:
    """Key and arguments of a recorded binding, as an exchange knows it by."""
    if exchange.is_mqtt:
        return subscribing.loaded(stored)
    return stored.routing_key, stored.arguments


def _topic(exchange: Exchange | None, key: str) -> str | None:
    """The binding key, as far as rights hang on it: that of a topic exchange."""
    return key if exchange is not None and exchange.is_topic else None
