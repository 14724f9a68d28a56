"""What the broker listens on, as the overview and the health checks show it.

Source: docs/http-api.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lavinmq.broker import Broker, Listening


def shown(broker: Broker) -> list[dict[str, Any]]:
    """All listeners but the control socket, which is nobody else's."""
    return [_row(each) | {"node": broker.node_name} for each in broker.listening]


def _row(listening: Listening) -> dict[str, Any]:
    name, protocol, is_tls = listening
    if name.startswith("/"):
        return {"path": name, "protocol": protocol, "tls": is_tls}
    host, _, port = name.rpartition(":")
    return {
        "ip_address": host.strip("[]"), "port": int(port), "protocol": protocol, "tls": is_tls,
    }  # fmt: skip
