"""A channel by the names that kombu calls."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import amqp
from amqp.exceptions import error_for_code
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base

from lavinmq.client._engine import Message as Delivered
from lavinmq.client.channel import AsyncChannel
from lavinmq.client.errors import ClosedError, Error, PublishError, ReturnedError
from lavinmq.client.kombu.connection import Connection
from lavinmq.client.kombu.values import PROPERTIES, Message, Outgoing, as_amqp
from lavinmq.client.link import Chan
from lavinmq.client.sync import Client

T = TypeVar("T")
Table = Mapping[str, Any] | None


class _Inner(AsyncChannel):
    """The channel in the client's thread; what comes goes to the thread that drains events."""

    def __init__(self, outer: Channel, client: Client) -> None:
        super().__init__(client._core)
        self._outer = outer

    def chan_cancelled(self, chan: Chan, tag: str) -> None:
        """The broker ended a consumer."""
        self._outer.was_cancelled(tag)

    def progressed(self) -> None:
        """Something came."""
        for receipt in self._ring.take_ended():
            receipt.run_callbacks(self._core.caught)
        if self._chan is not None:
            messages = self._chan.port.take()
            if messages:
                post, deliver = self._outer.post, self._outer.deliver
                for message in messages:
                    post(partial(deliver, message))
        if self.returned and not self._ring.confirms:
            returned, self.returned[:] = list(self.returned), []
            self._outer.post(partial(self._outer.give_back, returned))

    def chan_closed(self, chan: Chan, error: Exception) -> None:
        """It is closed."""
        super().chan_closed(chan, error)
        if self._chan is chan:
            self._outer.was_closed(error)

    async def publish(
        self, message: Outgoing, exchange: str, key: str, mandatory: bool
    ) -> list[Delivered]:
        """Send a message, and wait until it is confirmed if it has to be; what was returned."""
        receipt = await self.basic_publish(
            exchange, key, message.body, mandatory=mandatory, **message.properties
        )
        if not self._ring.confirms:
            return []
        try:
            await receipt
        except ReturnedError:
            pass  # it is in `returned`
        except PublishError:
            self.chan  # noqa: B018  # raises what closed the channel
            raise
        returned, self.returned[:] = list(self.returned), []
        return returned

    async def ask(self, name: str, *values: Any) -> Any:
        """Another method of the protocol."""
        return await self.chan.call(name, *values)


class Channel(base.StdChannel):
    """A channel by the names that kombu calls. Raises: amqp.ChannelError, amqp.ConnectionError."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self.events: defaultdict[str, set[Callable[..., None]]] = defaultdict(set)
        self.callbacks: dict[str, Callable[[Delivered], Any] | None] = {}
        self._cancels: dict[str, Callable[[str], Any] | None] = {}
        self._tags = itertools.count(1)
        self.post = connection.post
        self._inner = _Inner(self, connection.inner)
        self.run(self._inner.open())
        self.channel_id = self._inner.chan.number
        if connection.confirms:
            self.run(self._inner.confirm_select())
        connection.channels.add(self)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Do something in the client's thread. Raises: py-amqp's errors."""
        connection = self.connection
        if connection is None:
            work.close()
            raise amqp.RecoverableConnectionError("the channel is closed")
        try:
            return connection.inner.run(work, timeout)
        except (Error, OSError) as error:
            connection.heard_of_loss(self not in connection.channels)
            if not self.is_open:
                self.gone()  # who drains events need not hear it, too
            raise as_amqp(error) from error

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        chan = self._inner._chan
        return self.connection is not None and chan is not None and chan.error is None

    # ---- what comes, in the thread that drains events; `was_` in the client's

    def deliver(self, message: Delivered) -> None:
        """Hand a message to its consumer."""
        callback = self.callbacks.get(message.consumer_tag)
        if callback is not None:
            callback(message)
        elif message.consumer_tag not in self.callbacks:
            message.nack(requeue=True)  # its consumer has gone

    def give_back(self, returned: list[Delivered]) -> None:
        """Tell of messages that no queue took."""
        for message in returned:
            error = error_for_code(
                message.reply_code, message.reply_text, (50, 60), amqp.ChannelError
            )
            for handler in list(self.events["basic_return"]):
                handler(error, message.exchange, message.routing_key, Message(message, self))

    def was_cancelled(self, tag: str) -> None:
        """The broker has ended a consumer."""
        self.post(partial(self._cancelled, tag))

    def _cancelled(self, tag: str) -> None:
        on_cancel = self._forget(tag)
        if on_cancel is None:
            raise amqp.ConsumerCancelled(tag, (60, 30))
        on_cancel(tag)

    def was_closed(self, error: Exception) -> None:
        """It has ended. That of its connection tells the connection."""
        if not isinstance(error, (ConnectionError, ClosedError)):
            self.post(partial(self._failed, error))

    def _failed(self, error: Exception) -> bool:
        """Tell of the end, unless a call has failed for it; whether that was nothing new."""
        if self.connection is None:
            return True
        self.gone()
        raise as_amqp(error) from error

    def gone(self) -> None:
        """Its connection is no more, or it is closed."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.channels.discard(self)

    def close(self) -> None:
        """Close it; nothing happens if it is closed."""
        with contextlib.suppress(amqp.AMQPError, OSError):
            self.run(self._inner.close())
        self.gone()

    # ---- messages

    def prepare_message(
        self, body: bytes | str, priority: int | None = None, content_type: str | None = None,
        content_encoding: str | None = None, headers: Table = None, properties: Table = None,
    ) -> Outgoing:  # fmt: skip
        """A message that `basic_publish` takes."""
        found = {
            **(properties or {}), "priority": priority, "content_type": content_type,
            "content_encoding": content_encoding, "headers": headers,
        }  # fmt: skip
        kept = {
            name: value for name, value in found.items() if value is not None and name in PROPERTIES
        }
        return Outgoing(body, kept)

    def message_to_python(self, message: Delivered) -> Message:
        """A message as kombu has it."""
        return Message(message, self)

    def prepare_queue_arguments(self, arguments: Table, **options: Any) -> Table:
        """The arguments for kombu's names of them."""
        found: Table = base.to_rabbitmq_queue_arguments(arguments, **options)
        return found

    def basic_publish(
        self, message: Outgoing, exchange: str = "", routing_key: str = "", mandatory: bool = False,
        immediate: bool = False, timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Send a message; it is confirmed when this returns, unless confirms are off."""
        work = self._inner.publish(message, exchange, routing_key, mandatory)
        self.give_back(self.run(work, confirm_timeout or timeout))

    def basic_get(self, queue: str = "", no_ack: bool = False) -> Delivered | None:
        """One message; None when the queue is empty."""
        return self.run(self._inner.basic_get(queue, no_ack=no_ack))

    def basic_consume(
        self, queue: str = "", consumer_tag: str = "", no_local: bool = False,
        no_ack: bool = False, exclusive: bool = False, nowait: bool = False,
        callback: Callable[[Delivered], Any] | None = None, arguments: Table = None,
        on_cancel: Callable[[str], Any] | None = None,
    ) -> str:  # fmt: skip
        """Have messages handed to `callback` while events are drained."""
        tag = consumer_tag or f"ctag-{self.channel_id}-{next(self._tags)}"
        self.callbacks[tag], self._cancels[tag] = callback, on_cancel
        try:
            return self.run(self._inner.basic_consume(
                queue, lambda _: None, consumer_tag=tag, no_ack=no_ack, exclusive=exclusive,
                arguments=arguments,
            ))  # fmt: skip
        except BaseException:
            self._forget(tag)
            raise

    def basic_cancel(self, consumer_tag: str, nowait: bool = False) -> None:
        """End a consumer."""
        if self.connection is None:
            return
        self.run(self._inner.basic_cancel(consumer_tag))
        self._forget(consumer_tag)

    def _forget(self, tag: str) -> Callable[[str], Any] | None:
        """A consumer is no more; whom to tell of that."""
        self.callbacks.pop(tag, None)
        return self._cancels.pop(tag, None)

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledge."""
        self._check_open()
        self._inner.basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: int, requeue: bool) -> None:
        """Refuse."""
        self._check_open()
        self._inner.basic_nack(delivery_tag, False, requeue)

    def _check_open(self) -> None:
        if not self.is_open:
            raise amqp.RecoverableConnectionError("the channel of this message is closed")

    def basic_recover(self, requeue: bool = False) -> None:
        """Have what is not acknowledged delivered again."""
        self.run(self._inner.ask("basic.recover", requeue))

    def basic_qos(self, prefetch_size: int, prefetch_count: int, a_global: bool) -> None:
        """Bound the deliveries that are not settled."""
        if prefetch_size:
            raise ValueError("prefetch_size: brokers bound messages, not bytes; give 0")
        self.run(self._inner.basic_qos(prefetch_count, per_channel=a_global))

    def flow(self, active: bool) -> None:
        """Stop deliveries of this channel, or go on."""
        self.run(self._inner.ask("channel.flow", active))

    # ---- queues and exchanges

    def queue_declare(
        self, queue: str = "", passive: bool = False, durable: bool = False,
        exclusive: bool = False, auto_delete: bool = True, nowait: bool = False,
        arguments: Table = None,
    ) -> Any:  # fmt: skip
        """Declare a queue; (name, messages, consumers)."""
        return queue_declare_ok_t(*self.run(self._inner.queue_declare(
            queue, passive=passive, durable=durable, exclusive=exclusive,
            auto_delete=auto_delete, arguments=arguments,
        )))  # fmt: skip

    def queue_bind(
        self, queue: str, exchange: str = "", routing_key: str = "", nowait: bool = False,
        arguments: Table = None,
    ) -> None:  # fmt: skip
        """Bind a queue to an exchange."""
        self.run(self._inner.queue_bind(queue, exchange, routing_key, arguments))

    def queue_unbind(
        self, queue: str, exchange: str, routing_key: str = "", nowait: bool = False,
        arguments: Table = None,
    ) -> None:  # fmt: skip
        """Take a binding away."""
        self.run(self._inner.queue_unbind(queue, exchange, routing_key, arguments))

    def queue_purge(self, queue: str = "", nowait: bool = False) -> int:
        """Drop the ready messages; how many."""
        return self.run(self._inner.queue_purge(queue))

    def queue_delete(
        self, queue: str = "", if_unused: bool = False, if_empty: bool = False,
        nowait: bool = False,
    ) -> int:  # fmt: skip
        """Delete a queue; how many messages it had."""
        return self.run(self._inner.queue_delete(queue, if_unused=if_unused, if_empty=if_empty))

    def exchange_declare(
        self, exchange: str, type: str, passive: bool = False, durable: bool = False,
        auto_delete: bool = True, nowait: bool = False, arguments: Table = None,
    ) -> None:  # fmt: skip
        """Declare an exchange."""
        self.run(self._inner.exchange_declare(
            exchange, type, passive=passive, durable=durable, auto_delete=auto_delete,
            arguments=arguments,
        ))  # fmt: skip

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange."""
        self.run(self._inner.exchange_delete(exchange, if_unused=if_unused))

    def exchange_bind(
        self, destination: str, source: str = "", routing_key: str = "", nowait: bool = False,
        arguments: Table = None,
    ) -> None:  # fmt: skip
        """Bind an exchange to another."""
        self.run(self._inner.exchange_bind(destination, source, routing_key, arguments))

    def exchange_unbind(
        self, destination: str, source: str = "", routing_key: str = "", nowait: bool = False,
        arguments: Table = None,
    ) -> None:  # fmt: skip
        """Take such a binding away."""
        self.run(self._inner.exchange_unbind(destination, source, routing_key, arguments))

    # ---- modes

    def confirm_select(self, nowait: bool = False) -> None:
        """Have each publish confirmed."""
        self.run(self._inner.confirm_select())

    def tx_select(self) -> None:
        """Publishes and acks count from the next commit on only."""
        self.run(self._inner.tx_select())

    def tx_commit(self) -> None:
        """All since the last commit counts."""
        self.run(self._inner.tx_commit())

    def tx_rollback(self) -> None:
        """Nothing since the last commit counts."""
        self.run(self._inner.tx_rollback())
