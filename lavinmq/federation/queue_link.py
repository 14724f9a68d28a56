"""A link of a queue: it fetches messages of the upstream's queue while somebody here consumes.

Consumers that are links themselves do not count: a ring of queues without consumers rests. No more
is fetched than consumers here have taken, but for what is under way. Source: docs/federation.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lavinmq.client.errors import Error, NotFound
from lavinmq.federation.hops import MOST_QUEUE_HOPS
from lavinmq.federation.link import Link, LinkRun
from lavinmq.shovel.passing import hand_over
from lavinmq.shovel.source import ensure_queue, quietly

if TYPE_CHECKING:
    from lavinmq.client.aio import AsyncConsumer
    from lavinmq.shovel.runner import Run
    from lavinmq.vhost.queue import Queue

ROOM_S: Final = 0.005
"""Between two looks whether consumers here have taken something."""
TAG: Final = "federation-link"
"""How consumer tags of links begin, RabbitMQ's, too."""


class QueueLink(Link):
    """One upstream of a queue."""

    __slots__ = ()

    def made(self) -> Run:
        """A new run."""
        return QueueRun(self, self._broker)


class QueueRun(LinkRun):
    """One run of it."""

    __slots__ = ("_consumed", "_name", "_resource")

    def __init__(self, link: QueueLink, broker: Any) -> None:
        super().__init__(link, broker, most_hops=MOST_QUEUE_HOPS, ends_here=False)
        self._name = link.upstream.queue or link.resource
        self._consumed = asyncio.Event()
        """A consumer has come or gone here."""
        self._resource: Queue | None = None

    def origin(self) -> dict[str, Any]:
        """What the messages come from."""
        return {"queue": self._name}

    async def bring(self) -> None:
        """Fetch while there are consumers. Raises: why it cannot."""
        await ensure_queue(self.client, self._name, False, {})
        await self.open_producer("", self.link.resource)
        queue = self._resource = self._queue()
        queue.watchers = (*queue.watchers, self._consumers_changed)
        try:
            while True:
                while not has_consumers(queue):
                    self._consumed.clear()
                    await self._consumed.wait()
                await self._fetch_while_used(queue)
        finally:
            mine = self._consumers_changed
            queue.watchers = tuple(each for each in queue.watchers if each != mine)

    def _queue(self) -> Queue:
        """Raises: NotFound."""
        vhost = self.broker.vhosts.get(self.link.here.vhost)
        queue = vhost.queues.get(self.link.resource) if vhost is not None else None
        if queue is None:
            raise NotFound(404, f"queue '{self.link.resource}' is gone")
        return queue

    def _consumers_changed(self) -> None:
        self._consumed.set()
        passage = self.consumer.passage if self.consumer is not None else None
        queue = self._resource
        if passage is not None and queue is not None and not has_consumers(queue):
            passage.close()  # what comes from now on goes back

    async def _fetch_while_used(self, queue: Queue) -> None:
        consumer = await self.open_consumer(
            self._name, "", self.link.resource, exclusive=False, budget=self._budget(queue)
        )
        watching = asyncio.get_running_loop().create_task(self._until_unused(queue, consumer))
        try:
            await self._fetch(queue, consumer)
        finally:
            watching.cancel()
            await quietly(consumer.close())

    async def _until_unused(self, queue: Queue, consumer: AsyncConsumer) -> None:
        """When nobody consumes any more, what is not handed over goes back."""
        while has_consumers(queue):
            self._consumed.clear()
            await self._consumed.wait()
        # What is on its way is acknowledged first: else it would come twice.
        await quietly(consumer.pause())
        if self.producer is not None:
            await self.producer.drained()
        await consumer.close()

    async def _fetch(self, queue: Queue, consumer: AsyncConsumer) -> None:
        producer, passage = self.producer, consumer.passage
        assert producer is not None and passage is not None
        stopped = 0
        async for batch in consumer.batches():
            if self.upstream.ack_mode != "no-ack" and not has_consumers(queue):
                for message in batch.messages:
                    message.nack(requeue=True)
                break
            if passage.stopped > stopped:
                # They stay where they are: a queue keeps what nobody has taken.
                stopped = passage.stopped
                text = f"messages have passed {MOST_QUEUE_HOPS} queues: they go no further"
                self.failed(Error(text))
                await asyncio.sleep(1)
            while not self._budget(queue) and not consumer.closed:
                await asyncio.sleep(ROOM_S)
            await hand_over(consumer, producer, batch.messages, lambda: self._budget(queue))
        await producer.drained()

    def _budget(self, queue: Queue) -> int:
        """How many messages consumers here have room for."""
        if not has_consumers(queue):
            return 0
        return max(self.upstream.prefetch - queue.core.ready, 0)


def has_consumers(queue: Queue) -> bool:
    """Whether somebody consumes who is no link."""
    return any(not each.tag.startswith(TAG) for each in queue.consumers)
