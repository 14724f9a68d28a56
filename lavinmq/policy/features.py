"""What a queue does with messages, and an exchange with those that match nothing: one frozen value.

Pure functions make it of arguments, a policy and an operator policy. Policies themselves, and which
of them matches, are the business of `policies.py`; `vhost/rules.py` brings the two together. The
value of a wrong type is left out, the others count. Source: docs/policies.md.

How each key is merged with the argument that says the same is in `arguments/keys.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lavinmq.arguments.exchange_types import read_by
from lavinmq.arguments.keys import KEYS, Key, Kind, Merge, integer, is_integer, spellings
from lavinmq.fieldtable import EMPTY, FieldTable

Definition: TypeAlias = Mapping[str, Any]
"""Keys of a policy with usable values, as `usable` returns them."""

NO_DEFINITION: Final[Definition] = {}

Names: TypeAlias = tuple[str | None, str | None]
"""Of the policy and of the operator policy that apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFeatures:
    """What policies say of queues and exchanges alike. None: nothing.

    `effective_arguments` are the names of the arguments in force; `policy_definition` is what both
    policies say together.
    """

    federation_upstream: str | None = None
    federation_upstream_set: str | None = None
    policy: str | None = None
    operator_policy: str | None = None
    policy_definition: tuple[tuple[str, Any], ...] = ()
    effective_arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Features(PolicyFeatures):
    """What a queue or a stream does with its messages. None: nothing, or no limit.

    `effective_policy_arguments` are the keys of the policies in force.
    """

    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str | None = None
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    delivery_limit: int | None = None
    max_consumers: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_age_ms: int | None = None
    consumer_timeout_ms: int | None = None
    max_priority: int | None = None
    single_active_consumer: bool = False
    effective_policy_arguments: tuple[str, ...] = ()
    is_plain: bool = field(init=False, compare=False, repr=False)
    """Whether messages are only handed out in order: there is nothing to tell `core`."""

    def __post_init__(self) -> None:
        told = (
            self.max_length, self.max_length_bytes, self.overflow, self.message_ttl_ms,
            self.delivery_limit, self.dead_letter_exchange, self.dead_letter_routing_key,
            self.max_age_ms,
        )  # fmt: skip
        object.__setattr__(self, "is_plain", told.count(None) == len(told))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFeatures(PolicyFeatures):
    """What an exchange does beyond its bindings.

    `delayed_message` is what a policy says, apart from the arguments; None: nothing.
    """

    alternate_exchange: str | None = None
    delayed_message: bool | None = None


PLAIN: Final = Features()
"""A queue without arguments and policies."""


def argument(arguments: Mapping[str, Any], key: str) -> tuple[str, Any]:
    """Name and usable value of the argument that says what a key of policies says.

    The one reading of such arguments: what takes effect, and what rights are asked for, is what
    this returns. The value is None when there is none that is usable.
    """
    names = spellings(key)
    name = next((name for name in names if arguments.get(name) is not None), names[0])
    return name, KEYS[key].values.usable(arguments.get(name))


def mistyped(arguments: Mapping[str, Any], key: str) -> str | None:
    """The first of the arguments for a key, in any spelling, that is there and not usable."""
    for name in spellings(key):
        value = arguments.get(name)
        if value is not None and KEYS[key].values.usable(value) is None:
            return name
    return None


def usable(definition: Mapping[str, Any]) -> tuple[Definition, list[str]]:
    """The part of a policy's definition that has an effect.

    Returns: keys with usable values; known keys whose values are not usable.
    """
    known = {key: KEYS[key].values.usable(v) for key, v in definition.items() if key in KEYS}
    found = {key: value for key, value in known.items() if value is not None}
    return found, [key for key in known if key not in found]


def merged(policy: Definition, operator: Definition) -> Definition:
    """What a policy and an operator policy say together: of two numbers the lower counts."""
    both = dict(policy)
    for key, value in operator.items():
        given = both.get(key)
        both[key] = value if given is None or not is_integer(value) else min(given, value)
    return both


# --- merging ----------------------------------------------------------------------------------

_KEYS_OF: Final = {
    kind: [(k, row) for k, row in KEYS.items() if kind in row.kinds] for kind in Kind
}


class _Merging:
    """One merging under way: arguments on one side, policies on the other."""

    def __init__(
        self, arguments: Mapping[str, Any], policy: Definition, operator: Definition, names: Names
    ) -> None:
        self._arguments = arguments
        self._definition = merged(policy, operator)
        self._names = names
        self.taken: dict[str, None] = {}
        self.from_policy: dict[str, None] = {}

    def values(self, kind: Kind) -> dict[str, Any]:
        """The fields of features of that kind, but those of the arguments in force."""
        return {
            **{row.field: self._merged(key, row) for key, row in _KEYS_OF[kind]},
            "policy": self._names[0],
            "operator_policy": self._names[1],
            "policy_definition": tuple(self._definition.items()),
        }

    def own(self, name: str, usable: Callable[[object], Any]) -> Any:
        """The value of an argument that no policy knows."""
        value = usable(self._arguments.get(name))
        if value is not None:
            self.taken[name] = None
        return value

    def _merged(self, key: str, row: Key) -> Any:
        """What argument and policy come to, and a note of which of them that is."""
        amount, ruled = row.values.amount, self._definition.get(key)
        name, given = ("", None) if row.merge is Merge.POLICY_ONLY else (
            argument(self._arguments, key)
        )  # fmt: skip
        is_given = given is not None and (
            ruled is None
            or row.merge is Merge.ARGUMENT_FIRST
            or (row.merge is Merge.LOWER and amount(given) <= amount(ruled))
        )
        if is_given:
            self.taken[name] = None
        elif ruled is not None:
            self.from_policy[key] = None
        value = given if is_given else ruled
        return None if value is None else amount(value)


# --- queues -----------------------------------------------------------------------------------


def queue_features(
    arguments: FieldTable,
    policy: Definition = NO_DEFINITION,
    operator: Definition = NO_DEFINITION,
    names: Names = (None, None),
) -> Features:
    """The features of a queue or stream with these arguments.

    Args: policy, operator: of the matching policies, as `usable` returns them; names: of the two.
    """
    if not arguments and names == (None, None):
        return PLAIN
    merging = _Merging(arguments, policy, operator, names)
    kind = queue_kind(arguments)
    values = merging.values(kind)
    if kind is Kind.QUEUE:
        values["max_priority"] = merging.own("x-max-priority", integer)
        values["single_active_consumer"] = merging.own("x-single-active-consumer", _on) or False
    return Features(
        **values,
        effective_arguments=(*merging.taken, *_other_arguments(arguments)),
        effective_policy_arguments=tuple(merging.from_policy),
    )


def queue_kind(arguments: Mapping[str, Any]) -> Kind:
    """Whether a queue with these arguments is a stream."""
    return Kind.STREAM if arguments.get("x-queue-type") == "stream" else Kind.QUEUE


def _on(value: object) -> bool | None:
    return True if value is True else None


def _other_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments in force that no policy knows."""
    named = ["x-queue-type"] if arguments.get("x-queue-type") in ("stream", "mqtt") else []
    return named + _deduplication(arguments)


def _deduplication(arguments: Mapping[str, Any]) -> list[str]:
    """The arguments of deduplication in force: all hang on the first."""
    if arguments.get("x-message-deduplication") is not True:
        return []
    optional = ("x-cache-size", "x-cache-ttl", "x-deduplication-header")
    return ["x-message-deduplication", *(n for n in optional if arguments.get(n) is not None)]


# --- exchanges --------------------------------------------------------------------------------


def exchange_features(
    type_: str,
    arguments: FieldTable = EMPTY,
    policy: Definition = NO_DEFINITION,
    operator: Definition = NO_DEFINITION,
    names: Names = (None, None),
) -> ExchangeFeatures:
    """The features of an exchange of this type; see `queue_features`."""
    merging = _Merging(arguments, policy, operator, names)
    values = merging.values(Kind.EXCHANGE)
    taken = [*merging.taken]
    if arguments.get("x-delayed-exchange") is True:
        taken.append("x-delayed-exchange")
    taken += read_by(type_, arguments)
    return ExchangeFeatures(**values, effective_arguments=(*taken, *_deduplication(arguments)))
