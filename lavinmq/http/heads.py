"""Streams below Tornado on which the head of a request, once begun, has to be complete in time, and
all take turns.

Tornado has one time-out for both a connection that rests between two requests, which may take
minutes, and a head that trickles in. Here the second is short; a new connection has no longer for
its first head. Whoever is too slow is told 408 and loses the connection.

Each chunk of a body takes some 20 us, whatever is in it, and so does each frame of a WebSocket.
Tornado lets others have their turn after 256 of the frames, on each connection, and never between
chunks that are there; here all connections share a portion of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

from lavinmq.process.portions import others_first

if TYPE_CHECKING:
    import socket
    import ssl

    from lavinmq.config.values import Config
    from lavinmq.process.portions import SharedPortion

MAX_HEAD: Final = 32 << 10
"""Bytes; what is longer ends the connection."""
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class _Heads:
    """What both kinds of streams have in common. Tornado reads nothing but heads by a regular
    expression."""

    config: Config
    turns: SharedPortion
    address: str | None
    """Ours, to which the client has connected; None for a unix socket."""
    _is_first = True

    def read_until_regex(self, regex: bytes, max_bytes: int | None = None) -> Awaitable[bytes]:
        """The next head. Raises: TimeoutError when it takes too long."""
        read = super().read_until_regex  # type: ignore[misc]
        return self._read_head(read, regex, max_bytes or MAX_HEAD)

    def read_bytes(self, num_bytes: int, partial: bool = False) -> Awaitable[bytes]:
        """Of a body, or of a frame of a WebSocket; in the next turn when this one is over."""
        read: asyncio.Future[bytes] = super().read_bytes(num_bytes, partial)  # type: ignore[misc]
        if read.done() and self.turns.is_over():
            return asyncio.ensure_future(_in_next_turn(read))
        return read

    async def _read_head(self, read: Any, regex: bytes, max_bytes: int) -> bytes:
        first = b""
        if not self._is_first:  # the connection may rest before the first byte
            first = await self.read_bytes(1)
        self._is_first = False
        head: asyncio.Future[bytes] = read(regex, max_bytes - len(first))
        if head.done():  # nearly every head comes in one piece
            return first + head.result()
        try:
            async with asyncio.timeout(self.config.head_timeout):
                return first + await head
        except TimeoutError:
            self._refuse()
            raise

    def _refuse(self) -> None:
        with suppress(StreamClosedError):  # it went at that moment
            self.write(TOO_SLOW)  # type: ignore[attr-defined]


class PlainStream(_Heads, IOStream):
    """A socket without TLS."""

    def __init__(
        self, sock: socket.socket, config: Config, turns: SharedPortion, address: str | None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(sock, **options)
        self.config = config
        self.turns = turns
        self.address = address


class TlsStream(_Heads, SSLIOStream):
    """A socket with TLS, its handshake done."""

    def __init__(
        self, sock: ssl.SSLSocket, config: Config, turns: SharedPortion, address: str | None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(sock, **options)
        self.config = config
        self.turns = turns
        self.address = address


async def _in_next_turn(read: asyncio.Future[bytes]) -> bytes:
    """What has been read already; others have their turn first."""
    await others_first()
    return read.result()
