"""Limits of virtual hosts and of users: list, set, take away.

Source: docs/policies.md.
"""

from __future__ import annotations

from typing import Any, Final

from lavinmq.http.api.permissions import user_of
from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.errors import bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES
from lavinmq.policy.limits import USER_LIMITS, VHOST_LIMITS
from lavinmq.vhost.vhost import VHost

FIELDS: Final = {"value": Field("integer", "How many; a negative number: any number", True)}


def _vhost_limits(vhosts: list[VHost]) -> Listing[VHost]:
    return Listing(
        [vhost for vhost in vhosts if vhost.rules.limits.all()],
        lambda vhost: {"vhost": vhost.name, "value": vhost.rules.limits.all()},
        lambda vhost: vhost.name,
    )


@ROUTES.list("/api/vhost-limits")
def list_vhost_limits(call: Call) -> Listing[VHost]:
    """List virtual hosts that have limits."""
    return _vhost_limits(call.visible_vhosts())


@ROUTES.list("/api/vhost-limits/:vhost")
def show_vhost_limits(call: Call) -> Listing[VHost]:
    """Show the limits of a virtual host."""
    return _vhost_limits([call.vhost])


@ROUTES.put("/api/vhost-limits/:vhost/:limit", FIELDS, statuses=(204,))
def put_vhost_limit(call: Call) -> Reply:
    """Set a limit of a virtual host: max-connections or max-queues."""
    call.vhost.rules.limits.set(_limit(call, VHOST_LIMITS), call.body["value"])
    return NO_CONTENT


@ROUTES.delete("/api/vhost-limits/:vhost/:limit")
def delete_vhost_limit(call: Call) -> Reply:
    """Take a limit from a virtual host."""
    call.vhost.rules.limits.clear(_limit(call, VHOST_LIMITS))
    return NO_CONTENT


def _user_limits(limits: dict[str, dict[str, int]]) -> Listing[Any]:
    return Listing(
        limits.items(), lambda each: {"user": each[0], "value": each[1]}, lambda each: each[0]
    )


@ROUTES.list("/api/user-limits")
def list_user_limits(call: Call) -> Listing[Any]:
    """List users who have limits."""
    broker = call.broker
    limits = broker.user_limits.all().items()
    return _user_limits({name: each for name, each in limits if broker.users.get(name) is not None})


@ROUTES.list("/api/user-limits/:user")
def show_user_limits(call: Call) -> Listing[Any]:
    """Show the limits of a user."""
    name = user_of(call).name
    limits = call.broker.user_limits.of(name)
    return _user_limits({name: limits} if limits else {})


@ROUTES.put("/api/user-limits/:user/:limit", FIELDS, statuses=(204,))
def put_user_limit(call: Call) -> Reply:
    """Set a limit of a user: max-connections or max-channels."""
    name = user_of(call).name
    call.broker.user_limits.set(name, _limit(call, USER_LIMITS), call.body["value"])
    return NO_CONTENT


@ROUTES.delete("/api/user-limits/:user/:limit")
def delete_user_limit(call: Call) -> Reply:
    """Take a limit from a user."""
    call.broker.user_limits.set(user_of(call).name, _limit(call, USER_LIMITS), -1)
    return NO_CONTENT


def _limit(call: Call, known: tuple[str, ...]) -> str:
    """The limit of the path. Raises: ApiError 400."""
    limit = call.path["limit"]
    if limit not in known:
        raise bad_request(f"Unknown limit '{limit}'; one of {', '.join(known)}")
    return limit
