"""AMQP and MQTT over WebSocket: the bytes of one, bridged to a connection like any other.

The bridge is a pair of sockets. What one side cannot take yet waits in the other: neither a slow
browser nor a busy broker makes anything grow. Frames have no meaning. Text is ignored by AMQP, and
ends MQTT, whose standard has it so.
Source: docs/http-api.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Any, Final

from tornado.websocket import WebSocketClosedError, WebSocketHandler

from lavinmq.amqp.connection import welcome_socket
from lavinmq.http.handler import Handler
from lavinmq.listeners.endpoints import UNIX, Endpoints, TlsInfo, plain
from lavinmq.process import log

VERSION: Final = "13"
CHUNK: Final = 64 << 10
MQTT_PATHS: Final = ("mqtt", "ws/mqtt")
UNSUPPORTED_DATA: Final = 1003
_log = log.get("lmq.http.server")


class WebSocketBridge(Handler, WebSocketHandler):
    """One WebSocket; the handshake of its protocol says who it is."""

    _socket: socket.socket | None = None
    _reader: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Refuse what cannot become a WebSocket."""
        headers = self.request.headers
        if headers.get("Sec-WebSocket-Version") != VERSION:
            self.set_status(426)
            self.set_header("Sec-WebSocket-Version", VERSION)
            self.finish()
        elif "Sec-WebSocket-Key" not in headers:
            self.set_status(400)
            self.finish("Missing Sec-WebSocket-Key\n")

    def _is_mqtt(self) -> bool:
        protocol = chosen(self.request.headers.get("Sec-WebSocket-Protocol", "").split(","))
        if protocol is not None:
            return protocol.lower().startswith("mqtt")
        return self.request.path.strip("/") in MQTT_PATHS

    def check_origin(self, origin: str) -> bool:
        """Whether a page of that origin may connect: `same_origin.py` has said so before."""
        return True

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """The one to be echoed."""
        return chosen(subprotocols)

    async def open(self, *_: str, **__: str) -> None:
        """The WebSocket is there: give the broker the other end."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._socket = ours
        peer, local = self._addresses()
        if self._is_mqtt():
            theirs.setblocking(False)
            between = Endpoints(
                plain(peer[0]), peer[1], plain(local[0]), local[1], self.is_loopback, self._tls()
            )
            self.broker.welcomes["mqtt"](theirs, between)
        else:
            welcome_socket(self.broker, theirs, peer, local, self.is_loopback, self._tls())
        self._reader = asyncio.get_running_loop().create_task(self._send_on(ours))

    def _outer_socket(self) -> socket.socket | None:
        """The socket that the WebSocket comes by."""
        stream: Any = self.ws_connection.stream if self.ws_connection else None
        return stream.socket if stream is not None else None

    def _addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Both ends of the TCP connection."""
        sock = self._outer_socket()
        if self.is_unix or sock is None:
            return (UNIX.peer_host, UNIX.peer_port), (UNIX.host, UNIX.port)
        return sock.getpeername()[:2], sock.getsockname()[:2]

    def _tls(self) -> TlsInfo | None:
        """What protects the way to the client."""
        sock = self._outer_socket()
        if not isinstance(sock, ssl.SSLSocket):
            return None
        return TlsInfo(sock.version() or "", (sock.cipher() or ("",))[0])

    async def _send_on(self, ours: socket.socket) -> None:
        """Send what the broker writes, until it closes."""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(ours, CHUNK):
                await self.write_message(data, binary=True)
        except (OSError, WebSocketClosedError) as error:
            _log.debug("WebSocket: %s", error)
        self.close()

    async def on_message(self, message: str | bytes) -> None:
        """Hand on what came; the next message is read when this is taken."""
        if isinstance(message, str):
            if self._is_mqtt():
                self.close(UNSUPPORTED_DATA)
            return
        if self._socket is None:
            return
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, message)
        except OSError:
            self.close()

    def on_close(self) -> None:
        """The peer has gone: so does its connection."""
        if self._reader is not None:
            self._reader.cancel()
        if self._socket is not None:
            # What is being handed on holds the socket: the broker takes none of it, maybe, before
            # what it has sent is taken, which nobody does any more.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None


def chosen(subprotocols: list[str]) -> str | None:
    """The first of the offered protocols that the broker speaks, as it was written."""
    for protocol in subprotocols:
        if protocol.strip().lower().startswith(("amqp", "mqtt")):
            return protocol.strip()
    return None
