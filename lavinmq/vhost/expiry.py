"""Deletes queues that nobody has used for the time of their `x-expires`.

The countdown runs while a queue has no consumers, and starts anew when it is declared, when a
message is fetched and when the last consumer leaves; publishing does not count as use. One timer
serves all of them: there may be a session of MQTT for each of a million devices. Owned by a
`VHost`. Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from lavinmq.process.portions import PORTION_S
from lavinmq.vhost.queue import Queue

_STALE: Final = 64
"""Entries of the heap that may count no more, besides as many as do."""


class QueueExpiry:
    """The countdowns of one virtual host.

    Args: events: the running loop; expired: told of each queue whose time is over.
    """

    def __init__(self, events: asyncio.AbstractEventLoop, expired: Callable[[Queue], None]) -> None:
        self._events = events
        self._expired = expired
        self._used_s: dict[Queue, float] = {}
        self._due_s: dict[Queue, float] = {}  # when it is looked at next
        self._heap: list[tuple[float, int, Queue]] = []  # the same, and what counts no more
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._is_stopped = False

    def used(self, queue: Queue) -> None:
        """The queue was declared or read, or its last consumer left: start anew."""
        if queue.features.expires_ms is not None:
            self._used_s[queue] = time.monotonic()
            if queue not in self._due_s:
                self._arm(queue)

    def left(self, queue: Queue, ago_s: float) -> None:
        """Its last user left so long ago, maybe before the broker was started."""
        if queue.features.expires_ms is not None:
            self._used_s[queue] = time.monotonic() - ago_s
            self._arm(queue)

    def changed(self, queue: Queue) -> None:
        """The queue expires after another time, or not any more: what has passed counts."""
        if queue.features.expires_ms is None:
            self._due_s.pop(queue, None)
        else:
            self._used_s.setdefault(queue, time.monotonic())
            self._arm(queue)

    def restart(self) -> None:
        """All countdowns start anew: before, nobody could have used the queues."""
        now_s = time.monotonic()
        for queue in self._used_s:
            self._used_s[queue] = now_s

    def forget(self, queue: Queue) -> None:
        """The queue is gone."""
        self._used_s.pop(queue, None)
        if self._due_s.pop(queue, None) is not None:
            self._tidy()

    def stop(self) -> None:
        """No queue expires from now on, also of those whose consumers are still to leave."""
        self._is_stopped = True
        self._due_s.clear()
        self._used_s.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, queue: Queue) -> None:
        if self._is_stopped:
            return
        due_s = self._used_s[queue] + (queue.features.expires_ms or 0) / 1000
        if self._due_s.get(queue) != due_s:
            self._due_s[queue] = due_s
            heappush(self._heap, (due_s, next(self._numbers), queue))
            self._tidy()
        if due_s < self._timer_s:
            self._set_timer(due_s)

    def _tidy(self) -> None:
        """Let go of what does not count, once that is most of it."""
        if len(self._heap) > 2 * len(self._due_s) + _STALE:
            self._heap = [each for each in self._heap if self._due_s.get(each[2]) == each[0]]
            heapify(self._heap)

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        wait_s = max(due_s - time.monotonic(), PORTION_S)
        self._timer = self._events.call_later(wait_s, self._look)

    def _look(self) -> None:
        """The first may be due. Very many may be at once."""
        self._timer, self._timer_s = None, math.inf
        until_s = time.monotonic() + PORTION_S
        try:
            while self._heap and self._heap[0][0] <= time.monotonic() <= until_s:
                due_s, _, queue = heappop(self._heap)
                if self._due_s.get(queue) == due_s:
                    del self._due_s[queue]
                    self._check(queue)
        finally:
            if self._heap:
                self._set_timer(self._heap[0][0])

    def _check(self, queue: Queue) -> None:
        if queue.features.expires_ms is None or queue.consumers:
            return  # the last consumer to leave starts it again
        if self._used_s[queue] + queue.features.expires_ms / 1000 <= time.monotonic():
            self._expired(queue)
        else:
            self._arm(queue)
