"""Lets clients come to a follower: copies bytes between them and the leader.

Runs on the follower's event loop. It listens where the node's own configuration says, asks for each
client who leads, and writes a PROXY header in front of what the client sends, so that the leader
knows its address. TLS is the leader's affair: its bytes pass like all others.
Source: docs/listeners.md.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from lavinmq.cluster.host import NodeHost
from lavinmq.cluster.relay import Relay, new_block
from lavinmq.config.values import defaults
from lavinmq.listeners.endpoints import UNIX, is_loopback
from lavinmq.listeners.listener import Listener
from lavinmq.listeners.proxy_protocol import header_v2
from lavinmq.listeners.tls import Contexts
from lavinmq.process import log
from lavinmq.process.portions import SharedPortion

if TYPE_CHECKING:
    from lavinmq.config.values import Config
    from lavinmq.listeners.endpoints import Endpoints
    from lavinmq.listeners.newcomers import Newcomer
    from lavinmq.listeners.tls import Protocol

CONNECT_S: Final = 5.0
"""How long the leader may take to accept a connection."""
REFUSAL_S: Final = 5.0
"""How long a client of HTTP may take to ask, and to take its refusal."""
LOGGED_EVERY_S: Final = 60.0
NO_LEADER: Final = "this node follows, and no leader is known"
UNREACHABLE: Final = "this node follows, and the leader cannot be reached"
_log = log.get("lmq.proxy")


class Target(NamedTuple):
    """Where the leader listens for a protocol."""

    host: str
    port: int


class Door(NamedTuple):
    """Where clients of a protocol come in: at an address, or at a unix socket."""

    protocol: str
    """`amqp`, `amqps`, `mqtt`, `mqtts`, `http` or `https`."""
    bind: str
    port: int
    path: str = ""
    """Of a unix socket."""


class Proxy:
    """Copies bytes between clients of this node and the leader.

    Args: target: says where the leader listens for a protocol, None: nobody knows; most: how many
        clients there may be; config: the node's, for what its sockets are set to and whether a
        proxy stands before it. None: as a node that was told nothing.
    """

    def __init__(
        self, events: asyncio.AbstractEventLoop, doors: Sequence[Door],
        target: Callable[[str], Target | None], *, most: int, config: Config | None = None,
    ) -> None:  # fmt: skip
        self._events = events
        self._doors = tuple(doors)
        self._target = target
        config = config or defaults()
        self._host = NodeHost(events, config, Contexts(config), SharedPortion(events.call_soon))
        self._room = _Room(most)
        self._listeners: list[Listener] = []
        self._block = new_block()

    @property
    def n_connections(self) -> int:
        """How many clients there are."""
        return self._room.n_taken

    def start(self) -> None:
        """Listen. Raises: OSError naming the address; then nothing is bound."""
        try:
            for door in self._doors:
                self._listeners.append(self._listener(door))
            for listener in self._listeners:
                _begin(listener)
        except OSError:
            self._stop_listening()
            raise
        for door, listener in zip(self._doors, self._listeners, strict=True):
            _log.info("Passing on %s from %s", door.protocol.upper(), listener.name)

    def drop(self) -> None:
        """End all connections: the leader has changed. New ones may come."""
        for visit in self._room.visits:
            if not visit.cancelling():  # else it waits for its sockets
                visit.cancel()

    async def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        self._stop_listening()
        self.drop()
        if self._room.visits:
            await asyncio.wait(self._room.visits)

    def _listener(self, door: Door) -> Listener:
        """Raises: OSError naming the address."""
        welcome = partial(self._welcome, door.protocol)
        # That of HTTP takes bytes as they come. The others look for the header of a proxy in front,
        # as they do where this node leads, and there none is read before TLS.
        kinds: dict[str, Protocol] = {"amqp": "amqp", "mqtt": "mqtt"}
        kind = kinds.get(door.protocol, "http")
        if door.path:
            return Listener.unix(self._host, door.path, kind, welcome, door=self._room)
        return Listener.tcp(self._host, door.bind, door.port, kind, welcome, door=self._room)

    def _stop_listening(self) -> None:
        while self._listeners:
            self._listeners.pop().close()

    def _welcome(self, protocol: str, sock: socket.socket, ends: Endpoints) -> None:
        target = self._target(protocol)
        if target is None and protocol != "http":
            sock.close()
            return
        visit = self._events.create_task(self._visit(protocol, target, sock, ends))
        self._room.visits.add(visit)
        visit.add_done_callback(partial(self._left, sock))

    def _left(self, sock: socket.socket, visit: asyncio.Task[None]) -> None:
        self._room.visits.discard(visit)
        sock.close()  # one that was cancelled before it began

    async def _visit(
        self, protocol: str, target: Target | None, sock: socket.socket, ends: Endpoints
    ) -> None:
        """All of a client's stay."""
        why = NO_LEADER
        if target is not None:
            if await self._pass_on(target, sock, ends):
                return
            why = UNREACHABLE
        if protocol == "http":
            await self._refuse(sock, why)

    async def _pass_on(self, target: Target, sock: socket.socket, ends: Endpoints) -> bool:
        """Copy until the end. Returns: False if the leader cannot be reached."""
        relay = Relay(self._events, self._block, _header(ends))
        try:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await relay.leader.connected(
                        self._events.create_connection(lambda: relay.leader, *target)
                    )
            except OSError as error:  # one of them is that the time is over
                why = "it took too long" if isinstance(error, TimeoutError) else error.strerror
                log.get("lmq.proxy", client=ends.peer).info(
                    "connection refused: cannot reach the leader: %s", why or error
                )
                return False
            # From here on the client is read.
            await relay.client.connected(
                self._events.connect_accepted_socket(lambda: relay.client, sock)
            )
            await relay.over()
        finally:
            relay.abort()
            await relay.over()
            relay.part()
        return True

    async def _refuse(self, sock: socket.socket, why: str) -> None:
        """Answer a request for HTTP that nobody can serve."""
        refusal = _Refusal(why)
        transport, _ = await self._events.connect_accepted_socket(lambda: refusal, sock)
        try:
            async with asyncio.timeout(REFUSAL_S):
                await refusal.over.wait()
        except TimeoutError:
            pass
        finally:
            transport.abort()
            await refusal.over.wait()


class _Refusal(asyncio.Protocol):
    """Tells a client of HTTP, once it begins to ask, that it cannot be served. What it sends is
    taken until it has ended: closing before that would destroy the answer."""

    def __init__(self, why: str) -> None:
        body = json.dumps({"error": "service_unavailable", "reason": why}, separators=(",", ":"))
        self._answer = (
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It may ask."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """It asks, or goes on asking."""
        answer, self._answer = self._answer, b""
        if answer:
            self._transport.write(answer)
            self._transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.over.set()


class _Room:
    """How many clients there may be; those who have come, and those on their way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._n_arriving = 0
        self._logged_at = -math.inf
        self.visits: set[asyncio.Task[None]] = set()

    @property
    def n_taken(self) -> int:
        """Places that are taken."""
        return len(self.visits) + self._n_arriving

    def has_room(self, ends: Endpoints) -> bool:
        """Whether one more may come."""
        return self.n_taken < self._most

    def refuse(self, sock: socket.socket, is_tls: bool) -> None:
        """Send one away; logged at most once in a minute."""
        sock.close()
        now = time.monotonic()
        if now - self._logged_at >= LOGGED_EVERY_S:
            self._logged_at = now
            _log.warning("connections are refused: %d are open", self.n_taken)

    def enter(self, newcomer: Newcomer, ends: Endpoints) -> None:
        """One is on its way."""
        self._n_arriving += 1

    def leave(self, newcomer: Newcomer) -> None:
        """It is through, or gone."""
        self._n_arriving -= 1


def _begin(listener: Listener) -> None:
    """Raises: OSError naming the address."""
    try:
        listener.start()
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {listener.name}: {error.strerror}") from error


def _header(ends: Endpoints) -> bytes:
    """What tells the leader whose connection it is."""
    is_doubtful = is_loopback(ends.peer_host) and not ends.is_loopback
    if is_doubtful or ends.name == UNIX.name:
        # Nobody's. A proxy here that is not trusted has spoken: it is no client of this machine.
        return header_v2(None, None)
    return header_v2((ends.peer_host, ends.peer_port), (ends.host, ends.port))
