"""What a consistent hash exchange hashes, by its arguments: routing key, header or property.

A header can be named as LavinMQ does (`x-hash-on`) and as RabbitMQ does (`hash-header`); the first
one counts. A header argument that is no string is ignored.
Source: docs/protocol.md, documentation of RabbitMQ's plugin.
"""

from typing import Final, NamedTuple

from lavinmq import _core
from lavinmq.arguments.names import failed
from lavinmq.fieldtable import FieldTable

HEADERS: Final = ("x-hash-on", "hash-header")
PROPERTY: Final = "hash-property"


class Hashed(NamedTuple):
    """What is hashed; the routing key when both are void."""

    header: str | None = None
    property: int = 0
    """A value of `_core.HASH_PROPERTIES`."""


def hashed_by(arguments: FieldTable) -> Hashed:
    """What arguments ask for. What `complaint` has something against is the routing key."""
    if complaint(arguments) is not None:
        return Hashed()
    wanted = arguments.get(PROPERTY)
    if isinstance(wanted, str):
        return Hashed(property=_core.HASH_PROPERTIES[wanted])
    return Hashed(next(iter(_headers(arguments).values()), None))


def check(arguments: FieldTable) -> None:
    """Refuse what an exchange cannot hash. Raises: ChannelError 406 with the reason."""
    reason = complaint(arguments)
    if reason is not None:
        raise failed(reason)


def complaint(arguments: FieldTable) -> str | None:
    """Why these arguments cannot be, None when they can."""
    wanted = arguments.get(PROPERTY)
    if wanted is None:
        return None
    if not isinstance(wanted, str) or wanted not in _core.HASH_PROPERTIES:
        return f"argument '{PROPERTY}' must be one of {', '.join(_core.HASH_PROPERTIES)}"
    for name in _headers(arguments):
        return f"arguments '{name}' and '{PROPERTY}' exclude each other"
    return None


def _headers(arguments: FieldTable) -> dict[str, str]:
    """The arguments that name a header."""
    given = ((name, arguments.get(name)) for name in HEADERS)
    return {name: value for name, value in given if isinstance(value, str)}
