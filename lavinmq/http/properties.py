"""Properties of a message: the bytes of a content header, and JSON.

Source: docs/http-api.md, docs/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from lavinmq import _core
from lavinmq.arguments.bounds import TableBounds
from lavinmq.http import encoding
from lavinmq.http.errors import bad_request
from lavinmq.http.fields import to_integer
from lavinmq.http.listing import in_portions
from lavinmq.http.tables import table as table_of

NAMES: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id",
    "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "reserved1",
)  # fmt: skip
"""In the order of their flags, from bit 15 on."""

_LIMITS: Final = {"delivery_mode": 0xFF, "priority": 0xFF, "timestamp": (1 << 63) - 1}
_NUMBERS: Final = {
    "delivery_mode": struct.Struct(">B"),
    "priority": struct.Struct(">B"),
    "timestamp": struct.Struct(">q"),
}
_FLAGS: Final = struct.Struct(">H")
_SIZE: Final = struct.Struct(">I")


def encode(properties: Mapping[str, Any], bounds: TableBounds) -> bytes:
    """Property flags and properties as they stand on the wire.

    What is null counts as absent; numbers and headers of another type are left out.
    Raises: ApiError 400 naming a property that cannot be written.
    """
    flags, parts = 0, [b""]
    for at, name in enumerate(NAMES):
        value = properties.get(name)
        if name == "reserved1" and value is None:
            value = properties.get("reserved")
        if name == "headers":
            part = _headers(value, bounds)
        else:
            part = None if value is None else _WRITERS.get(name, _string)(name, value)
        if part is not None:
            flags |= 0x8000 >> at
            parts.append(part)
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)


def _string(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise bad_request(f"Property '{name}' must be a string")
    raw = value.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raise bad_request(f"Property '{name}' is longer than 255 bytes")
    return bytes((len(raw),)) + raw


def _number(name: str, value: Any) -> bytes | None:
    number = to_integer(value)
    if number is None:
        return None
    if not 0 <= number <= _LIMITS[name]:
        raise bad_request(f"Property '{name}' must be between 0 and {_LIMITS[name]}")
    return _NUMBERS[name].pack(number)


def _headers(value: Any, bounds: TableBounds) -> bytes | None:
    if not isinstance(value, dict):
        return None
    content = table_of(value, "Property 'headers'", bounds).raw
    return _SIZE.pack(len(content)) + content


def _expiration(name: str, value: Any) -> bytes:
    number = to_integer(value)
    if number is None:
        raise bad_request("Expiration not a number")
    return _string(name, str(number))


_WRITERS: Final[dict[str, Callable[[str, Any], bytes | None]]] = {
    "delivery_mode": _number,
    "priority": _number,
    "timestamp": _number,
    "expiration": _expiration,
}


def decode(raw: bytes) -> tuple[dict[str, Any], bytes | None]:
    """The properties that are present, from valid bytes of the wire: those but the headers, and the
    content of the headers table, if any. That may be long: it goes to JSON in portions."""
    (flags,) = _FLAGS.unpack_from(raw)
    at = _FLAGS.size
    found: dict[str, Any] = {}
    headers = None
    for bit, name in enumerate(NAMES):
        if not flags & 0x8000 >> bit:
            continue
        if name == "headers":
            begin = at + _SIZE.size
            at = begin + _SIZE.unpack_from(raw, at)[0]
            headers = raw[begin:at]
        elif name in _NUMBERS:
            (found[name],) = _NUMBERS[name].unpack_from(raw, at)
            at += _NUMBERS[name].size
        else:
            end = at + 1 + raw[at]
            found[name] = raw[at + 1 : end].decode("utf-8", "surrogateescape")
            at = end
    return found, headers


async def to_json(raw: bytes) -> bytes:
    """The JSON of properties, from valid bytes of the wire; headers in portions."""
    found, headers = decode(raw)
    text = encoding.encode(found)
    if headers is None:
        return text
    table = b"".join([piece async for piece in in_portions(_core.TableText(headers))])
    return b"".join((text[:-1], b"," if found else b"", b'"headers":', table, b"}"))
