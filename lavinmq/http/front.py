"""`/`: says what is here and where the API is, as a page or as JSON. There are no other pages yet.

Nobody has to log in for it, so it tells nothing about this broker.
"""

from __future__ import annotations

from typing import Final

from lavinmq.http import encoding
from lavinmq.http.handler import JSON, Handler

PLACES: Final = {
    "api": "/api/overview",
    "description": "/docs/openapi.json",
    "metrics": "/metrics",
    "liveness": "/healthz",
    "readiness": "/readyz",
}
WHAT: Final = {
    "api": "the HTTP API, with the name and password of a user",
    "description": "the description of the API, OpenAPI 3.1",
    "metrics": "metrics for Prometheus",
    "liveness": "whether the broker is alive",
    "readiness": "whether it serves clients",
}
_ROWS: Final = "".join(
    f'<li><a href="{path}">{path}</a>: {WHAT[name]}</li>' for name, path in PLACES.items()
)
PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>LavinMQ HTTP API</title>'
    "<h1>LavinMQ HTTP API</h1><p>There are no pages to manage the broker yet. What there is:</p>"
    f"<ul>{_ROWS}</ul><p>On the command line there is <code>lavinmqctl</code>.</p></html>\n"
)


class Front(Handler):
    """The page, for whoever prefers HTML to JSON."""

    def get(self) -> None:
        """Say where everything is."""
        self.set_header("Vary", "Accept")
        self.set_header("Cache-Control", "no-cache")
        if "text/html" in self.request.headers.get("Accept", ""):
            self.set_header("Content-Type", "text/html;charset=utf-8")
            self.set_header("Content-Security-Policy", "default-src 'none'")
            self.finish(PAGE)
            return
        self.set_header("Content-Type", JSON)
        self.finish(encoding.encode({"product": "LavinMQ", **PLACES}))

    head = get
