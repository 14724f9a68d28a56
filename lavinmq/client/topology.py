"""What a client has declared, exactly as declared, so that it can be declared again.

A queue that the broker named gets another name on another connection: `rename` carries bindings
and consumers along. Nothing here talks to a broker: `restoring` says in which order to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """An exchange as declared."""

    name: str
    kind: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def method(self) -> tuple[Any, ...]:
        """The call that declares it."""
        flags = (False, self.durable, self.auto_delete, self.internal, False)
        return ("exchange.declare", 0, self.name, self.kind, *flags, self.arguments)


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as declared; `server_named`: its name is of this connection."""

    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    server_named: bool = False

    @property
    def is_of_one_connection(self) -> bool:
        """Whether no other connection may use it, or knows what it will be called."""
        return self.exclusive or self.server_named

    @property
    def method(self) -> tuple[Any, ...]:
        """The call that declares it."""
        flags = (False, self.durable, self.exclusive, self.auto_delete, False)
        name = "" if self.server_named else self.name
        return ("queue.declare", 0, name, *flags, self.arguments)


@dataclass(frozen=True, slots=True)
class BindingSpec:
    """A binding of a queue, or (`of_exchange`) of an exchange, to an exchange."""

    destination: str
    source: str
    routing_key: str = ""
    arguments: tuple[tuple[str, Any], ...] = field(default=(), hash=False)
    """Values of headers may be lists and tables, which have no hash."""
    of_exchange: bool = False

    def call(self, verb: str) -> tuple[Any, ...]:
        """The call that binds or unbinds it."""
        room = "exchange" if self.of_exchange else "queue"
        names = (0, self.destination, self.source, self.routing_key)
        table = dict(self.arguments)
        no_wait = () if room == "queue" and verb == "unbind" else (False,)
        return (f"{room}.{verb}", *names, *no_wait, table)

    @property
    def method(self) -> tuple[Any, ...]:
        """The call that makes it."""
        return self.call("bind")

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.source} -> {self.destination} ({self.routing_key})"


Entity = ExchangeSpec | QueueSpec | BindingSpec


NOTHING: Final[dict[Any, Any]] = {}
"""In place of a dictionary that nothing was put into; it stays as it is."""


def own(known: dict[Any, Any]) -> dict[Any, Any]:
    """The same, or one of his own for who is about to put something in."""
    return {} if known is NOTHING else known


class Topology:
    """All that was declared and not deleted through one client."""

    __slots__ = ("bindings", "exchanges", "queues")

    def __init__(self) -> None:
        # Dictionaries of their own once there is something in them: most clients declare little.
        self.exchanges: dict[str, ExchangeSpec] = NOTHING
        self.queues: dict[str, QueueSpec] = NOTHING
        self.bindings: dict[BindingSpec, None] = NOTHING

    def add(self, entity: Entity) -> None:
        """Remember a declaration that the broker has taken."""
        if isinstance(entity, ExchangeSpec):
            self.exchanges = own(self.exchanges)
            self.exchanges[entity.name] = entity
        elif isinstance(entity, QueueSpec):
            self.queues = own(self.queues)
            self.queues[entity.name] = entity
        else:
            self.bindings = own(self.bindings)
            self.bindings[entity] = None

    def __contains__(self, entity: Entity) -> bool:
        """Whether something is known exactly so."""
        if isinstance(entity, ExchangeSpec):
            return self.exchanges.get(entity.name) == entity
        if isinstance(entity, QueueSpec):
            return self.queues.get(entity.name) == entity
        return entity in self.bindings

    def bindings_of(self, queue: str) -> list[BindingSpec]:
        """The bindings of a queue."""
        return [b for b in self.bindings if b.destination == queue and not b.of_exchange]

    def unbind(self, binding: BindingSpec) -> None:
        """Forget a binding."""
        self.bindings.pop(binding, None)

    def forget_queue(self, name: str) -> None:
        """A queue is gone, and its bindings with it."""
        self.queues.pop(name, None)
        for binding in self.bindings_of(name):
            del self.bindings[binding]

    def forget_exchange(self, name: str) -> None:
        """An exchange is gone, and all bindings to and from it."""
        self.exchanges.pop(name, None)
        for binding in list(self.bindings):
            if binding.source == name or (binding.of_exchange and binding.destination == name):
                del self.bindings[binding]

    def rename(self, old: str, new: str) -> None:
        """The broker has named a queue anew."""
        spec = self.queues.pop(old, None)
        if spec is not None:
            self.queues[new] = replace(spec, name=new)
        for binding in self.bindings_of(old):
            del self.bindings[binding]
            self.bindings[replace(binding, destination=new)] = None

    def restoring(self, is_beside: bool = False) -> Iterator[Entity]:
        """What to declare, in which order: exchanges and queues as they were declared, then
        bindings; `is_beside`: without the queues that are another connection's alone.

        Others change it between two steps: another connection renames the queues that are its own,
        and the program deletes. So each step asks what is known now.
        """
        for exchange in list(self.exchanges.values()):
            if exchange in self:
                yield exchange
        for queue in list(self.queues.values()):
            if queue in self and not (is_beside and queue.is_of_one_connection):
                yield queue
        for binding in list(self.bindings):
            queue_of = None if binding.of_exchange else self.queues.get(binding.destination)
            is_apart = is_beside and queue_of is not None and queue_of.is_of_one_connection
            if binding in self and not is_apart:
                yield binding
