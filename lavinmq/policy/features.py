"""What a queue does with messages, and an exchange with those that match nothing: one frozen value.

Pure functions make it of arguments, a policy and an operator policy. Policies themselves, and which
of them matches, are the business of `policies.py`; `vhost/rules.py` brings the two together. The
value of a wrong type is left out, the others count. Source: AMQP reference, sections 10, 20 and 21.

Merging, for each key of a policy:

    max-length, max-length-bytes, message-ttl,      the lower of argument, policy, operator policy
    expires, delivery-limit, consumer-timeout
    max-age (streams)                               the shorter of argument and policy
    overflow                                        the policy before the argument
    dead-letter-exchange, dead-letter-routing-key,  the argument before the policy
    alternate-exchange
    delayed-message, federation-…                   the policy; there is no argument
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, cast

from lavinmq.fieldtable import EMPTY, FieldTable, Timestamp

OPERATOR_KEYS: Final = frozenset({"expires", "message-ttl", "max-length", "max-length-bytes"})
"""What an operator policy may say; all of it only tightens."""

OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")

Rules: TypeAlias = Mapping[str, Any]
"""Keys of a policy with usable values, as `usable` returns them."""

NO_RULES: Final[Rules] = {}

_MAX_AGE: Final = re.compile(r"(\d+)([YMDhms])", re.ASCII)
_SECONDS: Final = {"Y": 31536000, "M": 2592000, "D": 86400, "h": 3600, "m": 60, "s": 1}
_INT64_MAX: Final = (1 << 63) - 1


class Kind(Enum):
    """What rules differ for."""

    QUEUE = "queue"
    STREAM = "stream"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a queue or a stream does with its messages. None: nothing, or no limit.

    `effective_arguments` are the names of the arguments in force, `effective_policy_arguments` the
    keys of the policies in force; `policy_definition` is what both policies say together.
    """

    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str | None = None
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    delivery_limit: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_age_s: int | None = None
    consumer_timeout_ms: int | None = None
    max_priority: int | None = None
    single_active_consumer: bool = False
    federation_upstream: str | None = None
    federation_upstream_set: str | None = None
    policy: str | None = None
    operator_policy: str | None = None
    policy_definition: tuple[tuple[str, Any], ...] = ()
    effective_arguments: tuple[str, ...] = ()
    effective_policy_arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFeatures:
    """What an exchange does beyond its bindings.

    `delayed_message` is what a policy says, apart from the arguments; None: nothing.
    """

    alternate_exchange: str | None = None
    delayed_message: bool | None = None
    federation_upstream: str | None = None
    federation_upstream_set: str | None = None
    policy: str | None = None
    operator_policy: str | None = None
    policy_definition: tuple[tuple[str, Any], ...] = ()
    effective_arguments: tuple[str, ...] = ()


PLAIN: Final = Features()
"""A queue without arguments and policies."""


# --- values -----------------------------------------------------------------------------------


def max_age_s(text: str) -> int:
    """Seconds of an age such as `7D`; a month has 30 days, a year 365. Raises: ValueError."""
    found = _MAX_AGE.fullmatch(text)
    if found is None:
        raise ValueError(f"no age: {text!r}")
    return int(found[1]) * _SECONDS[found[2]]


def is_integer(value: object) -> bool:
    """Whether it is a number without a fraction, and neither a bool nor a time."""
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def _integer(value: object) -> int | None:
    return cast(int, value) if is_integer(value) and 0 <= cast(int, value) <= _INT64_MAX else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _overflow(value: object) -> str | None:
    return value if isinstance(value, str) and value in OVERFLOWS else None


def _age(value: object) -> str | None:
    return value if isinstance(value, str) and _MAX_AGE.fullmatch(value) else None


def _switch(value: object) -> bool | None:
    """A bool; or its word, since LavinMQ takes nothing but strings for this key."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


KEYS: Final[dict[str, Callable[[object], object]]] = {
    "max-length": _integer,
    "max-length-bytes": _integer,
    "message-ttl": _integer,
    "expires": _integer,
    "delivery-limit": _integer,
    "consumer-timeout": _integer,
    "overflow": _overflow,
    "dead-letter-exchange": _string,
    "dead-letter-routing-key": _string,
    "max-age": _age,
    "alternate-exchange": _string,
    "delayed-message": _switch,
    "federation-upstream": _string,
    "federation-upstream-set": _string,
}
"""Keys of a policy with an effect. Each function returns the value, or None for an unusable one."""


_SPELLINGS: Final = {"alternate-exchange": ("x-alternate-exchange", "alternate-exchange")}
"""The arguments for a key that has several; of all others it is `x-` and the key."""


def argument(arguments: Mapping[str, Any], key: str) -> tuple[str, Any]:
    """Name and usable value of the argument that says what a key of policies says.

    The one reading of such arguments: what takes effect, and what rights are asked for, is what
    this returns. The value is None when there is none that is usable.
    """
    names = _SPELLINGS.get(key, (f"x-{key}",))
    name = next((name for name in names if arguments.get(name) is not None), names[0])
    return name, KEYS[key](arguments.get(name))


def mistyped(arguments: Mapping[str, Any], key: str) -> str | None:
    """The first of the arguments for a key, in any spelling, that is there and not usable."""
    for name in _SPELLINGS.get(key, (f"x-{key}",)):
        value = arguments.get(name)
        if value is not None and KEYS[key](value) is None:
            return name
    return None


def usable(definition: Mapping[str, Any]) -> tuple[Rules, list[str]]:
    """The part of a policy's definition that has an effect.

    Returns: keys with usable values; known keys whose values are not usable.
    """
    known = {key: KEYS[key](value) for key, value in definition.items() if key in KEYS}
    rules = {key: value for key, value in known.items() if value is not None}
    return rules, [key for key in known if key not in rules]


def merged(policy: Rules, operator: Rules) -> Rules:
    """What a policy and an operator policy say together: of two numbers the lower counts."""
    both = dict(policy)
    for key, value in operator.items():
        given = both.get(key)
        both[key] = value if given is None or not is_integer(value) else min(given, value)
    return both


# --- queues -----------------------------------------------------------------------------------

_ALL: Final = (Kind.QUEUE, Kind.STREAM)
_LIMITS: Final[dict[str, tuple[str, tuple[Kind, ...]]]] = {
    "max-length": ("max_length", _ALL),
    "max-length-bytes": ("max_length_bytes", _ALL),
    "message-ttl": ("message_ttl_ms", (Kind.QUEUE,)),
    "expires": ("expires_ms", (Kind.QUEUE,)),
    "delivery-limit": ("delivery_limit", (Kind.QUEUE,)),
    "consumer-timeout": ("consumer_timeout_ms", _ALL),
}
"""Limits by key: the field, and where they have an effect. The argument is `x-` and the key."""


class _Merge:
    """One merging under way: arguments on one side, rules on the other."""

    def __init__(self, arguments: Mapping[str, Any], rules: Rules) -> None:
        self.arguments = arguments
        self.rules = rules
        self.taken: dict[str, None] = {}
        self.from_policy: dict[str, None] = {}

    def argument(self, key: str) -> Any:
        """The argument in force for a key of policies, if it is usable."""
        name, value = argument(self.arguments, key)
        if value is not None:
            self.taken[name] = None
        return value

    def own(self, name: str, usable: Callable[[object], Any]) -> Any:
        """The same for an argument that no policy knows."""
        value = usable(self.arguments.get(name))
        if value is not None:
            self.taken[name] = None
        return value

    def rule(self, key: str) -> Any:
        """The policy's value in force."""
        value = self.rules.get(key)
        if value is not None:
            self.from_policy[key] = None
        return value

    def _argument_gives_way(self, key: str) -> Any:
        self.taken.pop(f"x-{key}", None)
        return self.rule(key)

    def lower(self, key: str, amount: Callable[[Any], int] = int) -> Any:
        """The argument, unless the policy's value is lower."""
        given, ruled = self.argument(key), self.rules.get(key)
        if ruled is None or (given is not None and amount(given) <= amount(ruled)):
            return given
        return self._argument_gives_way(key)

    def argument_first(self, key: str) -> Any:
        """The argument, or else the policy's value."""
        given = self.argument(key)
        return given if given is not None else self.rule(key)

    def policy_first(self, key: str) -> Any:
        """The policy's value, or else the argument."""
        given = self.argument(key)
        return given if self.rules.get(key) is None else self._argument_gives_way(key)


def queue_features(
    arguments: FieldTable,
    policy: Rules = NO_RULES,
    operator: Rules = NO_RULES,
    names: tuple[str | None, str | None] = (None, None),
) -> Features:
    """The features of a queue or stream with these arguments.

    Args: policy, operator: of the matching policies, as `usable` returns them; names: of the two.
    """
    if not arguments and names == (None, None):
        return PLAIN
    rules = merged(policy, operator)
    merge = _Merge(arguments, rules)
    kind = queue_kind(arguments)
    values: dict[str, Any] = {
        field: merge.lower(key) for key, (field, kinds) in _LIMITS.items() if kind in kinds
    }
    if kind is Kind.STREAM:
        age = merge.lower("max-age", max_age_s)
        values["max_age_s"] = None if age is None else max_age_s(age)
    else:
        values["overflow"] = merge.policy_first("overflow")
        values["dead_letter_exchange"] = merge.argument_first("dead-letter-exchange")
        values["dead_letter_routing_key"] = merge.argument_first("dead-letter-routing-key")
        values["max_priority"] = merge.own("x-max-priority", _integer)
        values["single_active_consumer"] = merge.own("x-single-active-consumer", _on) or False
    return Features(
        **values,
        federation_upstream=merge.rule("federation-upstream"),
        federation_upstream_set=merge.rule("federation-upstream-set"),
        policy=names[0],
        operator_policy=names[1],
        policy_definition=tuple(rules.items()),
        effective_arguments=(*merge.taken, *_other_arguments(arguments)),
        effective_policy_arguments=tuple(merge.from_policy),
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

_READ_BY: Final = {
    "headers": ("x-match",),
    "x-consistent-hash": ("x-hash-on", "hash-header", "hash-property", "x-algorithm"),
}
"""Arguments that one type of exchange reads."""


def exchange_features(
    type_: str,
    arguments: FieldTable = EMPTY,
    policy: Rules = NO_RULES,
    operator: Rules = NO_RULES,
    names: tuple[str | None, str | None] = (None, None),
) -> ExchangeFeatures:
    """The features of an exchange of this type; see `queue_features`."""
    rules = merged(policy, operator)
    name, alternate = argument(arguments, "alternate-exchange")
    taken = [] if alternate is None else [name]
    if alternate is None:
        alternate = rules.get("alternate-exchange")
    if arguments.get("x-delayed-exchange") is True:
        taken.append("x-delayed-exchange")
    taken += [name for name in _READ_BY.get(type_, ()) if isinstance(arguments.get(name), str)]
    return ExchangeFeatures(
        alternate_exchange=alternate,
        delayed_message=rules.get("delayed-message"),
        federation_upstream=rules.get("federation-upstream"),
        federation_upstream_set=rules.get("federation-upstream-set"),
        policy=names[0],
        operator_policy=names[1],
        policy_definition=tuple(rules.items()),
        effective_arguments=(*taken, *_deduplication(arguments)),
    )
