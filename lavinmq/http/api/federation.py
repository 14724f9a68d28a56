"""Links of federation: list. There is no federation yet, so nothing can be linked.

Source: docs/http-api.md.
"""

from __future__ import annotations

from typing import Any

from lavinmq.http.call import Call
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES


@ROUTES.list("/api/federation-links")
@ROUTES.list("/api/federation-links/:vhost")
def list_links(_call: Call) -> Listing[dict[str, Any]]:
    """List federation links."""
    return Listing([], lambda link: link, lambda link: str(link["upstream"]))
