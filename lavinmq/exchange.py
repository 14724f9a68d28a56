"""An exchange: its properties, its bindings by meaning, and their compiled form.

The bindings here are what management shows and what is stored; the message path only sees the
compiled ones in `core`. Owned by a `VHost`; never decides who may bind.
Source: AMQP reference, sections 7 and 8.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.fieldtable import FieldTable

if TYPE_CHECKING:
    from lavinmq.queue import Queue

KINDS: Final = {
    "direct": _core.DIRECT,
    "fanout": _core.FANOUT,
    "topic": _core.TOPIC,
    "headers": _core.HEADERS,
}
"""Exchange types that exist so far."""

BindingKey = tuple["Queue", str, FieldTable]
"""Destination, routing key and arguments: what makes a binding unique."""


class Exchange:
    """One exchange of a virtual host."""

    __slots__ = (
        "_paths", "arguments", "auto_delete", "bindings", "core", "durable", "internal", "name",
        "type",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        type_: str,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: FieldTable | None = None,
    ) -> None:
        self.name = name
        self.type = type_
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments if arguments is not None else FieldTable()
        self.bindings: dict[BindingKey, None] = {}
        # How many bindings share one compiled (queue, key): arguments only matter to headers.
        self._paths: dict[tuple[Queue, str], int] = {}
        any_by_default = self.arguments.get("x-match") == "any"
        self.core = _core.Exchange(KINDS[type_], secrets.randbits(64), any_by_default)

    def is_same(
        self, type_: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable
    ) -> bool:
        """Whether a declaration with these properties means this exchange."""
        return (type_, durable, auto_delete, internal, arguments) == (
            self.type, self.durable, self.auto_delete, self.internal, self.arguments,
        )  # fmt: skip

    def bind(self, queue: Queue, key: str, arguments: FieldTable) -> bool:
        """Add a binding. Returns: whether it is new. Raises: ValueError for a bad `x-match`."""
        binding = (queue, key, arguments)
        if binding in self.bindings:
            return False
        if self.type == "headers":
            self.core.bind(_raw(key), arguments.raw, queue.core)
        else:
            shared = self._paths.get((queue, key), 0)
            if shared == 0:
                self.core.bind(_raw(key), b"", queue.core)
            self._paths[queue, key] = shared + 1
        self.bindings[binding] = None
        queue.bindings[self, key, arguments] = arguments.raw
        return True

    def unbind(self, queue: Queue, key: str, arguments: FieldTable) -> bool:
        """Remove a binding. Returns: whether it was there."""
        stored = queue.bindings.get((self, key, arguments))
        if stored is None:
            return False
        if self.type == "headers":
            self.core.unbind(_raw(key), stored, queue.core)
        else:
            shared = self._paths.pop((queue, key)) - 1
            if shared:
                self._paths[queue, key] = shared
            else:
                self.core.unbind(_raw(key), b"", queue.core)
        del self.bindings[queue, key, arguments]
        del queue.bindings[self, key, arguments]
        return True


def _raw(key: str) -> bytes:
    """A routing key as it stands on the wire."""
    return key.encode("utf-8", "surrogateescape")
