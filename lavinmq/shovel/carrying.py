"""One run of a shovel between two queues of this broker: from store to store, without AMQP.

An exclusive consumer stands for it in the queue, as that of any other shovel: nobody else takes
messages meanwhile. It gets none: what would be delivered to it goes to the other queue, in compiled
code, and is deleted once it is on disk there. Source: docs/shovels.md, decision 0108.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.client.errors import Error
from lavinmq.shovel.connecting import CLOSE_S, PlaceClient, Rotation
from lavinmq.shovel.endings import whole
from lavinmq.shovel.errors import NotCarried
from lavinmq.shovel.source import Position, Source, ensure_queue, quietly

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.values import Destination, Values
    from lavinmq.vhost.queue import Queue

LOOK_S: Final = 1.0
"""Between two looks at one that goes well; the messages do not wait for it."""
SHORT_S: Final = 0.05
"""The same of one that has an end, or whose destination does not take messages."""


def is_possible(values: Values, to: Destination) -> bool:
    """Whether all of it is in this broker, and messages stay as they are."""
    places = (*values.source.places, *to.places)
    is_plain = not (to.adds_forward or to.adds_timestamp or to.properties)
    return (
        all(place.is_local for place in places)
        and len(places) == 2
        and to.queue is not None
        and is_plain
        and not values.source.is_stream
        and not values.source.arguments
    )


class Carrying:
    """Carries until it is done or cancelled. Args: as those of `Move`."""

    def __init__(
        self, broker: Broker, name: str, values: Values, to: Destination, position: Position | None
    ) -> None:
        self.error = ""
        """Why it does not move, as long as it does not."""
        self._broker, self._values, self._to = broker, values, to
        self._source = Source(broker, name, values, self._failed, position)
        self._safe = 0
        """Messages that are on disk at their destination."""
        self._source.count_settled = lambda: self._safe
        self._destination = PlaceClient(
            broker, Rotation(to.places, to.failover), f"Shovel {name} sink", values.delay_s,
            values.source.prefetch, self._failed,
        )  # fmt: skip
        self._mover: _core.Mover | None = None
        self._before = [0, 0, 0]
        self._returned = 0
        self._returns: Callable[[], int] = int
        """How many came back to the source, because the destination did not take them."""
        self._has_fallen = asyncio.Event()
        """What is moved from is gone, or the consumer."""

    @property
    def is_running(self) -> bool:
        """Whether messages go through."""
        mover = self._mover
        return self._source.is_subscribed and mover is not None and not mover.is_refused

    def figures(self) -> dict[str, int]:
        """Numbers of this run."""
        now = self._mover.counts() if self._mover is not None else (0, 0, 0)
        moved, n_bytes, refused = (sum(each) for each in zip(self._before, now, strict=True))
        return {
            "message_count": moved, "bytes": n_bytes, "confirmed": moved - self._returned,
            "in_flight": 0, "refused": refused, "reconnects": self._source.reconnects,
        }  # fmt: skip

    def _failed(self, error: Exception) -> None:
        self.error = str(error) or type(error).__name__
        self._has_fallen.set()

    async def run(self) -> None:
        """Carry; returns when all has gone that was to. Raises: why it cannot go on; NotCarried
        when it has to be done by AMQP."""
        source, to = self._source, self._to
        try:
            await asyncio.gather(source.client.start(), self._destination.start())
            await self._destination.wait_connected()
            assert to.queue is not None
            await ensure_queue(
                self._destination, to.queue, to.is_predeclared, dict(to.queue_arguments)
            )
            await quietly(self._destination.close())
            name = await source.find()
            left = source.left
            if name is not None:
                await self._carry(self._found(self._values.source.places[0].vhost, name), left)
        finally:
            await whole(self._close())

    async def _close(self) -> None:
        if self._mover is not None:
            self._mover.close()
            self._returned = self._returns()
            await self._note_last()
        await self._source.close()
        await quietly(self._destination.close())

    def _found(self, vhost: str, name: str) -> Queue:
        """Raises: Error when it has gone in the meantime."""
        there = self._broker.vhosts.get(vhost)
        queue = there.queues.get(name) if there is not None else None
        if queue is None:
            raise Error(f"queue '{name}' in vhost '{vhost}' is gone")
        return queue

    async def _carry(self, queue: Queue, left: int | None) -> None:
        assert self._to.queue is not None
        to = self._found(self._to.places[0].vhost, self._to.queue)
        if to is queue:
            raise Error(f"queue '{to.name}' is its own destination")
        if to.is_session:
            raise Error(f"queue '{to.name}' is an MQTT session")
        self._move(queue, to, left)
        self._has_fallen.clear()
        self.error = ""
        await self._source.consume(queue.name, 1)
        begin = queue.core.returned
        self._returns = lambda: queue.core.returned - begin
        again = 0  # of those that came back: how many were to go once more
        while True:
            is_short = left is not None or self._mover is None or self._mover.is_refused
            await self._look(queue, to, SHORT_S if is_short else LOOK_S)
            self._returned = self._returns()
            if left is not None:
                await self._note()
            if left is not None and self._mover is not None and self._mover.is_over:
                await self._synced()
                missing = self._returns() - again
                if not missing:
                    return
                self._move(queue, to, missing)  # they are ready again
                again += missing

    def _move(self, queue: Queue, to: Queue, left: int | None) -> None:
        if self._mover is not None:
            self._before = [
                sum(each) for each in zip(self._before, self._mover.counts(), strict=True)
            ]
            self._mover.close()
        try:
            self._mover = _core.Mover(queue.core, to.core, left)
        except ValueError as error:
            raise NotCarried(str(error)) from None

    async def _look(self, queue: Queue, to: Queue, pause_s: float) -> None:
        """Wait; see to what went wrong. Raises: Error."""
        try:
            async with asyncio.timeout(pause_s):
                await self._has_fallen.wait()
        except TimeoutError:
            pass
        else:
            raise Error(self.error)
        mover = self._mover
        assert mover is not None
        if mover.is_cut:
            raise Error(f"queue '{queue.name}' or '{to.name}' is gone or closed")
        if mover.is_refused:
            self.error = f"queue '{to.name}' takes no messages: it is full, or its disk is"
            mover.kick()
        else:
            self.error = ""

    async def _note(self) -> None:
        """What is moved now counts once it is on disk; what came back instead does not."""
        moved = self.figures()["message_count"]
        await self._synced()
        self._safe = max(moved - self._returns(), self._safe)

    async def _note_last(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._note()

    async def _synced(self) -> None:
        """All that has gone so far is on disk, or is back."""
        done = asyncio.Event()
        self._broker.loop.after_sync(done.set)
        await done.wait()
