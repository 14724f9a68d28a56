"""A channel as the protocol has it, for what the high level does not offer: transactions first.

It is not restored: when its connection is lost it is closed, and its deliveries are the broker's.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from lavinmq.client import _engine
from lavinmq.client._engine import Message, Receipt
from lavinmq.client.core import Core
from lavinmq.client.link import ALL, Chan, ChannelOwner, Link

WITHOUT_LIMIT = 1 << 40
Table = Mapping[str, Any] | None


class QueueInfo(NamedTuple):
    """What the broker says of a queue: its name, its ready messages and its consumers."""

    name: str
    message_count: int
    consumer_count: int


class _Publishes(_engine.Ring):
    """What was published on a channel, to see it confirmed."""

    def __init__(self) -> None:
        self.watchers: list[tuple[int, asyncio.Future[None]]] = []
        self.configure(
            confirms=False, capacity=1 << 20, capacity_bytes=WITHOUT_LIMIT,
            max_in_flight=1 << 20, retry_nacks=False,
        )  # fmt: skip

    def future(self) -> tuple[asyncio.Future[None], Callable[[Receipt], None]]:
        """An awaitable, and the callback of a receipt that ends it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return future, lambda _: None if future.done() else future.set_result(None)


class AsyncChannel(ChannelOwner):
    """A channel, opened by `AsyncClient.channel`. Errors are those of the broker: ChannelClosed."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ring = _Publishes()
        self._tracker = _engine.Tracker(0)
        self._chan: Chan | None = None
        self._callbacks: dict[str, Callable[[Message], Any]] = {}
        self._tags = itertools.count()
        self._ring.want("nacked")
        self.returned: list[Message] = []

    async def open(self) -> Self:
        """Open it on the client's connection. Raises: ClientConnectionError."""
        link = await self._core.connected(self._core.config.rpc_timeout)
        chan = await link.channel(ring=self._ring, tracker=self._tracker, owner=self)
        self._tracker.reset(chan.number)
        self._tracker.wake = link.wake_from_any
        self._ring.attach(chan.number, link.frame_max)
        chan.sender = self
        self._chan = chan
        return self

    def chan_closed(self, chan: Chan, error: Exception) -> None:
        """It is closed; one that was never open is told of by `open`."""
        if self._chan is chan:
            self._ring.give_up(error)
            self.progressed()

    def chan_returned(self, message: Message) -> None:
        """No queue took a message."""
        self.returned.append(message)

    @property
    def chan(self) -> Chan:
        """The open channel. Raises: what closed it."""
        assert self._chan is not None, "it was not opened"
        if self._chan.error is not None:
            raise self._chan.error
        return self._chan

    @property
    def link(self) -> Link:
        """Its connection."""
        return self.chan.link

    def send(self, out: _engine.Output, most: int) -> None:
        """Write publishes and acks."""
        self._ring.pump(out, most)
        self._tracker.flush(out)

    def progressed(self) -> None:
        """Something came."""
        for receipt in self._ring.take_ended():
            receipt.run_callbacks(self._core.caught)
        if self._chan is None:
            return
        for message in self._chan.port.take():
            callback = self._callbacks.get(message.consumer_tag)
            if callback is not None:
                self._core.dispatch(self._core.guarded, callback, (message,))

    # ---- queues and exchanges

    async def queue_declare(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table = None,
    ) -> QueueInfo:
        """Declare a queue, or (`passive`) look for it."""
        flags = (passive, durable, exclusive, auto_delete, False)
        return QueueInfo(*await self.chan.call("queue.declare", 0, queue, *flags, arguments or {}))

    async def queue_bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Bind a queue to an exchange."""
        names = (0, queue, exchange, routing_key)
        await self.chan.call("queue.bind", *names, False, arguments or {})

    async def queue_unbind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Take a binding away."""
        await self.chan.call("queue.unbind", 0, queue, exchange, routing_key, arguments or {})

    async def queue_purge(self, queue: str) -> int:
        """Drop the ready messages; return how many."""
        return int((await self.chan.call("queue.purge", 0, queue, False))[0])

    async def queue_delete(
        self, queue: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue; return how many messages it had."""
        answer = await self.chan.call("queue.delete", 0, queue, if_unused, if_empty, False)
        return int(answer[0])

    async def exchange_declare(
        self,
        exchange: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table = None,
    ) -> None:
        """Declare an exchange, or (`passive`) look for it."""
        flags = (passive, durable, auto_delete, internal, False)
        await self.chan.call("exchange.declare", 0, exchange, kind, *flags, arguments or {})

    async def exchange_delete(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange."""
        await self.chan.call("exchange.delete", 0, exchange, if_unused, False)

    async def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Bind an exchange to another."""
        names = (0, destination, source, routing_key)
        await self.chan.call("exchange.bind", *names, False, arguments or {})

    async def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Take such a binding away."""
        names = (0, destination, source, routing_key)
        await self.chan.call("exchange.unbind", *names, False, arguments or {})

    # ---- messages

    async def basic_publish(
        self, exchange: str, routing_key: str, body: bytes | str, *, mandatory: bool = False,
        **properties: Any,
    ) -> Receipt:  # fmt: skip
        """Send a message; with `confirm_select` its receipt ends with the confirm."""
        link = self.link
        await link.writable()
        options = {**properties, "exchange": exchange, "routing_key": routing_key}
        prepared = self._ring.prepare({**options, "mandatory": mandatory})
        raw = body if isinstance(body, bytes) else self._ring.bytes_of(body, {})
        receipt = self._ring.add(raw, prepared)
        while receipt is None:
            await asyncio.sleep(0.001)
            receipt = self._ring.add(raw, prepared)
        self.chan.link.wake()
        return receipt

    async def basic_get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        """Fetch one message; None when the queue is empty."""
        chan = self.chan
        chan.port.no_ack = no_ack
        try:
            found = await chan.call("basic.get", 0, queue, no_ack)
        finally:
            chan.port.no_ack = False
        return found if isinstance(found, Message) else None

    async def basic_qos(self, prefetch_count: int, *, per_channel: bool = False) -> None:
        """Bound the deliveries that are not settled."""
        await self.chan.call("basic.qos", 0, prefetch_count, per_channel)

    async def basic_consume(
        self,
        queue: str,
        callback: Callable[[Message], Any],
        *,
        consumer_tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Table = None,
    ) -> str:
        """Have `callback` called with each message; return the consumer's tag."""
        tag = consumer_tag or f"ctag-{id(self):x}-{next(self._tags)}"
        self._callbacks[tag] = callback
        if no_ack:
            self.chan.port.no_ack_tags.add(tag)
        flags = (False, no_ack, exclusive, False)
        await self.chan.call("basic.consume", 0, queue, tag, *flags, arguments or {})
        return tag

    async def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer."""
        await self.chan.call("basic.cancel", consumer_tag, False)
        self._callbacks.pop(consumer_tag, None)

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> int:
        """Acknowledge; return how many that settled."""
        return self._tracker.ack(delivery_tag, multiple)

    def basic_nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> int:
        """Refuse; return how many that settled."""
        return self._tracker.nack(delivery_tag, multiple, requeue)

    # ---- modes

    async def confirm_select(self) -> None:
        """Have each publish confirmed."""
        await self.chan.call("confirm.select", False)
        self._ring.confirms = True

    async def tx_select(self) -> None:
        """Publishes and acks count from the next commit on only."""
        await self.chan.call("tx.select")

    async def tx_commit(self) -> None:
        """All since the last commit counts. Raises: ChannelClosed."""
        self.send(self.link.out, ALL)
        await self.chan.call("tx.commit")

    async def tx_rollback(self) -> None:
        """Nothing since the last commit counts."""
        self.send(self.link.out, ALL)
        await self.chan.call("tx.rollback")

    async def close(self) -> None:
        """Close it."""
        if self._chan is not None:
            if self._chan.error is None:
                self.send(self._chan.link.out, ALL)
            await self._chan.close()
            self._chan.sender = None

    async def __aenter__(self) -> Self:
        if self._chan is None:
            await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
