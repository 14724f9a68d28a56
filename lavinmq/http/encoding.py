"""JSON as the API sends it, long lists and compression done in portions.

Names may hold octets that are no UTF-8 (kept as lone surrogates): they are escaped. Field tables
hold bytes and timestamps: bytes become base64, timestamps RFC 3339 text.
Source: docs/http-api.md.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from lavinmq.fieldtable import Timestamp
from lavinmq.http.listing import Row, in_portions
from lavinmq.process.portions import others_first

PIECE: Final = 256 << 10
"""From 128 KiB on each is given back to the system by itself: of smaller ones the last that is
freed gives all of them back, at once."""
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
        return datetime.fromtimestamp(int(time), UTC).isoformat().replace("+00:00", "Z")
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


class Pieces:
    """Bytes of an answer in pieces: joining megabytes would hold up the loop."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: Iterable[bytes] = ()) -> None:
        self.parts: list[bytearray] = []
        self.size = 0
        for part in parts:
            self.add(part)

    def add(self, part: bytes | bytearray) -> None:
        """Put bytes at the end; what is short shares a piece with what came before."""
        if not self.parts or len(self.parts[-1]) + len(part) > PIECE:
            self.parts.append(bytearray())
        self.parts[-1] += part
        self.size += len(part)

    def extend(self, other: Pieces) -> None:
        """Put those of another at the end, which must not be used any more."""
        self.parts += other.parts
        self.size += other.size

    async def slices(self, size: int) -> AsyncIterator[memoryview]:
        """Take all the bytes out, so many at a time at most; others have their turn in between, and
        what is out is not kept: megabytes freed in one go take milliseconds."""
        while self.parts:
            view = memoryview(self.parts.pop(0))
            async for at in in_portions(range(0, len(view), size)):
                yield view[at : at + size]
            await others_first()


class Rows:
    """A JSON array as it grows. What is in it is text already: thousands of objects that live while
    a list is made would cost the garbage collector milliseconds. Each row is written by itself: a
    client's properties may take the slower encoder a millisecond."""

    def __init__(self) -> None:
        self.pieces = Pieces()

    def add(self, row: Any) -> None:
        """Put a value at the end."""
        self.pieces.add((b"," if self.pieces.size else b"[") + encode(row))

    def close(self) -> Pieces:
        """The array, brackets included."""
        self.pieces.add(b"]" if self.pieces.size else b"[]")
        return self.pieces


def with_lists(head: Row, lists: dict[str, Rows]) -> Pieces:
    """An object with some lists at its end. Args: head: what is before them, at least one value."""
    pieces = Pieces([encode(head)[:-1]])
    for name, rows in lists.items():
        pieces.add(b"," + encode(name) + b":")
        pieces.extend(rows.close())
    pieces.add(b"}")
    return pieces


async def encode_list(page: Row | None, rows: AsyncIterable[Row]) -> Pieces:
    """A list, inside its page object if there is one."""
    written = Rows()
    async for row in rows:
        written.add(row)
    if page is None:
        return written.close()
    pieces = Pieces([encode(page)[:-1] + b',"items":'])
    pieces.extend(written.close())
    pieces.add(b"}")
    return pieces


async def array(elements: AsyncIterable[bytes]) -> Pieces:
    """A list of what is JSON already. Each element is written before the next one is asked for:
    those of a long list would take long to write, and to free, all at once."""
    pieces = Pieces()
    async for each in elements:
        pieces.add(b"," if pieces.size else b"[")
        pieces.add(each)
    pieces.add(b"]" if pieces.size else b"[]")
    return pieces


async def compressed(content: Pieces) -> Pieces:
    """The content as gzip."""
    packer = zlib.compressobj(LEVEL, wbits=31)
    packed = Pieces()
    async for part in content.slices(COMPRESSED_AT_ONCE):
        packed.add(packer.compress(part))
    packed.add(packer.flush())
    return packed
