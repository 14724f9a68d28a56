"""What queues and exchanges have in common: messages are routed to them by bindings.

Stands apart so that neither of the two has to name the other.
"""

from __future__ import annotations

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


Incoming: TypeAlias = "dict[tuple[Source, str, FieldTable], bytes]"
"""Bindings of a destination by source, key and arguments. The value is the arguments as received:
some kinds of compiled bindings are found by them."""


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
        """Its bindings, to be changed by their source only."""

    @property
    def is_stored(self) -> bool:
        """Whether it outlives the broker."""

    @property
    def dedup(self) -> _core.DedupCache | None:
        """The keys of messages it has had; None: duplicates are taken."""
