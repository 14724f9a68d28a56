"""Endpoints about the API itself: who am I, which extensions are there.

Source: docs/http-api.md.
"""

from __future__ import annotations

from typing import Any

from lavinmq.http.call import Call
from lavinmq.http.routes import ROUTES


@ROUTES.get("/api/whoami")
def who_am_i(call: Call) -> dict[str, Any]:
    """Say who the caller is."""
    return {"name": call.user.name, "tags": ",".join(call.user.tags)}


@ROUTES.get("/api/extensions")
def extensions(_call: Call) -> list[Any]:
    """List extensions of the interface: there are none."""
    return []
