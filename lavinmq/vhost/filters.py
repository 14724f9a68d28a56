"""The bindings of subscriptions, each in one table: that of its session.

There may be a million of them, so they are no tuples, which a queue's table of bindings and an
exchange's have: a session has its filters with their arguments (`destination.Filters`), and the
exchange of MQTT the sessions that have any. Owned by the exchange; on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from lavinmq.vhost.destination import Filters

if TYPE_CHECKING:
    from lavinmq.fieldtable import FieldTable
    from lavinmq.vhost.destination import Destination, Source

    Out: TypeAlias = tuple[Destination, str, FieldTable]


class Subscriptions:
    """The bindings of the exchange of MQTT, like the table of those of another one."""

    __slots__ = ("_n", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[Destination, Filters] = {}
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Out]:
        for to, filters in list(self._sessions.items()):
            for key, arguments in list(filters.arguments.items()):
                yield to, key, arguments

    def __reversed__(self) -> Iterator[Out]:
        for to, filters in reversed(self._sessions.items()):
            for key, arguments in reversed(filters.arguments.items()):
                yield to, key, arguments

    def __contains__(self, binding: object) -> bool:
        if not isinstance(binding, tuple):
            return False
        to, key, arguments = binding
        return bool(self.options(to, key) == arguments)

    def options(self, to: Destination, key: str) -> FieldTable | None:
        """The arguments with which a session has subscribed; None: it has not."""
        filters = self._sessions.get(to)
        return None if filters is None else filters.arguments.get(key)

    def set(self, source: Source, to: Destination, key: str, arguments: FieldTable) -> bool:
        """Note a subscription, in the place of one with the same filter. Returns: whether there was
        none."""
        filters = self._sessions.get(to)
        if filters is None:
            incoming = to.incoming
            filters = incoming if isinstance(incoming, Filters) else Filters(source, incoming)
            self._sessions[to] = to.incoming = filters
        is_new = key not in filters.arguments
        filters.arguments[key] = arguments
        self._n += is_new
        return is_new

    def remove(self, to: Destination, key: str) -> None:
        """Forget a subscription that is there."""
        filters = self._sessions[to]
        del filters.arguments[key]
        self._n -= 1
        if not filters.arguments:
            del self._sessions[to]

    def popitem(self) -> Out:
        """Forget the newest one. Raises: KeyError when there is none."""
        for to, key, arguments in reversed(self):
            self.remove(to, key)
            return to, key, arguments
        raise KeyError("there are no subscriptions")
