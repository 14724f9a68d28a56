"""Consumers, as they are shown. Source: HTTP reference, section 9."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lavinmq.amqp.channel import Consumer


def row(consumer: Consumer) -> dict[str, Any]:
    """What is shown of a consumer."""
    channel = consumer.channel
    connection = channel.connection
    peer = connection.name.partition(" -> ")[0]
    host, _, port = peer.rpartition(":")
    return {
        "queue": {"name": consumer.queue.name, "vhost": connection.vhost.name},
        "consumer_tag": consumer.tag,
        "exclusive": consumer.exclusive,
        "ack_required": not consumer.core.is_no_ack,
        "prefetch_count": consumer.core.prefetch,
        "priority": consumer.priority,
        "channel_details": {
            "peer_host": host.strip("[]"),
            "peer_port": int(port) if port.isdecimal() else 0,
            "connection_name": connection.name,
            "user": connection.user.name,
            "number": channel.id,
            "name": f"{peer}[{channel.id}]",
        },
    }
