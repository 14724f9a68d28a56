"""Connections, and what is in them, that a path names: found for those only who may have them.

That is their own user, whoever watches the broker to look at them, an administrator to change them.
Called by the handler for every endpoint whose row in `table.py` says so, before the body is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from lavinmq.http.access.table import Owned, Role
from lavinmq.http.clients import clients
from lavinmq.http.errors import ApiError, access_refused, not_found
from lavinmq.http.listing import in_portions

if TYPE_CHECKING:
    from lavinmq.amqp.channel import Channel
    from lavinmq.http.call import Call
    from lavinmq.http.clients import Client

MAX_DIGITS = 5
"""Of the number of a channel."""


async def find(call: Call) -> None:
    """Find what the row of the endpoint calls owned: `call.connection`, `call.channel`.

    Raises: ApiError 404 when it is not there, 403 when it is somebody else's.
    """
    match call.route.row.owned:
        case Owned.USERNAME:
            if not _may_have(call, call.path["username"]):
                raise access_refused()
        case Owned.CONNECTION:
            name = call.path["name"]
            async for connection in _named(call, name):
                call.connection = connection
                return
            raise not_found(f"Connection {name} does not exist")
        case Owned.CHANNEL:
            call.channel = await _channel(call)
        case Owned.CONSUMER:
            call.channel = await _channel_of_consumer(call)


def _may_have(call: Call, owner: str) -> bool:
    others = Role.ADMINISTRATOR if call.route.is_change else Role.MONITORING
    return owner == call.user.name or call.has_role(others)


async def _named(call: Call, name: str, *, is_peer: bool = False) -> AsyncIterator[Client]:
    """Connections of a name, of which unix sockets may have several. Raises: ApiError 403 at the
    end when there were only those of others; what the caller does not see in lists is not there.

    Args: is_peer: the name is that of the client's end alone.
    """
    n_refused = n_found = 0
    only = call.path.get("vhost")
    visible = {vhost.name for vhost in call.visible_vhosts()} if only is None else {only}
    # In portions, because there may be very many.
    async for connection in in_portions(clients(call.broker)):
        given = connection.name.partition(" -> ")[0] if is_peer else connection.name
        if given != name or not connection.is_member:
            continue
        if _may_have(call, connection.user.name):
            n_found += 1
            yield connection
        elif connection.vhost.name in visible:
            n_refused += 1
    if n_refused and not n_found:
        raise access_refused()


async def _channel(call: Call) -> Channel:
    name = call.path["name"]
    peer, _, number = name.removesuffix("]").rpartition("[")
    if peer and number.isdecimal() and len(number) <= MAX_DIGITS and name.endswith("]"):
        async for connection in _named(call, peer, is_peer=True):
            channel = connection.channels.get(int(number))
            if channel is not None and not channel.is_over:
                return channel
    raise not_found(f"Channel {name} does not exist")


async def _channel_of_consumer(call: Call) -> Channel:
    number, tag = call.path["channel"], call.path["consumer_tag"]
    if number.isdecimal() and len(number) <= MAX_DIGITS:
        async for connection in _named(call, call.path["connection"]):
            channel = connection.channels.get(int(number))
            if channel is None or channel.is_over or connection.vhost is not call.vhost:
                continue
            if tag in channel.consumers:
                return channel
    raise ApiError(404)
