"""The sessions of one virtual host: who is connected by which identifier, and what outlives that.

A session is a queue `mqtt.<client id>`, durable when it is kept without its client; how long is its
argument `x-expires`. So lists, policies and limits know it, and a restart finds it. Subscriptions
are in `subscriptions.py`. Made with the first client; on the loop's thread.
Source: MQTT 5.0 section 4.1; docs/mqtt.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lavinmq import _core
from lavinmq.errors import ChannelError
from lavinmq.fieldtable import FieldTable
from lavinmq.mqtt.connect import NEVER
from lavinmq.mqtt.subscriptions import Subscriptions
from lavinmq.mqtt.wills import Testament, Wills
from lavinmq.process import log
from lavinmq.vhost.subscribing import EXCHANGE, PREFIX, SHARE

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.vhost.new_queue import Declared
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

_EXPIRES: Final = "x-expires"
_TYPE: Final = {"x-queue-type": "mqtt"}


class Client(Protocol):
    """Who holds a session."""

    def take_over(self) -> None:
        """Somebody else has come with the same identifier: let go of the session at once."""


class Sessions:
    """The sessions of one virtual host."""

    def __init__(self, broker: Broker, vhost: VHost) -> None:
        self.vhost = vhost
        self.exchange = vhost.exchanges[EXCHANGE]
        self.subscriptions = Subscriptions(vhost, self.exchange)
        self.clients: dict[str, Client] = {}
        self.wills = Wills(broker.events, self._publish)
        self._broker = broker
        self._log = log.get("lmq.mqtt", vhost=vhost.name)
        for queue in vhost.queues.values():
            if queue.is_session and queue.is_stored:
                self._limit(queue)

    def _limit(self, queue: Queue) -> None:
        """A session that a start has found: those of LavinMQ say nothing of their end."""
        if _EXPIRES not in queue.arguments and not queue.name.startswith(PREFIX + SHARE):
            self.set_expiry(queue, NEVER)

    def find(self, client_id: str) -> Queue | None:
        """The session of a client, if there is one."""
        return self.vhost.queues.get(PREFIX + client_id)

    def granted_s(self, wanted_s: int) -> int:
        """The seconds that a session may be kept for which a client wants so many."""
        return min(wanted_s, self._broker.config.mqtt_max_session_expiry)

    def make(self, client_id: str, expiry_s: int) -> Declared:
        """A new session. Raises: ChannelError."""
        return self.vhost.declare_session(
            PREFIX + client_id, expiry_s > 0, _arguments(self.granted_s(expiry_s))
        )

    def set_expiry(self, queue: Queue, expiry_s: int) -> bool:
        """A session is to be kept for so long. Returns: whether that was recorded."""
        try:
            return self.vhost.change_session(queue, _arguments(self.granted_s(expiry_s)))
        except ChannelError as error:
            self._log.error("session %r: %s", queue.name, error)
            return False

    def end(self, client_id: str) -> None:
        """The session ends, with all that is in it; its will is due if it waits."""
        queue = self.find(client_id)
        if queue is not None:
            self.remove(queue)
        self.wills.release(client_id)

    def remove(self, queue: Queue) -> None:
        """Take a session away."""
        try:
            self.vhost.remove_queue(queue)
        except ChannelError as error:
            self._log.error("session %r stays: %s", queue.name, error)

    def _publish(self, testament: Testament) -> None:
        """Publish a will, if its author may."""
        will = testament.will
        if not testament.may_publish(will.topic):
            self._log.info("will of %r is dropped: not allowed", testament.client_id)
            return
        if self._broker.loop.is_held:
            self._log.warning("will of %r is dropped: low on disk", testament.client_id)
            return
        topic, expiry_s = will.topic.encode(), -1 if will.expiry_s is None else will.expiry_s
        _core.mqtt_publish(
            self._broker.loop, self.exchange.core, topic, will.payload, will.qos, will.retain,
            will.properties, expiry_s,
        )  # fmt: skip


def _arguments(expiry_s: int) -> FieldTable:
    """The arguments of a session that is kept for so many seconds."""
    if expiry_s in (0, NEVER):
        return FieldTable(_TYPE)
    return FieldTable({**_TYPE, _EXPIRES: expiry_s * 1000})
