"""Consumers: list, cancel. Source: docs/http-api.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lavinmq.http.api import connections
from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.errors import ApiError
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES
from lavinmq.mqtt.connection import Connection as MqttConnection
from lavinmq.mqtt.connection import Consumer as MqttConsumer

if TYPE_CHECKING:
    from lavinmq.amqp.channel import Channel, Consumer
    from lavinmq.http.clients import Client
    from lavinmq.vhost.queue import Queue

    Place = tuple[Queue, Consumer | MqttConsumer]


def row(queue: Queue, consumer: Consumer | MqttConsumer) -> dict[str, Any]:
    """What is shown of a consumer."""
    if isinstance(consumer, MqttConsumer):
        return _mqtt_row(queue, consumer.connection)
    channel = consumer.channel
    connection = channel.connection
    return {
        "queue": {"name": queue.name, "vhost": connection.vhost.name},
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


def _mqtt_row(queue: Queue, connection: MqttConnection) -> dict[str, Any]:
    """The same of a client of MQTT, which has no channel, and no tag but its identifier."""
    return {
        "queue": {"name": queue.name, "vhost": connection.vhost.name},
        "consumer_tag": connection.client_id,
        "exclusive": False,
        "ack_required": True,
        "prefetch_count": connection.receive_maximum,
        "priority": 0,
        "channel_details": {
            **connections.peer_of(connection),
            "connection_name": connection.name,
            "user": connection.user.name,
            "number": 0,
            "name": connection.name,
        },
    }


def _of_connections(several: Iterable[Client]) -> Iterator[Place]:
    """The consumers of connections, while they may change: one may have any number."""
    for connection in several:
        if isinstance(connection, MqttConnection):
            yield from list(connection.consumers)
            continue
        for channel in list(connection.channels.values()):
            for consumer in of_channel(channel):
                yield consumer.queue, consumer


def _tag(consumer: Consumer | MqttConsumer) -> str:
    if isinstance(consumer, MqttConsumer):
        return consumer.connection.client_id
    return consumer.tag


def of_channel(channel: Channel) -> Iterator[Consumer]:
    """The consumers of a channel, without one for direct replies: its address is a secret."""
    return (each for each in list(channel.consumers.values()) if not each.is_for_replies)


async def listed(call: Call, vhost: str | None = None) -> Listing[Place]:
    """A list of the consumers that the caller may see."""
    found = _of_connections(await connections.visible(call, vhost))
    return Listing(
        found, lambda place: row(*place), lambda place: _tag(place[1]), exact=True
    )  # fmt: skip


@ROUTES.list("/api/consumers")
async def list_consumers(call: Call) -> Listing[Place]:
    """List consumers."""
    return await listed(call)


@ROUTES.list("/api/consumers/:vhost")
async def list_consumers_of_vhost(call: Call) -> Listing[Place]:
    """List consumers of a virtual host."""
    return await listed(call, call.path["vhost"])


@ROUTES.delete("/api/consumers/:vhost/:connection/:channel/:consumer_tag", silent=(404,))
def cancel_consumer(call: Call) -> Reply:
    """Cancel a consumer; its client is told with basic.cancel."""
    if not call.channel.cancel(call.path["consumer_tag"]):
        raise ApiError(404)
    return NO_CONTENT
