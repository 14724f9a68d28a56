"""Virtual hosts: list, show, create, delete.

Source: HTTP reference, section 8.10.
"""

from __future__ import annotations

from typing import Any

from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, found
from lavinmq.http.errors import bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES, Role
from lavinmq.vhost import VHost


def row(call: Call, vhost: VHost) -> dict[str, Any]:
    """What is shown of a virtual host."""
    stored = call.server.vhosts.stored(vhost.name)
    return {
        "name": vhost.name,
        "dir": vhost.directory.name,
        "tracing": False,
        "tags": list(stored.tags) if stored else [],
        "description": stored.description if stored else "",
        "cluster_state": {},
    }


@ROUTES.list("/api/vhosts", Role.ANY)
def list_vhosts(call: Call) -> Listing[VHost]:
    """List virtual hosts."""
    return Listing(
        call.visible_vhosts(), lambda vhost: row(call, vhost), lambda vhost: vhost.name
    )  # fmt: skip


@ROUTES.get("/api/vhosts/:vhost", Role.MANAGEMENT)
def show_vhost(call: Call) -> dict[str, Any]:
    """Show a virtual host."""
    return row(call, call.vhost)


@ROUTES.put(
    "/api/vhosts/:name",
    Role.ADMINISTRATOR,
    {
        "description": Field("string", "For people", default=""),
        "tags": Field("string", "Separated by commas", default=""),
    },
)
def put_vhost(call: Call) -> Reply:
    """Create a virtual host, or change description and tags of one."""
    tags = [tag.strip() for tag in call.body["tags"].split(",") if tag.strip()]
    try:
        is_new = call.server.vhosts.create(
            call.path["name"], call.user.name, call.body["description"], tags
        )
    except ValueError as error:
        raise bad_request(str(error)) from error
    return CREATED if is_new else NO_CONTENT


@ROUTES.delete("/api/vhosts/:vhost", Role.ADMINISTRATOR)
def delete_vhost(call: Call) -> Reply:
    """Delete a virtual host with all that is in it."""
    found(call.server.vhosts.delete(call.path["vhost"]) or None)
    return NO_CONTENT
