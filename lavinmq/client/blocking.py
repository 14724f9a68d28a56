"""The low-level channel without asyncio: each method waits for its coroutine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from lavinmq.client._engine import Message, Receipt
from lavinmq.client.channel import AsyncChannel, QueueInfo
from lavinmq.client.errors import RpcTimeout

Table = Mapping[str, Any] | None


class Channel:
    """A channel, opened by `Client.channel`; see `AsyncChannel` for what its methods do."""

    def __init__(self, inner: AsyncChannel, run: Callable[..., Any]) -> None:
        self._inner, self._run = inner, run

    @property
    def returned(self) -> list[Message]:
        """Messages that came back, because no queue took them."""
        return self._inner.returned

    def queue_declare(self, queue: str = "", **options: Any) -> QueueInfo:
        """Declare a queue; options: passive, durable, exclusive, auto_delete, arguments."""
        found: QueueInfo = self._run(self._inner.queue_declare(queue, **options))
        return found

    def queue_bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Bind a queue to an exchange."""
        self._run(self._inner.queue_bind(queue, exchange, routing_key, arguments))

    def queue_unbind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Take a binding away."""
        self._run(self._inner.queue_unbind(queue, exchange, routing_key, arguments))

    def queue_purge(self, queue: str) -> int:
        """Drop the ready messages; return how many."""
        return int(self._run(self._inner.queue_purge(queue)))

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; return how many messages it had."""
        work = self._inner.queue_delete(queue, if_unused=if_unused, if_empty=if_empty)
        return int(self._run(work))

    def exchange_declare(self, exchange: str, kind: str = "direct", **options: Any) -> None:
        """Declare an exchange; options: passive, durable, auto_delete, internal, arguments."""
        self._run(self._inner.exchange_declare(exchange, kind, **options))

    def exchange_delete(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange."""
        self._run(self._inner.exchange_delete(exchange, if_unused=if_unused))

    def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Bind an exchange to another."""
        self._run(self._inner.exchange_bind(destination, source, routing_key, arguments))

    def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Take such a binding away."""
        self._run(self._inner.exchange_unbind(destination, source, routing_key, arguments))

    def basic_publish(
        self, exchange: str, routing_key: str, body: bytes | str, *, mandatory: bool = False,
        **properties: Any,
    ) -> Receipt:  # fmt: skip
        """Send a message; with `confirm_select` its receipt ends with the confirm."""
        work = self._inner.basic_publish(
            exchange, routing_key, body, mandatory=mandatory, **properties
        )
        found: Receipt = self._run(work)
        return found

    def wait_for_confirm(self, receipt: Receipt, timeout: float | None = None) -> str:
        """Wait for how a message ends. Raises: RpcTimeout, NackError, ReturnedError."""

        async def ended() -> str:
            return await receipt

        try:
            return str(self._run(ended(), timeout))
        except TimeoutError:
            raise RpcTimeout("the message was not confirmed in time") from None

    def basic_get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        """Fetch one message; None when the queue is empty."""
        found: Message | None = self._run(self._inner.basic_get(queue, no_ack=no_ack))
        return found

    def basic_qos(self, prefetch_count: int, *, per_channel: bool = False) -> None:
        """Bound the deliveries that are not settled."""
        self._run(self._inner.basic_qos(prefetch_count, per_channel=per_channel))

    def basic_consume(
        self, queue: str, callback: Callable[[Message], Any], **options: Any
    ) -> str:  # fmt: skip
        """Have `callback` called; options: consumer_tag, no_ack, exclusive, arguments."""
        return str(self._run(self._inner.basic_consume(queue, callback, **options)))

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer."""
        self._run(self._inner.basic_cancel(consumer_tag))

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> int:
        """Acknowledge; return how many that settled."""
        return self._inner.basic_ack(delivery_tag, multiple)

    def basic_nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> int:
        """Refuse; return how many that settled."""
        return self._inner.basic_nack(delivery_tag, multiple, requeue)

    def confirm_select(self) -> None:
        """Have each publish confirmed."""
        self._run(self._inner.confirm_select())

    def tx_select(self) -> None:
        """Publishes and acks count from the next commit on only."""
        self._run(self._inner.tx_select())

    def tx_commit(self) -> None:
        """All since the last commit counts. Raises: ChannelClosed."""
        self._run(self._inner.tx_commit())

    def tx_rollback(self) -> None:
        """Nothing since the last commit counts."""
        self._run(self._inner.tx_rollback())

    def close(self) -> None:
        """Close it."""
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
