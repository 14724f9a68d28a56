"""What the broker listens on, as the overview and the health checks show it.

Source: HTTP reference, sections 8.1 and 8.19.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lavinmq.http.origin import Origin

if TYPE_CHECKING:
    from lavinmq.http.server import HttpListener
    from lavinmq.listeners.listener import Listener
    from lavinmq.server import Server


def shown(server: Server) -> list[dict[str, Any]]:
    """All listeners but the control socket, which is nobody else's."""
    found = [_amqp(listener) for listener in server.listeners]
    found += [_http(listener) for listener in server.http if listener.origin is not Origin.CONTROL]
    return [each | {"node": server.node_name} for each in found]


def _amqp(listener: Listener) -> dict[str, Any]:
    protocol = f"{listener.protocol}s" if listener.is_tls else listener.protocol
    return _place(listener.name, protocol, listener.is_tls)


def _http(listener: HttpListener) -> dict[str, Any]:
    if listener.origin is Origin.METRICS:
        return _place(listener.name, "http/prometheus", listener.is_tls)
    protocol = "https" if listener.is_tls else "http"
    return _place(listener.name, protocol, listener.is_tls)


def _place(name: str, protocol: str, is_tls: bool) -> dict[str, Any]:
    if name.startswith("/"):
        return {"path": name, "protocol": protocol, "tls": is_tls}
    host, _, port = name.rpartition(":")
    return {
        "ip_address": host.strip("[]"), "port": int(port), "protocol": protocol, "tls": is_tls,
    }  # fmt: skip
