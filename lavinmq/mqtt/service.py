"""MQTT for a whole broker: takes clients over from listeners, and has the sessions of each virtual
host.

Made by the server; found by who carries MQTT inside something else in `Broker.welcomes`. On the
loop's thread.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lavinmq.mqtt import own_topics
from lavinmq.mqtt.connection import Connection
from lavinmq.mqtt.sessions import Sessions
from lavinmq.mqtt.stores import Gifts, Looks, Stores
from lavinmq.process import log
from lavinmq.process.portions import Portions, SharedPortion, in_portions

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.listeners.endpoints import Endpoints
    from lavinmq.mqtt.owners import Names
    from lavinmq.vhost.vhost import VHost


ASKED_S: Final = 10.0
"""Between two looks at the setting, when it says that nothing is to be told."""
MOST_NAMED: Final = 10
"""Virtual hosts in one line of the log."""
_log = log.get("lmq.mqtt")


class Service:
    """MQTT of one broker.

    Args: portion: of each turn, for all who arrive: what their packets ask for is done in it, too.
    """

    def __init__(self, broker: Broker, portion: SharedPortion) -> None:
        self.broker = broker
        self.works = Portions(broker.events.call_soon, portion)
        self._sessions: dict[str, Sessions] = {}
        self.gifts = Gifts(broker.events)
        self._timer: asyncio.TimerHandle | None = None
        self._looks = Looks(broker.events, self._stores)
        broker.welcomes["mqtt"] = self.welcome
        broker.revocation.also.append(self._review)
        broker.mqtt = self

    def start(self) -> None:
        """All virtual hosts are loaded: take care of the sessions that are there."""
        for vhost in self.broker.vhosts.values():
            self.of(vhost).restore()
        self._tell_islands()
        self._looks.start()
        self._say()

    def _tell_islands(self) -> None:
        """Say in the log where the exchange that was to share its topics with MQTT is missing."""
        islands: dict[str, list[str]] = {}
        for vhost in self.broker.vhosts.values():
            if vhost.bridge.is_missing:
                islands.setdefault(vhost.bridge.exchange, []).append(repr(vhost.name))
        for exchange, names in islands.items():
            rest = len(names) - MOST_NAMED
            _log.warning(
                "MQTT and AMQP share no topics in virtual hosts %s: there is no topic exchange %r",
                ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else ""), exchange,
            )  # fmt: skip

    def _review(self, names: Names) -> Iterator[None]:
        for sessions in list(self._sessions.values()):
            if not sessions.stores.are_over():
                yield from sessions.review(names)

    def _say(self) -> None:
        """Every few seconds: tell numbers to who has subscribed to them."""
        interval_s = self.broker.config.mqtt_sys_interval
        if interval_s:
            in_portions(self.broker.events.call_soon, self._saying())
        self._timer = self.broker.events.call_later(interval_s or ASKED_S, self._say)

    def _saying(self) -> Iterator[None]:
        for sessions in list(self._sessions.values()):
            if not sessions.clients or sessions.stores.are_over():
                continue
            for _ in own_topics.publish(self.broker, sessions):
                yield
                if sessions.stores.are_over():
                    break

    def _stores(self) -> list[Stores]:
        self._forget_deleted()
        return [each.stores for each in self._sessions.values()]

    def stop(self) -> None:
        """All clients have gone, and queues are written next: publish the wills that are due, and
        those that wait which the next start would not know."""
        for sessions in self._sessions.values():
            if not sessions.stores.are_over():
                sessions.wills.release_all()

    def close(self) -> None:
        """All is written: let go of what is in files."""
        for sessions in self._sessions.values():
            sessions.stores.close()

    def release(self) -> None:
        """Nothing happens by time any more. Idempotent."""
        self._looks.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sessions in self._sessions.values():
            sessions.wills.stop()

    def of(self, vhost: VHost) -> Sessions:
        """The sessions of a virtual host."""
        found = self._sessions.get(vhost.name)
        if found is None or found.vhost is not vhost:
            self._forget_deleted()
            found = self._sessions[vhost.name] = Sessions(self.broker, vhost, self.works)
        return found

    def known(self, vhost: VHost) -> Sessions | None:
        """The same, if there are any."""
        found = self._sessions.get(vhost.name)
        return found if found is not None and found.vhost is vhost else None

    def _forget_deleted(self) -> None:
        """Let go of what clients had in virtual hosts that are deleted: not before the last of them
        has left, which writes to these files as it goes."""
        for name, sessions in list(self._sessions.items()):
            if sessions.vhost.is_abandoned:
                sessions.wills.stop()
                sessions.stores.release()
                del self._sessions[name]

    def welcome(self, sock: socket.socket, ends: Endpoints) -> None:
        """A client has come, over whatever way."""
        self.broker.welcome(Connection(self, sock, ends))
