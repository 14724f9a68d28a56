"""The source of a run: where it connects to, what it consumes, and how much of it.

It connects again by itself. What was not acknowledged when a connection was lost comes again. Where
a stream is read to is kept, and how many messages are left of those that a shovel is to move: the
next run goes on there. Source: docs/shovels.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from lavinmq.client.aio import AsyncClient, AsyncConsumer
from lavinmq.client.consuming import OFFSET
from lavinmq.client.errors import ClientConnectionError, Error, NotFound
from lavinmq.shovel.connecting import CLOSE_S, PlaceClient, Rotation
from lavinmq.shovel.endings import begun

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.client._engine import Passage
    from lavinmq.shovel.connecting import Failed
    from lavinmq.shovel.values import Values

ALL_THERE: Final = -1
"""In place of a number of messages: what is there at the start."""
SAVE_S: Final = 1.0
"""Between two notes of how far it has come: so much of a stream may come twice after a crash."""


class Position(Protocol):
    """Where it is kept how far a source is read: the offset of a stream, or how many are left."""

    is_over: bool
    """Whether it is not wanted any more: nothing is kept."""

    def load(self, of: list[Any]) -> int | None:
        """Where to go on, None if nothing is known of that source."""

    def save(self, of: list[Any], position: int) -> None:
        """Keep it."""


class Source:
    """Args: failed: is told why it does not go on; position: None = streams begin anew."""

    __slots__ = (
        "_failed", "_is_no_ack", "_left", "_name", "_position", "_saved", "_saving", "client",
        "consumer", "count_settled", "places", "values",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, name: str, values: Values, failed: Failed, position: Position | None
    ) -> None:
        self.values = values.source
        self.places = Rotation(self.values.places, self.values.failover)
        self.client = PlaceClient(
            broker, self.places, f"Shovel {name} source", values.delay_s, self.values.prefetch,
            failed,
        )  # fmt: skip
        self.consumer: AsyncConsumer | None = None
        self._is_no_ack = values.ack_mode == "no-ack"
        self._name, self._failed, self._position = name, failed, position
        self._left: int | None = None
        self.count_settled: Callable[[], int] | None = None
        """Of who moves messages in another way: how many this run is done with."""
        self._saved: int | None = None
        self._saving: asyncio.Task[None] | None = None

    @property
    def is_subscribed(self) -> bool:
        """Whether messages come."""
        return self.consumer is not None and self.consumer.subscribed

    @property
    def confirmed(self) -> int:
        """Messages that it has forgotten, because they are elsewhere."""
        return self.consumer.tracker.acked if self.consumer is not None else 0

    @property
    def rejected(self) -> int:
        """Messages that it was told to give to its dead-letter exchange."""
        return self.consumer.tracker.rejected if self.consumer is not None else 0

    @property
    def reconnects(self) -> int:
        """Connections that were made again."""
        return self.client._core.reconnects

    async def find(self) -> str | None:
        """The queue to open, None when there is nothing to move from it. Raises: why it cannot."""
        await self.client.wait_connected()
        queue, self._left = await self.queue()
        return queue if self._left != 0 else None

    async def open(self, queue: str, passage: Passage | None = None) -> AsyncConsumer:
        """Consume it. Args: passage: by which messages go on. Raises: why it cannot."""
        most = self.values.prefetch
        return await self.consume(queue, min(most, self._left or most), passage)

    async def consume(
        self, queue: str, prefetch: int, passage: Passage | None = None
    ) -> AsyncConsumer:
        """As `open`, of so many at once."""
        opening = self.client.consumer(
            queue, prefetch, no_ack=self._is_no_ack, exclusive=not self.values.is_stream,
            arguments=self._arguments(), tag=tag_of(f"Shovel {self._name}"), declare=False,
        )  # fmt: skip
        self.consumer = opening.made
        self.consumer.passage, self.consumer.is_bounded = passage, True
        # What goes on by the passage is acknowledged before a run ends, also while it begins.
        await begun(opening, CLOSE_S)
        self.consumer.on_cancel(self._failed)
        if self._is_kept:
            self._saving = asyncio.get_running_loop().create_task(self._save_often())
        return self.consumer

    @property
    def left(self) -> int | None:
        """How many messages are wanted, None = all that come."""
        return self._left

    @property
    def end(self) -> Exception:
        """Why no messages come any more."""
        assert self.consumer is not None
        return self.consumer._error or Error("the consumer has ended")

    @property
    def is_all_settled(self) -> bool:
        """Whether all that was wanted is where it was to go, as far as this run has to know."""
        return self._left is not None and (self._is_no_ack or self.settled() >= self._left)

    def settled(self) -> int:
        """How many messages this run is done with."""
        if self.count_settled is not None:
            return self.count_settled()
        return self.confirmed + self.rejected

    async def stop(self) -> None:
        """Let nothing more come; what is here can still be acknowledged."""
        if self._saving is not None:
            self._saving.cancel()
        if self.consumer is not None and self.consumer.subscribed:
            await quietly(self.consumer.pause())

    async def close(self) -> None:
        """Send acknowledgements, and end."""
        await quietly(self.client.close())
        self._save()

    async def queue(self) -> tuple[str, int | None]:
        """The queue to consume from, and how many messages to take from it."""
        source, client = self.values, self.client
        if source.queue is None:
            assert source.exchange is not None
            made = await client.queue(
                "", durable=False, exclusive=True, arguments=dict(source.queue_arguments)
            )
            await client.bind(made.name, source.exchange, source.key)
        else:
            made = await ensure_queue(
                client, source.queue, source.is_predeclared, dict(source.queue_arguments)
            )
            if source.exchange is not None:
                await client.bind(made.name, source.exchange, source.key)
        return source.queue or made.name, self._left_of(made.message_count)

    def _left_of(self, count: int) -> int | None:
        """How many messages to take. Args: count: as many are there."""
        wanted = self.values.left_after
        if wanted is None:
            return None
        kept = None
        if self._position is not None and not self._is_no_ack:
            kept = self._saved = self._position.load(self._identity())
        if wanted != ALL_THERE:
            return wanted if kept is None else kept
        # What came later is not of those, and what has gone in another way is not waited for.
        return count if kept is None else min(count, kept)

    # ---- what is kept

    @property
    def _is_kept(self) -> bool:
        has_end = self._left is not None and not self._is_no_ack
        return self._position is not None and (self.values.is_stream or has_end)

    def _identity(self) -> list[Any]:
        """What a position is one of; another source, beginning or number begins anew."""
        values, uris = self.values, sorted(place.shown for place in self.values.places)
        if values.is_stream:
            return [uris, values.queue, values.arguments.get(OFFSET)]
        return [uris, values.queue, values.exchange, values.key, values.left_after]

    def _arguments(self) -> dict[str, Any]:
        arguments = dict(self.values.arguments)
        if self.values.is_stream and self._position is not None:
            self._saved = self._position.load(self._identity())
            if self._saved is not None:
                arguments[OFFSET] = self._saved
        return arguments

    def _save(self) -> None:
        if self.consumer is None or self._position is None or not self._is_kept:
            return
        position = self.consumer.next_offset
        if self._left is not None:
            position = max(self._left - self.settled(), 0)
        if position is None or position == self._saved:
            return
        self._position.save(self._identity(), position)
        self._saved = position

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            self._save()


async def ensure_queue(
    client: AsyncClient, name: str, is_predeclared: bool, arguments: dict[str, Any]
) -> Any:
    """A queue that is there, or is declared now, or is waited for. Raises: why it cannot be."""
    try:
        return await client.queue(name, passive=True)
    except NotFound:
        if is_predeclared:
            raise
    return await client.queue(name, arguments=arguments)


def tag_of(name: str) -> str:
    """As much of a name as the tag of a consumer may have: 255 bytes, as the name itself."""
    return name.encode(errors="surrogateescape")[:255].decode(errors="ignore")


async def quietly(work: Awaitable[Any]) -> None:
    """At an end: what fails now has failed before, and was told."""
    with contextlib.suppress(Error, OSError, ClientConnectionError):
        await work
