"""The front without asyncio: `Client`, `Producer`, `Consumer`, `Channel`.

A client has a thread of its own with an event loop, which does all I/O and keeps heartbeats going
whatever the program does; and, once there is a callback to call, one that calls callbacks, one
after the other. Every method may be called from any thread. After a fork the client is closed in
the child; the parent's goes on.

Longer than 500 lines: a client offers every call under its own name, with its types.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue as queues
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from lavinmq.client._engine import Batch, Message, Receipt
from lavinmq.client.asking import Asked, acquired
from lavinmq.client.blocking import Channel
from lavinmq.client.channel import AsyncChannel, QueueInfo
from lavinmq.client.config import Config
from lavinmq.client.consuming import BaseConsumer, check_workers
from lavinmq.client.core import LOG, Core
from lavinmq.client.declaring import Declaring, ExchangesByType
from lavinmq.client.errors import BufferFullError, ClosedError, ConfirmTimeout, Error
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
from lavinmq.client.values import BufferPolicy, ConnectionState, PublishMode

T = TypeVar("T")
SLICE_S: Final = 1.0
"""How long a thread waits at once, should nobody have told it."""
AGAIN_S: Final = 0.001
"""When the loop's thread tries again to tell who waits."""
ALL: Final = 1 << 30
Handler = Callable[[Message], Any]
Table = Mapping[str, Any] | None


def notified(condition: threading.Condition, most: int) -> bool:
    """Wake so many who wait; False if it cannot be done now. It waits for nobody: a signal may have
    come to who has the lock, and its handler wait for this thread."""
    is_free = condition.acquire(blocking=False)
    if is_free:
        condition.notify(most)
        condition.release()
    return is_free


class Producer(BaseProducer):
    """Publishes; made by `Client.producer`."""

    def __init__(self, client: Client, core: Core, *args: Any, **kwargs: Any) -> None:
        self._client = client
        self._room = threading.Condition()
        self._is_late = False
        """Whether who waits for room could not be told of some yet."""
        super().__init__(core, *args, **kwargs)

    def publish_batch(self, bodies: Iterable[Any], **options: Any) -> Receipt:
        """Give many messages; the receipt is of all, its first failure is theirs."""
        bodies = bodies if isinstance(bodies, list) else list(bodies)
        prepared = self.prepare(options)
        receipt = self.batch()
        at = 0
        try:
            while (at := self.add_many(bodies, at, prepared, receipt)) < len(bodies):
                receipt.adopt(self.full(self.raw(bodies[at]), prepared))
                at += 1
        except BufferFullError as error:
            error.receipt = receipt
            raise
        finally:
            receipt.seal()
        return receipt

    def block(self, body: bytes, prepared: Prepared) -> Receipt:
        """Wait for room."""
        if self._client.is_here():
            raise BufferFullError("no room, and this is the client's own thread, which makes it")
        timeout = self.config.block_timeout
        end = None if timeout is None else time.monotonic() + timeout
        with self._room:
            self._waiting_for_room += 1
            try:
                while (receipt := self.add(body, prepared)) is None:
                    if self._error is not None or self._closing:
                        raise self._error or ClosedError("the producer was closed")
                    left = None if end is None else end - time.monotonic()
                    if left is not None and left <= 0:
                        raise BufferFullError(f"no room within {timeout:g} s")
                    self._room.wait(SLICE_S if left is None else min(left, SLICE_S))
            finally:
                self._waiting_for_room -= 1
        return receipt

    def has_room(self, always: bool = False) -> None:
        """Who waits for room may try again."""
        if not notified(self._room, ALL) and not self._is_late:
            self._is_late = True
            self.core.loop.call_later(AGAIN_S, self._has_room_now)

    def _has_room_now(self) -> None:
        self._is_late = False
        self.has_room()

    def forked(self, error: Exception) -> None:
        """In the child of a fork: nothing is sent; who had the lock may not be here."""
        self._room = threading.Condition()
        super().forked(error)

    def wake(self) -> None:
        """There is something to send."""
        self._client.soon(self._woken)

    def _woken(self) -> None:
        if self._chan is not None:
            self._chan.link.pump()
        elif self._reserve is not None:
            self.progressed()

    def wait_for(self, receipt: Receipt, timeout: float | None) -> None:
        """Wait until a receipt is done. Raises: ConfirmTimeout."""
        self._client.check_thread()
        done = threading.Lock()
        done.acquire()

        def ended(_: Receipt) -> None:
            done.release()

        receipt.add_done_callback(ended)
        has_ended = False
        try:
            has_ended = acquired(done, timeout)
        finally:
            if not has_ended:
                receipt.remove_done_callback(ended)
        if not has_ended:
            raise ConfirmTimeout(f"the message has not ended within {timeout:g} s")

    def future(self) -> tuple[asyncio.Future[None], Callable[[Receipt], object]]:
        """An awaitable, in whatever loop runs here, and the callback of a receipt that ends it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def done() -> None:
            if not future.done():
                future.set_result(None)

        return future, lambda _: loop.call_soon_threadsafe(done)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was accepted so far has ended. Raises: ConfirmTimeout."""
        try:
            self._client.run(self.drained(), timeout)
        except TimeoutError:
            raise ConfirmTimeout(f"{self.buffer_size} messages have not ended in time") from None

    wait_for_confirms = flush

    def close(self, flush: bool = True) -> None:
        """Accept nothing more, wait for what is held as long as `close_timeout` says, and end."""
        if self.closed:
            return
        self._closing_from_now()
        self._client.run(self._close(flush))

    def _closing_from_now(self) -> None:
        self.accepting = False

    async def _close(self, flush: bool) -> None:
        try:
            async with asyncio.timeout(self.config.close_timeout):
                await self.closing(flush)
        except TimeoutError:
            pass
        self.core.exit(self)
        self.finish(ClosedError("the producer was closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer(BaseConsumer):
    """Takes messages; made by `Client.consumer`. Iterate over it, or `subscribe` a handler."""

    def __init__(self, client: Client, *args: Any, **kwargs: Any) -> None:
        self._client = client
        self._lists: deque[list[Message]] = deque()
        self._news = threading.Condition()
        self._is_late = False
        """Whether who waits for them could not be told of some yet."""
        self._threads: list[threading.Thread] = []
        super().__init__(client._core, *args, **kwargs)

    def wake(self) -> None:
        """There is something to send."""
        self._client.soon(self._woken)

    def _woken(self) -> None:
        if self._chan is not None:
            self._chan.link.pump()

    def forked(self, error: Exception) -> None:
        """In the child of a fork: nothing comes; who had the lock may not be here."""
        self._news = threading.Condition()
        self._lists.clear()
        super().forked(error)

    def arrived(self, messages: list[Message]) -> None:
        """Messages came."""
        self._lists.append(messages)
        self._tell_news(1)

    def ended(self) -> None:
        """Nothing more comes."""
        self._tell_news(ALL)

    def _tell_news(self, most: int) -> None:
        if not notified(self._news, most) and not self._is_late:
            self._is_late = True
            self.core.loop.call_later(AGAIN_S, self._tell_late_news)

    def _tell_late_news(self) -> None:
        self._is_late = False
        self._tell_news(ALL)

    def drop_arrived(self) -> None:
        """What came will come again."""
        self._lists.clear()

    def _next(self, timeout: float | None = None, most: int | None = None) -> list[Message] | None:
        """The messages that are there, `most` at most; None at the end, or after the time."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while (messages := self._first()) is None:
                if self.closed:
                    if self._error is not None and not isinstance(self._error, ClosedError):
                        raise self._error
                    return None
                left = SLICE_S if end is None else end - time.monotonic()
                if left <= 0:
                    return None
                self._client.check_thread()
                self._news.wait(min(left, SLICE_S))
            if most is not None and len(messages) > most:
                self._put_back(messages[most:])
                messages = messages[:most]
        if self.no_ack:
            self._client.soon(self.taken, len(messages), sum(map(len, messages)))
        return messages

    def _first(self) -> list[Message] | None:
        """The messages that came first; None: there are none. The loop's thread may take all away
        meanwhile, and a batch that was put back may be one of before."""
        while True:
            try:
                messages = self._lists.popleft()
            except IndexError:
                return None
            if not self.is_stale(messages[0]):
                return messages

    def _put_back(self, messages: list[Message]) -> None:
        with self._news:
            self._lists.appendleft(messages)
            self._news.notify()

    def __iter__(self) -> Iterator[Message]:
        """Messages, over all reconnects, until the consumer is closed."""
        if self.tracing is not None:
            traced: Iterator[Message] = self.tracing.each(self._messages(), self.queue)
            return traced
        return self._messages()

    def _messages(self) -> Generator[Message, None, None]:
        while (messages := self._next()) is not None:
            at = 0
            try:
                for message in messages:
                    at += 1
                    yield message
            finally:
                if at < len(messages):
                    self._put_back(messages[at:])

    def batches(self) -> Iterator[Batch]:
        """Messages as they come together."""
        while (messages := self._next()) is not None:
            yield Batch(messages)

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came in time, or at the end."""
        messages = self._next(timeout, 1)
        return messages[0] if messages else None

    def subscribe(
        self,
        handler: Handler,
        workers: int = 1,
        *,
        requeue: bool = False,
        auto_ack: bool = True,
        partition_by: Callable[[Message], object] | None = None,
    ) -> None:
        """Have `handler` called with each message, in `workers` threads.

        When it returns, a message that it has not settled is acknowledged (`auto_ack`); when it
        raises, it is refused, to come again with `requeue`, and `on_error` hears. With one worker,
        and for each value of `partition_by`, the order is kept. Returns at once.
        """
        if self.tracing is not None:
            handler = self.tracing.handling(handler, self.queue)
        check_workers(workers)
        inboxes: list[queues.SimpleQueue[Message | None] | None] = [None] * workers
        if partition_by is not None:
            inboxes = [queues.SimpleQueue() for _ in range(workers)]
            self._start(self._spread, inboxes, partition_by, requeue)
        for inbox in inboxes:
            self._start(self._work, handler, inbox, requeue, auto_ack)

    def _start(self, target: Callable[..., None], *values: Any) -> None:
        name = f"lavinmq-consumer-{self.queue}"
        thread = threading.Thread(target=target, args=values, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _spread(
        self, inboxes: list[Any], partition_by: Callable[[Message], object], requeue: bool
    ) -> None:
        try:
            for message in self._messages():
                try:
                    which = hash(partition_by(message)) % len(inboxes)
                except BaseException as error:  # noqa: BLE001 - as in a handler
                    self.handler_failed(message, error, requeue)
                else:
                    inboxes[which].put(message)
        finally:
            for inbox in inboxes:
                inbox.put(None)

    def _work(self, handler: Handler, inbox: Any, requeue: bool, auto_ack: bool) -> None:
        take = self.get if inbox is None else inbox.get
        while (message := self._taken_by(take)) is not None and not self.closed:
            if self.is_stale(message):
                continue
            try:
                handler(message)
            except BaseException as error:  # noqa: BLE001 - an exit, too, would end our thread
                self.handler_failed(message, error, requeue)
            else:
                if auto_ack:
                    message.ack()

    def _taken_by(self, take: Callable[[], Message | None]) -> Message | None:
        """The next one; None at the end, whatever it is: `on_error` has heard of it."""
        try:
            return take()
        except Error:
            return None

    def pause(self) -> None:
        """Let no new messages come; those that are here stay."""
        self._client.run(self.pausing())

    def resume(self) -> None:
        """Let them come again."""
        self._client.run(self.resuming())

    def close(self) -> None:
        """End: handlers finish their message, what is not settled goes back to the queue."""
        if self._closing:
            return
        threads, end = self._stopped(), time.monotonic() + self.config.close_timeout
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._client.run(self._close())

    def _stopped(self) -> list[threading.Thread]:
        """Let handlers come to an end: there is nothing more for them."""
        if not self._threads:
            return []
        self._lists.clear()
        self._client.run(self.pausing())
        self._lists.clear()
        self._is_over = True
        self._client.soon(self.ended)
        return [each for each in self._threads if each is not threading.current_thread()]

    _is_over = False

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closing or self._is_over or self._error is not None

    async def _close(self) -> None:
        try:
            await self.closing()
            if isinstance(self.answers, Producer):
                await self.answers._close(True)
        finally:
            self.drop_arrived()
            self.finish(ClosedError("the consumer was closed"))

    cancel = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(Face, ExchangesByType[None]):
    """A connection that comes back, its producers and its consumers.

    Args: url: `amqp://user:password@host1,host2/vhost?option=value`, by default `AMQP_URL` of the
    environment; config and keywords: options, see `Config`. Raises: ConfigError.

    It connects when it is entered by `with`, by `start`, or when it is first used.
    """

    def __init__(
        self, url: str | None = None, config: Config | None = None, **overrides: Any
    ) -> None:
        target, made = settle(url, config, overrides)
        self._together = Together(target, made, self)
        self._core = self._together.first
        self._declaring = Declaring(self._core)
        self._lock = threading.RLock()
        self._asked: set[Asked[Any]] = set()
        """Who waits for the loop's thread."""
        self._is_over = False
        """Whether that does nothing more."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: queues.SimpleQueue[tuple[Any, ...] | None] = queues.SimpleQueue()
        self._dispatcher: threading.Thread | None = None
        self._dispatching = threading.Lock()
        self._rpc: RpcCaller | None = None
        self._is_forked = False

    # ---- threads

    def start(self) -> Self:
        """Connect; with `fail_fast` wait for it. Raises: why there is no connection."""
        with self._lock:
            if self._loop is None and self.state is not ConnectionState.CLOSED:
                loop = asyncio.new_event_loop()
                for core in self._together.cores:
                    core.loop = loop  # another thread may ask before it is started
                self._thread = threading.Thread(
                    target=self._serve, args=(loop,), name="lavinmq-client", daemon=True
                )
                self._thread.start()
                self._loop = loop
                _living.add(self)
                LIVING.add(self)
        try:
            self.run(self._together.start())
        except BaseException:
            self._end_threads()
            raise
        return self

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            with contextlib.suppress(RuntimeError):
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(asyncio.sleep(0))
                loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            self._is_over = True
            for asked in list(self._asked):
                asked.fail(ClosedError("the client was closed"))

    def soon(self, function: Callable[..., Any], *values: Any) -> None:
        """Call something in the loop's thread, without waiting."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function, *values)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Do something in the loop's thread and wait for it. Raises: what it raises."""
        loop, asked = self._loop, Asked(work)
        try:
            if loop is None or self._is_forked:
                raise ClosedError("the client was closed")
            self.check_thread()
            self._asked.add(asked)
            try:
                loop.call_soon_threadsafe(asked.begin)
            except RuntimeError:  # it was closed meanwhile
                raise ClosedError("the client was closed") from None
            if self._is_over:  # too late for it to say so
                raise ClosedError("the client was closed")
            return asked.wait(timeout)
        except asyncio.CancelledError:
            raise ClosedError("the client was closed") from None
        except BaseException:
            if asked in self._asked and not self._is_over:
                self.soon(asked.cancel)
            else:
                asked.fail(ClosedError("the client was closed"))
            raise
        finally:
            self._asked.discard(asked)

    def is_here(self) -> bool:
        """Whether this is the client's own thread."""
        return threading.current_thread() is self._thread

    def check_thread(self) -> None:
        """Refuse to wait in the client's own thread. Raises: RuntimeError."""
        if self.is_here():
            raise RuntimeError("it would wait for itself: this is the client's own thread")

    def _started(self) -> Core:
        if self._loop is None:
            self.start()
        return self._core

    def _dispatch(self, function: Callable[..., Any], *values: Any) -> None:
        self._calls.put((function, *values))
        if self._dispatcher is None and self._dispatching.acquire(blocking=False):
            try:
                self._begin_dispatching()
            finally:
                self._dispatching.release()

    def _begin_dispatching(self) -> None:
        if self._dispatcher is None:
            thread = threading.Thread(target=self._call, name="lavinmq-callbacks", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter ends: who closes calls them
                thread.start()
                self._dispatcher = thread

    def _call(self) -> None:
        while (call := self._calls.get()) is not None:
            function, *values = call
            function(*values)

    def close(self, timeout: float | None = None, flush: bool = True) -> None:
        """End all: what is buffered goes out within the time, or is dropped with a word."""
        with self._lock:
            if self._loop is None:
                self._together.end()
                return
        self.check_thread()
        try:
            with contextlib.suppress(ClosedError):
                self.run(self._together.close(timeout, flush))
        finally:
            self._end_threads()

    def _end_threads(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)
        dispatcher, self._dispatcher = self._dispatcher, None
        self._calls.put(None)
        if dispatcher is None:
            self._call()
        elif dispatcher is not threading.current_thread():
            dispatcher.join(5)
        _living.discard(self)

    def _forked(self) -> None:
        """In the child: the threads are not here, whatever lock one held, and the socket is the
        parent's."""
        self._is_forked = True
        self._lock, self._dispatching = threading.RLock(), threading.Lock()
        super()._forked()

    # ---- what the program asks for

    def wait_connected(self, timeout: float | None = None) -> None:
        """Wait for a connection. Raises: ClientConnectionError, ClosedError."""
        self._started()
        self.run(self._together.connected(timeout))

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
    ) -> Producer:
        """A producer to a queue, which is declared durable if it is missing (`declare`), or to an
        exchange. Raises: ConfigError, ChannelClosed."""
        check_target(queue, exchange, routing_key)
        config = narrowed(self.config, PRODUCER_OPTIONS, options)
        self._started()
        core = self._together.for_producer()
        made = Producer(
            self,
            core,
            queue,
            exchange=exchange or "",
            routing_key=routing_key or "",
            mode=mode_of(mode, config),
            policy=policy_of(buffer_policy, config),
            config=config,
            mandatory=mandatory,
            declare=declare,
            properties=properties,
        )
        self.run(core.enter(made))
        return made

    def consumer(
        self,
        queue: str,
        prefetch: int | None = None,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Table = None,
        tag: str = "",
        declare: bool = True,
        **options: Any,
    ) -> Consumer:
        """A consumer of a queue, which is declared durable if it is missing (`declare`).

        Raises: ConfigError, ChannelClosed.
        """
        config = narrowed(self.config, CONSUMER_OPTIONS, options)
        if prefetch is not None:
            config = config.updated({"prefetch": prefetch})
        core = self._started()
        made = Consumer(
            self, queue, config=config, no_ack=no_ack, exclusive=exclusive,
            arguments=arguments, tag=tag, declare=declare,
        )  # fmt: skip
        self.run(core.enter(made))
        return made

    def channel(self) -> Channel:
        """A channel as the protocol has it; it does not come back."""
        inner = AsyncChannel(self._started())
        self.run(inner.open())
        return Channel(inner, self.run)

    def queue(
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
        self._started()
        return self.run(
            self._declaring.queue(
                name, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
                passive=passive, arguments=arguments,
            )
        )  # fmt: skip

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
    ) -> None:
        """Declare an exchange."""
        self._started()
        self.run(
            self._declaring.exchange(
                name, kind, durable=durable, auto_delete=auto_delete, internal=internal,
                passive=passive, arguments=arguments,
            )
        )  # fmt: skip

    def bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Bind a queue to an exchange."""
        self._started()
        self.run(self._declaring.bind(queue, exchange, routing_key, arguments))

    def unbind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Take a binding away."""
        self._started()
        self.run(self._declaring.unbind(queue, exchange, routing_key, arguments))

    def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Bind an exchange to another."""
        self._started()
        self.run(self._declaring.exchange_bind(destination, source, routing_key, arguments))

    def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table = None
    ) -> None:
        """Take such a binding away."""
        self._started()
        self.run(self._declaring.exchange_unbind(destination, source, routing_key, arguments))

    def purge(self, queue: str) -> int:
        """Drop the ready messages of a queue; return how many."""
        self._started()
        return self.run(self._declaring.purge(queue))

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; return how many messages it had."""
        self._started()
        work = self._declaring.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)
        return self.run(work)

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange."""
        self._started()
        self.run(self._declaring.delete_exchange(exchange, if_unused=if_unused))

    def get(self, queue: str) -> Message | None:
        """Fetch one message, which needs no ack any more; None when the queue is empty."""
        self._started()
        return self.run(self._declaring.get(queue))

    def rpc_call(
        self, queue: str, body: Any, *, timeout: float | None = None, **options: Any
    ) -> Message:
        """Ask who consumes a queue; return the answer. Raises: RpcTimeout, ReturnedError."""
        return self.run(self._ask(self._started(), queue, body, timeout, options))

    async def _ask(
        self, core: Core, queue: str, body: Any, timeout: float | None, options: dict[str, Any]
    ) -> Message:
        if self._rpc is None:
            self._rpc = RpcCaller(core)
        if not isinstance(body, bytes):
            body = self._rpc.bytes_of(body, options)
        return await self._rpc.call(queue, body, timeout, options)

    def rpc_server(
        self, queue: str, handler: Callable[[Message], Any], *, workers: int = 1, prefetch: int = 10
    ) -> Consumer:
        """Answer questions: what `handler` returns is the answer's body. Close what it returns."""
        check_workers(workers)
        consumer = self.consumer(queue, prefetch)
        try:
            producer = self.producer(exchange="", routing_key="", mode="fire_and_forget")
        except BaseException:
            consumer.close()
            raise
        consumer.answers = producer

        def answer(message: Message) -> None:
            body = handler(message)
            if message.reply_to:
                producer.publish(
                    b"" if body is None else body,
                    routing_key=message.reply_to,
                    correlation_id=message.correlation_id,
                    delivery_mode=1,
                )

        consumer.subscribe(answer, workers)
        return consumer

    def update_secret(self, secret: str) -> None:
        """Give the broker a new access token. Raises: ClientConnectionError."""
        self._started()
        self.run(self._together.renew(secret))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_living: weakref.WeakSet[Client] = weakref.WeakSet()
"""Clients with threads, for the end of the interpreter."""


def _close_all() -> None:
    for client in list(_living):
        try:
            client.close()
        except Exception as error:  # noqa: BLE001 - the others are to be closed as well
            LOG.error("a client could not be closed", exc_info=error)


atexit.register(_close_all)
