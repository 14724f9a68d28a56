"""The front for asyncio: `AsyncClient`, `AsyncProducer`, `AsyncConsumer`.

All of a client belongs to one event loop. `await producer.publish(...)` waits for room in the
buffer and returns a receipt; awaiting the receipt waits for how the message ends.

Longer than 500 lines: a client offers every call under its own name, with its types.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Self

from lavinmq.client import _engine
from lavinmq.client._engine import Batch, Message, Receipt
from lavinmq.client.awaiting import Opening
from lavinmq.client.channel import AsyncChannel
from lavinmq.client.config import Config
from lavinmq.client.consuming import BaseConsumer, check_workers
from lavinmq.client.declaring import Declaring
from lavinmq.client.errors import BufferFullError, ClosedError, ConfirmTimeout
from lavinmq.client.face import (
    CONSUMER_OPTIONS,
    LIVING,
    PRODUCER_OPTIONS,
    Face,
    mode_of,
    narrowed,
    policy_of,
    settle,
)
from lavinmq.client.producing import BaseProducer, Prepared, check_target
from lavinmq.client.rpc import RpcCaller
from lavinmq.client.together import Together
from lavinmq.client.values import BufferPolicy, PublishMode

Handler = Callable[[Message], Any]


class AsyncProducer(BaseProducer):
    """Publishes; made by `AsyncClient.producer`."""

    __slots__ = ("_room",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._room: list[asyncio.Future[None]] | None = None
        """Who waits for some; made when somebody does, and None before."""
        super().__init__(*args, **kwargs)

    async def open(self) -> Self:
        """Begin; with no connection there is yet, with the next one."""
        await self.core.enter(self)
        return self

    async def publish(self, body: Any, **options: Any) -> Receipt:
        """Give a message to the producer; await its receipt to know that it has arrived.

        Options: properties by name, `headers`, `mandatory`, `exchange`, `routing_key`.
        Raises: BufferFullError, ClosedError, ValueNotEncodable.
        """
        found = _engine.Ring.publish(self, body, **options)
        return found if type(found) is Receipt else await found

    async def publish_batch(self, bodies: Iterable[Any], **options: Any) -> Receipt:
        """Give many messages; the receipt is of all, its first failure is theirs."""
        bodies = bodies if isinstance(bodies, list) else list(bodies)
        prepared = self.prepare(options)
        receipt = self.batch()
        at = 0
        try:
            while (at := self.add_many(bodies, at, prepared, receipt)) < len(bodies):
                body = bodies[at]
                one = self.full(
                    body if isinstance(body, bytes) else self.bytes_of(body, {}), prepared
                )
                one = one if type(one) is Receipt else await one
                receipt.adopt(one)
                at += 1
        except BufferFullError as error:
            error.receipt = receipt
            raise
        finally:
            receipt.seal()
        return receipt

    def block(self, body: bytes, prepared: Prepared) -> Any:
        """Wait for room."""
        return self._block(body, prepared)

    async def _block(self, body: bytes, prepared: Prepared) -> Receipt:
        timeout = self.config.block_timeout
        try:
            async with asyncio.timeout(timeout):
                while True:
                    receipt = self.add(body, prepared)
                    if receipt is not None:
                        return receipt
                    if self._error is not None or self._closing:
                        raise self._error or ClosedError("the producer was closed")
                    waiter: asyncio.Future[None] = self.core.loop.create_future()
                    room = self._room = [] if self._room is None else self._room
                    room.append(waiter)
                    self._waiting_for_room = len(room)
                    try:
                        await waiter
                    finally:
                        room.remove(waiter)
                        self._waiting_for_room = len(room)
        except TimeoutError:
            raise BufferFullError(f"no room within {timeout:g} s") from None

    def has_room(self, always: bool = False) -> None:
        """Who waits for room may try again."""
        for waiter in self._room or ():
            if not waiter.done():
                waiter.set_result(None)

    def wake(self) -> None:
        """There is something to send."""
        if self._chan is not None:
            self._chan.link.wake()
        elif self._reserve is not None:
            self.core.loop.call_soon(self.progressed)

    def future(self) -> tuple[asyncio.Future[None], Callable[[Receipt], None]]:
        """An awaitable, and the callback of a receipt that ends it."""
        future: asyncio.Future[None] = self.core.loop.create_future()
        return future, lambda _: None if future.done() else future.set_result(None)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was accepted so far has ended. Raises: ConfirmTimeout."""
        try:
            async with asyncio.timeout(timeout):
                await self.drained()
        except TimeoutError:
            raise ConfirmTimeout(f"{self.buffer_size} messages have not ended in time") from None

    wait_for_confirms = flush

    async def close(self, flush: bool = True) -> None:
        """Accept nothing more, wait for what is held as long as `close_timeout` says, and end."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.close_timeout):
                    await self.closing(flush)
        finally:
            self.core.exit(self)
            self.finish(ClosedError("the producer was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncConsumer(BaseConsumer):
    """Takes messages; made by `AsyncClient.consumer`. Iterate over it, or `subscribe` a handler."""

    __slots__ = ("_lists", "_waiters", "_workers")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lists: list[list[Message]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._workers: tuple[asyncio.Task[None], ...] = ()
        super().__init__(*args, **kwargs)

    async def open(self) -> Self:
        """Begin; with no connection there is yet, with the next one."""
        await self.core.enter(self)
        return self

    def wake(self) -> None:
        """There is something to send."""
        if self._chan is not None:
            self._chan.link.wake()

    def arrived(self, messages: list[Message]) -> None:
        """Messages came."""
        self._lists.append(messages)
        self._notify()

    @property
    def has_arrived(self) -> bool:
        """Whether messages are there that the program has not taken."""
        return bool(self._lists)

    def all_taken(self) -> None:
        """An empty batch says so."""
        self.arrived([])

    def ended(self) -> None:
        """Nothing more comes."""
        self._notify(all_of_them=True)

    def drop_arrived(self) -> None:
        """What came will come again."""
        self._lists.clear()

    def _notify(self, all_of_them: bool = False) -> None:
        while self._waiters:
            waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)
                if not all_of_them:
                    return

    async def _next(self) -> list[Message] | None:
        """The messages that are there, at least one, or none when a passage has taken all that it
        was to; None at the end."""
        while not self._lists or (self._lists[0] and self.is_stale(self._lists[0][0])):
            if self._lists:
                self._lists.pop(0)  # the rest of a batch that was put back too late
                continue
            if self.closed:
                if isinstance(self._error, Exception) and not isinstance(self._error, ClosedError):
                    raise self._error
                return None
            waiter: asyncio.Future[None] = self.core.loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled() and self._lists:
                    self._notify()  # it was told, and goes: another one takes what came
                raise
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        messages = self._lists.pop(0)
        if self.is_bounded:
            self.taken(len(messages), sum(map(len, messages)))
        return messages

    def __aiter__(self) -> AsyncIterator[Message]:
        """Messages, over all reconnects, until the consumer is closed."""
        if self.tracing is not None:
            traced: AsyncIterator[Message] = self.tracing.each_async(self._messages(), self.queue)
            return traced
        return self._messages()

    async def _messages(self) -> AsyncGenerator[Message, None]:
        while (messages := await self._next()) is not None:
            at = 0
            try:
                for message in messages:
                    at += 1
                    yield message
            finally:
                if at < len(messages):
                    self._put_back(messages[at:])
            if self._lists:
                await asyncio.sleep(0)

    async def batches(self) -> AsyncIterator[Batch]:
        """Messages as they come together."""
        while (messages := await self._next()) is not None:
            yield Batch(messages)
            if self._lists:
                await asyncio.sleep(0)

    async def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came in time, or at the end."""
        try:
            async with asyncio.timeout(timeout):
                messages = await self._next()
        except TimeoutError:
            return None
        if not messages:
            return None
        if len(messages) > 1:
            self._put_back(messages[1:])
        return messages[0]

    def _put_back(self, messages: list[Message]) -> None:
        self._lists.insert(0, messages)
        self._notify()

    async def subscribe(
        self,
        handler: Handler,
        workers: int = 1,
        *,
        requeue: bool = False,
        auto_ack: bool = True,
        partition_by: Callable[[Message], object] | None = None,
    ) -> None:
        """Have `handler` called with each message, in `workers` tasks.

        When it returns, a message that it has not settled is acknowledged (`auto_ack`); when it
        raises, it is refused, to come again with `requeue`, and `on_error` hears. With one worker,
        and for each value of `partition_by`, the order is kept. Returns at once.
        """
        if self.tracing is not None:
            handler = self.tracing.handling_async(handler, self.queue)
        check_workers(workers)
        if partition_by is None:
            inboxes: list[asyncio.Queue[Message] | None] = [None] * workers
        else:
            inboxes = [asyncio.Queue() for _ in range(workers)]
            self._workers += (self.core.spawn(self._spread(inboxes, partition_by, requeue)),)
        for inbox in inboxes:
            self._workers += (self.core.spawn(self._work(handler, inbox, requeue, auto_ack)),)

    async def _spread(
        self, inboxes: list[Any], partition_by: Callable[[Message], object], requeue: bool
    ) -> None:
        async for message in self._messages():
            try:
                which = hash(partition_by(message)) % len(inboxes)
            except Exception as error:  # noqa: BLE001 - as in a handler
                self.handler_failed(message, error, requeue)
            else:
                inboxes[which].put_nowait(message)

    async def _work(
        self, handler: Handler, inbox: asyncio.Queue[Message] | None, requeue: bool, auto_ack: bool
    ) -> None:
        while True:
            message = await (inbox.get() if inbox is not None else self.get())
            if message is None:
                return
            if self.is_stale(message):
                continue
            try:
                result = handler(message)
                if hasattr(result, "__await__"):
                    await result
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # it is this one that ends, and not what the handler waited for
                self.handler_failed(message, error, requeue)
            else:
                if auto_ack:
                    message.ack()

    async def pause(self) -> None:
        """Let no new messages come; those that are here stay."""
        await self.pausing()

    async def resume(self) -> None:
        """Let them come again."""
        await self.resuming()

    async def close(self) -> None:
        """End: what is not settled goes back to the queue."""
        try:
            await self.closing()
            self._lists.clear()
            # A handler may close its own consumer.
            workers = [each for each in self._workers if each is not asyncio.current_task()]
            for worker in workers:
                worker.cancel()
            if workers:
                await asyncio.wait(workers, timeout=1)
            if isinstance(self.answers, AsyncProducer):
                await self.answers.close()
        finally:
            self.finish(ClosedError("the consumer was closed"))

    cancel = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncClient(Face, Declaring):
    """A connection that comes back, its producers and its consumers, for asyncio.

    Args: url: `amqp://user:password@host1,host2/vhost?option=value`, by default `AMQP_URL` of the
    environment; config and keywords: options, see `Config`. Raises: ConfigError.
    """

    def __init__(
        self, url: str | None = None, config: Config | None = None, **overrides: Any
    ) -> None:
        target, made = settle(url, config, overrides)
        self._together = Together(target, made, self)
        Declaring.__init__(self, self._together.first)
        self._rpc: RpcCaller | None = None

    def _dispatch(self, function: Callable[..., Any], *values: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._core.loop.call_soon(function, *values)

    async def start(self) -> Self:
        """Connect; with `fail_fast` wait for it. Raises: why there is no connection."""
        if self._core.steward is None:
            LIVING.add(self)
        await self._together.start()
        return self

    async def close(self, timeout: float | None = None, flush: bool = True) -> None:
        """End all: what is buffered goes out within the time, or is dropped with a word."""
        await self._together.close(timeout, flush)

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Wait for a connection. Raises: ClientConnectionError, ClosedError."""
        await self._together.connected(timeout)

    def producer(
        self,
        queue: str | None = None,
        mode: PublishMode | str | None = None,
        buffer_policy: BufferPolicy | str | None = None,
        *,
        exchange: str | None = None,
        routing_key: str | None = None,
        mandatory: bool = False,
        declare: bool = True,
        properties: dict[str, Any] | None = None,
        **options: Any,
    ) -> Opening[AsyncProducer]:
        """A producer to a queue, which is declared durable if it is missing (`declare`), or to an
        exchange. Await it, or enter it by `async with`. Raises: ConfigError."""
        check_target(queue, exchange, routing_key)
        config = narrowed(self.config, PRODUCER_OPTIONS, options)
        made = AsyncProducer(
            self._together.for_producer(),
            queue,
            exchange=exchange or "",
            routing_key=routing_key or "",
            mode=mode_of(mode, self.config),
            policy=policy_of(buffer_policy, config),
            config=config,
            mandatory=mandatory,
            declare=declare,
            properties=properties,
        )
        return Opening(made)

    def consumer(
        self,
        queue: str,
        prefetch: int | None = None,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
        tag: str = "",
        declare: bool = True,
        **options: Any,
    ) -> Opening[AsyncConsumer]:
        """A consumer of a queue, which is declared durable if it is missing (`declare`). Await it,
        or enter it by `async with`. Raises: ConfigError."""
        config = narrowed(self.config, CONSUMER_OPTIONS, options)
        if prefetch is not None and prefetch != config.prefetch:
            config = config.updated({"prefetch": prefetch})
        made = AsyncConsumer(
            self._core, queue, config=config, no_ack=no_ack, exclusive=exclusive,
            arguments=arguments, tag=tag, declare=declare,
        )  # fmt: skip
        return Opening(made)

    def channel(self) -> Opening[AsyncChannel]:
        """A channel as the protocol has it; it does not come back."""
        return Opening(AsyncChannel(self._core))

    async def rpc_call(
        self, queue: str, body: Any, *, timeout: float | None = None, **options: Any
    ) -> Message:
        """Ask who consumes a queue; return the answer. Raises: RpcTimeout, ReturnedError."""
        if self._rpc is None:
            self._rpc = RpcCaller(self._core)
        if not isinstance(body, bytes):
            body = self._rpc.bytes_of(body, options)
        return await self._rpc.call(queue, body, timeout, options)

    async def rpc_server(
        self, queue: str, handler: Callable[[Message], Any], *, workers: int = 1, prefetch: int = 10
    ) -> AsyncConsumer:
        """Answer questions: what `handler` returns is the answer's body. Close what it returns."""
        check_workers(workers)
        consumer = await self.consumer(queue, prefetch)
        try:
            producer = await self.producer(exchange="", routing_key="", mode="fire_and_forget")
        except BaseException:
            await consumer.close()
            raise
        consumer.answers = producer

        async def answer(message: Message) -> None:
            body = handler(message)
            if hasattr(body, "__await__"):
                body = await body
            if message.reply_to:
                await producer.publish(
                    b"" if body is None else body,
                    routing_key=message.reply_to,
                    correlation_id=message.correlation_id,
                    delivery_mode=1,
                )

        await consumer.subscribe(answer, workers)
        return consumer

    async def update_secret(self, secret: str) -> None:
        """Give the broker a new access token. Raises: ClientConnectionError."""
        await self._together.renew(secret)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
