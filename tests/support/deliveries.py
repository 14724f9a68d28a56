"""What a broker sends to a consumer of a stream, byte by byte, for tests of the decoder."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from lavinmq import fieldtable
from lavinmq.fieldtable import Long, Value

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
BODY_CHUNK = 131_064  # bytes of a body in one frame, as the broker sends it
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def short(text: bytes) -> bytes:
    """A short string."""
    return bytes([len(text)]) + text


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message and how it is delivered; `before` and `behind` are properties beside the headers,
    with their flags."""

    offset: int
    body: bytes = b""
    exchange: bytes = b""
    routing_key: bytes = b"s"
    headers: dict[str, Value] = field(default_factory=dict)
    time_ms: int | None = None
    flags: int = 0
    before: bytes = b""  # content type and encoding
    behind: bytes = b""  # what comes after the headers

    def told(self) -> dict[str, Value]:
        """The headers with those of the broker at their end."""
        told = {**self.headers, "x-stream-offset": Long(self.offset)}
        if self.time_ms is not None:
            told["x-stream-timestamp"] = Long(self.time_ms)
        return told

    def properties(self) -> bytes:
        """Flags and properties."""
        table = fieldtable.encode(self.told())
        head = struct.pack(">H", self.flags | 0x2000) + self.before
        return head + struct.pack(">I", len(table)) + table + self.behind

    def method(self, tag: int) -> bytes:
        """The payload of basic.deliver."""
        names = short(self.exchange) + short(self.routing_key)
        return (
            struct.pack(">HH", 60, 60) + short(b"amq.ctag-t") + struct.pack(">QB", tag, 0) + names
        )

    def head(self) -> bytes:
        """The payload of the content header."""
        return struct.pack(">HHQ", 60, 0, len(self.body)) + self.properties()

    def frames(self, tag: int, chunk: int = BODY_CHUNK) -> list[bytes]:
        """All frames of the delivery."""
        bodies = [self.body[at : at + chunk] for at in range(0, len(self.body), chunk)]
        return [
            frame(METHOD, self.method(tag)),
            frame(HEADER, self.head()),
            *(frame(BODY, body) for body in bodies),
        ]


def sent(deliveries: list[Delivery], chunk: int = BODY_CHUNK) -> bytes:
    """All deliveries, tagged from 1 on."""
    return b"".join(
        piece for tag, each in enumerate(deliveries, 1) for piece in each.frames(tag, chunk)
    )
