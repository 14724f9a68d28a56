"""Shovels: list, show, pause, resume. This release keeps them and runs none, and each says so.

Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NoReturn

from lavinmq.http.call import Call
from lavinmq.http.errors import ApiError
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES
from lavinmq.vhost.vhost import VHost

COMPONENT: Final = "shovel"
NOT_RUN: Final = "Shovels are not run by this release: nothing moves messages"


def _row(name: str, vhost: str) -> dict[str, Any]:
    return {"name": name, "vhost": vhost, "state": "Error", "error": NOT_RUN, "message_count": 0}


def _listing(vhosts: Iterable[VHost]) -> Listing[tuple[str, str]]:
    shovels = [
        (parameter.name, vhost.name)
        for vhost in vhosts
        for parameter in vhost.rules.parameters.all(COMPONENT)
    ]
    return Listing(shovels, lambda each: _row(*each), lambda each: each[0])


@ROUTES.list("/api/shovels")
def list_shovels(call: Call) -> Listing[tuple[str, str]]:
    """List shovels."""
    return _listing(call.visible_vhosts())


@ROUTES.list("/api/shovels/:vhost")
def list_shovels_of_vhost(call: Call) -> Listing[tuple[str, str]]:
    """List shovels of a virtual host."""
    return _listing([call.vhost])


@ROUTES.get("/api/shovels/:vhost/:name", silent=(404,))
def show_shovel(call: Call) -> dict[str, Any]:
    """Show a shovel."""
    return _row(_named(call), call.vhost.name)


@ROUTES.add(
    "PUT", "/api/shovels/:vhost/:name/pause", statuses=(), silent=(404, 422)
)  # fmt: skip
def pause(call: Call) -> NoReturn:
    """Pause a shovel that runs: none does."""
    _named(call)
    raise ApiError(422)


@ROUTES.add(
    "PUT", "/api/shovels/:vhost/:name/resume", statuses=(), silent=(404, 422)
)  # fmt: skip
def resume(call: Call) -> NoReturn:
    """Resume a shovel that is paused: none is."""
    _named(call)
    raise ApiError(422)


def _named(call: Call) -> str:
    """The name in the path, of a shovel that is there. Raises: ApiError 404."""
    shovel = call.vhost.rules.parameters.get(COMPONENT, call.path["name"])
    if shovel is None:
        raise ApiError(404)
    return shovel.name
