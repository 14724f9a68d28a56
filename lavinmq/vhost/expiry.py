"""Deletes queues that nobody has used for the time of their `x-expires`.

The countdown runs while a queue has no consumers, and starts anew when it is declared, when a
message is fetched and when the last consumer leaves; publishing does not count as use. Owned by a
`VHost`. Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from lavinmq.vhost.queue import Queue


class QueueExpiry:
    """The countdowns of one virtual host.

    Args: events: the running loop; expired: told of each queue whose time is over.
    """

    def __init__(self, events: asyncio.AbstractEventLoop, expired: Callable[[Queue], None]) -> None:
        self._events = events
        self._expired = expired
        self._used_s: WeakKeyDictionary[Queue, float] = WeakKeyDictionary()
        self._timers: WeakKeyDictionary[Queue, asyncio.TimerHandle] = WeakKeyDictionary()

    def used(self, queue: Queue) -> None:
        """The queue was declared or read, or its last consumer left: start anew."""
        if queue.features.expires_ms is not None:
            self._used_s[queue] = time.monotonic()
            if queue not in self._timers:
                self._arm(queue)

    def left(self, queue: Queue, ago_s: float) -> None:
        """Its last user left so long ago, maybe before the broker was started."""
        if queue.features.expires_ms is not None:
            self.forget(queue)
            self._used_s[queue] = time.monotonic() - ago_s
            self._arm(queue)

    def changed(self, queue: Queue) -> None:
        """The queue expires after another time, or not any more: what has passed counts."""
        self.forget(queue)
        if queue.features.expires_ms is not None:
            self._used_s.setdefault(queue, time.monotonic())
            self._arm(queue)

    def forget(self, queue: Queue) -> None:
        """The queue is gone."""
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()

    def stop(self) -> None:
        """No queue expires from now on."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _arm(self, queue: Queue) -> None:
        left_s = self._used_s[queue] + (queue.features.expires_ms or 0) / 1000 - time.monotonic()
        self._timers[queue] = self._events.call_later(max(left_s, 0), self._check, queue)

    def _check(self, queue: Queue) -> None:
        del self._timers[queue]
        if queue.features.expires_ms is None or queue.consumers:
            return  # the last consumer to leave starts it again
        if self._used_s[queue] + queue.features.expires_ms / 1000 <= time.monotonic():
            self._expired(queue)
        else:
            self._arm(queue)
