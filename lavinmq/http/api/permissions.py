"""What users may do in virtual hosts: list, show, set, take away.

There are no permissions by topic: lists of them are empty, and setting one is refused, so that
nobody believes to be protected by it. Source: HTTP reference, section 8.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lavinmq.auth.users import User
from lavinmq.definitions_json.export import permission_row
from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, found
from lavinmq.http.errors import bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES, Role

FIELDS: Final = {
    "configure": Field("string", "Names that may be declared and deleted", True, lax=True),
    "read": Field("string", "Names that may be read from", True, lax=True),
    "write": Field("string", "Names that may be written to", True, lax=True),
}
"""Regular expressions; the empty one allows nothing."""


def permission_rows(call: Call, is_wanted: Callable[[User, str], bool]) -> Listing[Any]:
    """The permissions of all users in virtual hosts that exist, as far as they are wanted."""
    found = [
        (user, vhost)
        for user in call.server.users.all()
        for vhost in user.permissions
        if vhost in call.server.vhosts and is_wanted(user, vhost)
    ]
    return Listing(found, lambda each: permission_row(*each), lambda each: each[0].name)


def user_of(call: Call) -> User:
    """The user of the path. Raises: ApiError 404."""
    user: User = found(call.server.users.get(call.path["user"]))
    return user


@ROUTES.list("/api/permissions", Role.ADMINISTRATOR)
def list_permissions(call: Call) -> Listing[Any]:
    """List what users may do."""
    return permission_rows(call, lambda _user, _vhost: True)


@ROUTES.get("/api/permissions/:vhost/:user", Role.ADMINISTRATOR)
def show_permissions(call: Call) -> dict[str, Any]:
    """Show what a user may do in a virtual host."""
    user = user_of(call)
    found(user.permissions.get(call.path["vhost"]))
    return permission_row(user, call.path["vhost"])


@ROUTES.put("/api/permissions/:vhost/:user", Role.ADMINISTRATOR, FIELDS)
def put_permissions(call: Call) -> Reply:
    """Set what a user may do in a virtual host; open connections follow at once."""
    user, body = user_of(call), call.body
    try:
        is_new = call.server.accounts.set_permissions(
            user.name, call.path["vhost"], body["configure"], body["read"], body["write"]
        )
    except ValueError as error:
        raise bad_request("Permissions must be valid Regex") from error
    return CREATED if is_new else NO_CONTENT


@ROUTES.delete("/api/permissions/:vhost/:user", Role.ADMINISTRATOR)
def delete_permissions(call: Call) -> Reply:
    """Take a virtual host from a user."""
    call.server.accounts.remove_permissions(user_of(call).name, call.path["vhost"])
    return NO_CONTENT


@ROUTES.list("/api/topic-permissions", Role.ADMINISTRATOR)
@ROUTES.list("/api/topic-permissions/:vhost/:user", Role.ADMINISTRATOR)
@ROUTES.list("/api/vhosts/:vhost/topic-permissions", Role.ADMINISTRATOR)
@ROUTES.list("/api/users/:user/topic-permissions", Role.ADMINISTRATOR)
def list_topic_permissions(call: Call) -> Listing[Any]:
    """List permissions by topic: there are none."""
    if "user" in call.path:
        user_of(call)
    return Listing((), lambda _each: {}, lambda _each: "")


@ROUTES.put("/api/topic-permissions/:vhost/:user", Role.ADMINISTRATOR, statuses=())
def put_topic_permissions(_call: Call) -> Reply:
    """Refuse a permission by topic: there are none."""
    raise bad_request("Topic permissions are not supported")
