"""What is wrong with the broker, if anything; asked by the API and by the probes.

Source: docs/monitoring.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lavinmq.http.handler import Handler

if TYPE_CHECKING:
    from lavinmq.broker import Broker


def alarms(broker: Broker) -> list[dict[str, str]]:
    """What holds publishers."""
    return [{"node": broker.node_name, "resource": "disk"}] if broker.loop.is_held else []


class Alive(Handler):
    """`/healthz`: whoever gets an answer knows that the process lives and its loop turns."""

    def get(self) -> None:
        """Say so."""
        self._say(200, "ok")

    head = get

    def _say(self, status: int, text: str) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "text/plain")
        self.set_header("Cache-Control", "no-store")
        content = f"{text}\n"
        self.set_header("Content-Length", str(len(content)))
        self.finish("" if self.request.method == "HEAD" else content)


class Ready(Alive):
    """`/readyz`: whether clients should be sent here."""

    def get(self) -> None:
        """Say whether clients are served."""
        if self.broker.is_serving:
            self._say(200, "ok")
        else:
            self._say(503, "not serving clients")

    head = get
