"""Frames of a broker, for the engine of the client: deliveries, confirms, and rare methods."""

from __future__ import annotations

import struct
from typing import Any

from lavinmq.client import _engine, methods

PROPS = b"\x10\x00\x02"


def raised(error: BaseException) -> None:
    """For callbacks that are to raise nothing. Raises: what one raised."""
    raise error


def method(channel: int, name: str, *values: Any) -> bytes:
    """A frame of a method."""
    number = methods.IDS[name]
    return _engine.encode_method(channel, number, methods.FORMS[number], *values)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def content(channel: int, body: bytes, props: bytes = PROPS, chunk: int = 131064) -> bytes:
    """A content header and as many body frames as it takes."""
    head = frame(2, channel, struct.pack(">HHQ", 60, 0, len(body)) + props)
    pieces = [body[at : at + chunk] for at in range(0, len(body), chunk)]
    return head + b"".join(frame(3, channel, piece) for piece in pieces)


def delivery(
    channel: int,
    tag: int,
    body: bytes,
    *,
    redelivered: bool = False,
    consumer: str = "c",
    exchange: str = "",
    key: str = "q",
    **more: Any,
) -> bytes:
    """A delivery with its content."""
    number = 60 << 16 | 60
    head = _engine.encode_method(
        channel, number, "sQbss", consumer, tag, redelivered, exchange, key
    )
    return head + content(channel, body, **more)


def confirm(channel: int, tag: int, multiple: bool = False) -> bytes:
    """An ack of a publish."""
    return method(channel, "basic.ack", tag, multiple)


def refusal(channel: int, tag: int, multiple: bool = False) -> bytes:
    """A nack of a publish."""
    return method(channel, "basic.nack", tag, multiple, False)


def cut(data: bytes | memoryview) -> list[tuple[int, int, bytes]]:
    """Whole frames as (kind, channel, payload)."""
    data, at = bytes(data), 0
    found: list[tuple[int, int, bytes]] = []
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        assert data[at + 7 + size] == 0xCE
        found.append((kind, channel, data[at + 7 : at + 7 + size]))
        at += size + 8
    return found
