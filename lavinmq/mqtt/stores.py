"""What MQTT keeps in files of a virtual host: retained messages, and of sessions what fits neither
their queues nor their bindings.

Opens both before the first client comes, looks after them once a second, and gives retained
messages to sessions that subscribe. On the loop's thread; long work in portions.
Source: decisions 0086 and 0087.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from lavinmq import _core
from lavinmq.process import log
from lavinmq.process.portions import PORTION_S, behind, in_portions

if TYPE_CHECKING:
    import asyncio

    from lavinmq.broker import Broker
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

_LOOK_S: Final = 1.0
_EXPIRE_S: Final = 60.0
_SLOW_S: Final = 0.01
"""How long a client that does not read keeps the rest of its retained messages waiting."""
_SESSIONS_AT_ONCE: Final = 1000

_Gift: TypeAlias = "_core.RetainedGift | Callable[[], _core.RetainedGift | None]"
"""Retained messages on their way to a session, or what makes that of a subscription."""
_IsWanted: TypeAlias = Callable[[], bool]
"""Whether the subscription is still there."""


class Stores:
    """The files of one virtual host. `retained`, `log`: None when they cannot be read, which the
    log says; nobody may have what they would keep then."""

    def __init__(self, broker: Broker, vhost: VHost) -> None:
        self._broker = broker
        self._vhost = vhost
        self._log = log.get("lmq.mqtt.stores", vhost=vhost.name)
        directory = os.fspath(vhost.directory)
        self.retained: _core.RetainedStore | None = _core.RetainedStore(broker.loop, directory)
        self.log: _core.SessionLog | None = _core.SessionLog(broker.loop, directory)
        if not self._loaded(self.retained.load) or not self._loaded(self.retained.import_original):
            self.retained = None
        if not self._loaded(self.log.load):
            self.log = None
        self._next_expiry_s = time.monotonic() + _EXPIRE_S
        self._working: set[str] = set()
        self._is_over = False

    def _loaded(self, load: Callable[[], list[str]]) -> bool:
        try:
            for note in load():
                self._log.warning("%s", note)
        except (OSError, ValueError) as error:
            self._log.error("MQTT cannot be served: %s", error)
            return False
        return True

    @property
    def are_well(self) -> bool:
        """Whether clients may be served."""
        return self.retained is not None and self.log is not None and not self.are_over()

    def are_over(self) -> bool:
        """Whether nothing more is to be done in the files: another virtual host of that name has
        the same directory."""
        return self._is_over or self._broker.vhosts.get(self._vhost.name) is not self._vhost

    def gift(
        self, raw: bytes, queue: _core.Queue, granted: int, subscription_id: int,
        mark: tuple[int, int],
    ) -> _core.RetainedGift | None:  # fmt: skip
        """What gives a session the messages that a filter matches; None: they are not there."""
        if self.retained is None or self.are_over():
            return None
        return self.retained.give(raw, queue, granted, subscription_id, mark)

    def client_ids(self) -> Iterator[str]:
        """Whose sessions the log has. It may change meanwhile."""
        at = 0
        while self.log is not None and at >= 0:
            ids, at = self.log.client_ids(at, _SESSIONS_AT_ONCE)
            yield from (each.decode(errors="surrogateescape") for each in ids)

    def keep(
        self, topic: bytes, payload: bytes, qos: int, properties: bytes, expiry_s: int
    ) -> None:
        """A retained message of the broker's own making: a will. `expiry_s`: -1, never."""
        if self.retained is None or self.are_over():
            return
        now_ms = time.time_ns() // 1_000_000
        try:
            if payload:
                until_ms = now_ms + expiry_s * 1000 if expiry_s >= 0 else 0
                self.retained.put(topic, payload, qos, properties, now_ms, until_ms)
            else:
                self.retained.remove(topic)
        except OSError as error:
            self._log.error("a retained will is lost: %s", error)

    # --- once a second --------------------------------------------------------------------------

    def look(self) -> None:
        """Tell of writes that fail, try them again, and do what is due."""
        if self.retained is None or self.log is None or self.are_over():
            return
        self._tell("retained messages", self.retained.take_news())
        self._tell("sessions", self.log.take_news())
        self.log.retry()
        if self.retained.is_due:
            self._begin("retained messages", self.retained.clean_some)
        if self.log.is_due:
            self._begin("sessions", self.log.compact_some)
        if time.monotonic() >= self._next_expiry_s:
            self._next_expiry_s = time.monotonic() + _EXPIRE_S
            self._begin("expired messages", self.retained.expire_some)

    def _tell(self, what: str, error: int | None) -> None:
        if error:
            self._log.error("%s of MQTT cannot be written: %s", what, os.strerror(error))
        elif error == 0:
            self._log.info("%s of MQTT can be written again", what)

    def _begin(self, what: str, some: Callable[[], bool]) -> None:
        if what not in self._working:
            self._working.add(what)
            in_portions(self._broker.events.call_soon, self._work(what, some))

    def _work(self, what: str, some: Callable[[], bool]) -> Iterator[None]:
        try:
            while not self.are_over() and some():
                yield
        except (OSError, ValueError) as error:
            self._log.error("%s of MQTT are not compacted: %s", what, error)
        finally:
            self._working.discard(what)

    def release(self) -> None:
        """The virtual host has gone, and its files with it: nothing is written or read any more.
        Idempotent."""
        self._is_over = True
        for store in (self.retained, self.log):
            if store is not None:
                store.release()
        self.retained = self.log = None

    def close(self) -> None:
        """The broker stops. Idempotent."""
        self._is_over = True
        for store in (self.retained, self.log):
            try:
                if store is not None:
                    store.close()
            except OSError as error:
                self._log.error("MQTT: %s", error)


class Gifts:
    """Retained messages on their way to sessions, of all virtual hosts, in portions. One that has
    not had its turn is a few words and no walk: a client may subscribe a hundred thousand times."""

    def __init__(self, events: asyncio.AbstractEventLoop) -> None:
        self._events = events
        self._ready: deque[tuple[_Gift, _IsWanted]] = deque()
        self._is_running = False

    def begin(
        self, stores: Stores, filter_: str, queue: Queue, granted: int, subscription_id: int,
        is_wanted: _IsWanted,
    ) -> None:  # fmt: skip
        """Give what a filter matches, from the next turn on, as long as it is wanted. What comes
        meanwhile the session gets as it comes, and not again."""
        if stores.retained is not None and len(stores.retained):
            raw, mark = filter_.encode(), stores.retained.mark
            gift = partial(stores.gift, raw, queue.core, granted, subscription_id, mark)
            self._go_on(gift, is_wanted)

    def _go_on(self, gift: _Gift, is_wanted: _IsWanted) -> None:
        self._ready.append((gift, is_wanted))
        if not self._is_running:
            self._is_running = True
            self._events.call_soon(self._run)

    def _run(self) -> None:
        self._is_running = False
        until = time.perf_counter() + PORTION_S
        while self._ready and time.perf_counter() < until:
            ready, is_wanted = self._ready.popleft()
            if not is_wanted():
                continue
            gift = ready if isinstance(ready, _core.RetainedGift) else ready()
            if gift is not None:
                self._give(gift, is_wanted)
        if self._ready:
            self._is_running = True
            behind(self._events.call_soon, self._run)

    def _give(self, gift: _core.RetainedGift, is_wanted: _IsWanted) -> None:
        answer = gift.some()
        if answer == _core.RETAINED_MORE:
            self._ready.append((gift, is_wanted))
        elif answer == _core.RETAINED_WAIT:
            self._events.call_later(_SLOW_S, self._go_on, gift, is_wanted)


class Looks:
    """The timer with which all stores are looked after. Args: stores: those that are there."""

    def __init__(
        self, events: asyncio.AbstractEventLoop, stores: Callable[[], list[Stores]]
    ) -> None:
        self._events = events
        self._stores = stores
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look once a second from now on."""
        self._timer = self._events.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        for each in self._stores():
            each.look()
        self.start()

    def stop(self) -> None:
        """No more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
