"""A broker that stands ready on a node that follows: what it is loaded from has been read before.

It is made of the node's own files, to which the leader's changes come meanwhile, on an event loop
that stands still, and changes nothing (decision 0149). What has changed since it was read is read
again: once it rests, and at the latest when the node leads. On the loop's thread, in portions; the
disk is waited for by threads.
Source: docs/clustering.md.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from lavinmq.errors import DefinitionsError
from lavinmq.files import vhosts
from lavinmq.files.directories import hashed
from lavinmq.process import log
from lavinmq.process.portions import PORTION_S, others_first
from lavinmq.process.still import StillEvents
from lavinmq.server import Server
from lavinmq.vhost.ahead import Ahead, Place, warm

if TYPE_CHECKING:
    from lavinmq._cluster import Ring
    from lavinmq.cluster.following import Following
    from lavinmq.config.values import Config
    from lavinmq.integrity.keeper import Integrity
    from lavinmq.process.systemd import Service
    from lavinmq.vhost.vhost import VHost

TURN_S: Final = 0.5
AGAIN_S: Final = 2.0
"""Between two times that a virtual host is read, at least."""
LOOK_S: Final = 10.0
"""Between two looks at all queues, at least."""
SHARE: Final = 20
"""What has taken a second is not done again within so many."""
KEPT: Final = 100
"""Virtual hosts of which something is left, until it is looked for: some 20 KB of each."""
_log = log.get("lmq.standby")


class Standby:
    """What stands ready on one node, until it is taken.

    Args: following: who follows the leader now; integrity: the sums of the files.
    """

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop, service: Service, ring: Ring,
        following: Callable[[], Following | None], integrity: Integrity | None = None,
    ) -> None:  # fmt: skip
        self._config = config
        self._events = events
        self._service = service
        self._ring = ring
        self._following = following
        self._integrity = integrity
        self._ready: _Ready | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Have as much stand ready as can be."""
        self._task = self._events.create_task(self._run())
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except (OSError, DefinitionsError, RuntimeError, MemoryError) as error:
                _log.debug("%s", error)
                await asyncio.sleep(LOOK_S)
            except Exception:  # noqa: BLE001 - it is nothing but quicker
                _log.exception("a mistake of the node's own: nothing stands ready")
                self._drop()
                return
            await asyncio.sleep(TURN_S)

    async def _turn(self) -> None:
        """Raises: OSError, DefinitionsError."""
        following = self._following()
        follower = following.follower if following is not None else None
        if self._ready is not None and self._ready.n_resets != self._ring.n_resets:
            self._drop()
        if following is None or follower is None or not following.is_joined:
            return  # what is ready may be wanted just now
        if self._ready is None:
            ready = self._ready = _Ready(
                self._config, self._events, self._service, self._ring.n_resets, self._integrity
            )
            await ready.know_sums()
        await self._ready.go_on(Place(self._position, self._ring.is_same))

    def _position(self) -> int:
        """Up to where all that was changed is in the files."""
        following = self._following()
        follower = following.follower if following is not None else None
        return self._ring.head if follower is None else follower.applied

    async def stop(self) -> None:
        """Read nothing more: the files are going to be the node's own. Idempotent."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def take(self) -> Server | None:
        """The broker that stands ready, which is the caller's to start or to release. After `stop`,
        and when nobody changes the files any more."""
        ready, self._ready = self._ready, None
        if ready is None:
            return None
        if ready.n_resets != self._ring.n_resets:
            ready.drop()
            return None
        return ready.let_go()

    def close(self) -> None:
        """Let go of all. After `stop`. Idempotent."""
        self._drop()

    def _drop(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.drop()

    def status(self) -> dict[str, Any]:
        """What there is to know of it, as JSON."""
        hosts = [] if self._ready is None else list(self._ready.vhosts.values())
        return {
            "vhosts": len(hosts),
            "queues": sum(len(each.queues) for each in hosts),
            "ready_queues": sum(
                min(each.ahead.n_ready, len(each.ahead.queues)) for each in hosts
                if each.ahead is not None and each.ahead.is_so
            ),
        }  # fmt: skip


class _Ready:
    """A broker at rest, and what has been read for it."""

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop, service: Service, n_resets: int,
        integrity: Integrity | None = None,
    ) -> None:  # fmt: skip
        self.n_resets = n_resets
        self._integrity = integrity
        self._root = Path(config.data_dir)
        self._real = events
        self._events = StillEvents(events)
        self._server = Server(config, cast("asyncio.AbstractEventLoop", self._events), service)
        broker = self._server.broker
        broker.loop.is_reading = True
        broker.disk.changes.is_kept_out = True
        if integrity is not None:
            integrity.observe(broker.loop)
        self.vhosts = broker.vhosts.ready
        self._names: set[str] = set()
        self._named_at = -1
        """Position of the log at which these were read; -1: they have not been."""
        self._not_before: dict[str, float] = {}
        """When a virtual host is read again, if it has to be: reading it has taken its time."""
        self._spent_s = 0.0
        """By the loop, for what is read just now."""
        self._look_after = 0.0
        self._n_left = 0
        self._looked_at = 0
        """Position of the log at the last look at all queues."""

    async def know_sums(self) -> None:
        """Have what is read compared from the beginning: to learn all sums takes longer than to
        load all queues."""
        if self._integrity is not None:
            await self._real.run_in_executor(None, self._integrity.before_reading)

    async def go_on(self, place: Place) -> None:
        """Read what is new, and what has changed and rests. Raises: OSError, DefinitionsError."""
        if self._named_at < 0 or not place.is_same(vhosts.FILE_NAME, self._named_at):
            await self._learn_names(place)
        until = time.perf_counter() + PORTION_S
        for name in list(self._names):
            if time.perf_counter() >= until:
                await others_first()
                until = time.perf_counter() + PORTION_S
            there = self.vhosts.get(name)
            is_so = there is not None and there.ahead is not None and there.ahead.is_so
            if is_so or time.monotonic() < self._not_before.get(name, 0.0):
                continue
            self._spent_s = 0.0
            try:
                if there is None or not await self._catch_up(there):
                    await self._read(name, place)
            except (OSError, DefinitionsError) as error:
                _log.debug("virtual host %r is not ready: %s", name, error)
            finally:
                self._not_before[name] = time.monotonic() + max(AGAIN_S, SHARE * self._spent_s)
        if time.monotonic() >= self._look_after:
            at, self._spent_s = place.position(), 0.0
            for vhost in list(self.vhosts.values()):
                if vhost.ahead is not None:
                    await self._portions(vhost.look_again(self._looked_at), vhost.ahead.lines)
            self._looked_at = at
            self._look_after = time.monotonic() + max(LOOK_S, SHARE * self._spent_s)

    async def _learn_names(self, place: Place) -> None:
        """Learn which virtual hosts there are. Raises: OSError, DefinitionsError."""
        at = place.position()
        read = await self._real.run_in_executor(None, vhosts.read, self._root)
        self._names = {each.name for each in read}
        for name in set(self.vhosts) - self._names:
            await self._forget(name)
        self._not_before = {n: at for n, at in self._not_before.items() if n in self._names}
        self._named_at = at

    async def _forget(self, name: str) -> None:
        """Let go of what was read of a virtual host, if anything was."""
        vhost = self.vhosts.pop(name, None)
        if vhost is None:
            return
        try:
            await self._portions(vhost.drop(), [])
        finally:
            vhost.abandon()
        self._n_left += 1
        if self._n_left >= KEPT:  # nobody may look at all there is for days
            self._n_left = 0
            gc.unfreeze()
            gc.collect()
            gc.freeze()

    async def _read(self, name: str, place: Place) -> None:
        """Read a virtual host, maybe anew. Raises: OSError, DefinitionsError."""
        await self._forget(name)
        directory = self._root / hashed(name)
        began = time.perf_counter()
        try:
            ahead = await self._real.run_in_executor(None, Ahead, directory, place)
        finally:
            self._spent_s += time.perf_counter() - began
        vhost = self._server.broker.vhosts.make(name)
        try:
            await self._portions(vhost.stand_by(ahead), ahead.lines)
        except BaseException:
            for _ in vhost.drop():
                pass
            vhost.abandon()
            raise
        self.vhosts[name] = vhost

    async def _catch_up(self, vhost: VHost) -> bool:
        """Have what was read of a virtual host be as its definitions have become. Returns: False:
        it has to be read anew."""
        ahead = vhost.ahead
        if ahead is None or not ahead.begin():
            return False
        try:
            began = time.perf_counter()
            news = await self._real.run_in_executor(None, ahead.news)
            self._spent_s += time.perf_counter() - began
            if news is None:
                return False
            ahead.steps = steps = vhost.catch_up(news, is_read=True)
            await self._portions(steps, ahead.lines)
        except (OSError, DefinitionsError, ValueError) as error:
            _log.debug("virtual host %r is read anew: %s", vhost.name, error)
            return False
        return True

    async def _portions(
        self, steps: Iterator[list[str] | None] | Iterator[None], lines: list[log.Line]
    ) -> None:
        """Go all the way. Args: lines: get what there is to say."""
        is_over = False
        while not is_over:
            began, directories = time.perf_counter(), None
            with log.hushed(lines):
                for directories in steps:
                    if directories or time.perf_counter() >= began + PORTION_S:
                        break
                else:
                    is_over = True
            self._spent_s += time.perf_counter() - began
            if directories:
                await self._real.run_in_executor(None, warm, directories)
            else:
                await others_first()

    def let_go(self) -> Server:
        """The broker, which may change files from now on, and begins what it has been asked for."""
        server, broker = self._server, self._server.broker
        broker.loop.is_reading = False
        broker.disk.changes.is_kept_out = False
        broker.started_at = time.monotonic()
        self._events.let_go()
        server.events = broker.events = self._real
        return server

    def drop(self) -> None:
        """Let go of all of it."""
        while self.vhosts:
            vhost = self.vhosts.popitem()[1]
            for _ in vhost.drop():
                pass
            vhost.abandon()
        if self._integrity is not None:
            self._integrity.leave(self._server.broker.loop)
        self._server.broker.loop.stop()
