"""Speaks HTTP on what the listeners hand over: management, control socket, metrics.

Tornado parses HTTP and writes it; accepting sockets and the handshake of TLS are those of the other
protocols (`listener.py`, `arrival.py`). See decision 0015.
Source: HTTP reference, sections 1, 15 and 16.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, SSLIOStream
from tornado.web import Application

from lavinmq import log
from lavinmq.http import api  # noqa: F401 - registers the endpoints
from lavinmq.http.handler import UNREAD_BODY, ApiHandler, NotFound, Robots
from lavinmq.http.health import Alive, Ready
from lavinmq.http.metrics import Detailed, Metrics
from lavinmq.http.openapi import OpenApi
from lavinmq.http.origin import Origin

if TYPE_CHECKING:
    from tornado.httputil import HTTPServerRequest

    from lavinmq.endpoints import Endpoints
    from lavinmq.listener import Listener
    from lavinmq.server import Server

IDLE_S: Final = 300.0
BODY_S: Final = 120.0
HEADERS: Final = 32 << 10
OWN_BUFFER: Final = 1 << 40
MAX_WEBSOCKET_MESSAGE: Final = 4 << 20
"""It is in memory before it is looked at."""
_log = log.get("lmq.http.server")


class HttpService:
    """Serves the connections of listeners of one origin."""

    def __init__(self, server: Server, origin: Origin) -> None:
        self.origin = origin
        self._http = HTTPServer(
            application(server, origin),
            max_header_size=HEADERS,
            max_body_size=UNREAD_BODY,
            max_buffer_size=OWN_BUFFER,
            idle_connection_timeout=IDLE_S,
            body_timeout=BODY_S,
        )

    @property
    def n_open(self) -> int:
        """How many connections are open."""
        return len(self._http._connections)

    def welcome(self, sock: socket.socket, ends: Endpoints) -> None:
        """Take over a connection; one with TLS has done its handshake."""
        stream: IOStream
        if isinstance(sock, ssl.SSLSocket):
            stream = SSLIOStream(sock, max_buffer_size=OWN_BUFFER)
        else:
            stream = IOStream(sock, max_buffer_size=OWN_BUFFER)
        self._http.handle_stream(stream, (ends.peer_host, ends.peer_port))

    def close(self) -> None:
        """End what is open. Idempotent."""
        for connection in list(self._http._connections):  # no public way ends them at once
            connection.stream.close()


@dataclass(frozen=True, slots=True)
class HttpListener:
    """A listening socket with the service behind it."""

    listener: Listener
    service: HttpService

    @property
    def origin(self) -> Origin:
        """What it is for."""
        return self.service.origin

    @property
    def name(self) -> str:
        """The address, for logs."""
        return self.listener.name

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.listener.is_tls

    def start(self) -> None:
        """Begin to accept. Raises: OSError."""
        self.listener.start()

    def close(self) -> None:
        """Stop accepting and end what is open. Idempotent."""
        self.listener.close()
        self.service.close()


class ManagementApplication(Application):
    """A WebSocket may be asked for on any path; everything else goes by its path."""

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Who handles a request."""
        if _is_upgrade(request):
            from lavinmq.http.websocket import WebSocketBridge  # few clients come this way

            return self.get_handler_delegate(request, WebSocketBridge)
        return super().find_handler(request, **kwargs)


def _is_upgrade(request: HTTPServerRequest) -> bool:
    """Whether a request asks for a WebSocket."""
    headers = request.headers
    words = [word.strip().lower() for word in headers.get("Connection", "").split(",")]
    is_asked = headers.get("Upgrade", "").lower() == "websocket" and "upgrade" in words
    return request.method == "GET" and is_asked


def application(server: Server, origin: Origin) -> Application:
    """What answers the requests of a listener."""
    routes: list[Any] = [
        (r"/healthz", Alive),
        (r"/readyz", Ready),
        (r"/metrics/?", Metrics),
        (r"/metrics/detailed/?", Detailed),
    ]
    kind: type[Application] = Application
    if origin is not Origin.METRICS:  # who comes by that listener need not log in
        kind = ManagementApplication
        routes += [
            (r"/api/.*", ApiHandler),
            (r"/robots\.txt", Robots),
            (r"/docs/openapi\.json", OpenApi),
        ]
        if server.chain.oauth is not None:
            from lavinmq.http import oauth

            routes += oauth.ROUTES
    return kind(
        routes,
        default_handler_class=NotFound,
        log_function=_log_request,
        server=server,
        origin=origin,
        websocket_max_message_size=MAX_WEBSOCKET_MESSAGE,
    )


def _log_request(handler: Any) -> None:
    request, took_s = handler.request, handler.request.request_time()
    handler.server.request_times.add(took_s)
    _log.debug("%s %s %d %.1f ms", request.method, request.uri, handler.get_status(), took_s * 1000)
