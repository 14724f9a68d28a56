"""The exchanges, queues and bindings of one virtual host, compared with what a document wants.

What is there stays: one with other properties refuses the document, or is left out at the start of
a broker. Source: docs/definitions.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from lavinmq.arguments.exchange_types import MQTT
from lavinmq.arguments.queue import compared
from lavinmq.arguments.stream import is_stream
from lavinmq.auth.identity import Identity
from lavinmq.definitions_json.entry import Item, refusal
from lavinmq.errors import ChannelError
from lavinmq.files.definitions import BindingDef, ExchangeDef, QueueDef
from lavinmq.process.portions import emptied
from lavinmq.vhost.declarations import BUILT_IN, check_queue, checked_exchange
from lavinmq.vhost.destination import Destination
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.new_queue import Declared, NewQueue, declared
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.subscribing import EXCHANGE
from lavinmq.vhost.vhost import VHost
from lavinmq.vhost.vhosts import VHosts

INTERNAL: Final = ("amq.delayed-", "amq.delayed.")
"""What the names of the queues of delayed exchanges begin with; LavinMQ exports these queues."""

SESSION: Final = re.compile(r"mqtt-subscription-.+qos[01]", re.DOTALL)
"""How RabbitMQ names the queue of a session of MQTT: with the client's identifier in the middle."""

PREPARED_AT_ONCE: Final = 256
"""Durable queues whose directories are made together, beside the loop."""

_OTHER: Final = "exists with other properties"


class Importer:
    """Who declares what a document asks for; see `queue.Actor`."""

    def __init__(self, user: Identity) -> None:
        self.name = "definitions"
        self.user = user
        self.exclusive_queues: set[Queue] = set()


class Declaration(NamedTuple):
    """Something new, and how it comes to be."""

    kind: str
    name: str
    run: Callable[[], object]


Result = Declaration | str | None
"""What becomes of an entry: it is declared, left out for a reason, or there already."""


class Topology:
    """One virtual host as it will be. The entries come in the order exchanges, queues, bindings.

    Args: name: of the virtual host, which need not exist yet; user: with all rights; has_sessions:
        whether queues that are named like RabbitMQ's sessions of MQTT are some.
    """

    def __init__(
        self, name: str, vhosts: VHosts, user: Identity, keep_existing: bool, *, has_sessions: bool
    ) -> None:
        self._name = name
        self._vhosts = vhosts
        self._actor = Importer(user)
        self._keep_existing = keep_existing
        self._has_sessions = has_sessions
        there = vhosts.get(name)
        self._live_exchanges = {} if there is None else there.exchanges
        self._live_queues = {} if there is None else there.queues
        self._there = there
        self._exchanges: dict[str, ExchangeDef] = {}
        if there is None:
            self._exchanges = {name: ExchangeDef(name, kind) for name, kind in BUILT_IN}
        self._queues: dict[str, QueueDef] = {}
        self._ahead: Iterator[QueueDef] | None = None
        self._prepared: list[str] = []
        self._bindings: set[BindingDef] = set()

    def emptied(self) -> Iterator[None]:
        """Let go of all that was compared, in short steps, and of what was made ahead in vain."""
        self._release()
        yield from emptied(self._exchanges, self._queues, self._bindings)

    def exchange(self, item: Item) -> Result:
        """Compare an exchange. Raises: DefinitionsRefused."""
        given: ExchangeDef = item.thing
        if not given.name:
            return None
        if given.type == MQTT:
            return None if given.name == EXCHANGE else f"the exchange of MQTT is {EXCHANGE}"
        if self._is_unusable(given.name):
            return "it is in the data directory in a form that this release does not have"
        try:
            type_, arguments = checked_exchange(given.name, given.type, given.arguments)
        except ChannelError as error:
            if self._keep_existing and given.name in self._live_exchanges:
                return _OTHER
            raise refusal(item.place, error.text) from error
        wanted = ExchangeDef(
            given.name, type_, given.durable, given.auto_delete, given.internal, arguments
        )
        there = self._exchange(given.name)
        if there is not None:
            return self._compared(item, "exchange", there, wanted)
        self._exchanges[given.name] = wanted
        return Declaration("exchange", given.name, partial(self._declare_exchange, wanted))

    def queue(self, item: Item) -> Result:
        """Compare a queue. Raises: DefinitionsRefused."""
        wanted: QueueDef = item.thing
        if wanted.is_session:
            return "MQTT sessions are made by their clients"
        for prefix in INTERNAL:
            if wanted.name.startswith(prefix) and self._exchange(wanted.name[len(prefix) :]):
                return None  # it comes with the exchange
        if self._is_unusable(wanted.name):
            return "it is in the data directory in a form that this release does not have"
        there = self._queue(wanted.name)
        if there is not None:
            return self._compared(item, "queue", _plain(there), _plain(wanted))
        if self._is_session(wanted.name):
            return (
                "RabbitMQ names sessions of MQTT so, they do not come along; if it is a queue of"
                " yours, declare it first"
            )
        try:
            check_queue(wanted.durable, False, wanted.auto_delete, wanted.arguments)
        except ChannelError as error:
            raise refusal(item.place, error.text) from error
        self._queues[wanted.name] = wanted
        return Declaration("queue", wanted.name, partial(self._declare_queue, wanted))

    def binding(self, item: Item) -> Result:
        """Compare a binding. Raises: DefinitionsRefused."""
        wanted: BindingDef = item.thing
        if not wanted.source:
            return None  # the default exchange finds each queue anyway
        if wanted.source == EXCHANGE:
            return "MQTT subscriptions are made by their clients"
        source = self._exchange(wanted.source)
        if source is None:
            return f"there is no exchange {wanted.source!r}"
        is_queue = wanted.destination_type == "queue"
        to = self._queue(wanted.destination) if is_queue else self._exchange(wanted.destination)
        if to is None and is_queue and self._is_session(wanted.destination):
            return "MQTT subscriptions are made by their clients"
        if to is None or not wanted.destination:
            return f"there is no {wanted.destination_type} {wanted.destination!r}"
        live = self._live_queues.get(wanted.destination) if is_queue else None
        if live is not None and (live.exclusive or live.is_internal):
            return f"queue {wanted.destination!r} belongs to somebody else"
        if wanted in self._bindings or self._is_bound(wanted):
            return None
        try:
            # Some kinds of exchanges refuse arguments and keys: ask one that is like it.
            like = Exchange(wanted.source, source.type, arguments=source.arguments)
            like.bind(Exchange("", "fanout"), wanted.routing_key, wanted.arguments)
        except ValueError as error:
            raise refusal(item.place, str(error)) from error
        self._bindings.add(wanted)
        name = f"{wanted.source} -> {wanted.destination}"
        return Declaration("binding", name, partial(self._bind, wanted))

    def check_limit(self) -> None:
        """Raises: DefinitionsRefused when there would be more queues than may be."""
        limit = None if self._there is None else self._there.rules.limits.max_queues
        if (
            limit is not None
            and self._queues
            and len(self._live_queues) + len(self._queues) > limit
        ):
            raise refusal("", f"queue limit in vhost '{self._name}' ({limit}) is reached")

    # --- what there is ------------------------------------------------------------------------

    def _is_session(self, name: str) -> bool:
        """Whether such a queue is one of MQTT, which would fill for ever: nobody consumes it."""
        return self._has_sessions and SESSION.fullmatch(name) is not None

    def _is_unusable(self, name: str) -> bool:
        return self._there is not None and self._there.recorded.is_left_out(name)

    def _exchange(self, name: str) -> ExchangeDef | None:
        planned = self._exchanges.get(name)
        there = self._live_exchanges.get(name)
        if planned is not None or there is None:
            return planned
        return ExchangeDef(
            name, there.type, there.durable, there.auto_delete, there.internal, there.arguments
        )

    def _queue(self, name: str) -> QueueDef | None:
        planned = self._queues.get(name)
        there = self._live_queues.get(name)
        if planned is not None or there is None:
            return planned
        return QueueDef(name, there.durable, there.exclusive, there.auto_delete, there.arguments)

    def _is_bound(self, wanted: BindingDef) -> bool:
        source = self._live_exchanges.get(wanted.source)
        is_queue = wanted.destination_type == "queue"
        to: Destination | None = (
            self._live_queues.get(wanted.destination) if is_queue
            else self._live_exchanges.get(wanted.destination)
        )  # fmt: skip
        if source is None or to is None:
            return False
        return (to, wanted.routing_key, wanted.arguments) in source.bindings

    def _compared(
        self, item: Item, kind: str, there: ExchangeDef | QueueDef, wanted: ExchangeDef | QueueDef
    ) -> str | None:
        """None when they are the same. Raises: DefinitionsRefused saying how they differ."""
        if there == wanted:
            return None
        differing = [
            f"{field} is {_shown(getattr(there, field))}, not {_shown(getattr(wanted, field))}"
            for field in there._fields
            if getattr(there, field) != getattr(wanted, field)
        ]
        if self._keep_existing:
            return f"{_OTHER}: {', '.join(differing)}"
        raise refusal(
            item.place,
            f"{kind} '{wanted.name}' in vhost '{self._name}' {_OTHER}: {', '.join(differing)}",
        )

    # --- declaring ----------------------------------------------------------------------------

    @property
    def _vhost(self) -> VHost:
        vhost = self._vhosts.get(self._name)
        if vhost is None:
            raise refusal("", f"vhost '{self._name}' has been deleted meanwhile")
        return vhost

    def _declare_exchange(self, wanted: ExchangeDef) -> Coroutine[Any, Any, object] | None:
        """Returns: what has to be awaited."""
        outcome = self._vhost.declare_exchange(
            self._actor, wanted.name, wanted.type, False, wanted.durable, wanted.auto_delete,
            wanted.internal, wanted.arguments, is_restored=True,
        )  # fmt: skip
        return declared(outcome) if isinstance(outcome, NewQueue) else None

    def _declare_queue(self, wanted: QueueDef) -> Coroutine[Any, Any, object] | None:
        """Returns: what has to be awaited."""
        declared = self._declared(wanted)
        return self._declare_prepared(wanted) if isinstance(declared, NewQueue) else None

    def _declared(self, wanted: QueueDef) -> Declared:
        return self._vhost.declare_queue(
            self._actor, wanted.name, False, wanted.durable, False, wanted.auto_delete,
            wanted.arguments, is_restored=True,
        )  # fmt: skip

    async def _declare_prepared(self, wanted: QueueDef) -> None:
        """Have directories of many queues made at once, of this one and of those that follow."""
        if self._ahead is None:  # they come in this order
            self._ahead = iter(list(self._queues.values()))
        self._release()
        durable = (queue for queue in self._ahead if queue.durable)
        batch = {queue.name: queue for queue in islice(durable, PREPARED_AT_ONCE)}
        batch[wanted.name] = wanted
        self._prepared = list(batch)
        files = self._vhost.files
        await files.prepare([(each.name, is_stream(each.arguments)) for each in batch.values()])
        await declared(self._declared(wanted))

    def _release(self) -> None:
        vhost = self._vhosts.get(self._name)
        while self._prepared:
            name = self._prepared.pop()
            if vhost is not None:
                vhost.files.release(name)

    def _bind(self, wanted: BindingDef) -> None:
        bindings, is_queue = self._vhost.bindings, wanted.destination_type == "queue"
        bind = bindings.bind_queue if is_queue else bindings.bind_exchange
        bind(self._actor, wanted.destination, wanted.source, wanted.routing_key, wanted.arguments)


def _plain(queue: QueueDef) -> QueueDef:
    """Without a type that says what is true anyway."""
    return QueueDef(
        queue.name, queue.durable, queue.exclusive, queue.auto_delete,
        compared(queue.arguments),
    )  # fmt: skip


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
