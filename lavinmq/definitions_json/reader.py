"""Reads a JSON object piece by piece: the members of the object, those that are lists by element.

A document of many megabytes is parsed beside serving clients: each step takes as long as one
element does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from typing import Any, Final

_SPACE: Final = re.compile(r"[ \t\n\r]*")
WHOLE: Final = -1
"""The position of a member that is no list."""


class MalformedError(ValueError):
    """The text is no JSON."""


class NotAnObjectError(ValueError):
    """It is JSON, or begins like it, but no object."""


def members(content: bytes | bytearray) -> Iterator[tuple[str, int, Any]]:
    """Key, position and value of each element of each list, and of each member that is no list.

    An empty list gives nothing. Raises: MalformedError; NotAnObjectError.
    """
    try:
        text = content.decode("utf-8-sig")
        yield from _object(text, _space(text, 0))
    except (NotAnObjectError, MalformedError):
        raise
    except (ValueError, RecursionError, IndexError) as error:
        raise MalformedError(str(error)) from error


def _object(text: str, at: int) -> Iterator[tuple[str, int, Any]]:
    if text[at] != "{":
        if text[at] != "[":
            _value(text, at)
        raise NotAnObjectError
    at = _space(text, at + 1)
    if text[at] == "}":
        _end(text, at + 1)
        return
    while True:
        if text[at] != '"':
            raise MalformedError("a key is missing")
        key, at = _value(text, at)
        at = _space(text, at)
        if text[at] != ":":
            raise MalformedError("a colon is missing")
        at = _space(text, at + 1)
        if text[at] == "[":
            at = yield from _list(text, at, key)
        else:
            value, at = _value(text, at)
            yield key, WHOLE, value
        at = _space(text, at)
        if text[at] == "}":
            _end(text, at + 1)
            return
        at = _next(text, at)


def _list(text: str, at: int, key: str) -> Generator[tuple[str, int, Any], None, int]:
    """The elements of a list. Returns: the offset behind it."""
    position = 0
    at = _space(text, at + 1)
    if text[at] == "]":
        return at + 1
    while True:
        value, at = _value(text, at)
        yield key, position, value
        position += 1
        at = _space(text, at)
        if text[at] == "]":
            return at + 1
        at = _next(text, at)


def _next(text: str, at: int) -> int:
    if text[at] != ",":
        raise MalformedError("a comma is missing")
    return _space(text, at + 1)


def _end(text: str, at: int) -> None:
    if _space(text, at) != len(text):
        raise MalformedError("something follows the object")


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _no_constant(name: str) -> Any:
    raise MalformedError(f"{name} is no number")


_value = json.JSONDecoder(parse_constant=_no_constant).raw_decode
