"""Which HTTP listeners the configuration asks for: management, control socket, metrics.

Source: docs/http-api.md, docs/listeners.md.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lavinmq.http.access.origin import Origin
from lavinmq.http.server import HttpListener, HttpService, application
from lavinmq.listeners.listener import Host, Listener, Places, listeners

if TYPE_CHECKING:
    from lavinmq.broker import Broker

CONTROL_MODE: Final = 0o660


def bound(broker: Broker, host: Host, passed: list[socket.socket]) -> Iterator[HttpListener]:
    """All listeners, bound and not yet listening; the caller closes them.

    Args: passed: sockets from systemd.
    Raises: OSError naming the address.
    """
    config = broker.config

    def service(origin: Origin) -> HttpService:
        return HttpService(config, broker.events, application(broker, origin))

    management = service(Origin.MANAGEMENT)
    places = Places(config.http_bind, config.http_port, config.https_port, config.http_unix_path)
    for listener in listeners(host, places, passed, "http", management.welcome, management):
        yield HttpListener(listener, management)
    if config.control_unix_path:
        yield for_control(host, service(Origin.CONTROL), config.control_unix_path)
    if config.metrics_http_port >= 0:
        yield for_metrics(host, service(Origin.METRICS))


def for_control(host: Host, control: HttpService, path: str) -> HttpListener:
    """The control socket, bound, of a broker or of a node that follows one. Raises: OSError naming
    the path."""
    return HttpListener(
        Listener.unix(host, path, "http", control.welcome, mode=CONTROL_MODE), control
    )


def for_metrics(host: Host, metrics: HttpService) -> HttpListener:
    """The listener for metrics, bound, of a broker or of a node that follows one. Raises: OSError
    naming the address."""
    bind, port = metrics.config.metrics_http_bind, metrics.config.metrics_http_port
    return HttpListener(
        Listener.tcp(host, bind, port, "http", metrics.welcome, door=metrics), metrics
    )
