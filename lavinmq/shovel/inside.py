"""A connection of a shovel to its own broker: AMQP over a pair of sockets, as the internal user.

What it may touch was checked when the parameter was set. Source: docs/shovels.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from lavinmq.amqp.connection import welcome_socket
from lavinmq.auth.users import DIRECT_USER
from lavinmq.client.errors import ClientConnectionError, ConnectionLost
from lavinmq.client.link import Link
from lavinmq.client.sockets import Sockets
from lavinmq.listeners.endpoints import UNIX

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.places import Place


async def open_inside(broker: Broker, sockets: Sockets, place: Place, name: str) -> Link:
    """Connect and shake hands. Raises: ClientConnectionError and the like."""
    if not broker.is_serving:
        raise ClientConnectionError("the broker is stopping")
    config = place.config
    target = replace(
        place.target, user=DIRECT_USER, password=broker.users.direct_password, vhost=place.vhost
    )
    loop = asyncio.get_running_loop()
    link = Link(config, target, loop, name)
    ours, theirs = socket.socketpair()
    address = (UNIX.peer_host, UNIX.peer_port)
    try:
        welcome_socket(broker, theirs, address, address, is_loopback=True)
        async with asyncio.timeout(config.connect_timeout):
            sockets.add(link, ours)
            await link.open()
    except TimeoutError:
        link.end(ConnectionLost("given up"))
        raise ClientConnectionError("the broker did not answer itself in time") from None
    except BaseException as error:
        link.end(error if isinstance(error, Exception) else ConnectionLost("given up"))
        with contextlib.suppress(OSError):
            ours.close()
        raise
    return link
