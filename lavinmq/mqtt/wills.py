"""Wills: published for clients that have gone without a word, at once or after their delay.

Those that wait do so with one timer for all, in buckets of a second. The will of a client that
comes back to its session in time is not published. Owned by the sessions of one virtual host, on
the loop's thread. Source: MQTT 5.0 section 3.1.2.5 and 3.1.3.2.2; docs/mqtt.md.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lavinmq.process.portions import in_portions

if TYPE_CHECKING:
    from lavinmq.mqtt.connect import Will

Publish = Callable[["Testament"], object]
May = Callable[[str], bool]
"""Of a topic."""


class Testament:
    """A will that waits, with what its author may publish."""

    __slots__ = ("client_id", "due_s", "may_cross", "may_publish", "will")

    def __init__(
        self, client_id: str, will: Will, may_publish: May, may_cross: May, due_s: float
    ) -> None:
        self.client_id = client_id
        self.will = will
        self.may_publish = may_publish
        self.may_cross = may_cross
        self.due_s = due_s


class Wills:
    """The wills that wait in one virtual host.

    Args: events: the loop; publish: what is due goes there; clock: in seconds.
    """

    def __init__(
        self, events: asyncio.AbstractEventLoop, publish: Publish,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._events = events
        self._publish = publish
        self._clock = clock
        self._waiting: dict[str, Testament] = {}
        self._buckets: dict[int, list[Testament]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, client_id: str, will: Will, may_publish: May, may_cross: May = lambda topic: False
    ) -> None:
        """A client has gone: publish its will, now or after its delay. Args: may_cross: whether it
        may go to AMQP as well."""
        due_s = self._clock() + will.delay_s
        testament = Testament(client_id, will, may_publish, may_cross, due_s)
        if not will.delay_s:
            self._publish(testament)
            return
        self._waiting[client_id] = testament
        second = math.ceil(testament.due_s)
        bucket = self._buckets.get(second)
        if bucket is None:
            self._buckets[second] = [testament]
            heapq.heappush(self._order, second)
            self._arm()
        else:
            bucket.append(testament)

    def cancel(self, client_id: str) -> None:
        """The client is back in its session."""
        self._waiting.pop(client_id, None)

    def release(self, client_id: str) -> None:
        """The session of the client has ended: its will is due."""
        testament = self._waiting.pop(client_id, None)
        if testament is not None:
            self._publish(testament)

    def release_all(self) -> None:
        """The broker stops: what waits is published, so that it is not lost."""
        self.stop()
        for client_id in list(self._waiting):
            self.release(client_id)

    def stop(self) -> None:
        """Nothing is published by time any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.stop()
        if self._order:
            wait_s = max(self._order[0] - self._clock(), 0)
            self._timer = self._events.call_later(wait_s, self._due)

    def _due(self) -> None:
        """Publish one bucket in portions; the next one follows when its time has come."""
        self._timer = None
        if self._order and self._order[0] <= self._clock():
            bucket = self._buckets.pop(heapq.heappop(self._order))
            in_portions(self._events.call_soon, self._releases(bucket))
        self._arm()

    def _releases(self, bucket: list[Testament]) -> Iterator[None]:
        for testament in bucket:
            if self._waiting.get(testament.client_id) is testament:
                self.release(testament.client_id)
            yield
