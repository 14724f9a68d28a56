"""The connections of one client as one: one for all, or one for consumers and some for producers.

With `separate_connections`, or a `pool_size` above 1, a broker that takes no messages for now holds
publishing connections up, and no consumer. Declarations, questions and channels are on the first
connection, which is the consumers'. The state of a client is that of the worst of its connections;
when one of them gives up, it gives up as a whole.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lavinmq.client.config import Config
from lavinmq.client.core import Core, Front, Steward
from lavinmq.client.topology import NOTHING
from lavinmq.client.url import Target
from lavinmq.client.values import ConnectionState

WORST_FIRST: Final = (
    ConnectionState.CLOSED, ConnectionState.CLOSING, ConnectionState.IDLE,
    ConnectionState.CONNECTING, ConnectionState.RECONNECTING, ConnectionState.BLOCKED,
    ConnectionState.CONNECTED,
)  # fmt: skip
NO_SECONDS: Final = (0.0,) * len(WORST_FIRST)
CONNECTED: Final = (ConnectionState.CONNECTED, ConnectionState.BLOCKED)


class Together:
    """All connections of a client; the first is the consumers'."""

    __slots__ = ("_seconds", "_since", "_turn", "_was_connected", "cores", "first", "state")

    def __init__(self, target: Target, config: Config, front: Front) -> None:
        self.first = Core(target, config, front)
        self.cores: tuple[Core, ...] = (self.first,)
        is_apart = config.separate_connections or config.pool_size > 1
        for number in range(1, config.pool_size + 1 if is_apart else 1):
            named = config.updated({"name": f"{config.program_name} publisher {number}"})
            self.cores += (Core(target, named, front, self.first),)
        self.state = ConnectionState.IDLE
        self._seconds: tuple[float, ...] = NO_SECONDS
        """How long it was in each state, in the order of WORST_FIRST."""
        self._since = 0.0
        self._was_connected = False
        self._turn = 0
        for core in self.cores:
            core.owner = self

    def for_producer(self) -> Core:
        """The connection whose turn it is to have a producer."""
        publishing = self.cores[1:] or self.cores
        turn, self._turn = self._turn, self._turn + 1
        return publishing[turn % len(publishing)]

    @property
    def is_connected(self) -> bool:
        """Whether all connections stand, be they blocked."""
        return self.state in CONNECTED

    @property
    def last_error(self) -> Exception | None:
        """Why a connection ended last; the consumers' if several did."""
        return next((core.last_error for core in self.cores if core.last_error), None)

    def seconds(self) -> dict[ConnectionState, float]:
        """How long it was in each state, until now."""
        seconds = self._seconds
        if self.state not in (ConnectionState.IDLE, ConnectionState.CLOSED):
            seconds = self._with(self.state, self.first.loop.time() - self._since)
        return {state: each for state, each in zip(WORST_FIRST, seconds, strict=True) if each}

    def _with(self, state: ConnectionState, more_s: float) -> tuple[float, ...]:
        return tuple(
            each + more_s if known is state else each
            for known, each in zip(WORST_FIRST, self._seconds, strict=True)
        )

    async def start(self) -> None:
        """Connect; with `fail_fast` wait for all. Raises: why one cannot."""
        if len(self.cores) == 1:
            await self.first.start()
            return
        ends = await asyncio.gather(
            *(core.start() for core in self.cores), return_exceptions=True
        )  # fmt: skip
        for error in ends:
            if isinstance(error, BaseException):
                raise error

    async def connected(self, timeout: float | None) -> None:
        """Wait until all are connected. Raises: ClientConnectionError, ClosedError."""
        await asyncio.gather(*(core.connected(timeout) for core in self.cores))

    async def close(self, timeout: float | None, flush: bool) -> None:
        """Close all, each as `Core.close` does."""
        await asyncio.gather(*(core.close(timeout, flush) for core in self.cores))

    async def renew(self, secret: str) -> None:
        """Give the broker a new token for each connection."""
        await asyncio.gather(*(core.renew(secret) for core in self.cores))

    def end(self) -> None:
        """No connection is of this process any more, or none was ever made."""
        self.state = ConnectionState.CLOSED
        for core in self.cores:
            core.state = ConnectionState.CLOSED

    def changed(self, core: Core, cause: Exception | None) -> None:
        """One of them has another state: tell of it if the whole has."""
        new = min((each.state for each in self.cores), key=WORST_FIRST.index)
        old = self.state
        if new is old:
            return
        now = core.loop.time()
        if old is not ConnectionState.IDLE:
            self._seconds = self._with(old, now - self._since)
        self.state, self._since = new, now
        core.tell("state_change", old, new, cause)
        if self.is_connected and old not in CONNECTED:
            if self._was_connected:
                core.tell("recovered")
            self._was_connected = True

    def gave_up(self, cause: Exception) -> None:
        """One of them will not be connected again: nor are the others."""
        for core in self.cores:
            core.abandon(cause)


class Alone(Core):
    """The connections of a client that has a steward: one, and its states are the client's."""

    __slots__ = ()

    def __init__(self, target: Target, config: Config, front: Front, steward: Steward) -> None:
        super().__init__(target, config, front)
        self.owner, self.steward, self.callbacks = self, steward, NOTHING

    @property
    def first(self) -> Core:
        """The connection."""
        return self

    @property
    def cores(self) -> tuple[Core, ...]:
        """All there are."""
        return (self,)

    def for_producer(self) -> Core:
        """Where producers are."""
        return self

    def seconds(self) -> dict[ConnectionState, float]:
        """Nobody asks how long it was in each state."""
        return {}

    def end(self) -> None:
        """No connection is of this process any more, or none was ever made."""
        self.state = ConnectionState.CLOSED

    def changed(self, core: Core, cause: Exception | None) -> None:
        """It has another state."""
        self.tell("state_change", self.state, cause)

    def gave_up(self, cause: Exception) -> None:
        """There are no others to give up."""
