"""Declaring, binding and deleting, as coroutines for both fronts; and exchanges by their types."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from lavinmq.client._engine import Message
from lavinmq.client.channel import QueueInfo
from lavinmq.client.core import Core
from lavinmq.client.topology import NOTHING, BindingSpec, ExchangeSpec, QueueSpec

R_co = TypeVar("R_co", covariant=True)
Table = Mapping[str, Any] | None


class ExchangeOptions(TypedDict, total=False):
    """How an exchange is declared."""

    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table


class ExchangesByType(Generic[R_co]):
    """Exchanges of the types that AMQP has; `exchange` is a front's, and takes any type."""

    def exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        arguments: Table = None,
    ) -> R_co:
        """Declare an exchange."""
        raise NotImplementedError

    def direct_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> R_co:
        """Declare an exchange that routes by the whole routing key."""
        return self.exchange(name, "direct", **options)

    def fanout_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> R_co:
        """Declare an exchange that routes to all that is bound."""
        return self.exchange(name, "fanout", **options)

    def topic_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> R_co:
        """Declare an exchange that routes by patterns of words, `*` and `#`."""
        return self.exchange(name, "topic", **options)

    def headers_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> R_co:
        """Declare an exchange that routes by headers."""
        return self.exchange(name, "headers", **options)


class Declaring(ExchangesByType[Coroutine[Any, Any, None]]):
    """What a client does with queues and exchanges; what it declares is restored."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def queue(
        self,
        name: str = "",
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: Table = None,
    ) -> QueueInfo:
        """Declare a queue; without a name the broker gives one."""
        if passive:
            flags = (True, False, False, False, False)
            return QueueInfo(*await self._core.call("queue.declare", 0, name, *flags, {}))
        spec = QueueSpec(
            name,
            durable,
            exclusive,
            auto_delete,
            dict(arguments) if arguments else NOTHING,
            server_named=not name,
        )
        return QueueInfo(*await self._core.declare(spec))

    async def exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        arguments: Table = None,
    ) -> None:
        """Declare an exchange."""
        if passive:
            flags = (True, False, False, False, False)
            await self._core.call("exchange.declare", 0, name, kind, *flags, {})
            return
        spec = ExchangeSpec(
            name, kind, durable, auto_delete, internal, dict(arguments) if arguments else NOTHING
        )
        await self._core.declare(spec)

    async def bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Bind a queue to an exchange."""
        await self._core.declare(_binding(queue, exchange, routing_key, arguments, False))

    async def unbind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Take a binding away."""
        await self._core.unbind(_binding(queue, exchange, routing_key, arguments, False))

    async def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Bind an exchange to another."""
        await self._core.declare(_binding(destination, source, routing_key, arguments, True))

    async def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Take such a binding away."""
        await self._core.unbind(_binding(destination, source, routing_key, arguments, True))

    async def purge(self, queue: str) -> int:
        """Drop the ready messages of a queue; return how many."""
        return int((await self._core.call("queue.purge", 0, queue, False))[0])

    async def delete_queue(
        self, queue: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue; return how many messages it had."""
        answer = await self._core.call("queue.delete", 0, queue, if_unused, if_empty, False)
        self._core.topology.forget_queue(queue)
        return int(answer[0])

    async def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange."""
        await self._core.call("exchange.delete", 0, exchange, if_unused, False)
        self._core.topology.forget_exchange(exchange)

    async def get(self, queue: str) -> Message | None:
        """Fetch one message, which needs no ack any more; None when the queue is empty."""
        found = await self._core.call("basic.get", 0, queue, True)
        return found if isinstance(found, Message) else None


def _binding(
    destination: str, source: str, key: str, arguments: Table, of_exchange: bool
) -> BindingSpec:
    return BindingSpec(destination, source, key, tuple((arguments or {}).items()), of_exchange)
