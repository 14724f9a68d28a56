"""The types of exchanges, one row each; declarations, features, routing and the API read them.

A new type is a row here and, if it routes as no other one does, a kind of the message path.
Source: docs/protocol.md, documentation of RabbitMQ's plugins.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from lavinmq import _core
from lavinmq.arguments import hash as hash_arguments
from lavinmq.arguments.names import failed
from lavinmq.fieldtable import FieldTable, Timestamp
from lavinmq.nearest import hint

HISTORY_LENGTH: Final = "x-recent-history-length"
HISTORY_LENGTH_DEFAULT: Final = 20
"""As in RabbitMQ."""


def _nothing(arguments: FieldTable) -> str | None:
    return None


def _no_match(arguments: FieldTable) -> str | None:
    if arguments.get("x-match", "all") not in ("all", "any"):
        return "x-match must be 'any' or 'all'"
    return None


def _no_length(arguments: FieldTable) -> str | None:
    wanted = arguments.get(HISTORY_LENGTH)
    if wanted is None:
        return None
    if not isinstance(wanted, int) or isinstance(wanted, bool | Timestamp) or wanted < 1:
        return f"{HISTORY_LENGTH} must be a positive integer"
    if wanted > _core.HISTORY_MAX:
        return (
            f"{HISTORY_LENGTH} {wanted} is more than the {_core.HISTORY_MAX} messages that are kept"
        )
    return None


class ExchangeType(NamedTuple):
    """One type.

    `core` is the kind of the message path, `title` what people read. `reads` are the arguments of
    the exchange that count, each with the type of its value; `complaint` is why arguments cannot
    be, None when they can; `instead` is what an exchange in the files does that has them
    nevertheless. `reads_bindings`: compiled bindings differ by their arguments, too.
    `ignores_keys`: all bindings to one destination are the same. `keeps`: messages are kept for who
    is bound later.
    """

    title: str
    core: int
    reads: Mapping[str, type] = MappingProxyType({})
    complaint: Callable[[FieldTable], str | None] = _nothing
    instead: str = ""
    reads_bindings: bool = False
    ignores_keys: bool = False
    keeps: bool = False


_KINDS: Final = _core.kinds()

FEDERATION: Final = "x-federation-upstream"
"""The type by which links of federation collect messages here for another broker. Only they
declare it, and nobody is offered it."""

EXCHANGE_TYPES: Final[Mapping[str, ExchangeType]] = {
    "direct": ExchangeType("Direct", _core.DIRECT),
    "fanout": ExchangeType("Fanout", _core.FANOUT),
    "topic": ExchangeType("Topic", _core.TOPIC),
    "x-rtopic": ExchangeType("Reverse Topic", _KINDS["reversed"]),
    "headers": ExchangeType(
        "Headers",
        _core.HEADERS,
        {"x-match": str},
        _no_match,
        "matches all headers",
        reads_bindings=True,
    ),
    "x-consistent-hash": ExchangeType(
        "Consistent Hash",
        _core.HASH,
        dict.fromkeys((*hash_arguments.HEADERS, hash_arguments.PROPERTY, "x-algorithm"), str),
        hash_arguments.complaint,
        "hashes the routing key",
        reads_bindings=True,
    ),
    "x-random": ExchangeType("Random", _KINDS["random"], ignores_keys=True),
    "x-local-random": ExchangeType("Local Random", _KINDS["random"], ignores_keys=True),
    "x-modulus-hash": ExchangeType("Modulus Hash", _KINDS["modulus"], ignores_keys=True),
    "x-recent-history": ExchangeType(
        "Recent History",
        _core.FANOUT,
        {HISTORY_LENGTH: object},
        _no_length,
        f"keeps {HISTORY_LENGTH_DEFAULT} messages",
        ignores_keys=True,
        keeps=True,
    ),
    FEDERATION: ExchangeType("Federation Upstream", _core.FANOUT),
}
"""By the name that clients give. All queues are local ones: there is one node."""

MQTT: Final = "mqtt"
"""The type of the exchange to which clients of MQTT publish. Nobody declares another one."""

_OWN: Final = {MQTT: ExchangeType("MQTT", _core.FILTERS)}


def of_type(type_: str) -> ExchangeType:
    """The row of a type that exists, be it the broker's own. Raises: KeyError."""
    return EXCHANGE_TYPES.get(type_) or _OWN[type_]


def unserved(type_: str) -> str:
    """The end of a refusal of a type that is not there: the nearest one that is."""
    return hint(type_, (*EXCHANGE_TYPES, "x-delayed-message"))


def check(type_: str, arguments: FieldTable) -> None:
    """Refuse arguments that no exchange of that type can have. Raises: ChannelError 406."""
    reason = EXCHANGE_TYPES[type_].complaint(arguments)
    if reason is not None:
        raise failed(reason)


def read_by(type_: str, arguments: FieldTable) -> list[str]:
    """The names of given arguments that an exchange of that type reads."""
    known = EXCHANGE_TYPES.get(type_)
    if known is None:
        return []
    given = [(name, kind) for name, kind in known.reads.items() if name in arguments]
    return [name for name, kind in given if isinstance(arguments[name], kind)]
