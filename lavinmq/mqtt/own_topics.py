"""The topics `$SYS/broker/...`: numbers of one virtual host, for who subscribes to them.

Nothing of them is stored: who subscribes gets what is so at that moment, and everybody who has
hears it again every few seconds. Wildcards at the beginning of a filter do not match them.
Source: MQTT 3.1.1 section 4.7.2; the names are those of Mosquitto.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Final, Protocol

from lavinmq import __version__, _core
from lavinmq.mqtt import filters

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.mqtt.stores import Stores
    from lavinmq.vhost.exchange import Exchange
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

PREFIX: Final = "$SYS/"


class Sessions(Protocol):
    """The sessions of one virtual host, as far as they are counted."""

    vhost: VHost
    exchange: Exchange
    stores: Stores

    @property
    def clients(self) -> Sized:
        """Those that are connected."""


def values(broker: Broker, sessions: Sessions) -> Iterator[tuple[str, str]]:
    """Topics below `$SYS/broker/` with what they say now."""
    vhost, retained = sessions.vhost, sessions.stores.retained
    messages, traffic = vhost.core.counters(), vhost.totals.traffic.counters()
    stored = [queue for queue in vhost.queues.values() if queue.is_session]
    yield "version", f"LavinMQ {__version__}"
    yield "uptime", f"{int(time.monotonic() - broker.started_at)} seconds"
    yield "clients/connected", str(len(sessions.clients))
    yield "clients/disconnected", str(max(len(stored) - len(sessions.clients), 0))
    yield "clients/total", str(len(stored))
    yield "subscriptions/count", str(len(sessions.exchange.bindings))
    yield "shared_subscriptions/count", str(len(sessions.exchange.members))
    yield "retained messages/count", str(0 if retained is None else len(retained))
    ready = str(sum(queue.core.ready for queue in stored))
    yield "messages/stored", ready
    yield "store/messages/count", ready
    yield "store/messages/bytes", str(sum(queue.core.ready_bytes for queue in stored))
    yield "messages/received", str(messages["publish"])
    yield "messages/sent", str(messages["deliver"] + messages["deliver_no_ack"])
    yield "bytes/received", str(traffic["recv_oct"])
    yield "bytes/sent", str(traffic["send_oct"])


def publish(broker: Broker, sessions: Sessions) -> Iterator[None]:
    """Say everything to who has subscribed, in short steps."""
    for name, value in values(broker, sessions):
        topic = f"{PREFIX}broker/{name}".encode()
        yield from _core.MqttPublish(
            broker.loop, sessions.exchange.core, topic, value.encode(), 0, False
        )
        yield


def give(broker: Broker, sessions: Sessions, text: str, queue: Queue, subscription_id: int) -> None:
    """Say what a topic filter matches to a session that has just subscribed."""
    for name, value in values(broker, sessions):
        topic = f"{PREFIX}broker/{name}"
        if filters.matches(text, topic):
            _core.mqtt_enqueue(
                queue.core, topic.encode(), value.encode(), 0, True,
                subscription_id=subscription_id,
            )  # fmt: skip
