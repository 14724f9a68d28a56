"""Checks of queue arguments at queue.declare: one table, one rule per argument.

Called by `vhost/vhost.py` for new queues only; knows types and ranges, not what the arguments do. A
void value always passes. Source: AMQP reference, section 10.
"""

import re
from collections.abc import Callable
from typing import Final

from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.fieldtable import FieldTable, Timestamp, Value
from lavinmq.nearest import hint

_MAX_AGE: Final = re.compile(r"\d+[YMDhms]", re.ASCII)
_INT64_MAX: Final = (1 << 63) - 1
_UINT32_MAX: Final = (1 << 32) - 1


def _integer(minimum: int, maximum: int = _INT64_MAX) -> Callable[[str, Value], str | None]:
    def check(name: str, value: Value) -> str | None:
        if isinstance(value, bool | Timestamp) or not isinstance(value, int):
            return f"{name} header not an integer"
        if value < minimum:
            return f"{name} header less than minimum value {minimum}"
        if value > maximum:
            return f"{name} header greater than maximum value {maximum}"
        return None

    return check


def _string(name: str, value: Value) -> str | None:
    return None if isinstance(value, str) else f"{name} header not a string"


def _boolean(name: str, value: Value) -> str | None:
    return None if isinstance(value, bool) else f"{name} header not a boolean"


RULES: Final[dict[str, Callable[[str, Value], str | None]]] = {
    "x-expires": _integer(1),
    "x-max-length": _integer(0),
    "x-max-length-bytes": _integer(0),
    "x-message-ttl": _integer(0),
    "x-delivery-limit": _integer(0),
    "x-consumer-timeout": _integer(0),
    "x-cache-size": _integer(0, _UINT32_MAX),
    "x-cache-ttl": _integer(0, _UINT32_MAX),
    "x-max-priority": _integer(0, 255),
    "x-overflow": _string,
    "x-dead-letter-exchange": _string,
    "x-dead-letter-routing-key": _string,
    "x-deduplication-header": _string,
    "x-single-active-consumer": _boolean,
    "x-message-deduplication": _boolean,
}
"""Arguments that are checked, in the order in which a complaint is made."""

_COMPARED: Final = frozenset(RULES) | {"x-queue-type", "x-max-age"}
"""Those that mean something. What others say makes no queue another one."""

"""Arguments that are accepted and kept but have no effect in this release."""


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
    for name, rule in RULES.items():
        value = arguments.get(name)
        reason = rule(name, value) if value is not None else None
        if reason is not None:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, reason)
    _check_max_age(arguments.get("x-max-age"))


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


def _check_max_age(value: Value) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise ChannelError(ReplyCode.PRECONDITION_FAILED, "x-max-age must be a string")
    if not _MAX_AGE.fullmatch(value):
        raise ChannelError(ReplyCode.PRECONDITION_FAILED, "x-max-age format invalid")
