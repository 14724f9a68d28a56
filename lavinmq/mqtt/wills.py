"""Wills: published for clients that have gone without a word, at once or after their delay.

Those that are due go in portions: thousands of clients may be lost with one network. Those that
wait do so with one timer for all, in buckets of a second. The will of a client that comes back to
its session in time is not published. Owned by the sessions of one virtual host, on the loop's
thread. Source: MQTT 5.0 section 3.1.2.5 and 3.1.3.2.2; docs/mqtt.md.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.mqtt.connect import Will
    from lavinmq.process.portions import Portions

Publish = Callable[["Testament"], Generator[None]]
_log = log.get("lmq.mqtt")


class Testament:
    """A will that waits, and who has left it: their rights are asked when it is published.
    `is_kept`: the next start goes on with it."""

    __slots__ = ("author", "client_id", "due_s", "is_kept", "will")

    def __init__(
        self, client_id: str, will: Will, author: Identity, due_s: float, *, is_kept: bool
    ) -> None:
        self.client_id = client_id
        self.will = will
        self.author = author
        self.due_s = due_s
        self.is_kept = is_kept


class Wills:
    """The wills that wait in one virtual host.

    Args: events: the loop; publish: what is due goes there, in portions; works: has them done;
        clock: in seconds.
    """

    def __init__(
        self, events: asyncio.AbstractEventLoop, publish: Publish, works: Portions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._events = events
        self._publish = publish
        self._works = works
        self._due_now: dict[str, Testament] = {}
        self._under_way: set[Generator[None]] = set()
        self._is_publishing = False
        self._clock = clock
        self._waiting: dict[str, Testament] = {}
        self._buckets: dict[int, list[Testament]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._due_now)

    def add(self, client_id: str, will: Will, author: Identity, *, is_kept: bool = False) -> None:
        """A client has gone: publish its will, soon or after its delay. `is_kept`: if the broker
        stops before that, the next start goes on with it."""
        due_s = self._clock() + will.delay_s
        testament = Testament(client_id, will, author, due_s, is_kept=is_kept)
        if not will.delay_s:
            self._publish_soon(testament)
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
        """The client is back in its session: what waits is not published, what is due at once."""
        self._waiting.pop(client_id, None)
        self._hurry(client_id)

    def hasten(self, client_id: str) -> None:
        """The session of the client has ended, and with it the delay: its will is due."""
        testament = self._waiting.pop(client_id, None)
        if testament is not None:
            self._publish_soon(testament)

    def release(self, client_id: str) -> None:
        """Its will is published now: the client begins another session, or the broker stops."""
        self._hurry(client_id)
        testament = self._waiting.pop(client_id, None)
        if testament is not None:
            _finish(self._steps(testament))

    def release_all(self) -> None:
        """The broker stops: what is due is published, and what waits and would be lost."""
        for steps in list(self._under_way):
            _finish(steps)
        for client_id in list(self._due_now):
            self._hurry(client_id)
        self.stop()
        for client_id, testament in list(self._waiting.items()):
            if not testament.is_kept:
                self.release(client_id)

    def stop(self) -> None:
        """Nothing is published by itself any more."""
        self._due_now.clear()
        for steps in self._under_way:
            steps.close()
        self._disarm()

    def _publish_soon(self, testament: Testament) -> None:
        """In its turn: very many may be due at once."""
        client_id = testament.client_id
        self._hurry(client_id)  # of a connection before this one, whose turn has not come
        self._due_now[client_id] = testament
        if not self._is_publishing:
            self._is_publishing = True
            self._works.begin(self._publishes())

    def _hurry(self, client_id: str) -> None:
        testament = self._due_now.pop(client_id, None)
        if testament is not None:
            _finish(self._steps(testament))

    def _steps(self, testament: Testament) -> Generator[None]:
        """Publish one. If that fails the others follow all the same."""
        try:
            yield from self._publish(testament)
        except Exception as error:  # noqa: BLE001 - a bug, or no memory: the log says it
            _log.error("will of %r is not published", testament.client_id, exc_info=error)

    def _publishes(self) -> Iterator[None]:
        try:
            while self._due_now:
                yield from self._publishing(self._due_now.pop(next(iter(self._due_now))))
        finally:
            self._is_publishing = False

    def _publishing(self, testament: Testament) -> Iterator[None]:
        steps = self._steps(testament)
        self._under_way.add(steps)
        try:
            yield from steps
        finally:
            self._under_way.discard(steps)
        yield

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._disarm()
        if self._order:
            wait_s = max(self._order[0] - self._clock(), 0)
            self._timer = self._events.call_later(wait_s, self._due)

    def _due(self) -> None:
        """Publish one bucket in portions; the next one follows when its time has come."""
        self._timer = None
        if self._order and self._order[0] <= self._clock():
            bucket = self._buckets.pop(heapq.heappop(self._order))
            self._works.begin(self._releases(bucket))
        self._arm()

    def _releases(self, bucket: list[Testament]) -> Iterator[None]:
        for testament in bucket:
            if self._waiting.get(testament.client_id) is testament:
                del self._waiting[testament.client_id]
                yield from self._publishing(testament)


def _finish(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
