"""Frames of AMQP 0-9-1 one by one, for programs of ours that keep their socket to themselves.

lavinmqperf and Spark's tasks move messages by compiled code of their own, straight from the socket.
What they say besides is written and read with this: bytes in, values out, no I/O. Methods are named
and formed as in `methods`.

Source: AMQP 0-9-1 specification, section 4.2.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from lavinmq.client import _engine, methods
from lavinmq.client.errors import (
    ChannelClosed,
    ConnectionClosed,
    ProtocolViolation,
    channel_closed,
    connection_closed,
)

METHOD, HEADER, BODY, HEARTBEAT, END = 1, 2, 3, 8, 0xCE
OVERHEAD: Final = 8
"""Type, channel, size and end."""
FRAME_MAX: Final = 131_072
BASIC: Final = 60
GOODBYE: Final = (200, "Bye", 0, 0)
"""The arguments of a close that nothing is wrong with."""


class Frame(NamedTuple):
    """One frame as read: kind, channel and payload without the end."""

    kind: int
    channel: int
    payload: bytes


def id_of(name: str) -> bytes:
    """The bytes that a payload with this method begins with."""
    return methods.IDS[name].to_bytes(4, "big")


def method(channel: int, name: str, *values: Any) -> bytes:
    """Write a method. Raises: ValueNotEncodable."""
    number = methods.IDS[name]
    return _engine.encode_method(channel, number, methods.FORMS[number], *values)


def arguments(payload: bytes) -> tuple[Any, ...]:
    """Read the arguments of a method. Raises: ProtocolViolation."""
    number = int.from_bytes(payload[:4], "big")
    if number not in methods.FORMS:
        raise ProtocolViolation(f"{methods.name_of(number)} is not known")
    return _engine.decode_method(payload, methods.FORMS[number])


def close_of(payload: bytes) -> ChannelClosed | ConnectionClosed:
    """What connection.close or channel.close says, as the error to raise.

    Raises: ProtocolViolation.
    """
    code, text, _, _ = arguments(payload)
    made = channel_closed if payload.startswith(id_of("channel.close")) else connection_closed
    return made(code, text)


def content(channel: int, properties: bytes, body: bytes, frame_max: int = FRAME_MAX) -> bytes:
    """Write what follows a basic.publish. Args: properties: as `encode_properties` writes them."""
    frames = [frame(HEADER, channel, struct.pack(">HHQ", BASIC, 0, len(body)) + properties)]
    size = frame_max - OVERHEAD
    frames += [frame(BODY, channel, body[at : at + size]) for at in range(0, len(body), size)]
    return b"".join(frames)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Write a frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


class Reader:
    """Cuts what came into frames, however it was split; holds at most what was fed."""

    def __init__(self, frame_max: int = FRAME_MAX) -> None:
        self._buffer = bytearray()
        self._at = 0
        self.frame_max = frame_max

    def feed(self, data: bytes) -> None:
        """More came."""
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def next(self) -> Frame | None:
        """The next whole frame, or None. Raises: ProtocolViolation."""
        if len(self._buffer) - self._at < OVERHEAD:
            return None
        kind, channel, size = struct.unpack_from(">BHI", self._buffer, self._at)
        if size > self.frame_max:
            raise ProtocolViolation(f"frame size {size} exceeds {self.frame_max}")
        start = self._at + 7
        if len(self._buffer) <= start + size:
            return None
        if self._buffer[start + size] != END:
            raise ProtocolViolation(f"frame end was {self._buffer[start + size]}, expected {END}")
        self._at = start + size + 1
        return Frame(kind, channel, bytes(self._buffer[start : start + size]))

    def take(self) -> bytes:
        """Return, and forget, what is not cut into frames yet."""
        rest = bytes(self._buffer[self._at :])
        self._buffer.clear()
        self._at = 0
        return rest
