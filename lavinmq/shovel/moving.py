"""One run of a shovel between two brokers, or two places of one: two clients and a ring.

The client of either side connects again by itself. A message is acknowledged at the source once it
has ended well at the destination, by compiled code (`Ring.forward`); what is refused, returned or
unconfirmed when a connection is lost is sent again and stays at the source meanwhile.
Source: docs/shovels.md, decision 0108.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lavinmq.client._engine import Message, encode_properties
from lavinmq.client.aio import AsyncProducer
from lavinmq.client.values import PublishMode
from lavinmq.shovel.connecting import Rotation, client_of
from lavinmq.shovel.source import Position, Source, ensure_queue, quietly

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.values import Destination, Values

USER_ID = 0x10
"""The flag of that property, in the second byte of encoded ones."""
PORTION = 1000
"""Messages that are handed over in one go."""
ROOM_S = 0.005
"""Between two looks whether a full ring has room."""


async def hand_over(
    producer: AsyncProducer, messages: list[Message], exchange: str | None, key: str | None,
    is_mandatory: bool, properties: list[bytes] | None,
) -> None:  # fmt: skip
    """Give messages to a producer, as `Ring.forward` does; wait while there is no room.

    Raises: why the producer has ended.
    """
    at = 0
    while True:
        at = producer.forward(messages, at, exchange, key, is_mandatory, properties)
        if at >= len(messages):
            return
        await asyncio.sleep(ROOM_S)
        if producer._error is not None:
            raise producer._error


class Move:
    """Moves until it is done or cancelled.

    Args: name: the shovel's, for names of connections and headers.
    """

    def __init__(
        self, broker: Broker, vhost: str, name: str, values: Values, to: Destination,
        position: Position | None,
    ) -> None:  # fmt: skip
        self.error = ""
        """Why it does not move, as long as it does not."""
        self._broker, self._vhost, self._name = broker, vhost, name
        self._values, self._to = values, to
        self._source = Source(broker, name, values, self._failed, position)
        self._places = Rotation(to.places, to.failover)
        self._destination = client_of(
            broker, self._places, f"Shovel {name} sink", values.delay_s, self._failed
        )
        self._producer: AsyncProducer | None = None
        self._rewrites = self._rewriter()

    # ---- how it goes

    @property
    def is_running(self) -> bool:
        """Whether messages go through."""
        producer = self._producer
        return self._source.is_subscribed and producer is not None and not producer.is_troubled

    def figures(self) -> dict[str, int]:
        """Numbers of this run."""
        producer, source = self._producer, self._source
        return {
            "message_count": source.count,
            "bytes": source.bytes,
            "confirmed": source.confirmed,
            "in_flight": producer.count if producer is not None else 0,
            "refused": producer.nacks if producer is not None else 0,
            "unroutable": producer.unrouted if producer is not None else 0,
            "reconnects": source.reconnects + self._destination._core.reconnects,
        }

    def _failed(self, error: Exception) -> None:
        self.error = str(error) or type(error).__name__

    # ---- its life

    async def run(self) -> None:
        """Move; returns when it has moved all that it was to. Raises: why it cannot go on."""
        try:
            await asyncio.gather(self._source.client.start(), self._destination.start())
            await self._open_destination()
            if await self._source.open():
                await self._move()
        finally:
            await asyncio.shield(self._close())

    async def _open_destination(self) -> None:
        to = self._to
        await self._destination.wait_connected()
        if to.queue is not None:
            arguments = dict(to.queue_arguments)
            await ensure_queue(self._destination, to.queue, to.is_predeclared, arguments)
        is_confirmed = self._values.ack_mode == "on-confirm"
        # An exchange that goes missing is found by the next publish.
        self._producer = await self._destination.producer(
            exchange=to.exchange or "", routing_key=to.key or "", declare=False,
            mode=PublishMode.CONFIRM if is_confirmed else PublishMode.FIRE_AND_FORGET,
            buffer_size=max(self._values.source.prefetch * 2, 1000), max_in_flight=1 << 16,
        )  # fmt: skip
        self._producer.on_error(self._failed)

    async def _move(self) -> None:
        source, producer = self._source, self._producer
        assert producer is not None
        async for messages in source.batches():
            for at in range(0, len(messages), PORTION):
                if at:
                    await asyncio.sleep(0)  # others come first
                await self._forward(producer, messages[at : at + PORTION])
            if source.is_all_taken:
                await producer.drained()
                if source.is_all_settled:
                    return

    async def _forward(self, producer: AsyncProducer, messages: list[Message]) -> None:
        to = self._to
        properties = [self._rewrites(each) for each in messages] if self._rewrites else None
        is_mandatory = self._values.ack_mode == "on-confirm"
        await hand_over(producer, messages, to.exchange, to.key, is_mandatory, properties)
        if self.error and self.is_running:
            self.error = ""

    async def _close(self) -> None:
        """End in order: no new messages, what is under way gets its time, then acks, then both."""
        await self._source.stop()
        if self._producer is not None and self._destination.connected:
            await quietly(self._producer.close())
        await asyncio.gather(self._source.close(), quietly(self._destination.close(flush=False)))

    # ---- properties

    def _rewriter(self) -> Callable[[Message], bytes] | None:
        """What makes the properties of a message, if they are not to be its own."""
        to = self._to
        # In this broker the parameter's author was asked about one queue, and no other.
        keeps_to_queue = to.queue is not None and any(place.is_local for place in to.places)
        # A user of another broker is none of ours.
        is_foreign = any(place.is_local for place in to.places) and not all(
            place.is_local for place in self._values.source.places
        )
        is_plain = not (to.adds_forward or to.adds_timestamp or to.properties)
        if is_plain and not keeps_to_queue and not is_foreign:
            return None

        def rewrite(message: Message) -> bytes:
            raw = message.raw_properties
            has_user = is_foreign and raw[1] & USER_ID
            if is_plain and not has_user and not (keeps_to_queue and b"CC" in raw):
                return raw
            properties = message.properties
            if has_user:
                properties.pop("user_id", None)
            headers = dict(properties.get("headers") or {})
            if keeps_to_queue:
                headers.pop("CC", None)
                headers.pop("BCC", None)
            if to.adds_forward:
                before = headers.get("x-shovelled")
                before = before if isinstance(before, list) else []
                headers["x-shovelled"] = [*before, self._forwarded()]
            if to.adds_timestamp:
                headers["x-shovelled-timestamp"] = int(time.time())
            properties.update(to.properties)
            if headers:
                properties["headers"] = {**headers, **(to.properties.get("headers") or {})}
            else:
                properties.pop("headers", None)
            return encode_properties(properties)

        return rewrite

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
