"""Clients of a run: each connects to the place whose turn it is, again and again.

Source: docs/shovels.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from lavinmq.client.aio import AsyncClient
from lavinmq.client.config import Config
from lavinmq.client.declaring import Declaring
from lavinmq.client.errors import ClientConnectionError, Error
from lavinmq.client.link import Link
from lavinmq.client.opening import open_link, tls_context
from lavinmq.client.rounds import Rounds
from lavinmq.client.sockets import Sockets
from lavinmq.client.together import Alone
from lavinmq.client.url import Target
from lavinmq.client.values import ConnectionState
from lavinmq.shovel.inside import open_inside

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.places import Place

LEAST_DELAY_S: Final = 0.05
MOST_DELAY_S: Final = 300.0
NEVER: Final = 1 << 30
BUFFER_BYTES: Final = 64 << 20
"""What a ring holds, when the destination is slower than the source."""
LEAST_BUFFER: Final = 1000
"""Messages that a ring holds at least."""
NOWHERE: Final = Target(())
"""Of clients that have places instead."""
CLOSE_S: Final = 5.0
HEALTH_S: Final = 15.0
"""Between two looks whether a connection is dead: there may be thousands that do nothing."""
P = TypeVar("P")
Failed = Callable[[Exception], None]
"""Is told why something does not go on."""


def most_s(first_s: float, failures: int) -> float:
    """The longest pause after so many failures in a row before this one: it doubles each time."""
    grown: float = max(first_s, LEAST_DELAY_S) * 2 ** min(max(failures, 0), 20)
    return min(MOST_DELAY_S, grown)


def pause_s(first_s: float, failures: int) -> float:
    """How long to wait after so many failures in a row before this one, with full jitter."""
    return random.uniform(LEAST_DELAY_S, most_s(first_s, failures))


class Rotation(Generic[P]):
    """The places of one side, in turn."""

    __slots__ = ("_is_ordered", "_next", "_places", "_tried", "moved", "place")

    def __init__(self, places: tuple[P, ...], failover: str) -> None:
        self._places = places
        self._is_ordered = failover == "ordered"
        if failover == "shuffle":
            self._places = tuple(random.sample(places, len(places)))
        self._next = 0
        self._tried = self.place = self._places[0]
        """Whose turn it is; which one has worked last."""
        self.moved: Callable[[], None] | None = None
        """Is called when it is connected to another place than before."""

    def __len__(self) -> int:
        return len(self._places)

    def turn(self) -> P:
        """Whose turn it is now."""
        self._tried = self._places[self._next % len(self._places)]
        self._next += 1
        return self._tried

    def worked(self) -> None:
        """It is connected: with an order, the first one is tried first again."""
        if self._is_ordered:
            self._next = 0
        if self._tried is not self.place:
            self.place = self._tried
            if self.moved is not None:
                self.moved()


@lru_cache(maxsize=64)
def _config(delay: float, prefetch: int) -> Config:
    """Of all that wait as long before they connect again, and take as much at once: there may be
    thousands, and each of them does nothing most of the time."""
    return Config(
        fail_fast=False, retry_auth=True, topology_recovery="declared",
        reconnect_initial_delay=delay, reconnect_max_delay=max(MOST_DELAY_S, delay),
        reconnect_jitter=1.0, rpc_timeout=30.0, close_timeout=CLOSE_S, prefetch=prefetch,
        buffer_size=max(prefetch * 2, LEAST_BUFFER), max_in_flight=1 << 16,
        buffer_bytes=BUFFER_BYTES, flush_retries=NEVER, confirm_timeout=60.0,
        health_interval=HEALTH_S,
    )  # fmt: skip


class PlaceClient(AsyncClient):
    """A client that connects to the place whose turn it is; not started yet.

    Args: name: the connection's, unless the URI has one; delay_s: the first pause after a failure;
        prefetch: how much is under way at once; failed: is told why it does not go on.
    """

    def __init__(
        self, broker: Broker, rotation: Rotation[Place], name: str, delay_s: float, prefetch: int,
        failed: Failed,
    ) -> None:  # fmt: skip
        config = _config(max(delay_s, 0.01), prefetch)
        self._together = Alone(NOWHERE, config, self, self)
        Declaring.__init__(self, self._together)
        self._rpc = None
        self._broker, self._rotation, self._name, self._failed = broker, rotation, name, failed
        if broker.rounds is None:
            broker.rounds = Rounds(HEALTH_S)
        if broker.sockets is None:
            broker.sockets = Sockets()
        self._core.rounds, self._sockets = broker.rounds, broker.sockets
        self.changed: Callable[[ConnectionState, Exception | None], None] | None = None
        """Is told of other states, too."""

    async def opened(self) -> Link:
        """Make the next connection. Raises: ClientConnectionError and the like."""
        place = self._rotation.turn()
        try:
            link = await self._open_at(place)
        except (Error, OSError) as error:
            self._failed(error)
            if isinstance(error, OSError) and not isinstance(error, ClientConnectionError):
                # What the certificate is like may change: it is tried again.
                raise ClientConnectionError(f"no connection to {place.shown}: {error}") from None
            raise
        self._rotation.worked()
        return link

    async def _open_at(self, place: Place) -> Link:
        name = place.name or self._name
        if place.is_local:
            return await open_inside(self._broker, self._sockets, place, name)
        config, endpoint = place.config, place.target.endpoints[0]
        if endpoint.is_tls:
            # Certificates of authorities are read from files, which the loop does not.
            context = await asyncio.to_thread(tls_context, config)
            config = config.updated({"ssl_context": context})
        return await open_link(config, place.target, endpoint, name, self._sockets)

    def heard(self, event: str, *values: Any) -> None:
        """Something has happened: tell of what went wrong."""
        if event in ("error", "recovery_failed"):
            self._failed(values[-1])
        elif event == "state_change":
            state, cause = values
            if cause is not None:
                self._failed(cause)
            if self.changed is not None:
                self.changed(state, cause)
