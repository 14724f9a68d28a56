"""Checks of queue arguments at queue.declare: one table, one complaint per argument.

Asked for new queues only; knows types and ranges, not what the arguments do. A void value always
passes. Source: docs/policies.md, docs/protocol.md.
"""

from collections.abc import Callable
from typing import Final

from lavinmq.arguments.keys import arguments_of_queues, no_integer, no_string
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.fieldtable import FieldTable, Value
from lavinmq.nearest import hint

_UINT32_MAX: Final = (1 << 32) - 1


def _no_boolean(name: str, value: object) -> str | None:
    return None if isinstance(value, bool) else f"{name} header not a boolean"


COMPLAINTS: Final[dict[str, Callable[[str, object], str | None]]] = {
    **{name: key.values.complaint for name, key in arguments_of_queues().items()},
    "x-cache-size": no_integer(0, _UINT32_MAX),
    "x-cache-ttl": no_integer(0, _UINT32_MAX),
    "x-max-priority": no_integer(0, 255),
    "x-deduplication-header": no_string,
    "x-single-active-consumer": _no_boolean,
    "x-message-deduplication": _no_boolean,
}
"""Arguments that are checked, in the order in which a complaint is made."""

_COMPARED: Final = frozenset(COMPLAINTS) | {"x-queue-type"}
"""Those that mean something. What others say makes no queue another one."""

TYPES: Final = ("classic", "quorum", "stream", "mqtt")
"""What `x-queue-type` may be. Whether this release has it is asked elsewhere."""


def check(arguments: FieldTable) -> None:
    """Refuse arguments of a wrong type or range. Raises: ChannelError 406 with the reason."""
    _check_type(arguments.get("x-queue-type"))
    has_exchange = isinstance(arguments.get("x-dead-letter-exchange"), str)
    if arguments.get("x-dead-letter-routing-key") is not None and not has_exchange:
        raise ChannelError(
            ReplyCode.PRECONDITION_FAILED,
            "x-dead-letter-exchange required if x-dead-letter-routing-key is defined",
        )
    for name, complaint in COMPLAINTS.items():
        value = arguments.get(name)
        reason = complaint(name, value) if value is not None else None
        if reason is not None:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, reason)


def compared(arguments: FieldTable) -> FieldTable:
    """What a declaration has to agree on with the queue that is there: the arguments that mean
    something, without `x-queue-type: classic`, which says what is true anyway.

    Source: RabbitMQ compares those that it knows, too.
    """
    told = ((name, value) for name, value in arguments.items() if name in _COMPARED)
    return FieldTable({n: value for n, value in told if (n, value) != ("x-queue-type", "classic")})


def _check_type(value: Value) -> None:
    if value is None or value in TYPES:
        return
    if not isinstance(value, str):
        raise ChannelError(ReplyCode.PRECONDITION_FAILED, "x-queue-type header not a string")
    raise ChannelError(
        ReplyCode.PRECONDITION_FAILED,
        f"x-queue-type '{value[:40]}' is unknown{hint(value, TYPES)}",
    )
