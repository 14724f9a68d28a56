"""Subscriptions `$queue/NAME`: a client of MQTT takes messages from a queue or a stream of AMQP.

It is a consumer like others there, as long as it is connected; rights are those of basic.consume.
Of a stream it goes on behind what it has acknowledged. Source: docs/mqtt.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lavinmq import _core
from lavinmq.arguments.names import refused
from lavinmq.vhost import rights
from lavinmq.vhost.subscribing import QUEUE, Options

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost


class Client(Protocol):
    """Who takes."""

    user: Identity
    vhost: VHost
    link: _core.MqttLink

    @property
    def client_id(self) -> str:
        """What it calls itself."""


def queue_of(text: str) -> str | None:
    """The name in `$queue/NAME`; None of any other topic filter."""
    return text[len(QUEUE) :] if text.startswith(QUEUE) else None


def check(client: Client, name: str, qos: int) -> Queue:
    """The queue that a client wants to take from. Raises: ChannelError."""
    vhost = client.vhost
    if not client.user.can_read(vhost.name, name):
        raise refused(f"User '{client.user.name}' doesn't have permissions to queue '{name}'")
    queue = vhost.queues.get(name)
    if queue is None:
        raise refused(f"Queue '{name}' not declared in vhost '{vhost.name}'")
    rights.check_usable(vhost.name, queue)
    if queue.is_locked_to(client):  # type: ignore[arg-type]  # it owns no queue
        raise rights.locked(vhost.name, queue)
    if queue.has_exclusive_consumer:
        raise refused(f"Queue '{name}' in vhost '{vhost.name}' in exclusive use")
    if queue.is_stream and not qos:
        raise refused(f"Stream '{name}' in vhost '{vhost.name}' is read with QoS 1 or 2")
    return queue


def take(client: Client, name: str, options: Options) -> tuple[Queue, _core.Consumer]:
    """A consumer that has not started, and what it takes from. Raises: ChannelError."""
    queue = check(client, name, options.qos)
    raw = client.client_id.encode(errors="surrogateescape")
    core = client.link.mqtt_take(queue.core, raw, options.qos, options.subscription_id)
    if queue.is_stream:
        core.read_stream("next", is_tracked=True, uses_stored=True)
    return queue, core
