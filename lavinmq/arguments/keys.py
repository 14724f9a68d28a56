"""The table of what policies may say, each key with the argument that says the same.

One row has all there is to a key: its values, what it is for, how it is merged with the argument,
and the field of `policy/features.py` in which it lands. Validation of arguments and of policies,
features, the HTTP API and docs/policies.md follow it. Source: docs/policies.md.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeGuard

from lavinmq.arguments.interval import interval_ms
from lavinmq.fieldtable import Timestamp
from lavinmq.nearest import hint

INT64_MAX: Final = (1 << 63) - 1
OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")


class Kind(Enum):
    """What keys differ for."""

    QUEUE = "queue"
    STREAM = "stream"
    EXCHANGE = "exchange"


class Merge(Enum):
    """Which counts of the argument and the policy, in the words of docs/policies.md."""

    LOWER = "the lower counts"
    POLICY_FIRST = "the policy counts"
    ARGUMENT_FIRST = "the argument counts"
    POLICY_ONLY = ""


# --- values -----------------------------------------------------------------------------------


class Values(NamedTuple):
    """The values that a key may have.

    `says` what they are, `is_typed` whether a request may have one, and `type_name` how a refusal
    of others calls it. `usable` returns one that has an effect, None for others; `amount` what it
    comes to. `complaint` is what is wrong with an argument of that name and value, None if nothing.
    """

    says: str
    type_name: str
    is_typed: Callable[[object], bool]
    usable: Callable[[object], Any]
    complaint: Callable[[str, object], str | None]
    amount: Callable[[Any], Any] = lambda value: value


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is a number without a fraction, and neither a bool nor a time."""
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def integer(value: object) -> int | None:
    """A number that a limit can be, None for others."""
    return value if is_integer(value) and 0 <= value <= INT64_MAX else None


def no_integer(minimum: int, maximum: int = INT64_MAX) -> Callable[[str, object], str | None]:
    """What is wrong with an argument that should be a number between the two."""

    def complaint(name: str, value: object) -> str | None:
        if not is_integer(value):
            return f"{name} header not an integer"
        if value < minimum:
            return f"{name} header less than minimum value {minimum}"
        return f"{name} header greater than maximum value {maximum}" if value > maximum else None

    return complaint


def no_string(name: str, value: object) -> str | None:
    """What is wrong with an argument that should be text."""
    return None if isinstance(value, str) else f"{name} header not a string"


def _is_string(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _overflow(value: object) -> str | None:
    return value if isinstance(value, str) and value in OVERFLOWS else None


def _no_overflow(name: str, value: object) -> str | None:
    if not isinstance(value, str):
        return f"{name} header not a string"
    if not value or value in OVERFLOWS:  # an empty one says nothing, in LavinMQ too
        return None
    return f"{name} '{value[:40]}' is unknown{hint(value, OVERFLOWS)}"


def _age(value: object) -> str | None:
    return value if isinstance(value, str) and interval_ms(value) is not None else None


def _no_age(name: str, value: object) -> str | None:
    if not isinstance(value, str):
        return f"{name} must be a string"
    return f"{name} format invalid" if interval_ms(value) is None else None


def _switch(value: object) -> bool | None:
    """A bool; or its word, since LavinMQ takes nothing but strings for this key."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _is_switch(value: object) -> bool:
    return isinstance(value, str | bool)


NUMBER: Final = Values("number", "Int", is_integer, integer, no_integer(0))
MILLISECONDS: Final = NUMBER._replace(says="milliseconds")
EXPIRY: Final = MILLISECONDS._replace(complaint=no_integer(1))
NAME: Final = Values("name", "String", _is_string, _string, no_string)
OVERFLOW: Final = NAME._replace(
    says=", ".join(f"`{each}`" for each in OVERFLOWS), usable=_overflow, complaint=_no_overflow
)
AGE: Final = NAME._replace(
    says="`7D`; Y, M, D, h, m or s", usable=_age, complaint=_no_age, amount=interval_ms
)
SWITCH: Final = Values("`true` or `false`", "String", _is_switch, _switch, no_string)


# --- the table --------------------------------------------------------------------------------


class Key(NamedTuple):
    """One key.

    `field`: of features; `kinds`: where it has an effect; `is_tightening`: whether an operator
    policy may say it. `spelt`: the arguments that say the same, the first of them counts; None:
    `x-` and the key. `is_ignored_on_streams`: a stream may have the argument, which does nothing.
    """

    field: str
    values: Values
    kinds: frozenset[Kind]
    merge: Merge
    is_tightening: bool = False
    spelt: tuple[str, ...] | None = None
    is_ignored_on_streams: bool = False


_QUEUES: Final = frozenset({Kind.QUEUE})
_STREAMS: Final = frozenset({Kind.STREAM})
_EXCHANGES: Final = frozenset({Kind.EXCHANGE})

KEYS: Final = {
    "max-length": Key("max_length", NUMBER, _QUEUES | _STREAMS, Merge.LOWER, True),
    "max-length-bytes": Key("max_length_bytes", NUMBER, _QUEUES | _STREAMS, Merge.LOWER, True),
    "message-ttl": Key(
        "message_ttl_ms", MILLISECONDS, _QUEUES, Merge.LOWER, True, is_ignored_on_streams=True
    ),
    "expires": Key("expires_ms", EXPIRY, _QUEUES, Merge.LOWER, True),
    "delivery-limit": Key("delivery_limit", NUMBER, _QUEUES, Merge.LOWER),
    "max-consumers": Key("max_consumers", NUMBER, _QUEUES | _STREAMS, Merge.LOWER, True),
    "consumer-timeout": Key("consumer_timeout_ms", MILLISECONDS, _QUEUES | _STREAMS, Merge.LOWER),
    "max-age": Key("max_age_ms", AGE, _STREAMS, Merge.LOWER),
    "overflow": Key("overflow", OVERFLOW, _QUEUES, Merge.POLICY_FIRST),
    "dead-letter-exchange": Key("dead_letter_exchange", NAME, _QUEUES, Merge.ARGUMENT_FIRST),
    "dead-letter-routing-key": Key("dead_letter_routing_key", NAME, _QUEUES, Merge.ARGUMENT_FIRST),
    "alternate-exchange": Key(
        "alternate_exchange", NAME, _EXCHANGES, Merge.ARGUMENT_FIRST,
        spelt=("x-alternate-exchange", "alternate-exchange"),
    ),
    "delayed-message": Key("delayed_message", SWITCH, _EXCHANGES, Merge.POLICY_ONLY),
    "federation-upstream": Key("federation_upstream", NAME, frozenset(Kind), Merge.POLICY_ONLY),
    "federation-upstream-set": Key(
        "federation_upstream_set", NAME, frozenset(Kind), Merge.POLICY_ONLY
    ),
}  # fmt: skip
"""The keys that have an effect, in the order in which features show them."""

OPERATOR_KEYS: Final = frozenset(key for key, row in KEYS.items() if row.is_tightening)
"""What an operator policy may say; all of it only tightens."""


def spellings(key: str) -> tuple[str, ...]:
    """The names of the arguments for a key."""
    return KEYS[key].spelt or (f"x-{key}",)


def arguments_of_queues() -> dict[str, Key]:
    """The arguments of queues and streams that a policy may say, too, by their names."""
    return {
        f"x-{key}": row for key, row in KEYS.items()
        if row.merge is not Merge.POLICY_ONLY and row.kinds != _EXCHANGES
    }  # fmt: skip
