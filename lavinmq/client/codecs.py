"""Bodies to values and back, by content type and content encoding.

Known types: text/plain, application/json. Known encodings: gzip, deflate. A program adds its own
with `add_type` and `add_encoding`. What is compressed may not become larger than SIZE_MAX.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any, Final

from lavinmq.client._engine import Message
from lavinmq.client.errors import (
    Error,
    TooLarge,
    UnsupportedContentEncoding,
    UnsupportedContentType,
)

SIZE_MAX: Final = 1 << 30

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


def _inflate(data: bytes, window: int) -> bytes:
    """Decompress, within bounds. Raises: TooLarge, Error."""
    worker = zlib.decompressobj(window)
    try:
        found = worker.decompress(data, SIZE_MAX)
    except zlib.error as error:
        raise Error(f"a compressed body is damaged: {error}") from None
    if worker.unconsumed_tail:
        raise TooLarge(f"a compressed body of more than {SIZE_MAX} bytes")
    if not worker.eof:
        raise Error("a compressed body is cut short")
    return found


_types: dict[str, tuple[Encode, Decode]] = {
    "text/plain": (lambda value: str(value).encode(), lambda body: body.decode()),
    "application/json": (
        lambda value: json.dumps(value, separators=(",", ":")).encode(),
        lambda body: json.loads(body),
    ),
    "application/octet-stream": (bytes, bytes),
}
_encodings: dict[str, tuple[Encode, Decode]] = {
    "gzip": (lambda body: gzip.compress(body, mtime=0), lambda body: _inflate(body, 31)),
    "deflate": (zlib.compress, lambda body: _inflate(body, 15)),
}


def add_type(name: str, encode: Encode, decode: Decode) -> None:
    """Teach a content type."""
    _types[name] = (encode, decode)


def add_encoding(name: str, encode: Encode, decode: Decode) -> None:
    """Teach a content encoding."""
    _encodings[name] = (encode, decode)


def encode(value: Any, options: dict[str, Any]) -> bytes:
    """The body for a value; sets the content type to JSON when none is given.

    Raises: UnsupportedContentType, UnsupportedContentEncoding.
    """
    kind = options.setdefault("content_type", "application/json")
    codec = _types.get(kind.partition(";")[0].strip().lower())
    if codec is None:
        raise UnsupportedContentType(kind)
    body = codec[0](value)
    encoding = options.get("content_encoding")
    return compress(body, encoding) if encoding else body


def compress(body: bytes, encoding: str) -> bytes:
    """A body in a content encoding. Raises: UnsupportedContentEncoding."""
    codec = _encodings.get(encoding.lower())
    if codec is None:
        raise UnsupportedContentEncoding(encoding)
    return codec[0](body)


def parse(message: Message) -> Any:
    """The value of a message, by its content type and encoding; bytes when it has no type.

    Raises: UnsupportedContentType, UnsupportedContentEncoding, and what the codec raises.
    """
    body = message.body
    if message.content_encoding and message.content_encoding.lower() not in ("utf-8", "identity"):
        codec = _encodings.get(message.content_encoding.lower())
        if codec is None:
            raise UnsupportedContentEncoding(message.content_encoding)
        body = codec[1](body)
    if not message.content_type:
        return body
    kind = _types.get(message.content_type.partition(";")[0].strip().lower())
    if kind is None:
        raise UnsupportedContentType(message.content_type)
    return kind[1](body)
