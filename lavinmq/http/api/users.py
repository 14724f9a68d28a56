"""Users: list, show, create, change, delete; hashes of passwords.

Source: docs/http-api.md.
"""

from __future__ import annotations

from typing import Any, Final

from lavinmq.arguments.names import check_label
from lavinmq.auth import passwords
from lavinmq.auth.accounts import PasswordHash
from lavinmq.auth.hashing import HashingBusy
from lavinmq.auth.users import DIRECT_USER, User
from lavinmq.http.api.permissions import permission_rows, user_of
from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, found
from lavinmq.http.errors import ApiError, bad_request
from lavinmq.http.fields import Field
from lavinmq.http.handler import JSON
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES

DELETED_AT_ONCE: Final = 32
"""Users whose deletion is saved together."""


def row(call: Call, user: User) -> dict[str, Any]:
    """What is shown of a user."""
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing_algorithm,
        "tags": ",".join(user.tags),
        "limits": call.broker.user_limits.of(user.name),
    }


def _listing(call: Call, users: list[User]) -> Listing[User]:
    return Listing(users, lambda user: row(call, user), lambda user: user.name)


@ROUTES.list("/api/users")
def list_users(call: Call) -> Listing[User]:
    """List users."""
    return _listing(call, call.broker.users.all())


@ROUTES.list("/api/users/without-permissions")
async def list_users_without_permissions(call: Call) -> Listing[User]:
    """List users who may not connect to any virtual host."""
    users = call.broker.users.all()
    return _listing(call, [user async for user in in_portions(users) if not user.permissions])


@ROUTES.post(
    "/api/users/bulk-delete",
    {"users": Field("array", "Names of users", required=True, lax=True)},
    statuses=(204,),
)
async def delete_users(call: Call) -> Reply:
    """Delete several users; unknown ones are ignored."""
    names = call.body["users"]
    if not all(isinstance(name, str) for name in names):
        raise bad_request("Field 'users' must be array of user names")
    unique = list(dict.fromkeys(names))
    async for at in in_portions(range(0, len(unique), DELETED_AT_ONCE)):
        call.check_still()
        call.broker.accounts.delete_users(*unique[at : at + DELETED_AT_ONCE])
    return NO_CONTENT


@ROUTES.get("/api/users/:user")
def show_user(call: Call) -> dict[str, Any]:
    """Show a user."""
    return row(call, user_of(call))


@ROUTES.list("/api/users/:user/permissions")
async def list_user_permissions(call: Call) -> Listing[Any]:
    """List what a user may do."""
    wanted = user_of(call)
    return await permission_rows(call, lambda user, _vhost: user is wanted)


@ROUTES.put(
    "/api/users/:user",
    {
        "password": Field("string", "The password, in place of its hash"),
        "password_hash": Field("string", "Its salted hash; empty: no log-in", nullable=True),
        "hashing_algorithm": Field("string", "Of the hash: sha256, sha512, md5 or bcrypt"),
        "tags": Field("string", "Separated by commas; unknown ones are dropped"),
    },
    failures=(503,),
)
async def put_user(call: Call) -> Reply:
    """Create a user, or change one; what is left out stays."""
    name, body = call.path["user"], call.body
    if name == DIRECT_USER:
        raise bad_request("Illegal user name")
    call.check_room()
    try:
        if call.broker.users.get(name) is None:
            check_label("User", name)
        stored, algorithm, keys = body["password_hash"], body["hashing_algorithm"], None
        if stored is None and body["password"] is not None:
            stored, algorithm, keys = await _hashed(call, body["password"], name)
            call.check_still()
        await call.broker.accounts.clear(name)
        call.check_still()
        is_new = call.broker.accounts.put_user(
            name,
            password_hash=stored,
            hashing_algorithm=algorithm or passwords.DEFAULT_ALGORITHM,
            keys=keys,
            tags=None if body["tags"] is None else body["tags"].split(","),
        )
    except ValueError as error:
        raise bad_request(str(error)) from error
    return CREATED if is_new else NO_CONTENT


@ROUTES.delete("/api/users/:user")
def delete_user(call: Call) -> Reply:
    """Delete a user."""
    name = call.path["user"]
    found(call.broker.accounts.delete_users(name) or None, "user", name)
    return NO_CONTENT


@ROUTES.put(
    "/api/auth/hash_password",
    {"password": Field("string", "The password", required=True, lax=True)},
    statuses=(200,),
    content=JSON,
)
def hash_password(call: Call) -> dict[str, Any]:
    """Hash a password with salted SHA-256, which a user can be created with."""
    return {"password_hash": passwords.hash_password(call.body["password"].encode())}


async def _hashed(call: Call, password: str, name: str) -> PasswordHash:
    """Hash and algorithm for the password of a user: the present ones when it is the present one.

    The one place where the API hashes for good. Raises: ValueError; ApiError 503.
    """
    try:
        return await call.broker.accounts.hash_password(
            password.encode(), name, call.handler.address
        )
    except HashingBusy as error:
        raise ApiError(503, "service_unavailable", str(error)) from error
