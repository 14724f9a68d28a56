"""Listens for HTTP: management, control socket and metrics, each with its own way of letting in.

Tornado parses HTTP and writes it; sockets are accepted here, bounded per wake-up, with descriptors
left for the queues. See decision 0015.
Source: HTTP reference, sections 1, 15 and 16.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, SSLIOStream
from tornado.web import Application

from lavinmq import log
from lavinmq.http import (
    api,  # noqa: F401 - registers the endpoints
    oauth,
)
from lavinmq.http.handler import ApiHandler, NotFound, Robots
from lavinmq.http.health import Alive, Ready
from lavinmq.http.metrics import Detailed, Metrics
from lavinmq.http.openapi import OpenApi
from lavinmq.http.websocket import MAX_MESSAGE, WebSocketBridge, is_upgrade

if TYPE_CHECKING:
    from tornado.httputil import HTTPServerRequest

    from lavinmq.server import Server

BACKLOG: Final = 256
ACCEPTS_PER_WAKEUP: Final = 16
RETRY_S: Final = 0.5
IDLE_S: Final = 300.0
BODY_S: Final = 120.0
HEADERS: Final = 32 << 10
UNREAD_BODY: Final = 64 << 10
"""Of a body that nobody wants; handlers that want one allow more."""
OWN_BUFFER: Final = 1 << 40
_log = log.get("lmq.http.server")


@dataclass(frozen=True, slots=True)
class Origin:
    """What a listener means for who comes by it."""

    name: str
    is_unix: bool = False
    is_control: bool = False
    is_metrics: bool = False


class HttpListener:
    """A listening socket for HTTP.

    Args: context: makes the TLS context of each connection, None for plain ones.
    """

    def __init__(
        self, server: Server, sock: socket.socket, origin: Origin,
        context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:  # fmt: skip
        self.origin = origin
        self._events = server.events
        self._socket = sock
        self._context = context
        self._http = HTTPServer(
            application(server, origin),
            max_header_size=HEADERS,
            max_body_size=UNREAD_BODY,
            max_buffer_size=OWN_BUFFER,
            idle_connection_timeout=IDLE_S,
            body_timeout=BODY_S,
        )

    @property
    def port(self) -> int:
        """The TCP port, 0 for a unix socket."""
        return 0 if self.origin.is_unix else int(self._socket.getsockname()[1])

    @property
    def n_open(self) -> int:
        """How many connections are open."""
        return len(self._http._connections)

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self._context is not None

    def start(self) -> None:
        """Begin to accept."""
        self._socket.setblocking(False)
        self._socket.listen(BACKLOG)
        self._events.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting and end what is open. Idempotent."""
        if self._socket.fileno() < 0:
            return
        self._events.remove_reader(self._socket.fileno())
        path = self._socket.getsockname() if self.origin.is_unix else ""
        self._socket.close()
        if path:
            _unlink(path)
        for connection in list(self._http._connections):  # no public way ends them at once
            connection.stream.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKEUP):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                _log.error("cannot accept on %s: %s", self.origin.name, error.strerror)
                self._events.remove_reader(self._socket.fileno())
                self._events.call_later(RETRY_S, self._retry)
                return
            self._welcome(sock, address)

    def _retry(self) -> None:
        if self._socket.fileno() >= 0:
            self._events.add_reader(self._socket.fileno(), self._accept)

    def _welcome(self, sock: socket.socket, address: Any) -> None:
        sock.setblocking(False)
        stream: IOStream
        try:
            if not self.origin.is_unix:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            if self._context is None:
                stream = IOStream(sock, max_buffer_size=OWN_BUFFER)
            else:
                wrapped = self._context().wrap_socket(
                    sock, server_side=True, do_handshake_on_connect=False
                )
                stream = SSLIOStream(wrapped, max_buffer_size=OWN_BUFFER)
        except OSError as error:  # the peer is gone already
            _log.debug("connection from %s: %s", address, error)
            sock.close()
            return
        self._http.handle_stream(stream, address)


class ManagementApplication(Application):
    """A WebSocket may be asked for on any path; everything else goes by its path."""

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Who handles a request."""
        if is_upgrade(request):
            return self.get_handler_delegate(request, WebSocketBridge)
        return super().find_handler(request, **kwargs)


def application(server: Server, origin: Origin) -> Application:
    """What answers the requests of a listener."""
    routes: list[Any] = [
        (r"/healthz", Alive),
        (r"/readyz", Ready),
        (r"/metrics/?", Metrics),
        (r"/metrics/detailed/?", Detailed),
    ]
    kind: type[Application] = Application
    if not origin.is_metrics:  # who comes by that listener need not log in
        kind = ManagementApplication
        routes += [
            (r"/api/.*", ApiHandler),
            (r"/robots\.txt", Robots),
            (r"/docs/openapi\.json", OpenApi),
        ]
        if server.chain.oauth is not None:
            routes += oauth.ROUTES
    return kind(
        routes,
        default_handler_class=NotFound,
        log_function=_log_request,
        server=server,
        origin=origin,
        websocket_max_message_size=MAX_MESSAGE,
    )


def _log_request(handler: Any) -> None:
    request, took_s = handler.request, handler.request.request_time()
    handler.server.request_times.add(took_s)
    _log.debug("%s %s %d %.1f ms", request.method, request.uri, handler.get_status(), took_s * 1000)


def tcp_socket(host: str, port: int) -> socket.socket:
    """A bound socket; `::` serves IPv4 too. Raises: OSError naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock


def unix_socket(path: str, mode: int, *, is_exclusive: bool = False) -> socket.socket:
    """A bound unix socket.

    Args: is_exclusive: a file that is no socket, or that somebody listens on, stays: only what a
        broker that is gone has left is removed. Else any old file is.
    Raises: OSError naming the path.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if is_exclusive:
            _remove_stale(path)
        elif os.path.lexists(path):
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, mode)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno, f"cannot listen on {path}: {error.strerror or error}"
        ) from error  # fmt: skip
    return sock


def _remove_stale(path: str) -> None:
    """Raises: OSError when the file is not one that may go."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "it is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "it is already in use")


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
