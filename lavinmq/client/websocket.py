"""AMQP in frames of a WebSocket: the client's side, without I/O of its own.

`WebSocket` is an asyncio protocol that stands between a transport and a `Link`: to the transport
it is the protocol, to the link the transport. Source: RFC 6455.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import struct
from typing import Final, cast

from lavinmq.client.errors import ConnectionLost, ProtocolViolation
from lavinmq.client.link import Link
from lavinmq.client.url import Endpoint

GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
HEAD_MAX: Final = 16_384
FRAME_MAX: Final = 1 << 27


def mask(data: bytes, key: bytes) -> bytes:
    """Mask, or unmask, the content of a frame."""
    n = len(data)
    pad = key * (n // 4 + 1)
    return (int.from_bytes(data, "big") ^ int.from_bytes(pad[:n], "big")).to_bytes(n, "big")


def frame(kind: int, data: bytes, key: bytes) -> bytes:
    """A whole frame as a client sends it."""
    n = len(data)
    if n < 126:
        head = struct.pack(">BB", 0x80 | kind, 0x80 | n)
    elif n < 65_536:
        head = struct.pack(">BBH", 0x80 | kind, 0xFE, n)
    else:
        head = struct.pack(">BBQ", 0x80 | kind, 0xFF, n)
    return head + key + mask(data, key)


class WebSocket(asyncio.Protocol):
    """Between a transport and a link."""

    def __init__(self, link: Link, endpoint: Endpoint) -> None:
        self.link, self.endpoint = link, endpoint
        self.ready: asyncio.Future[None] = link.loop.create_future()
        self._buffer = bytearray()
        self._key = base64.b64encode(os.urandom(16))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        # uvloop's is none by its class.
        transport = cast("asyncio.Transport", transport)
        self.transport = transport
        host = f"{self.endpoint.host}:{self.endpoint.port}".encode()
        transport.write(
            b"GET " + (self.endpoint.path or "/").encode() + b" HTTP/1.1\r\nHost: " + host
            + b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: " + self._key
            + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: amqp\r\n\r\n"
        )  # fmt: skip

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer."""
        self._buffer += data
        try:
            if not self.ready.done() and not self._head():
                return
            while self._frame():
                pass
        except ProtocolViolation as error:
            self._fail(error)

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_MAX:
                raise ProtocolViolation("an answer without an end to its head")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        accept = base64.b64encode(hashlib.sha1(self._key + GUID).digest())
        if b" 101" not in lines[0] or fields.get(b"sec-websocket-accept") != accept:
            raise ProtocolViolation(f"no WebSocket there: {lines[0][:100].decode('latin-1')}")
        self.link.connection_made(_Framed(self))
        self.ready.set_result(None)
        return True

    def _frame(self) -> bool:
        """Take one frame off the buffer. Raises: ProtocolViolation."""
        data = self._buffer
        if len(data) < 2:
            return False
        kind, n, at = data[0] & 15, data[1] & 127, 2
        if data[1] & 128:
            raise ProtocolViolation("a server masks nothing")
        if n >= 126:
            width = 2 if n == 126 else 8
            if len(data) < 2 + width:
                return False
            n, at = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
        if n > FRAME_MAX:
            raise ProtocolViolation(f"a WebSocket frame of {n} bytes")
        if len(data) < at + n:
            return False
        content = bytes(data[at : at + n])
        del data[: at + n]
        if kind == PING:
            self.transport.write(frame(PONG, content, os.urandom(4)))
        elif kind == CLOSE:
            self.link.end(ConnectionLost("the WebSocket was closed"))
        elif kind in (0, BINARY):
            self.link.feed(content)
        elif kind != PONG:
            raise ProtocolViolation(f"a WebSocket frame of kind {kind}")
        return True

    def _fail(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        self.link.end(error)
        self.transport.abort()

    def eof_received(self) -> bool:
        """The peer sends no more."""
        self._fail(ConnectionLost("the WebSocket ended"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone."""
        if not self.ready.done():
            self.ready.set_exception(ConnectionLost(str(exc or "the connection was closed")))
        self.link.connection_lost(exc)

    def pause_writing(self) -> None:
        """The peer takes no more for now."""
        self.link.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self.link.resume_writing()


class _Framed(asyncio.Transport):
    """The transport as the link sees it: what it writes goes out as frames."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__()
        self._socket, self._inner = socket, socket.transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._inner.write(frame(BINARY, bytes(data), os.urandom(4)))

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._inner.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def close(self) -> None:
        if not self._inner.is_closing():
            self._inner.write(frame(CLOSE, b"\x03\xe8", os.urandom(4)))
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()
