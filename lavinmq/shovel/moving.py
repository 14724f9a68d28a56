"""One run of a shovel between two brokers, or two places of one: two clients and a ring.

The client of either side connects again by itself. A message is acknowledged at the source once it
has ended well at the destination, by compiled code (`Passage`); what is refused, returned or
unconfirmed when a connection is lost is sent again and stays at the source meanwhile.
Source: docs/shovels.md, decision 0108.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lavinmq.client._engine import Passage, Rewriter
from lavinmq.client.aio import AsyncConsumer, AsyncProducer
from lavinmq.client.errors import Error
from lavinmq.shovel.connecting import PlaceClient, Rotation
from lavinmq.shovel.endings import whole
from lavinmq.shovel.passing import Trouble, hand_over, open_producer, refusal
from lavinmq.shovel.source import Position, Source, ensure_queue, quietly

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.values import Destination, Values


class Move:
    """Moves until it is done or cancelled.

    Args: name: the shovel's, for names of connections and headers.
    """

    __slots__ = (
        "_broker", "_destination", "_name", "_passage", "_places", "_producer", "_source", "_to",
        "_trouble", "_values", "_vhost",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, vhost: str, name: str, values: Values, to: Destination,
        position: Position | None,
    ) -> None:  # fmt: skip
        self._trouble = Trouble()
        self._passage: Passage | None = None
        self._broker, self._vhost, self._name = broker, vhost, name
        self._values, self._to = values, to
        self._source = Source(broker, name, values, self._failed, position)
        self._places = Rotation(to.places, to.failover)
        self._destination = PlaceClient(
            broker, self._places, f"Shovel {name} sink", values.delay_s, values.source.prefetch,
            self._failed,
        )  # fmt: skip
        self._producer: AsyncProducer | None = None

    # ---- how it goes

    @property
    def error(self) -> str:
        """Why it does not move, as long as it does not."""
        return self._trouble.text(self.is_running, self._count) or refusal(self._producer)

    @property
    def _count(self) -> int:
        return self._passage.count if self._passage is not None else 0

    @property
    def is_running(self) -> bool:
        """Whether messages go through."""
        producer = self._producer
        return self._source.is_subscribed and producer is not None and not producer.is_troubled

    def figures(self) -> dict[str, int]:
        """Numbers of this run."""
        producer, source = self._producer, self._source
        return {
            "message_count": self._count,
            "bytes": self._passage.n_bytes if self._passage is not None else 0,
            "confirmed": source.confirmed,
            "in_flight": producer.count if producer is not None else 0,
            "refused": producer.nacks if producer is not None else 0,
            "unroutable": producer.unrouted if producer is not None else 0,
            "reconnects": source.reconnects + self._destination._core.reconnects,
        }

    def _failed(self, error: Exception) -> None:
        self._trouble.say(error, self._count)

    # ---- its life

    async def run(self) -> None:
        """Move; returns when it has moved all that it was to. Raises: why it cannot go on."""
        try:
            await asyncio.gather(self._source.client.start(), self._destination.start())
            await self._open_destination()
            queue = await self._source.find()
            if queue is None:
                return
            consumer, producer = await self._open_source(queue)
            while (messages := await consumer._next()) is not None:
                await hand_over(consumer, producer, messages)
                if consumer.passage is not None and consumer.passage.is_all_taken:
                    await producer.drained()
                    if self._source.is_all_settled:
                        return
            raise self._source.end
        finally:
            await whole(self._close())

    async def _open_destination(self) -> None:
        to = self._to
        await self._destination.wait_connected()
        if to.queue is not None:
            arguments = dict(to.queue_arguments)
            await ensure_queue(self._destination, to.queue, to.is_predeclared, arguments)
        self._producer = await open_producer(
            self._destination, to.exchange or "", to.key or "", self._values.ack_mode
        )

    async def _open_source(self, queue: str) -> tuple[AsyncConsumer, AsyncProducer]:
        """Let messages come, and go on. Raises: why it cannot be."""
        source, producer, to = self._source, self._producer, self._to
        assert producer is not None
        self._passage = Passage(
            producer, exchange=to.exchange, routing_key=to.key,
            mandatory=self._values.ack_mode == "on-confirm", rewriter=self._rewriter(),
            wanted=source.left, is_stream=source.values.is_stream,
        )  # fmt: skip
        if to.adds_forward:
            self._places.moved, source.places.moved = self._begin_anew, self._rename
        consumer = await source.open(queue, self._passage)
        for client in (source.client, self._destination):
            await quietly(client._core.release())
        return consumer, producer

    async def _close(self) -> None:
        """End in order: no new messages, what is under way gets its time, then acks, then both."""
        await self._source.stop()
        if self._producer is not None and self._destination.connected:
            await quietly(self._producer.close())
        await asyncio.gather(self._source.close(), quietly(self._destination.close(flush=False)))

    # ---- properties

    def _rewriter(self) -> Rewriter | None:
        """What makes the properties of a message, if they are not to be its own."""
        to = self._to
        # In this broker the parameter's author was asked about one place, and no other.
        is_inside = any(place.is_local for place in to.places)
        # A user of another broker is none of ours.
        is_foreign = is_inside and not all(place.is_local for place in self._values.source.places)
        if not (to.adds_forward or to.adds_timestamp or to.properties or is_inside):
            return None
        return Rewriter(
            properties=dict(to.properties), drops_user_id=is_foreign,
            drops=("CC", "BCC") if is_inside else (),
            stamp="x-shovelled-timestamp" if to.adds_timestamp else None,
            array="x-shovelled" if to.adds_forward else None,
            entry=self._forwarded() if to.adds_forward else None,
        )  # fmt: skip

    def _rename(self) -> None:
        """Another place has taken over: `x-shovelled` names it from now on."""
        assert self._passage is not None
        self._passage.rewriter = self._rewriter()

    def _begin_anew(self) -> None:
        """Another destination has taken over: what is under way has the name of the first, so all
        that the source still has comes again, by another run."""
        consumer, producer, passage = self._source.consumer, self._producer, self._passage
        self._rename()
        if consumer is None or producer is None or self._values.ack_mode == "no-ack":
            return
        assert passage is not None
        why = Error(f"another destination has taken over: {self._places.place.shown}")
        passage.close()
        producer.finish(why)
        consumer.finish(why)

    def _forwarded(self) -> dict[str, Any]:
        """The entry of `x-shovelled` that says by whom a message was moved."""
        source, to = self._values.source, self._to
        places = {"src-uri": self._source.places.place.shown, "dest-uri": self._places.place.shown}
        named = {
            "shovelled-by": self._broker.node_name, "shovel-type": "dynamic",
            "shovel-name": self._name, "shovel-vhost": self._vhost,
            "src-queue": source.queue, "src-exchange": source.exchange,
            "dest-exchange": to.exchange if to.queue is None else None, "dest-queue": to.queue,
        }  # fmt: skip
        return places | {key: value for key, value in named.items() if value is not None}
