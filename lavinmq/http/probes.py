"""What the port for metrics says about the cluster without a log-in: probes, and all of it as JSON.

The handlers are those of a broker and of a node that follows one; their setting `cluster` is a
function that makes the picture. Source: docs/monitoring.md.
"""

from __future__ import annotations

from typing import Any, Final

from lavinmq.http import encoding
from lavinmq.http.handler import JSON, Handler


class Shown(Handler):
    """`/api/cluster`: the picture."""

    def get(self) -> None:
        """Send it."""
        self._send(200, self.picture)

    head = get

    @property
    def picture(self) -> dict[str, Any]:
        """What the node knows now."""
        found: dict[str, Any] = self.application.settings["cluster"]()
        return found

    def _send(self, status: int, value: dict[str, Any]) -> None:
        self.set_status(status)
        self.set_header("Content-Type", JSON)
        self.set_header("Cache-Control", "no-store")
        content = encoding.encode(value)
        self.set_header("Content-Length", str(len(content)))
        self.finish(b"" if self.request.method == "HEAD" else content)


class Live(Shown):
    """`/live`: who gets an answer knows that the process lives and its loop turns."""

    def get(self) -> None:
        """Say so."""
        self._send(200, {"status": "ok"})

    head = get


class Probe(Shown):
    """One statement of the picture: 200 while it is true, 503 with the reason while it is not."""

    def initialize(self, name: str) -> None:
        """Args: name: of the statement."""
        self._name = name

    def get(self) -> None:
        """Say whether it is true."""
        found = self.picture
        if found[self._name]:
            self._send(200, {"status": "ok"})
        else:
            self._send(503, {"status": "failed", "reason": found["reasons"][self._name]})

    head = get


ROUTES: Final[list[Any]] = [
    (r"/api/cluster/?", Shown),
    (r"/live", Live),
    (r"/ready", Probe, {"name": "ready"}),
    (r"/safe-to-restart", Probe, {"name": "safe_to_restart"}),
]
