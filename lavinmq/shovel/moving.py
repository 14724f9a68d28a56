"""One run of a shovel: two clients, and the ring between them.

The client of either side connects again by itself. A message is acknowledged at the source once it
has ended well at the destination, by compiled code (`Ring.forward`); what is refused, returned or
unconfirmed when a connection is lost is sent again and stays at the source meanwhile.
Source: docs/shovels.md, decision 0108.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lavinmq.client._engine import Batch, Message, encode_properties
from lavinmq.client.aio import AsyncClient, AsyncConsumer, AsyncProducer
from lavinmq.client.config import Config
from lavinmq.client.errors import ClientConnectionError, Error, NotFound
from lavinmq.client.link import Link
from lavinmq.client.opening import open_link
from lavinmq.client.values import PublishMode
from lavinmq.shovel.inside import open_inside

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.places import Place
    from lavinmq.shovel.values import Values

MOST_DELAY_S: Final = 300.0
NEVER: Final = 1 << 30
BUFFER_BYTES: Final = 64 << 20
"""What a ring holds, when the destination is slower than the source."""
CLOSE_S: Final = 5.0


class Rotation:
    """The places of one side, in turn."""

    def __init__(self, places: tuple[Place, ...], failover: str) -> None:
        self._places = list(places)
        self._is_ordered = failover == "ordered"
        if failover == "shuffle":
            random.shuffle(self._places)
        self._next = 0
        self.place = self._places[0]

    def turn(self) -> Place:
        """Whose turn it is now."""
        self.place = self._places[self._next % len(self._places)]
        self._next += 1
        return self.place

    def worked(self) -> None:
        """It is connected: with an order, the first one is tried first again."""
        if self._is_ordered:
            self._next = 0


class Move:
    """Moves until it is done or cancelled.

    Args: name: the shovel's, for names of connections and headers.
    """

    def __init__(self, broker: Broker, vhost: str, name: str, values: Values) -> None:
        self.values = values
        self.error = ""
        """Why it does not move, as long as it does not."""
        self.count = 0
        """Messages taken from the source."""
        self.bytes = 0
        self._broker, self._vhost, self._name = broker, vhost, name
        source, destination = values.source, values.destination
        self._source_places = Rotation(source.places, source.failover)
        self._places = Rotation(destination.places, destination.failover)
        self._source = self._client(self._source_places, "source")
        self._destination = self._client(self._places, "sink")
        self._consumer: AsyncConsumer | None = None
        self._producer: AsyncProducer | None = None
        self._rewrites = self._rewriter()

    # ---- how it goes

    @property
    def is_running(self) -> bool:
        """Whether messages go through."""
        return (
            self._consumer is not None and self._consumer.subscribed
            and self._producer is not None and not self._producer.is_troubled
        )  # fmt: skip

    @property
    def in_flight(self) -> int:
        """Messages that were taken and whose end is not known."""
        return self._producer.count if self._producer is not None else 0

    @property
    def confirmed(self) -> int:
        """Messages that have arrived."""
        return self._consumer.tracker.acked if self._consumer is not None else 0

    @property
    def reconnects(self) -> int:
        """Connections that were made again, on both sides."""
        return self._source._core.reconnects + self._destination._core.reconnects

    def _failed(self, error: Exception) -> None:
        self.error = str(error) or type(error).__name__

    # ---- the two sides

    def _client(self, rotation: Rotation, side: str) -> AsyncClient:
        delay = max(self.values.delay_s, 0.01)
        client = AsyncClient(
            "amqp://localhost",
            Config(
                fail_fast=False, retry_auth=True, topology_recovery="declared",
                reconnect_initial_delay=delay, reconnect_max_delay=max(MOST_DELAY_S, delay),
                reconnect_jitter=1.0, rpc_timeout=30.0, close_timeout=CLOSE_S,
                buffer_bytes=BUFFER_BYTES, flush_retries=NEVER, confirm_timeout=60.0,
            ),
        )  # fmt: skip
        name = f"Shovel {self._name} {side}"

        async def opening() -> Link:
            place = rotation.turn()
            try:
                if place.is_local:
                    link = await open_inside(self._broker, place, place.name or name)
                else:
                    config = place.config.updated({"name": place.name or name})
                    link = await open_link(config, place.target, place.target.endpoints[0])
            except (Error, OSError) as error:
                self._failed(error)
                if isinstance(error, OSError) and not isinstance(error, ClientConnectionError):
                    # What the certificate is like may change: it is tried again.
                    raise ClientConnectionError(f"no connection to {place.shown}: {error}") from None
                raise
            rotation.worked()
            return link

        client._core.opening = opening
        client.on_error(self._failed)
        client.on_state_change(lambda old, new, cause: cause and self._failed(cause))
        return client

    async def run(self) -> None:
        """Move; returns when it has moved all that it was to. Raises: why it cannot go on."""
        values = self.values
        mode = PublishMode.CONFIRM if values.ack_mode == "on-confirm" else (
            PublishMode.FIRE_AND_FORGET
        )  # fmt: skip
        try:
            await asyncio.gather(self._source.start(), self._destination.start())
            await self._destination.wait_connected()
            to = values.destination
            if to.queue is not None:
                await _ensure(
                    self._destination, to.queue, to.is_predeclared, dict(to.queue_arguments)
                )
            # It is found by the next publish when it goes missing later.
            self._producer = await self._destination.producer(
                exchange=to.exchange or "", routing_key=to.key or "", mode=mode, declare=False,
                buffer_size=max(values.source.prefetch * 2, 1000), max_in_flight=1 << 16,
            )  # fmt: skip
            self._producer.on_error(self._failed)
            await self._source.wait_connected()
            await self._consume()
        finally:
            await asyncio.shield(self._close())

    async def _consume(self) -> None:
        source = self.values.source
        queue, left = await self._queue()
        if left == 0:
            return
        prefetch = min(source.prefetch, left) if left is not None else source.prefetch
        consumer = await self._source.consumer(
            queue, prefetch, no_ack=self.values.ack_mode == "no-ack",
            exclusive=not source.is_stream, arguments=source.arguments, tag=f"Shovel {self._name}",
            declare=False,
        )  # fmt: skip
        consumer.on_error(self._failed)
        consumer.on_cancel(self._failed)
        self._consumer = consumer
        incarnation, taken, before = consumer.tracker.incarnation, 0, 0
        async for batch in consumer.batches():
            messages = batch.messages
            if consumer.tracker.incarnation != incarnation:
                # What was not acknowledged before the connection was lost comes again.
                incarnation, taken = consumer.tracker.incarnation, 0
                before = consumer.tracker.acked
            if left is not None:
                messages = messages[: left - before - taken]
            taken += len(messages)
            await self._forward(messages)
            if left is not None and before + taken >= left and await self._settled(left):
                return
        raise consumer._error or Error("the consumer has ended")

    async def _settled(self, left: int) -> bool:
        """Whether all that had to be moved has arrived, once that is known."""
        assert self._producer is not None and self._consumer is not None
        await self._producer.drained()
        return self.values.ack_mode == "no-ack" or self._consumer.tracker.acked >= left

    async def _queue(self) -> tuple[str, int | None]:
        """The queue to consume from, and how many messages to take from it."""
        source, client = self.values.source, self._source
        if source.queue is None:
            assert source.exchange is not None
            made = await client.queue(
                "", durable=False, exclusive=True, arguments=dict(source.queue_arguments)
            )
            await client.bind(made.name, source.exchange, source.key)
        else:
            made = await _ensure(
                client, source.queue, source.is_predeclared, dict(source.queue_arguments)
            )
        left = source.left_after
        return made.name, made.message_count if left == -1 else left

    async def _forward(self, messages: list[Message]) -> None:
        """Hand over; wait while there is no room."""
        producer, to = self._producer, self.values.destination
        assert producer is not None
        self.count += len(messages)
        self.bytes += sum(map(len, messages))
        properties = [self._rewrites(each) for each in messages] if self._rewrites else None
        at = 0
        is_mandatory = self.values.ack_mode == "on-confirm"
        while True:
            at = producer.forward(messages, at, to.exchange, to.key, is_mandatory, properties)
            if at >= len(messages):
                break
            await asyncio.sleep(0.005)
            if producer._error is not None:
                raise producer._error
        if self.is_running:
            self.error = ""

    def _rewriter(self) -> Callable[[Message], bytes] | None:
        """What makes the properties of a message, if they are not to be its own."""
        to = self.values.destination
        # In this broker the parameter's author was asked about one queue, and no other.
        keeps_to_queue = to.queue is not None and any(place.is_local for place in to.places)
        if not (to.adds_forward or to.adds_timestamp or to.properties or keeps_to_queue):
            return None
        is_plain = not (to.adds_forward or to.adds_timestamp or to.properties)

        def rewrite(message: Message) -> bytes:
            raw = message.raw_properties
            if is_plain and b"CC" not in raw:
                return raw
            properties = message.properties
            headers = dict(properties.get("headers") or {})
            if keeps_to_queue:
                headers.pop("CC", None)
                headers.pop("BCC", None)
            if to.adds_forward:
                headers["x-shovelled"] = [*_list(headers.get("x-shovelled")), self._forwarded()]
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
        source, to = self.values.source, self.values.destination
        places = {"src-uri": self._source_places.place.shown, "dest-uri": self._places.place.shown}
        named = {
            "shovelled-by": self._broker.node_name, "shovel-type": "dynamic",
            "shovel-name": self._name, "shovel-vhost": self._vhost,
            "src-queue": source.queue, "src-exchange": source.exchange,
            "dest-exchange": to.exchange if to.queue is None else None, "dest-queue": to.queue,
        }  # fmt: skip
        return places | {key: value for key, value in named.items() if value is not None}

    async def _close(self) -> None:
        """End in order: no new messages, what is under way gets its time, then acks, then both."""
        if self._consumer is not None and self._consumer.subscribed:
            await _quietly(self._consumer.pause())
        if self._producer is not None and self._destination.connected:
            await _quietly(self._producer.close())
        await asyncio.gather(
            _quietly(self._source.close()), _quietly(self._destination.close(flush=False))
        )


async def _ensure(
    client: AsyncClient, queue: str, is_predeclared: bool, arguments: dict[str, Any]
) -> Any:
    """Look for a queue, or declare it if nobody else has to. Raises: NotFound."""
    try:
        return await client.queue(queue, passive=True)
    except NotFound:
        if is_predeclared:
            raise
        return await client.queue(queue, arguments=arguments)


async def _quietly(work: Any) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await work
    except (Error, OSError, TimeoutError):
        pass  # it is over either way


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


__all__ = ["Batch", "Move"]
