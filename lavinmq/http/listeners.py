"""Which HTTP listeners the configuration asks for: management, control socket, metrics.

Source: HTTP reference, sections 1 and 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lavinmq.http.server import HttpListener, Origin, tcp_socket, unix_socket

if TYPE_CHECKING:
    from lavinmq.server import Server


def bound(server: Server) -> list[HttpListener]:
    """All listeners, bound and not yet listening. Raises: OSError naming the address."""
    config = server.config
    listeners: list[HttpListener] = []
    try:
        if config.http_port >= 0:
            listeners.append(_tcp(server, config.http_bind, config.http_port))
        if config.http_unix_path:
            sock = unix_socket(config.http_unix_path, 0o666)
            origin = Origin(config.http_unix_path, is_unix=True)
            listeners.append(HttpListener(server, sock, origin))
        if config.control_unix_path:
            sock = unix_socket(config.control_unix_path, 0o660, is_exclusive=True)
            origin = Origin(config.control_unix_path, is_unix=True, is_control=True)
            listeners.append(HttpListener(server, sock, origin))
        if config.metrics_http_port >= 0:
            host, port = config.metrics_http_bind, config.metrics_http_port
            listeners.append(_tcp(server, host, port, is_metrics=True))
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _tcp(server: Server, host: str, port: int, *, is_metrics: bool = False) -> HttpListener:
    sock = tcp_socket(host, port)
    name = f"{host}:{sock.getsockname()[1]}"
    return HttpListener(server, sock, Origin(name, is_metrics=is_metrics))
