"""Says in which argument a declaration differs from what is there, and what both values are.

The words are RabbitMQ's, which clients look for; the first difference is told. Called by those who
refuse a declaration: `vhost/vhost.py` and the HTTP API. Pure.
"""

from collections.abc import Mapping
from typing import Final

from lavinmq.fieldtable import Value, equal

MOST_CHARACTERS: Final = 40
"""Of a name or value that is repeated: a reply text has 255 bytes for everything."""


def difference(
    kind: str, name: str, vhost: str, received: Mapping[str, Value], current: Mapping[str, Value]
) -> str:
    """The first argument in which two declarations differ, as a clause.

    Args: kind: `queue` or `exchange`; received, current: properties and arguments by name; one that
        is missing is none.
    """
    both = dict.fromkeys([*received, *current])
    for argument in both:
        given, there = received.get(argument), current.get(argument)
        if not equal(given, there):
            return (
                f"inequivalent arg '{_short(argument)}' for {kind} '{_short(name)}' in vhost"
                f" '{_short(vhost)}': received {_value(given)} but current is {_value(there)}"
            )
    return f"{kind} '{_short(name)}' in vhost '{_short(vhost)}'"


def _value(value: Value) -> str:
    """A value for people; the names of types are only told where they are the difference."""
    if value is None:
        return "none"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"'{_short(text)}'"


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
