"""JSON as the API sends it, long lists and compression done in portions.

Names may hold octets that are no UTF-8 (kept as lone surrogates): they are escaped. Field tables
hold bytes and timestamps: bytes become base64, timestamps RFC 3339 text.
Source: HTTP reference, section 9.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from lavinmq.fieldtable import Timestamp
from lavinmq.http.listing import Row, in_portions

ROWS_AT_ONCE: Final = 32
COMPRESS_FROM: Final = 1024
COMPRESSED_AT_ONCE: Final = 64 << 10
LEVEL: Final = 1
"""Of compression: answers are many and short-lived, and the loop serves messages too."""


def encode(value: Any) -> bytes:
    """A value as JSON."""
    try:
        return orjson.dumps(value, default=_other, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    except TypeError:  # a lone surrogate, an integer of more than 64 bits, or a key that is no text
        return json.dumps(_plain(value), default=_other).encode()


def rfc3339(time: Timestamp) -> str | int:
    """A timestamp as text; a number when it is in no year that text can name."""
    try:
        return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return int(time)


def _other(value: Any) -> Any:
    """What JSON has no type for."""
    if isinstance(value, Timestamp):
        return rfc3339(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def _plain(value: Any) -> Any:
    """A copy that the slower encoder takes: it would write subclasses and NaN its own way."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Timestamp | bytes):
        return _other(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


async def encode_list(page: Row | None, rows: list[Row]) -> bytes:
    """A list, inside its page object if there is one."""
    parts = [b"[" if page is None else encode(page)[:-1] + b',"items":[']
    async for at in in_portions(range(0, len(rows), ROWS_AT_ONCE)):
        if at:
            parts.append(b",")
        parts.append(encode(rows[at : at + ROWS_AT_ONCE])[1:-1])
    parts.append(b"]" if page is None else b"]}")
    return b"".join(parts)


async def compressed(content: bytes) -> bytes:
    """The content as gzip."""
    packer = zlib.compressobj(LEVEL, wbits=31)
    parts = [packer.compress(part) async for part in _slices(content)]
    parts.append(packer.flush())
    return b"".join(parts)


async def _slices(content: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(content)
    async for at in in_portions(range(0, len(content), COMPRESSED_AT_ONCE)):
        yield view[at : at + COMPRESSED_AT_ONCE]
