"""Which HTTP listeners the configuration asks for: management, control socket, metrics.

Source: HTTP reference, sections 1 and 16; command line reference, sections 4 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lavinmq.http.origin import Origin
from lavinmq.http.server import HttpListener, HttpService
from lavinmq.listeners.listener import Listener, Places, listeners

if TYPE_CHECKING:
    from lavinmq.server import Server

CONTROL_MODE: Final = 0o660


def bound(server: Server) -> Iterator[HttpListener]:
    """All listeners, bound and not yet listening; the caller closes them.

    Raises: OSError naming the address.
    """
    config = server.config
    management = HttpService(server, Origin.MANAGEMENT)
    places = Places(config.http_bind, config.http_port, config.https_port, config.http_unix_path)
    passed = server.service.take_sockets(config.http_systemd_socket_name)
    for listener in listeners(server, places, passed, "http", management.welcome, management):
        yield HttpListener(listener, management)
    if config.control_unix_path:
        control = HttpService(server, Origin.CONTROL)
        path, welcome = config.control_unix_path, control.welcome
        yield HttpListener(
            Listener.unix(server, path, "http", welcome, mode=CONTROL_MODE), control
        )  # fmt: skip
    if config.metrics_http_port >= 0:
        metrics = HttpService(server, Origin.METRICS)
        host, port = config.metrics_http_bind, config.metrics_http_port
        yield HttpListener(
            Listener.tcp(server, host, port, "http", metrics.welcome, door=metrics), metrics
        )
