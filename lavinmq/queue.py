"""A queue: its properties, its consumers and its bindings; the messages are in `core`.

Owned by a `VHost`. What a queue does to messages happens in the message path; this is what
declarations, consumers and management see of it.
Source: AMQP reference, sections 9 and 14.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from lavinmq import _core
from lavinmq.fieldtable import FieldTable

if TYPE_CHECKING:
    from lavinmq.exchange import Incoming


class Owner(Protocol):
    """A connection, as far as queues are concerned: who owns exclusive ones."""

    name: str


class QueueConsumer(Protocol):
    """A consumer, as far as its queue is concerned."""

    tag: str
    exclusive: bool

    def stop(self) -> None:
        """The queue is gone: nothing more is delivered."""

    def cancelled(self) -> None:
        """Tell the client."""


class Queue:
    """One queue of a virtual host. Compare by identity."""

    __slots__ = (
        "__weakref__",
        "arguments",
        "auto_delete",
        "consumers",
        "core",
        "directory",
        "durable",
        "exclusive",
        "incoming",
        "name",
        "owner",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        core: _core.Queue,
        directory: str,
        durable: bool,
        auto_delete: bool,
        owner: Owner | None,
        arguments: FieldTable,
    ) -> None:
        self.name = name
        self.core = core
        self.directory = directory
        self.durable = durable
        self.exclusive = owner is not None
        self.auto_delete = auto_delete
        self.owner = owner
        self.arguments = arguments
        self.consumers: dict[QueueConsumer, None] = {}  # in order, and quick to leave
        self.incoming: Incoming = {}

    @property
    def is_stored(self) -> bool:
        """Whether it outlives the broker: an exclusive queue goes with its connection."""
        return self.durable and not self.exclusive

    @property
    def has_exclusive_consumer(self) -> bool:
        """Whether one consumer has the queue to itself."""
        return any(consumer.exclusive for consumer in islice(self.consumers, 1))

    def is_locked_to(self, actor: Owner) -> bool:
        """Whether the queue belongs to another connection."""
        return self.owner is not None and self.owner is not actor
