"""Links of federation: list, pause, resume. They are made of parameters and policies.

Source: docs/federation.md, docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.errors import ApiError
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES
from lavinmq.vhost.vhost import VHost

if TYPE_CHECKING:
    from lavinmq.federation.links import Federation


def _federation(call: Call) -> Federation:
    found: Any = call.broker.federation
    federation: Federation = found
    return federation


def _listing(call: Call, vhosts: Iterable[VHost]) -> Listing[dict[str, Any]]:
    rows = [row for vhost in vhosts for row in _federation(call).rows(vhost.name)]
    return Listing(rows, lambda row: row, lambda row: (str(row["upstream"]), str(row["resource"])))


@ROUTES.list("/api/federation-links")
def list_links(call: Call) -> Listing[dict[str, Any]]:
    """List federation links."""
    return _listing(call, call.visible_vhosts())


@ROUTES.list("/api/federation-links/:vhost")
def list_links_of_vhost(call: Call) -> Listing[dict[str, Any]]:
    """List federation links of a virtual host."""
    return _listing(call, [call.vhost])


@ROUTES.add("PUT", "/api/federation-links/:vhost/:upstream/pause", silent=(404,))
async def pause_upstream(call: Call) -> Reply:
    """Pause all links of an upstream, over restarts, too."""
    return await _pause(call, None, is_paused=True)


@ROUTES.add("PUT", "/api/federation-links/:vhost/:upstream/resume", silent=(404,))
async def resume_upstream(call: Call) -> Reply:
    """Let the links of an upstream go on, but for those that were paused one by one."""
    return await _pause(call, None, is_paused=False)


@ROUTES.add("PUT", "/api/federation-links/:vhost/:upstream/:type/:name/pause", silent=(404,))
async def pause_link(call: Call) -> Reply:
    """Pause the link of an exchange or queue, over restarts, too."""
    return await _pause(call, (call.path["type"], call.path["name"]), is_paused=True)


@ROUTES.add("PUT", "/api/federation-links/:vhost/:upstream/:type/:name/resume", silent=(404,))
async def resume_link(call: Call) -> Reply:
    """Let the link of an exchange or queue go on."""
    return await _pause(call, (call.path["type"], call.path["name"]), is_paused=False)


async def _pause(call: Call, place: tuple[str, str] | None, *, is_paused: bool) -> Reply:
    """Raises: ApiError 404."""
    federation = _federation(call)
    if not await federation.set_paused(call.vhost, call.path["upstream"], place, is_paused):
        raise ApiError(404)
    return NO_CONTENT
