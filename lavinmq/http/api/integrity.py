"""Sums of the stored files: what is damaged, a look at all of them, and what to do about it.

Source: docs/integrity.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.errors import ApiError
from lavinmq.http.routes import ROUTES

if TYPE_CHECKING:
    from lavinmq.integrity.keeper import Integrity


@ROUTES.get("/api/integrity", failures=(409,))
def show_integrity(call: Call) -> Any:
    """Show which files of this node are damaged, and what was read to find that out."""
    return _integrity(call).status()


@ROUTES.add("POST", "/api/integrity/verify", failures=(409,))
def verify(call: Call) -> Any:
    """Have all files of this node read now; it is done when `verified` is that number, or more."""
    return {"number": _integrity(call).verify()}


@ROUTES.add("POST", "/api/integrity/repair", statuses=(204,), failures=(409,))
def repair(call: Call) -> Reply:
    """Have another node lead, from which this one then gets its damaged files."""
    if not len(_integrity(call).damages):
        return NO_CONTENT
    cluster = call.broker.cluster
    why = (
        "This broker has no peers: stop it, and use `lavinmqctl repair --offline`"
        if cluster is None
        else cluster.transfer()
    )
    if why:
        raise ApiError(409, "conflict", why)
    return NO_CONTENT


def _integrity(call: Call) -> Integrity:
    """Raises: ApiError when there are no sums."""
    if call.broker.integrity is None:
        raise ApiError(409, "conflict", "There are no sums of files: scrub_rate is 0")
    return call.broker.integrity
