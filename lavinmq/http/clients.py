"""The clients of a broker as management sees them, whatever they speak, and sessions of MQTT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from lavinmq.amqp.connection import Connection as AmqpConnection
from lavinmq.mqtt.connection import Connection as MqttConnection
from lavinmq.mqtt.connection import Consumer as MqttConsumer
from lavinmq.vhost.subscribing import PREFIX, SHARE

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.mqtt.sessions import Sessions
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

Client = AmqpConnection | MqttConnection


def clients(broker: Broker) -> list[Client]:
    """All sessions of a broker, in the order of their coming."""
    return [each for each in broker.connections if isinstance(each, Client)]


def mqtt_clients(broker: Broker) -> list[MqttConnection]:
    """Those that speak MQTT."""
    return [each for each in broker.connections if isinstance(each, MqttConnection)]


def is_shared(queue: Queue) -> bool:
    """Whether the queue of a session is that of a shared subscription."""
    return queue.name.startswith(PREFIX + SHARE)


def sessions_in(vhost: VHost) -> Iterator[Queue]:
    """The sessions of clients, whether these are there or not."""
    return (each for each in list(vhost.queues.values()) if each.is_session and not is_shared(each))


def shared_in(vhost: VHost) -> Iterator[Queue]:
    """The shared subscriptions."""
    return (each for each in list(vhost.queues.values()) if each.is_session and is_shared(each))


def client_of(queue: Queue) -> MqttConnection | None:
    """Who is there in a session."""
    for consumer in queue.consumers:
        if isinstance(consumer, MqttConsumer) and consumer.connection.is_member:
            return consumer.connection
    return None


def sessions_of(broker: Broker, vhost: VHost) -> Sessions | None:
    """What MQTT knows of a virtual host; None when no client has been there."""
    return None if broker.mqtt is None else cast("Sessions | None", broker.mqtt.known(vhost))
