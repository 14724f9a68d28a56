"""Serves readers of streams on a node that follows, if the operator wants that.

A broker of its own, which writes nothing, on a port of its own: it has the users and the streams of
the cluster as `view.py` shows them, and refuses everything else with words that name the leader. It
is there while the node follows, and a little longer. Before the node leads it has gone.
Source: docs/clustering.md, decision 0121.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lavinmq import _core
from lavinmq.amqp.connection import Connection
from lavinmq.broker import Broker
from lavinmq.cluster.host import NodeHost
from lavinmq.cluster.view import View
from lavinmq.errors import DefinitionsError, ReplyCode
from lavinmq.listeners.listener import Listener, Places, listeners
from lavinmq.listeners.tls import Contexts, TlsError
from lavinmq.process import log
from lavinmq.process.portions import SharedPortion

if TYPE_CHECKING:
    from lavinmq._cluster import Ring
    from lavinmq.cluster.following import Following
    from lavinmq.config.values import Config
    from lavinmq.integrity.keeper import Integrity
    from lavinmq.listeners.endpoints import Endpoints

TURN_S: Final = 0.1
SILENT_S: Final = 10.0
"""For which readers are served without a word of the leader: nobody knows whose rights have
changed meanwhile."""
AGAIN_S: Final = 1.0
GOODBYE_S: Final = 0.2
"""In which clients may answer that the node serves them no more."""
_log = log.get("lmq.reads")


def is_wanted(config: Config) -> bool:
    """Whether the operator wants followers to serve readers."""
    return config.clustering_reads_port >= 0 or config.clustering_reads_tls_port >= 0


class Reads:
    """The readers of one node, until `close`.

    Args: following: who follows the leader now; elsewhere: says who leads, for people; integrity:
        the sums of the files.
    """

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop, ring: Ring,
        following: Callable[[], Following | None], elsewhere: Callable[[], str],
        integrity: Integrity | None = None,
    ) -> None:  # fmt: skip
        self._config = config
        self._events = events
        self._ring = ring
        self._following = following
        self._elsewhere = elsewhere
        self._integrity = integrity
        self._served: _Served | None = None
        self._closing = asyncio.Lock()
        self._over = asyncio.Event()
        self._turn: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._why = "this node does not follow"
        self._said = ""

    async def run(self) -> None:
        """Serve, whenever that is possible."""
        while not self._over.is_set():
            self._turn = self._events.create_task(self._one_turn())
            await asyncio.wait([self._turn])
            error = None if self._turn.cancelled() else self._turn.exception()
            if self._over.is_set():
                return
            if error is None:
                await asyncio.sleep(TURN_S)
                continue
            why = str(error)
            if not isinstance(error, (LookupError, OSError, DefinitionsError, TlsError)):
                why = "a mistake of its own"
                _log.error("%s", why, exc_info=error)
            await self._shut(why)
            await asyncio.sleep(AGAIN_S)

    async def close(self, why: str) -> None:
        """Serve nobody any more: the files are the node's own again. Idempotent."""
        self._over.set()
        if self._turn is not None and not self._turn.done():
            self._turn.cancel()  # however much it has still to read
            await asyncio.wait([self._turn])
        await self._shut(why)

    def status(self) -> dict[str, Any]:
        """What there is to know of it, as JSON."""
        served = self._served
        is_serving = served is not None and served.is_listening
        return {
            "serving": is_serving,
            "position": None if served is None else served.view.at,
            "connections": 0 if served is None else len(served.broker.connections),
            "reason": "" if is_serving else self._why,
        }

    async def _one_turn(self) -> None:
        """Raises: LookupError, OSError, DefinitionsError, TlsError."""
        served, following = self._served, self._following()
        follower = following.follower if following is not None else None
        if following is None or follower is None or not following.is_joined:
            if time.monotonic() - self._heard_at > SILENT_S:
                await self._shut("this node does not follow the leader")
        elif served is not None and served.n_resets != self._ring.n_resets:
            await self._shut("the files of this node have been replaced")
        else:
            self._heard_at = time.monotonic()
            common = min(follower.common, follower.synced)
            if served is None and common:
                served = self._served = _Served(
                    self._config, self._events, self._ring, follower.applied, self._elsewhere,
                    self._integrity,
                )  # fmt: skip
                await served.know_sums()
            self._why = "it has not come to what all nodes have"
            if served is not None and common >= served.view.at:
                await served.view.step(common)
                if served.view.is_whole and not served.is_listening:
                    served.listen()
                    self._said = ""
            elif not common:
                self._why = "the leader does not say what all nodes have"

    async def _shut(self, why: str) -> None:
        """Send all readers away, and wait until they have gone, whoever does it."""
        async with self._closing:
            served, self._served = self._served, None
            self._why = why
            if served is None:
                return
            if why != self._said:
                _log.notice("serves no readers: %s", why)
            self._said = why
            await served.close(why)


class _Served:
    """A broker for readers, from the beginning of one picture of the files to its end.

    Args: at: position of the log of which all is in the files.
    """

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop, ring: Ring, at: int,
        elsewhere: Callable[[], str], integrity: Integrity | None,
    ) -> None:  # fmt: skip
        self.n_resets = ring.n_resets
        self._config = config
        self._listeners: list[Listener] = []
        self._timer: asyncio.TimerHandle | None = None
        self._host = NodeHost(events, config, Contexts(config), SharedPortion(events.call_soon))
        self.broker = Broker(config, events, _no_sync, _nothing)
        self.broker.loop.is_reading = True
        self.broker.refuses = elsewhere
        self.broker.is_started = True
        self._integrity = integrity
        if integrity is not None:
            integrity.observe(self.broker.loop)
            integrity.on_looked = lambda: events.call_soon_threadsafe(self.broker.read_again)
            # Damage is nothing to pass over: this node gets the file from its leader.
            _core.await_peers(self.broker.loop, True)
        self.view = View(self.broker, ring, config.data_dir, at)

    async def know_sums(self) -> None:
        """Have what is read compared from the beginning."""
        if self._integrity is not None:
            await self._host.events.run_in_executor(None, self._integrity.before_reading)

    @property
    def is_listening(self) -> bool:
        """Whether clients may come."""
        return bool(self._listeners)

    def listen(self) -> None:
        """Let clients come. Raises: OSError, TlsError."""
        config = self._config
        self.broker.chain.start()
        self._check()
        self._host.tls.load()
        places = Places(
            config.amqp_bind, config.clustering_reads_port, config.clustering_reads_tls_port, None
        )
        door = self.broker.newcomers
        for each in listeners(self._host, places, [], "amqp", self._welcome, door):
            self._listeners.append(each)
            each.start()
            kind = "AMQPS" if each.is_tls else "AMQP"
            _log.info("Listening for %s of readers on %s", kind, each.name)

    def _welcome(self, sock: socket.socket, ends: Endpoints) -> None:
        self.broker.welcome(Connection(self.broker, sock, ends))

    def _check(self) -> None:
        """Heartbeats and time-outs."""
        pause_s = 0.0 if self.broker.loop.check_links() else TURN_S
        self._timer = self._host.events.call_later(pause_s, self._check)

    async def close(self, why: str) -> None:
        """End all connections, and let go of everything."""
        broker = self.broker
        broker.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        while self._listeners:
            self._listeners.pop().close()
        for connection in list(broker.connections):
            connection.expel(ReplyCode.CONNECTION_FORCED, why)
        try:
            ends_at = time.monotonic() + GOODBYE_S
            while broker.connections and time.monotonic() < ends_at:
                await asyncio.sleep(0.01)
        finally:
            self._let_go()
            await broker.chain.stop()

    def _let_go(self) -> None:
        """Send nothing, and read nothing, any more."""
        broker = self.broker
        while broker.connections:
            broker.connections.popitem()[0].abandon()
        broker.loop.stop()
        if self._integrity is not None:
            self._integrity.leave(broker.loop)
        for vhost in list(broker.vhosts):
            broker.vhosts.drop_view(vhost)


def _no_sync(path: str, error: int) -> None:
    """Nothing is written, so there is nothing to sync."""
    _log.error("%s: %s", path, os.strerror(error))


def _nothing() -> None:
    """The last client has gone: nobody waits for that."""
