"""The clients of a broker as management sees them, whatever they speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lavinmq.amqp.connection import Connection as AmqpConnection
from lavinmq.mqtt.connection import Connection as MqttConnection

if TYPE_CHECKING:
    from lavinmq.broker import Broker

Client = AmqpConnection | MqttConnection


def clients(broker: Broker) -> list[Client]:
    """All sessions of a broker, in the order of their coming."""
    return [each for each in broker.connections if isinstance(each, Client)]
