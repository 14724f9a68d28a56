"""Clients of a run: each connects to the place whose turn it is, again and again.

Source: docs/shovels.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from lavinmq.client.aio import AsyncClient
from lavinmq.client.config import Config
from lavinmq.client.errors import ClientConnectionError, Error
from lavinmq.client.link import Link
from lavinmq.client.opening import open_link, tls_context
from lavinmq.shovel.inside import open_inside

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.places import Place

LEAST_DELAY_S: Final = 0.05
MOST_DELAY_S: Final = 300.0
NEVER: Final = 1 << 30
BUFFER_BYTES: Final = 64 << 20
"""What a ring holds, when the destination is slower than the source."""
CLOSE_S: Final = 5.0
HEALTH_S: Final = 5.0
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

    def __init__(self, places: tuple[P, ...], failover: str) -> None:
        self._places = list(places)
        self._is_ordered = failover == "ordered"
        if failover == "shuffle":
            random.shuffle(self._places)
        self._next = 0
        self.place = self._places[0]
        self.moved: Callable[[], None] | None = None
        """Is called when it is connected to another place than before."""
        self._worked = self.place

    def __len__(self) -> int:
        return len(self._places)

    def turn(self) -> P:
        """Whose turn it is now."""
        self.place = self._places[self._next % len(self._places)]
        self._next += 1
        return self.place

    def worked(self) -> None:
        """It is connected: with an order, the first one is tried first again."""
        if self._is_ordered:
            self._next = 0
        if self.place is not self._worked:
            self._worked = self.place
            if self.moved is not None:
                self.moved()


@lru_cache(maxsize=64)
def _config(delay: float) -> Config:
    """Of all that wait as long before they connect again."""
    return Config(
        fail_fast=False, retry_auth=True, topology_recovery="declared",
        reconnect_initial_delay=delay, reconnect_max_delay=max(MOST_DELAY_S, delay),
        reconnect_jitter=1.0, rpc_timeout=30.0, close_timeout=CLOSE_S,
        buffer_bytes=BUFFER_BYTES, flush_retries=NEVER, confirm_timeout=60.0,
        health_interval=HEALTH_S,
    )  # fmt: skip


def client_of(
    broker: Broker, rotation: Rotation[Place], name: str, delay_s: float, failed: Failed
) -> AsyncClient:
    """A client that is not started yet; `name` is its connection's, unless the URI has one."""
    client = AsyncClient("amqp://localhost", _config(max(delay_s, 0.01)))

    async def opening() -> Link:
        place = rotation.turn()
        try:
            if place.is_local:
                link = await open_inside(broker, place, place.name or name)
            else:
                config = place.config.updated({"name": place.name or name})
                endpoint = place.target.endpoints[0]
                if endpoint.is_tls:
                    # Certificates of authorities are read from files, which the loop does not.
                    context = await asyncio.to_thread(tls_context, place.config)
                    config = config.updated({"ssl_context": context})
                link = await open_link(config, place.target, endpoint)
        except (Error, OSError) as error:
            failed(error)
            if isinstance(error, OSError) and not isinstance(error, ClientConnectionError):
                # What the certificate is like may change: it is tried again.
                raise ClientConnectionError(f"no connection to {place.shown}: {error}") from None
            raise
        rotation.worked()
        return link

    def changed(_old: object, _new: object, cause: Exception | None) -> None:
        if cause is not None:
            failed(cause)

    client._core.opening = opening
    client.on_error(failed)
    client.on_state_change(changed)
    return client
