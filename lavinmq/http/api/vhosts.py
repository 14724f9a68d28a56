"""Virtual hosts: list, show, create, change, delete.

Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lavinmq.http.api.overview import queue_counts
from lavinmq.http.api.permissions import permission_rows
from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, found
from lavinmq.http.errors import bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES
from lavinmq.stats.totals import MESSAGES
from lavinmq.vhost.vhost import VHost

COUNTERS: Final = tuple(name for name in MESSAGES if name != "reject")


async def vhost_counters(vhost: VHost) -> dict[str, int]:
    """What a virtual host holds, `ready` and `unacked`, and what it has counted."""
    held = await queue_counts([vhost])
    return {"ready": held["ready"], "unacked": held["unacked"], **vhost.core.counters()}


def row(call: Call, vhost: VHost, counters: Mapping[str, int]) -> dict[str, Any]:
    """What is shown of a virtual host."""
    stored = call.broker.vhosts.stored(vhost.name)
    return {
        "name": vhost.name,
        "dir": vhost.directory.name,
        "tracing": False,
        "tags": list(stored.tags) if stored else [],
        "description": stored.description if stored else "",
        "cluster_state": {},
        "messages": counters["ready"] + counters["unacked"],
        "messages_unacknowledged": counters["unacked"],
        "messages_ready": counters["ready"],
        "message_stats": {name: counters[name] for name in COUNTERS},
    }


@ROUTES.list("/api/vhosts")
async def list_vhosts(call: Call) -> Listing[VHost]:
    """List virtual hosts."""
    vhosts = call.visible_vhosts()
    counters = {vhost: await vhost_counters(vhost) for vhost in vhosts}
    return Listing(
        vhosts, lambda vhost: row(call, vhost, counters[vhost]), lambda vhost: vhost.name
    )  # fmt: skip


@ROUTES.get("/api/vhosts/:vhost")
async def show_vhost(call: Call) -> dict[str, Any]:
    """Show a virtual host."""
    vhost = call.vhost
    return row(call, vhost, await vhost_counters(vhost))


@ROUTES.list("/api/vhosts/:vhost/permissions")
async def list_vhost_permissions(call: Call) -> Listing[Any]:
    """List what users may do in a virtual host."""
    return await permission_rows(call, lambda _user, vhost: vhost == call.path["vhost"])


@ROUTES.put(
    "/api/vhosts/:name",
    {
        "description": Field("string", "For people"),
        "tags": Field("any", "A list, or a string separated by commas"),
    },
)
async def put_vhost(call: Call) -> Reply:
    """Create a virtual host, or change description and tags of one; what is left out stays."""
    try:
        is_new = await call.broker.vhosts.create(
            call.path["name"], call.user.name, call.body["description"], _tags(call.body["tags"])
        )
    except ValueError as error:
        raise bad_request(str(error)) from error
    return CREATED if is_new else NO_CONTENT


def _tags(value: Any) -> list[str] | None:
    """Raises: ApiError 400."""
    if value is None:
        return None
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise bad_request("Field 'tags' must be a string or an array of strings")
    return [word.strip() for word in words if word.strip()]


@ROUTES.delete("/api/vhosts/:vhost")
async def delete_vhost(call: Call) -> Reply:
    """Delete a virtual host with all that is in it, and close its connections."""
    name = call.path["vhost"]
    found(await call.broker.vhosts.delete(name) or None, "vhost", name)
    return NO_CONTENT
