"""An exchange: its properties, its bindings by meaning, and their compiled form.

The bindings here are what management shows and what is stored; the message path only sees the
compiled ones in `core`. Owned by a `VHost`; never decides who may bind.
Source: docs/protocol.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from lavinmq import _core
from lavinmq.arguments import exchange_types
from lavinmq.arguments.hash import Hashed, hashed_by
from lavinmq.arguments.inequivalent import difference
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.files.definitions import ExchangeDef
from lavinmq.policy.features import ExchangeFeatures, exchange_features
from lavinmq.vhost import subscribing
from lavinmq.vhost.filters import Subscriptions

if TYPE_CHECKING:
    from lavinmq.stats.track import Track
    from lavinmq.vhost.destination import Destination, DestinationType, Incoming, Source
    from lavinmq.vhost.queue import Queue


class Exchange:
    """One exchange of a virtual host. Compare by identity.

    Args: hash_algorithm: of a consistent hash exchange that names none: "ring" or "jump".
    """

    kind: ClassVar[DestinationType] = "exchange"
    __slots__ = (
        "_paths", "_replays", "_type", "arguments", "auto_delete", "bindings", "core",
        "deserted", "durable", "features", "incoming", "internal", "is_mqtt", "is_topic", "keeps",
        "members", "name", "track", "type", "waiting", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        type_: str,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: FieldTable = EMPTY,
        hash_algorithm: str = "ring",
    ) -> None:
        self.name = name
        self.type = type_
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.features = exchange_features(type_, arguments)
        self.watchers: tuple[Callable[[bool, str, FieldTable], object], ...] = ()
        """Are told whether a binding is new or gone, its key and arguments."""
        # Of a delayed exchange: where its messages wait.
        self.waiting: Queue | None = None
        self.incoming: Incoming = {}
        # How many bindings share one compiled (destination, key), where arguments do not matter.
        self._paths: dict[tuple[Destination, str], int] = {}
        # How many members each shared subscription has, and those that have lost their last one.
        self.members: dict[str, int] = {}
        self.deserted: list[str] = []
        # Destinations that get what is kept, and are bound after that.
        self._replays: dict[Destination, _core.Replay] = {}
        self.track: Track | None = None
        self._type = exchange_types.of_type(type_)
        # Asked for each binding.
        self.is_mqtt = self._type.core == _core.FILTERS
        """Whether clients of MQTT publish to it: its bindings are their subscriptions."""
        self.is_topic = self._type.core == _core.TOPIC
        """Whether topic permissions are in force on it."""
        self.keeps = self._type.keeps
        """Whether it keeps messages for who is bound later."""
        self.bindings: dict[tuple[Destination, str, FieldTable], None] | Subscriptions
        self.bindings = Subscriptions() if self.is_mqtt else {}
        any_by_default = arguments.get("x-match") == "any"
        algorithm = str(arguments.get("x-algorithm")).lower()
        if algorithm not in ("ring", "jump"):
            algorithm = hash_algorithm
        hashed = hashed_by(arguments) if self._type.core == _core.HASH else Hashed()
        self.core = _core.Exchange(
            self._type.core, secrets.randbits(64), any_by_default, algorithm == "jump",
            None if hashed.header is None else raw_key(hashed.header), hashed.property,
        )  # fmt: skip
        self.core.is_internal = internal

    @property
    def dedup(self) -> _core.DedupCache | None:
        """The keys of messages it has had; None: duplicates are routed."""
        return self.core.dedup

    def counters(self) -> dict[str, int]:
        """What it has routed since it was made."""
        return self.core.counters()

    @property
    def is_stored(self) -> bool:
        """Whether it outlives the broker."""
        return self.durable

    @property
    def records_bindings(self) -> bool:
        """Whether its bindings to what is stored are stored: the exchange of MQTT is made anew at
        each start, and its subscriptions are not."""
        return self.durable or self.is_mqtt

    @property
    def is_used(self) -> bool:
        """Whether it is the source or the destination of a binding."""
        return bool(self.bindings or self.incoming)

    @property
    def alternate_name(self) -> str | None:
        """The exchange that takes what matches nothing here, existing or not."""
        return self.features.alternate_exchange

    @property
    def policy(self) -> str | None:
        """The name of the policy that applies."""
        return self.features.policy

    @property
    def operator_policy(self) -> str | None:
        """The name of the operator policy that applies."""
        return self.features.operator_policy

    def is_same(self, other: ExchangeDef) -> bool:
        """Whether a declaration, in its resolved form, means this exchange."""
        return (
            other.type, other.durable, other.auto_delete, other.internal, other.arguments,
        ) == (self.type, self.durable, self.auto_delete, self.internal, self.arguments)  # fmt: skip

    def difference(self, other: ExchangeDef, vhost: str) -> str:
        """In what a declaration, in its resolved form, differs from this exchange, for people."""
        return difference(
            "exchange", self.name, vhost,
            {"type": other.type, "durable": other.durable, "auto_delete": other.auto_delete,
             "internal": other.internal, **other.arguments},
            {"type": self.type, "durable": self.durable, "auto_delete": self.auto_delete,
             "internal": self.internal, **self.arguments},
        )  # fmt: skip

    @property
    def is_delayed(self) -> bool:
        """Whether messages wait here that have a header `x-delay`."""
        return is_delayed(self.arguments, self.features)

    def emptied(self) -> Iterator[None]:
        """Forget all bindings, one in each step, of an exchange that nobody is served by."""
        while self.bindings:
            self.bindings.popitem()
            yield
        while self._paths:
            self._paths.popitem()
            yield
        self.incoming = {}
        self.waiting = None

    def live_bindings(self) -> Iterator[tuple[Destination, str, FieldTable]]:
        """Its bindings as of now, without those to what is deleted and has so many that some stay
        for a moment."""
        now = iter(self.bindings if self.is_mqtt else list(self.bindings))
        return (each for each in now if not _core.is_gone(each[0].core))

    def bind(self, to: Destination, key: str, arguments: FieldTable) -> bool:
        """Add a binding; one of a session takes the place of its other one with the same filter.
        Returns: whether it is new.

        Raises: ValueError with a text for clients for a bad `x-match` or a bad weight.
        """
        bindings = self.bindings
        if isinstance(bindings, Subscriptions):
            if (to, key, arguments) in bindings:
                return False
            subscribing.bind(self.core, to, key, arguments)
            is_new = bindings.set(self, to, key, arguments)
            if is_new and key.startswith(subscribing.SHARE):
                self.members[key] = self.members.get(key, 0) + 1
            return is_new
        before = len(bindings)
        bindings[to, key, arguments] = None
        if len(bindings) == before:
            return False
        try:
            if self._type.reads_bindings:
                self.core.bind(raw_key(key), self._compiled(to, arguments.raw), to.core)
            else:
                path, paths = self._path(to, key), self._paths
                shared = paths.get(path)
                if shared is None and not self.core.n_kept:
                    self.core.bind(raw_key(path[1]), b"", to.core)
                paths[path] = 1 if shared is None else shared + 1
        except BaseException:
            del bindings[to, key, arguments]
            raise
        for watch in self.watchers:
            watch(True, key, arguments)
        incoming = to.incoming
        incoming[self, key, arguments] = arguments.raw
        if len(incoming) == 1:
            to.incoming = incoming
        return True

    def unbind(self, to: Destination, key: str, arguments: FieldTable) -> bool:
        """Remove a binding. Returns: whether it was there. Raises: ValueError for a bad weight."""
        stored = to.incoming.get((self, key, arguments))
        if self._type.reads_bindings:
            raw = arguments.raw if stored is None else stored
            self.core.unbind(raw_key(key), self._compiled(to, raw), to.core)
        if stored is None:
            return False
        if isinstance(self.bindings, Subscriptions):
            subscribing.unbind(self.core, to, key)
            self.bindings.remove(to, key)
            if key.startswith(subscribing.SHARE):
                self.members[key] -= 1
                if not self.members[key]:
                    del self.members[key]
                    self.deserted.append(key)
            return True
        if not self._type.reads_bindings:
            path = self._path(to, key)
            shared = self._paths.pop(path) - 1
            if shared:
                self._paths[path] = shared
            else:
                if to in self._replays:
                    self._replays.pop(to).stop()
                self.core.unbind(raw_key(path[1]), b"", to.core)
        del self.bindings[to, key, arguments]
        del to.incoming[self, key, arguments]
        for watch in self.watchers:
            watch(False, key, arguments)
        return True

    def options(self, to: Destination, key: str) -> FieldTable | None:
        """The arguments with which a session is bound here; None: it is not."""
        return self.bindings.options(to, key) if isinstance(self.bindings, Subscriptions) else None

    def awaits(self, to: Destination) -> bool:
        """Whether a first binding of that destination gives it messages."""
        return self.core.n_kept > 0 and (to, "") not in self._paths

    def replay(self, to: Destination) -> _core.Replay | None:
        """What gives a destination that was bound just now what is kept; None when there is nothing
        to give, or it has had that."""
        if not self.core.n_kept or self._paths[to, ""] != 1:
            return None
        self._replays[to] = replay = _core.Replay(self.core, to.core)
        return replay

    def replayed(self, to: Destination, replay: _core.Replay) -> None:
        """A destination has what is kept, unless its bindings have gone: it gets what comes."""
        if self._replays.get(to) is replay:
            del self._replays[to]
            self.core.bind(b"", b"", to.core)

    def _path(self, to: Destination, key: str) -> tuple[Destination, str]:
        """What bindings share in their compiled form."""
        return (to, "") if self._type.ignores_keys else (to, key)

    def _compiled(self, to: Destination, raw: bytes) -> bytes:
        """The arguments as the compiled binding wants them: hashing goes by the name, too."""
        if self._type.core != _core.HASH:
            return raw
        name = raw_key(to.name)
        return bytes([len(name)]) + name + raw


def raw_key(key: str) -> bytes:
    """A routing key as it stands on the wire."""
    return key.encode("utf-8", "surrogateescape")


def live_incoming(to: Destination) -> Iterator[tuple[Source, str, FieldTable]]:
    """The bindings of a destination as of now, without those from exchanges that are deleted and
    have very many that still go."""
    return (each for each in list(to.incoming) if not _core.is_gone(each[0].core))


def is_delayed(arguments: FieldTable, features: ExchangeFeatures) -> bool:
    """Whether an exchange with these is a delayed one."""
    return arguments.get("x-delayed-exchange") is True or bool(features.delayed_message)
