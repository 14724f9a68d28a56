"""What users may do in virtual hosts, and with routing keys of topic exchanges there: list, show,
set, take away.

Source: docs/http-api.md, RabbitMQ's HTTP API for topic permissions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from lavinmq.arguments.names import MAX_BYTES as MAX_NAME
from lavinmq.auth import permissions, topics
from lavinmq.auth.permissions import Permissions
from lavinmq.auth.topics import TopicRow
from lavinmq.auth.users import User
from lavinmq.definitions_json.export import permission_row
from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, found
from lavinmq.http.errors import bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES
from lavinmq.policy.pattern import too_long

FIELDS: Final = {
    "configure": Field("string", "Names that may be declared and deleted", True, lax=True),
    "read": Field("string", "Names that may be read from", True, lax=True),
    "write": Field("string", "Names that may be written to", True, lax=True),
}
"""Regular expressions; the empty one allows nothing."""


Granted = tuple[User, str, Permissions]
"""A user, a virtual host, and what the user may do there."""


def _row(user: User, vhost: str, granted: Permissions) -> dict[str, Any]:
    row = permission_row(user, vhost, granted)
    patterns = granted.configure, granted.read, granted.write
    slow = [each.regex for each in patterns if each.stumbles]
    if slow:
        row["warning"] = f"{too_long(slow[0])} some names: they are denied"
    return row


async def permission_rows(
    call: Call, is_wanted: Callable[[User, str], bool]
) -> Listing[Granted]:  # fmt: skip
    """The permissions of all users in virtual hosts that exist, as far as they are wanted."""
    found = [
        each
        async for each in in_portions(_granted(call.broker.users.all()))
        if each[1] in call.broker.vhosts and is_wanted(each[0], each[1])
    ]
    return Listing(found, lambda each: _row(*each), lambda each: each[0].name)


def _granted(users: Iterable[User]) -> Iterator[Granted]:
    """What users may do, while it may change."""
    for user in users:
        for vhost, granted in list(user.permissions.items()):
            yield user, vhost, granted


def user_of(call: Call) -> User:
    """The user of the path. Raises: ApiError 404."""
    user: User = found(call.broker.users.get(call.path["user"]), "user", call.path["user"])
    return user


def _check(body: Mapping[str, Any], fields: Iterable[str], check: Callable[[str], None]) -> None:
    """Refuse expressions that are none. Raises: ApiError 400, which names field and expression."""
    for field in fields:
        try:
            check(body[field])
        except ValueError as error:
            text = f"Permissions must be valid Regex: field '{field}': {error}"
            raise bad_request(text) from error


@ROUTES.list("/api/permissions")
async def list_permissions(call: Call) -> Listing[Granted]:
    """List what users may do."""
    return await permission_rows(call, lambda _user, _vhost: True)


@ROUTES.get("/api/permissions/:vhost/:user")
def show_permissions(call: Call) -> dict[str, Any]:
    """Show what a user may do in a virtual host."""
    user = user_of(call)
    vhost = call.path["vhost"]
    granted = found(user.permissions.get(vhost), "permission of user", user.name, vhost)
    return _row(user, vhost, granted)


@ROUTES.put("/api/permissions/:vhost/:user", FIELDS)
def put_permissions(call: Call) -> Reply:
    """Set what a user may do in a virtual host; open connections follow at once."""
    user, body = user_of(call), call.body
    _check(body, FIELDS, permissions.check)
    is_new = call.broker.accounts.set_permissions(
        user.name, call.path["vhost"], body["configure"], body["read"], body["write"]
    )
    return CREATED if is_new else NO_CONTENT


@ROUTES.delete("/api/permissions/:vhost/:user")
def delete_permissions(call: Call) -> Reply:
    """Take a virtual host from a user."""
    call.broker.accounts.remove_permissions(user_of(call).name, call.path["vhost"])
    return NO_CONTENT


# --- topics -----------------------------------------------------------------------------------


async def _topics(call: Call, is_wanted: Callable[[TopicRow], bool]) -> Listing[TopicRow]:
    """The topic permissions in virtual hosts that exist, as far as they are wanted."""
    rows = [
        row
        async for row in in_portions(call.broker.users.topic_rows())
        if row.vhost in call.broker.vhosts and is_wanted(row)
    ]
    return Listing(rows, TopicRow._asdict, lambda row: row.user)


@ROUTES.list("/api/topic-permissions")
async def list_topic_permissions(call: Call) -> Listing[TopicRow]:
    """List what users may do with routing keys of topic exchanges."""
    return await _topics(call, lambda _row: True)


@ROUTES.list("/api/vhosts/:vhost/topic-permissions")
async def list_topic_permissions_of_vhost(call: Call) -> Listing[TopicRow]:
    """List what users may do with routing keys in a virtual host."""
    return await _topics(call, lambda row: row.vhost == call.path["vhost"])


@ROUTES.list("/api/users/:user/topic-permissions")
async def list_topic_permissions_of_user(call: Call) -> Listing[TopicRow]:
    """List what a user may do with routing keys."""
    user = user_of(call)
    return await _topics(call, lambda row: row.user == user.name)


@ROUTES.list("/api/topic-permissions/:vhost/:user")
async def list_topic_permissions_of_user_in_vhost(call: Call) -> Listing[TopicRow]:
    """List what a user may do with routing keys in a virtual host."""
    wanted = user_of(call).name, call.path["vhost"]
    return await _topics(call, lambda row: (row.user, row.vhost) == wanted)


@ROUTES.put(
    "/api/topic-permissions/:vhost/:user",
    {
        "exchange": Field("string", "A topic exchange; it need not exist yet", True),
        "write": Field("string", "Routing keys to publish with", True),
        "read": Field("string", "Routing keys to bind with", True),
    },
)
def put_topic_permissions(call: Call) -> Reply:
    """Set what a user may do with routing keys of an exchange; open connections follow at once."""
    body = call.body
    user, exchange = user_of(call), body["exchange"]
    if len(exchange.encode()) > MAX_NAME:
        raise bad_request(f"Field 'exchange' is longer than {MAX_NAME} bytes")
    row = TopicRow(user.name, call.path["vhost"], exchange, body["write"], body["read"])
    _check(body, ("write", "read"), topics.check)
    is_new = call.broker.accounts.set_topic_permissions(row)
    return CREATED if is_new else NO_CONTENT


@ROUTES.delete("/api/topic-permissions/:vhost/:user")
@ROUTES.delete("/api/topic-permissions/:vhost/:user/:exchange")
def delete_topic_permissions(call: Call) -> Reply:
    """Allow a user all routing keys again, of an exchange or of all in a virtual host."""
    call.broker.accounts.remove_topic_permissions(
        user_of(call).name, call.path["vhost"], call.path.get("exchange")
    )
    return NO_CONTENT
