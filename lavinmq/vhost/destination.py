"""What queues and exchanges have in common: messages are routed to them by bindings.

Stands apart so that neither of the two has to name the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from lavinmq import _core
    from lavinmq.fieldtable import FieldTable


DestinationType: TypeAlias = Literal["queue", "exchange"]
"""In the words of definitions and of the HTTP API."""


class Source(Protocol):
    """Where bindings come from: an exchange. Compare by identity."""

    name: str

    @property
    def core(self) -> _core.Exchange:
        """As the message path knows it."""

    @property
    def incoming(self) -> Incoming:
        """The bindings of which it is the destination."""

    def unbind(self, to: Destination, key: str, arguments: FieldTable) -> bool:
        """Remove a binding from here. Returns: whether it was there. Raises: ValueError."""


In: TypeAlias = "tuple[Source, str, FieldTable]"
"""A binding as its destination has it."""
Incoming: TypeAlias = "dict[tuple[Source, str, FieldTable], bytes] | Filters"
"""Bindings of a destination by source, key and arguments. The value is the arguments as received:
some kinds of compiled bindings are found by them. Of a session: another table, which is smaller."""


class Filters:
    """The bindings of a queue that has subscriptions, with each filter in a table of its own:
    there may be a million.

    Args:
        source: the exchange of MQTT.
        others: its bindings from other exchanges.
    """

    __slots__ = ("arguments", "others", "source")

    def __init__(self, source: Source, others: Incoming) -> None:
        self.source = source
        self.arguments: dict[str, FieldTable] = {}
        self.others = others or None

    def __len__(self) -> int:
        return len(self.arguments) + len(self.others or ())

    def __iter__(self) -> Iterator[In]:
        yield from self.others or ()
        for key, arguments in self.arguments.items():
            yield self.source, key, arguments

    def __reversed__(self) -> Iterator[In]:
        for key, arguments in reversed(self.arguments.items()):
            yield self.source, key, arguments
        yield from reversed(self.others or {})

    def __contains__(self, binding: object) -> bool:
        return self.get(binding) is not None  # type: ignore[arg-type]  # what is none is not there

    def get(self, binding: In) -> bytes | None:
        """The arguments of a binding as they were received; None when there is none."""
        source, key, arguments = binding
        if source is not self.source:
            return self.others.get(binding) if self.others else None
        mine = self.arguments.get(key)
        return mine.raw if mine is not None and mine == arguments else None

    def __setitem__(self, binding: In, raw: bytes) -> None:
        source, key, arguments = binding
        if source is self.source:
            self.arguments[key] = arguments
        elif self.others is None:
            self.others = {binding: raw}
        else:
            self.others[binding] = raw

    def __delitem__(self, binding: In) -> None:
        source, key, _ = binding
        if source is self.source:
            del self.arguments[key]
        elif self.others is not None:
            del self.others[binding]


class Destination(Protocol):
    """Where bindings lead: a queue or an exchange. Compare by identity."""

    kind: ClassVar[DestinationType]
    name: str
    arguments: FieldTable

    @property
    def core(self) -> _core.Queue | _core.Exchange:
        """As the message path knows it."""

    @property
    def incoming(self) -> Incoming:
        """Its bindings, to be changed by their source only, which sets them after it has added
        the first one: those of a queue that has none are nobody's."""

    @incoming.setter
    def incoming(self, bindings: Incoming) -> None: ...

    @property
    def is_stored(self) -> bool:
        """Whether it outlives the broker."""

    @property
    def dedup(self) -> _core.DedupCache | None:
        """The keys of messages it has had; None: duplicates are taken."""
