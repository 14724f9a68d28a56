"""The fields of a request's body: what is expected, and what is said when something else comes.

Each endpoint that takes a body declares a table of these; bodies are checked against it and the
OpenAPI description is made from it. Numbers and booleans spelled as strings are taken for what they
mean, as tools send them. Fields that nobody knows are ignored, but for those that look like a
misspelt one. Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from lavinmq.http.errors import bad_request

Kind = Literal["string", "integer", "number", "boolean", "object", "array", "any"]

_ARTICLES: Final = {"integer": "an integer", "object": "an object", "array": "an array"}
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
CLOSE: Final = 0.8
"""How alike a field that nobody knows and a known one are when it is taken for a slip."""
LOOKED_AT: Final = 16
"""Fields that nobody knows and that may be slips; looking at thousands would hold up others."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its JSON type, whether it must be there, and what it is when it is not.

    `nullable`: null is a value of its own; else it counts as absent. `lax`: a required field of
    another type is refused in the words for one that is absent, as clients know it.
    """

    kind: Kind
    doc: str
    required: bool = False
    default: Any = None
    nullable: bool = False
    choices: tuple[str, ...] = ()
    lax: bool = False


Fields = Mapping[str, Field]
NO_FIELDS: Final[Fields] = {}


def check(fields: Fields, body: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each field. Raises: ApiError 400 naming the fields, all that are required."""
    required = [name for name, field in fields.items() if field.required]
    if any(_is_absent(fields[name], name, body) for name in required):
        raise bad_request(_required(required))
    unknown = (name for name in body if name not in fields)
    for name in islice(unknown, LOOKED_AT):
        if meant := _meant(name, fields):
            raise bad_request(f"Field '{name}' is unknown, did you mean '{meant[0]}'?")
    return {name: _value(name, field, body) for name, field in fields.items()}


def _meant(name: str, fields: Fields) -> list[str]:
    """The field that a name is a slip of, if there is one."""
    from difflib import get_close_matches  # few make them

    return get_close_matches(name, fields, 1, CLOSE)


def _is_absent(field: Field, name: str, body: Mapping[str, Any]) -> bool:
    return name not in body or (field.lax and _converted(field, body[name]) is None)


def _required(names: list[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    if len(quoted) == 1:
        return f"Field {quoted[0]} is required"
    return f"Fields {', '.join(quoted[:-1])} and {quoted[-1]} are required"


def _value(name: str, field: Field, body: Mapping[str, Any]) -> Any:
    value = body.get(name)
    if value is None:
        if name in body and (field.nullable or field.kind == "any"):
            return None
        if field.required:
            raise _wrong(name, field)
        return field.default
    value = _converted(field, value)
    if value is None:
        raise _wrong(name, field)
    if field.choices and value not in field.choices:
        raise bad_request(f"Field '{name}' must be one of {', '.join(field.choices)}")
    return value


def _wrong(name: str, field: Field) -> Exception:
    kind = _ARTICLES.get(field.kind, f"a {field.kind}")
    return bad_request(f"Field '{name}' must be {kind}{' or null' if field.nullable else ''}")


def _converted(field: Field, value: Any) -> Any:
    """The value as the field's type, None when it is no such thing."""
    match field.kind:
        case "string":
            return value if isinstance(value, str) else None
        case "integer":
            return to_integer(value)
        case "number":
            return value if isinstance(value, int | float) and value is not True else None
        case "boolean":
            return to_boolean(value)
        case "object":
            # Languages whose empty table is an empty array, PHP first of all, send that.
            empty = value == [] and not field.required
            return {} if empty else value if isinstance(value, dict) else None
        case "array":
            return value if isinstance(value, list) else None
    return value


def to_integer(value: object) -> int | None:
    """An integer, or what spells one; None for all else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.lstrip("-").isdecimal():
        try:
            return int(value)
        except ValueError:
            return None
    return None


def to_boolean(value: object) -> bool | None:
    """A boolean, or what spells one; None for all else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        lowered = value.lower()
        return True if lowered in TRUE else False if lowered in FALSE else None
    return None
