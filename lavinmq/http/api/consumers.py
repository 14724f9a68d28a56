"""Consumers: list, cancel. Source: docs/http-api.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lavinmq.http.api import connections
from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.errors import ApiError
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES

if TYPE_CHECKING:
    from lavinmq.amqp.channel import Channel, Consumer


def row(consumer: Consumer) -> dict[str, Any]:
    """What is shown of a consumer."""
    channel = consumer.channel
    connection = channel.connection
    return {
        "queue": {"name": consumer.queue.name, "vhost": connection.vhost.name},
        "consumer_tag": consumer.tag,
        "exclusive": consumer.exclusive,
        "ack_required": not consumer.no_ack,
        "prefetch_count": consumer.core.prefetch,
        "priority": consumer.priority,
        "channel_details": {
            **connections.peer_of(connection),
            "connection_name": connection.name,
            "user": connection.user.name,
            "number": channel.id,
            "name": channel.name,
        },
    }


def of_channel(channel: Channel) -> Iterator[Consumer]:
    """The consumers of a channel, without one for direct replies: its address is a secret."""
    return (each for each in channel.consumers.values() if not each.is_for_replies)


async def listed(call: Call, vhost: str | None = None) -> Listing[Consumer]:
    """A list of the consumers that the caller may see."""
    found = [
        consumer
        async for connection in in_portions(await connections.visible(call, vhost))
        for channel in connection.channels.values()
        for consumer in of_channel(channel)
    ]
    return Listing(found, row, lambda consumer: consumer.tag, exact=True)


@ROUTES.list("/api/consumers")
async def list_consumers(call: Call) -> Listing[Consumer]:
    """List consumers."""
    return await listed(call)


@ROUTES.list("/api/consumers/:vhost")
async def list_consumers_of_vhost(call: Call) -> Listing[Consumer]:
    """List consumers of a virtual host."""
    return await listed(call, call.path["vhost"])


@ROUTES.delete("/api/consumers/:vhost/:connection/:channel/:consumer_tag", silent=(404,))
def cancel_consumer(call: Call) -> Reply:
    """Cancel a consumer; its client is told with basic.cancel."""
    if not call.channel.cancel(call.path["consumer_tag"]):
        raise ApiError(404)
    return NO_CONTENT
