"""A link of a queue: it fetches messages of the upstream's queue while somebody here consumes.

Consumers that are links themselves do not count: a ring of queues without consumers rests. No more
is fetched than consumers here have taken, but for what is under way. Source: docs/federation.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lavinmq.client.errors import NotFound
from lavinmq.federation.hops import MOST_QUEUE_HOPS
from lavinmq.federation.link import Link, LinkRun
from lavinmq.shovel.source import ensure_queue, quietly

if TYPE_CHECKING:
    from lavinmq.client.aio import AsyncConsumer
    from lavinmq.shovel.runner import Run
    from lavinmq.vhost.queue import Queue

LOOK_S: Final = 0.1
"""Between two looks whether somebody consumes."""
ROOM_S: Final = 0.005
TAG: Final = "federation-link"
"""How consumer tags of links begin, RabbitMQ's, too."""


class QueueLink(Link):
    """One upstream of a queue."""

    def made(self) -> Run:
        """A new run."""
        return QueueRun(self, self._broker)


class QueueRun(LinkRun):
    """One run of it."""

    def __init__(self, link: QueueLink, broker: Any) -> None:
        super().__init__(link, broker, most_hops=MOST_QUEUE_HOPS, ends_here=False)
        self._name = link.upstream.queue or link.resource

    def origin(self) -> dict[str, Any]:
        """What the messages come from."""
        return {"queue": self._name}

    async def bring(self) -> None:
        """Fetch while there are consumers. Raises: why it cannot."""
        await ensure_queue(self.client, self._name, False, {})
        await self.open_producer("", self.link.resource)
        while True:
            while not has_consumers(self._queue()):
                await asyncio.sleep(LOOK_S)
            consumer = await self.open_consumer(self._name, exclusive=False)
            watching = asyncio.get_running_loop().create_task(self._until_unused(consumer))
            try:
                await self._fetch(consumer)
            finally:
                watching.cancel()
                await quietly(consumer.close())

    def _queue(self) -> Queue:
        """Raises: NotFound."""
        vhost = self.broker.vhosts.get(self.link.here.vhost)
        queue = vhost.queues.get(self.link.resource) if vhost is not None else None
        if queue is None:
            raise NotFound(404, f"queue '{self.link.resource}' is gone")
        return queue

    async def _until_unused(self, consumer: AsyncConsumer) -> None:
        """When nobody consumes any more, what is not handed over goes back."""
        while has_consumers(self._queue()):
            await asyncio.sleep(LOOK_S)
        await consumer.close()

    async def _fetch(self, consumer: AsyncConsumer) -> None:
        most = self.upstream.prefetch
        async for batch in consumer.batches():
            if self.upstream.ack_mode != "no-ack" and not has_consumers(self._queue()):
                for message in batch.messages:
                    message.nack(requeue=True)
                break
            stopped = await self.hand_over(batch.messages, "", self.link.resource)
            if stopped:
                # They stay where they are: a queue keeps what nobody has taken.
                for message in stopped:
                    message.nack(requeue=True)
                self.error = f"messages have passed {MOST_QUEUE_HOPS} queues: they go no further"
                await asyncio.sleep(1)
            while self._queue().core.ready >= most and not consumer.closed:
                await asyncio.sleep(ROOM_S)
        assert self.producer is not None
        await self.producer.drained()


def has_consumers(queue: Queue) -> bool:
    """Whether somebody consumes who is no link."""
    return any(not each.tag.startswith(TAG) for each in queue.consumers)
