"""Typed headers from text back to AMQP: the column `headers_json` on its way to a broker.

The form is that of cext/arrow/headers.pyx, which writes it: each value is an object with one
member, named by the type letter of the wire. The same table comes out, byte by byte: entries keep
their order, doubles stay doubles, and integers the width they had.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Callable, Collection
from typing import Any

DEPTH_MAX = 64
KEY_MAX = 255
_INTEGERS = {
    "b": ">b", "B": ">B", "s": ">h", "u": ">H", "U": ">h", "I": ">i", "i": ">I", "l": ">q",
    "L": ">q", "T": ">q",
}  # fmt: skip
_REALS = {"f": ">f", "d": ">d"}


class HeadersError(ValueError):
    """The text is no table of typed headers; one line that says where."""


class _Object(list[tuple[str, Any]]):
    """Members of a JSON object, in their order, also those of the same name."""


def encode_table(text: str, left_out: Collection[str] = ()) -> bytes:
    """Return the content of a field table, without its length; big-endian.

    Args: text: as in the column `headers_json`; left_out: names of entries of the table itself
    that are not wanted. Raises: HeadersError.
    """
    try:
        table = json.loads(text, object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        raise HeadersError(f"headers_json {_excerpt(text)} is no JSON: {error}") from None
    try:
        if isinstance(table, str):  # a table that is none, as its bytes
            return base64.b64decode(table, validate=True)
        if not isinstance(table, _Object):
            raise HeadersError("a table is an object")
        return _table(_Object(entry for entry in table if entry[0] not in left_out), 1)
    except (HeadersError, binascii.Error, struct.error) as error:
        raise HeadersError(f"headers_json {_excerpt(text)} is not typed: {error}") from None


def _table(entries: _Object, depth: int) -> bytes:
    return b"".join(_key(key) + _value(value, depth, key) for key, value in entries)


def _key(key: str) -> bytes:
    data = _bytes(key)
    if len(data) > KEY_MAX:
        raise HeadersError(f"a name has {len(data)} bytes, AMQP allows {KEY_MAX}")
    return bytes((len(data),)) + data


def _value(value: Any, depth: int, name: str) -> bytes:
    """Encode a type letter and what follows it."""
    if not isinstance(value, _Object) or len(value) != 1:
        raise HeadersError(f'the value of {name!r} is not like {{"S":"text"}}')
    letter, content = value[0]
    try:
        return letter.encode("ascii") + _content(letter, content, depth, name)
    except (TypeError, AttributeError, OverflowError, UnicodeError, struct.error, binascii.Error):
        raise HeadersError(f"the value of {name!r} does not fit type {letter!r}") from None


def _content(letter: str, content: Any, depth: int, name: str) -> bytes:
    if letter in ("A", "F"):
        if depth >= DEPTH_MAX:
            raise HeadersError(f"tables are nested deeper than {DEPTH_MAX}")
        return _sized(_nested(letter, content, depth + 1, name))
    encode = _SCALARS.get(letter)
    if encode is None:
        raise HeadersError(f"the value of {name!r} has the unknown type {letter!r}")
    return encode(letter, content)


def _nested(letter: str, content: Any, depth: int, name: str) -> bytes:
    if letter == "F":
        if not isinstance(content, _Object):
            raise TypeError
        return _table(content, depth)
    if not isinstance(content, list) or isinstance(content, _Object):
        raise TypeError
    return b"".join(_value(item, depth, name) for item in content)


def _integer(letter: str, content: Any) -> bytes:
    if isinstance(content, bool):
        raise TypeError
    return struct.pack(_INTEGERS[letter], content)


def _real(letter: str, content: Any) -> bytes:
    if isinstance(content, str):
        data = bytes.fromhex(content) if _is_hex(content) else b""
        if len(data) != struct.calcsize(_REALS[letter]):
            raise TypeError
        return data
    if isinstance(content, bool) or not math.isfinite(content):
        raise TypeError
    return struct.pack(_REALS[letter], content)


def _boolean(_letter: str, content: Any) -> bytes:
    return struct.pack(">B", content)


def _decimal(_letter: str, content: Any) -> bytes:
    if not isinstance(content, list) or len(content) != 2:
        raise TypeError
    return struct.pack(">Bi", *content)


def _text(_letter: str, content: Any) -> bytes:
    return _sized(_bytes(content))


def _binary(_letter: str, content: Any) -> bytes:
    return _sized(base64.b64decode(content, validate=True))


def _void(_letter: str, content: Any) -> bytes:
    if content is not None:
        raise TypeError
    return b""


_SCALARS: dict[str, Callable[[str, Any], bytes]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    **dict.fromkeys(_REALS, _real),
    **{"t": _boolean, "D": _decimal, "S": _text, "x": _binary, "V": _void},
}


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _bytes(text: str) -> bytes:
    """Encode; a byte that was not UTF-8 is kept as a lone surrogate."""
    return text.encode("utf-8", "surrogateescape")


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdefABCDEF" for character in text)


def _excerpt(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"
