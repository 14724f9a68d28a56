"""Subscriptions `$queue/NAME`: a client of MQTT takes messages from a queue or a stream of AMQP.

It is a consumer like others there, as long as it is connected; rights are those of basic.consume.
Of a stream it goes on behind what it has acknowledged. Source: docs/mqtt.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lavinmq import _core
from lavinmq.arguments.names import refused
from lavinmq.vhost import rights
from lavinmq.vhost.subscribing import QUEUE, Options

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

MOST_NAME: Final = 255
"""Bytes of the name of a queue."""


class Client(Protocol):
    """Who takes."""

    user: Identity
    vhost: VHost
    client_id: str
    link: _core.MqttLink


def queue_of(text: str) -> str | None:
    """The name in `$queue/NAME`; None of any other topic filter."""
    return text[len(QUEUE) :] if text.startswith(QUEUE) else None


class Taker:
    """A consumer of a queue of AMQP, as its queue knows it. `ended` is called when that goes."""

    __slots__ = ("core", "queue")

    exclusive: Final = False

    def __init__(self, queue: Queue, core: _core.Consumer) -> None:
        self.queue = queue
        self.core = core

    @property
    def tag(self) -> str:
        """By what lists know it."""
        return self.core.tag.decode(errors="replace")

    def start(self) -> None:
        """Its turn has come."""
        self.core.start()

    def stop(self) -> None:
        """The queue is gone: the client stays subscribed, to one that may come."""
        self.core.cancel()

    def cancelled(self) -> None:
        """A client of MQTT has no way to hear of it."""


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


def take(client: Client, name: str, options: Options) -> Taker:
    """Begin to take. Raises: ChannelError."""
    queue = check(client, name, options.qos)
    raw = client.client_id.encode(errors="surrogateescape")
    core = client.link.mqtt_take(queue.core, raw, options.qos, options.subscription_id)
    if queue.is_stream:
        core.read_stream("next", is_tracked=True, uses_stored=True)
    taker = Taker(queue, core)
    queue.add_consumer(taker)
    if not queue.is_single_active or queue.active_consumer is taker:
        taker.start()
    return taker
