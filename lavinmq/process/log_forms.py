"""Log lines for machines: one JSON object, or words `key=value` (logfmt), for each entry.

Both have `time`, `level` and `source` first, then the context, then `message` and, if there is one,
`exception`. An entry is always one line, whatever names clients have chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

FIXED: Final = ("time", "level", "source", "message", "exception")
"""Keys that no context can have."""


class Fields(NamedTuple):
    """What is said of an entry."""

    time: str
    level: str
    source: str
    context: Mapping[str, object]
    message: str
    exception: str
    """Its lines, empty when there is none."""

    def items(self) -> dict[str, object]:
        """All by name, in the order in which they are written."""
        found: dict[str, object] = {"time": self.time, "level": self.level, "source": self.source}
        for key, value in self.context.items():
            name = f"context_{key}" if key in FIXED else key
            found[name] = value if isinstance(value, bool | int | float) else _text(str(value))
        found["message"] = _text(self.message)
        if self.exception:
            found["exception"] = _text(self.exception)
        return found


def json_line(fields: Fields) -> str:
    """One JSON object in ASCII."""
    return _quoted(fields.items())


def logfmt_line(fields: Fields) -> str:
    """Words `key=value`; a value with blanks, quotes or signs is quoted like a string of JSON."""
    return " ".join(f"{key}={_word(value)}" for key, value in fields.items().items())


FORMS: Final[Mapping[str, Callable[[Fields], str]]] = {"json": json_line, "logfmt": logfmt_line}
"""By the values of the setting; `text` is none of them."""


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if text and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    return _quoted(text)


def _quoted(value: object) -> str:
    import json  # who only asks for the version does not pay for it

    return json.dumps(value)


def _text(text: str) -> str:
    """Without octets that are no UTF-8, which have no place in JSON."""
    return text.encode("utf-8", "backslashreplace").decode()
