"""Shovels: list, show, pause, resume. They are made of parameters, see `parameters.py`.

Source: docs/shovels.md, docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.errors import ApiError
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES, Query
from lavinmq.vhost.vhost import VHost

if TYPE_CHECKING:
    from lavinmq.shovel.shovel import Shovel
    from lavinmq.shovel.shovels import Shovels

COMPONENT: Final = "shovel"


def _shovels(call: Call) -> Shovels:
    links: Any = call.broker.shovels
    found: Shovels = links
    return found


def _row(call: Call, name: str, vhost: str) -> dict[str, Any]:
    shovel = _shovels(call).get(vhost, name)
    head = {"name": name, "vhost": vhost}
    if shovel is None:
        why = _shovels(call).why_not(vhost, name) or None
        return {**head, "state": "Error", "error": why, "message_count": 0}
    return {
        **head, "state": shovel.state, "error": shovel.error or None, **shovel.figures(),
        "last_error_at": round(shovel.error_at * 1000) if shovel.error_at is not None else None,
    }  # fmt: skip


def _listing(call: Call, vhosts: Iterable[VHost]) -> Listing[tuple[str, str]]:
    names = [
        (parameter.name, vhost.name)
        for vhost in vhosts
        for parameter in vhost.rules.parameters.all(COMPONENT)
    ]
    return Listing(names, lambda each: _row(call, *each), lambda each: each[0])


@ROUTES.list("/api/shovels")
def list_shovels(call: Call) -> Listing[tuple[str, str]]:
    """List shovels."""
    return _listing(call, call.visible_vhosts())


@ROUTES.list("/api/shovels/:vhost")
def list_shovels_of_vhost(call: Call) -> Listing[tuple[str, str]]:
    """List shovels of a virtual host."""
    return _listing(call, [call.vhost])


@ROUTES.get("/api/shovels/:vhost/:name", silent=(404,))
def show_shovel(call: Call) -> dict[str, Any]:
    """Show a shovel."""
    return _row(call, _named(call), call.vhost.name)


@ROUTES.add(
    "PUT", "/api/shovels/:vhost/:name/pause", silent=(404,), failures=(422,),
    query=(Query("force", "Also one that does not run: it waits for its next try", "boolean"),),
)  # fmt: skip
async def pause(call: Call) -> Reply:
    """Pause a shovel that runs, over restarts, too."""
    shovel = _shovel(call)
    if shovel.is_paused:
        raise _not_in_state(f"Shovel '{shovel.name}' is paused already")
    if shovel.state != "Running" and not call.flag("force"):
        raise _not_in_state(
            f"Shovel '{shovel.name}' is not running ({shovel.state}): force=true pauses it"
        )
    await _shovels(call).pause(call.vhost, shovel)
    return NO_CONTENT


@ROUTES.add("PUT", "/api/shovels/:vhost/:name/resume", silent=(404,), failures=(422,))
async def resume(call: Call) -> Reply:
    """Let a shovel that is paused go on."""
    shovel = _shovel(call)
    if not shovel.is_paused:
        raise _not_in_state(f"Shovel '{shovel.name}' is not paused")
    await _shovels(call).resume(call.vhost, shovel)
    return NO_CONTENT


def _shovel(call: Call) -> Shovel:
    """The shovel in the path. Raises: ApiError 404; 422 when its parameter cannot be one."""
    vhost, name = call.vhost.name, _named(call)
    shovel = _shovels(call).get(vhost, name)
    if shovel is None:
        why = _shovels(call).why_not(vhost, name)
        raise _not_in_state(f"Shovel '{name}' cannot run: {why}")
    return shovel


def _not_in_state(reason: str) -> ApiError:
    """422: it is paused, or not."""
    return ApiError(422, "unprocessable_entity", reason)


def _named(call: Call) -> str:
    """The name in the path, of a shovel that is there. Raises: ApiError 404."""
    shovel = call.vhost.rules.parameters.get(COMPONENT, call.path["name"])
    if shovel is None:
        raise ApiError(404)
    return shovel.name
