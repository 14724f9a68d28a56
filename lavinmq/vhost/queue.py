"""A queue: its properties, its consumers and its bindings; the messages are in `core`.

Owned by a `VHost`. What a queue does to messages happens in the message path; this is what
declarations, consumers and management see of it.
Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from lavinmq import _core
from lavinmq.arguments.inequivalent import difference
from lavinmq.arguments.queue import compared
from lavinmq.arguments.stream import is_stream
from lavinmq.fieldtable import FieldTable
from lavinmq.files.directories import hashed
from lavinmq.policy.features import PLAIN, Features

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.stats.track import Track
    from lavinmq.vhost.destination import DestinationType, Incoming


class Owner(Protocol):
    """A connection, as far as queues are concerned: who owns exclusive ones."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def exclusive_queues(self) -> set[Queue]:
        """Those that go with it."""


class Actor(Owner, Protocol):
    """Who asks: a connection with its user."""

    user: Identity


class QueueConsumer(Protocol):
    """A consumer, as far as its queue is concerned."""

    @property
    def tag(self) -> str:
        """Its name on its channel."""

    @property
    def exclusive(self) -> bool:
        """Whether it has the queue to itself."""

    def start(self) -> None:
        """Its turn has come: let deliveries begin."""

    def stop(self) -> None:
        """The queue is gone: nothing more is delivered."""

    def cancelled(self) -> None:
        """Tell the client."""


class Queue:
    """One queue of a virtual host. Compare by identity."""

    kind: ClassVar[DestinationType] = "queue"
    __slots__ = (
        "__weakref__",
        "_consumers",
        "_incoming",
        "arguments",
        "auto_delete",
        "core",
        "durable",
        "exclusive",
        "features",
        "is_internal",
        "name",
        "owner",
        "track",
        "watchers",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        core: _core.Queue,
        durable: bool,
        auto_delete: bool,
        owner: Owner | None,
        arguments: FieldTable,
    ) -> None:
        self.name = name
        self.core = core
        self.durable = durable
        self.exclusive = owner is not None
        self.auto_delete = auto_delete
        self.owner = owner
        self.arguments = arguments
        self.features = PLAIN
        # Messages of a delayed exchange wait in it: clients may look at it, not use it.
        self.is_internal = False
        # Most of many queues have neither: each would cost 60 bytes.
        # One is the rule for sessions, and a table of its own would cost more than it.
        self._consumers: dict[QueueConsumer, None] | QueueConsumer | None = None
        self._incoming: Incoming | None = None
        self.track: Track | None = None
        self.watchers: tuple[Callable[[], object], ...] = ()
        """Called when a consumer has come or gone."""

    @property
    def dedup(self) -> _core.DedupCache | None:
        """The keys of messages it has had; None: duplicates are stored."""
        return self.core.dedup

    def is_same(
        self, durable: bool, auto_delete: bool, arguments: FieldTable, *,
        exclusive: bool | None = None,
    ) -> bool:  # fmt: skip
        """Whether a declaration means this queue; `exclusive` None is not compared."""
        given = (durable, auto_delete, compared(arguments))
        return exclusive in (None, self.exclusive) and given == (
            self.durable, self.auto_delete, compared(self.arguments),
        )  # fmt: skip

    def difference(
        self, durable: bool, auto_delete: bool, arguments: FieldTable, vhost: str
    ) -> str:
        """In what a declaration differs from this queue, for people."""
        return difference(
            "queue", self.name, vhost,
            {"durable": durable, "auto_delete": auto_delete, **compared(arguments)},
            {"durable": self.durable, "auto_delete": self.auto_delete,
             **compared(self.arguments)},
        )  # fmt: skip

    def counters(self) -> dict[str, int]:
        """What its messages have been through since it was made."""
        return self.core.counters()

    @property
    def directory(self) -> str:
        """The path of its files."""
        return self.core.directory

    @property
    def is_stored(self) -> bool:
        """Whether it outlives the broker: an exclusive queue goes with its connection."""
        return self.durable and not self.exclusive

    @property
    def policy(self) -> str | None:
        """The name of the policy that applies."""
        return self.features.policy

    @property
    def operator_policy(self) -> str | None:
        """The name of the operator policy that applies."""
        return self.features.operator_policy

    def apply(self, features: Features) -> None:
        """Take over what its arguments and the policies come to. Only called for a change."""
        was, self.features = self.features, features
        if not (features.is_plain and was.is_plain):
            self._set_features(features)

    def _set_features(self, features: Features) -> None:
        """Hand the features to the message path, which holds the queue to them at once."""

        def or_else(value: int | None, default: int) -> int:
            return default if value is None else value

        if self.is_stream:
            self.core.set_stream_limits(
                max_length=or_else(features.max_length, _core.UNLIMITED),
                max_bytes=or_else(features.max_length_bytes, _core.UNLIMITED),
                max_age_ms=or_else(features.max_age_ms, -1),
            )
            return
        self.core.set_features(
            max_length=or_else(features.max_length, _core.UNLIMITED),
            max_bytes=or_else(features.max_length_bytes, _core.UNLIMITED),
            overflow=_core.OVERFLOW[features.overflow or "drop-head"],
            ttl_ms=or_else(features.message_ttl_ms, -1),
            delivery_limit=or_else(features.delivery_limit, -1),
            target=_raw(features.dead_letter_exchange),
            target_key=_raw(features.dead_letter_routing_key),
        )

    @property
    def incoming(self) -> Incoming:
        """Its bindings, but the one by its name to the default exchange. Who adds the first one
        sets it."""
        return {} if self._incoming is None else self._incoming

    @incoming.setter
    def incoming(self, bindings: Incoming) -> None:
        self._incoming = bindings

    @property
    def consumers(self) -> Collection[QueueConsumer]:
        """Its consumers, in the order of their coming."""
        if self._consumers is None:
            return ()
        return self._consumers if isinstance(self._consumers, dict) else (self._consumers,)

    @property
    def is_stream(self) -> bool:
        """Whether consuming leaves the messages where they are."""
        return is_stream(self.arguments)

    def add_consumer(self, consumer: QueueConsumer) -> None:
        """Note a consumer, which `core` knows already."""
        if self._consumers is None:
            self._consumers = consumer
        elif isinstance(self._consumers, dict):
            self._consumers[consumer] = None
        else:
            self._consumers = {self._consumers: None, consumer: None}
        self._tell_watchers()

    def remove_consumer(self, consumer: QueueConsumer) -> bool:
        """Forget a consumer; when it was the single active one, the next in order takes over.

        Returns: whether it was there.
        """
        if consumer not in self.consumers:
            return False
        was_active = consumer is self.active_consumer
        if isinstance(self._consumers, dict):
            del self._consumers[consumer]
        else:
            self._consumers = None
        if was_active and self.consumers:
            next(iter(self.consumers)).start()
        self._tell_watchers()
        return True

    def take_consumers(self) -> list[QueueConsumer]:
        """Forget all consumers; returns them."""
        consumers = list(self.consumers)
        self._consumers = None
        self._tell_watchers()
        return consumers

    def _tell_watchers(self) -> None:
        for watch in self.watchers:
            watch()

    @property
    def is_single_active(self) -> bool:
        """Whether only one of its consumers is served at a time, whatever their priorities."""
        return self.arguments.get("x-single-active-consumer") is True

    @property
    def active_consumer(self) -> QueueConsumer | None:
        """The single active consumer: who came first of those that are there.

        None while there is none, and when all consumers are served.
        """
        return next(iter(self.consumers), None) if self.is_single_active else None

    @property
    def state(self) -> Literal["running", "paused", "closed"]:
        """What management calls its state."""
        if self.core.is_closed:
            return "closed"
        return "paused" if self.core.is_paused else "running"

    @property
    def is_session(self) -> bool:
        """Whether it is that of a client of MQTT: nobody else uses it."""
        return self.arguments.get("x-queue-type") == "mqtt"

    @property
    def has_exclusive_consumer(self) -> bool:
        """Whether one consumer has the queue to itself."""
        return any(consumer.exclusive for consumer in islice(self.consumers, 1))

    def is_locked_to(self, actor: Owner) -> bool:
        """Whether the queue belongs to another connection."""
        return self.owner is not None and self.owner is not actor


def _raw(text: str | None) -> bytes | None:
    """A name as it stands on the wire."""
    return None if text is None else text.encode("utf-8", "surrogateescape")


def path_of(root: str, name: str, life: int) -> str:
    """The directory of a queue. Args: root: the one in which it is. life: the name that it has
    there, where it is not for the next queue of this name; 0: it goes by that."""
    return f"{root}/{life}" if life else f"{root}/{hashed(name)}"
