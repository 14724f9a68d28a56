"""Speaks HTTP on what the listeners hand over: management, control socket, metrics.

Tornado parses HTTP and writes it; accepting sockets and the handshake of TLS are those of the other
protocols (`listeners/listener.py`, `listeners/arrival.py`). See decision 0015.
Source: docs/http-api.md.
"""

from __future__ import annotations

import math
import resource
import socket
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tornado.httpserver import HTTPServer
from tornado.web import Application

from lavinmq.http import (
    api,  # noqa: F401 - registers the endpoints
    cluster,
    probes,
)
from lavinmq.http.access import same_origin
from lavinmq.http.access.origin import Origin
from lavinmq.http.errors import ApiError
from lavinmq.http.handler import UNREAD_BODY, ApiHandler, Refused, Robots
from lavinmq.http.heads import MAX_HEAD, PlainStream, TlsStream
from lavinmq.http.health import Alive, Ready
from lavinmq.http.live import Live
from lavinmq.http.metrics.handlers import Detailed, Metrics
from lavinmq.http.openapi import OpenApi
from lavinmq.http.ui import places
from lavinmq.process import log
from lavinmq.process.portions import SharedPortion

if TYPE_CHECKING:
    import asyncio

    from tornado.httputil import HTTPServerRequest

    from lavinmq.broker import Broker
    from lavinmq.config.values import Config
    from lavinmq.listeners.endpoints import Endpoints
    from lavinmq.listeners.listener import Listener
    from lavinmq.listeners.newcomers import Newcomer

IDLE_S: Final = 300.0
BODY_S: Final = 120.0
OWN_BUFFER: Final = 1 << 40
SHARE: Final = 4
"""Of all descriptors, one in so many is the most that connections for HTTP take."""
NO_ROOM: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
REFUSALS_LOGGED_EVERY_S: Final = 60.0
MAX_WEBSOCKET_MESSAGE: Final = 4 << 20
"""It is in memory before it is looked at."""
_log = log.get("lmq.http.server")


class HttpService:
    """Serves the connections of listeners of one origin. Args: answers: what answers them."""

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop, answers: GuardedApplication,
    ) -> None:  # fmt: skip
        self.origin: Origin = answers.settings["origin"]
        self._http = HTTPServer(
            answers,
            max_header_size=MAX_HEAD,
            max_body_size=UNREAD_BODY,
            max_buffer_size=OWN_BUFFER,
            idle_connection_timeout=IDLE_S,
            body_timeout=BODY_S,
        )
        self.config = config
        self._turns = SharedPortion(events.call_soon)
        self._refused_at = -math.inf
        self._n_arriving = 0

    @property
    def n_open(self) -> int:
        """How many connections are open."""
        return len(self._http._connections)

    def welcome(self, sock: socket.socket, ends: Endpoints) -> None:
        """Take over a connection; one with TLS has done its handshake."""
        stream: PlainStream | TlsStream
        if isinstance(sock, ssl.SSLSocket):
            stream = TlsStream(
                sock, self.config, self._turns, ends.host, max_buffer_size=OWN_BUFFER
            )
        else:
            address = None if sock.family == socket.AF_UNIX else ends.host
            stream = PlainStream(
                sock, self.config, self._turns, address, max_buffer_size=OWN_BUFFER
            )
        self._http.handle_stream(stream, (ends.peer_host, ends.peer_port))

    def enter(self, newcomer: Newcomer, ends: Endpoints) -> None:
        """A client begins its handshake."""
        self._n_arriving += 1

    def leave(self, newcomer: Newcomer) -> None:
        """Its handshake is over."""
        self._n_arriving -= 1

    def has_room(self, ends: Endpoints) -> bool:
        """Whether one more connection may come: clients of AMQP need descriptors too."""
        if self.origin is Origin.CONTROL:
            return True  # for operators, above all when there is no room
        return self.n_open + self._n_arriving < most_connections(self.config)

    def refuse(self, sock: socket.socket, is_tls: bool) -> None:
        """Tell a client that there is no room, and close; logged at most once in a minute."""
        with suppress(OSError):
            if not is_tls:
                sock.send(NO_ROOM)
                sock.shutdown(socket.SHUT_WR)
        sock.close()
        now = time.monotonic()
        if now - self._refused_at >= REFUSALS_LOGGED_EVERY_S:
            self._refused_at = now
            _log.warning(
                "connections are refused: %d are open, see 'max_connections' in [mgmt]", self.n_open
            )

    def close(self) -> None:
        """End what is open. Idempotent."""
        for connection in list(self._http._connections):  # no public way ends them at once
            connection.stream.close()


def most_connections(config: Config) -> int:
    """How many connections for HTTP there may be: a quarter of all descriptors unless told."""
    if config.http_max_connections is not None:
        return config.http_max_connections
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, limit // SHARE)


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

    @property
    def protocol(self) -> str:
        """What is spoken there, as lists show it."""
        if self.origin is Origin.METRICS:
            return "http/prometheus"
        return "https" if self.is_tls else "http"

    def start(self) -> None:
        """Begin to accept. Raises: OSError."""
        self.listener.start()

    def close(self) -> None:
        """Stop accepting and end what is open. Idempotent."""
        self.listener.close()
        self.service.close()


class GuardedApplication(Application):
    """Pages that are strangers get no further. A WebSocket may be asked for on any path, but for
    that of numbers; everything else goes by its path.

    Its settings: `origin`; `config`; `names` of this host; what the handlers need.
    """

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Who handles a request."""
        origin: Origin = self.settings["origin"]
        is_upgrade = origin is not Origin.METRICS and _is_upgrade(request)
        if origin is not Origin.CONTROL:  # no browser can open it
            try:
                self._check(request, is_upgrade)
            except ApiError as error:
                return self.get_handler_delegate(request, Refused, {"error": error})
        if is_upgrade:
            from lavinmq.http.websocket import WebSocketBridge  # few clients come this way

            return self.get_handler_delegate(request, WebSocketBridge)
        return super().find_handler(request, **kwargs)

    def _check(self, request: HTTPServerRequest, is_upgrade: bool) -> None:
        """Raises: ApiError."""
        config: Config = self.settings["config"]
        connection: Any = request.connection
        address = connection.stream.address
        is_tls = request.protocol == "https"
        reached = same_origin.Reached(address, self.settings["names"], is_tls)
        method, path = request.method or "", request.path
        same_origin.check(config, reached, method, path, request.headers, is_upgrade=is_upgrade)


def _is_upgrade(request: HTTPServerRequest) -> bool:
    """Whether a request asks for a WebSocket."""
    headers = request.headers
    words = [word.strip().lower() for word in headers.get("Connection", "").split(",")]
    is_asked = headers.get("Upgrade", "").lower() == "websocket" and "upgrade" in words
    return request.method == "GET" and is_asked


def application(broker: Broker, origin: Origin) -> GuardedApplication:
    """What answers the requests of a listener of a broker."""
    routes: list[Any] = [
        (r"/healthz", Alive),
        (r"/readyz", Ready),
        (r"/metrics/?", Metrics),
        (r"/metrics/detailed/?", Detailed),
    ]
    if origin is Origin.METRICS:
        routes += probes.ROUTES
    else:  # who comes by the listener for metrics need not log in
        routes += [
            (r"/api/.*", ApiHandler),
            (r"/robots\.txt", Robots),
            (r"/docs/openapi\.json", OpenApi),
            *places.ROUTES,
        ]
        if broker.chain.oauth is not None:
            from lavinmq.http.access import oauth

            routes += oauth.ROUTES
    return GuardedApplication(
        routes,
        default_handler_class=places.NotFound,
        log_function=_log_request,
        broker=broker,
        config=broker.config,
        names=(broker.node_name.lower(),),
        cluster=partial(cluster.picture, broker),
        live=Live(broker),
        origin=origin,
        traces=set(),
        websocket_max_message_size=MAX_WEBSOCKET_MESSAGE,
    )


def _log_request(handler: Any) -> None:
    request, took_s = handler.request, handler.request.request_time()
    if not handler.lasts:
        handler.broker.request_times.add(took_s)
    _log.debug("%s %s %d %.1f ms", request.method, request.uri, handler.get_status(), took_s * 1000)
