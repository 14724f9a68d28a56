"""What both fronts' producers share: joining a connection, sending, endings, and the policies.

The messages are in the ring of the engine (`_engine.Ring`), which a producer is. Methods with
`join`, `leave`, `send`, `progressed` and `tick` belong to the loop's thread; `publish` and what the
policies do to any.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from lavinmq.client import _engine, codecs
from lavinmq.client._engine import Message, Receipt
from lavinmq.client.config import Config
from lavinmq.client.core import Core, Member
from lavinmq.client.errors import (
    BufferFullError,
    ChannelClosed,
    ClosedError,
    ConfigError,
    ConfirmTimeout,
    NotFound,
    SpillDamaged,
)
from lavinmq.client.link import Chan, Link
from lavinmq.client.reserve import Reserve
from lavinmq.client.spill import Spill, name_for
from lavinmq.client.values import BufferPolicy, DropReason, PublishMode

ROUNDS: Final = 2
PERSISTENT: Final[dict[str, Any]] = {"delivery_mode": 2}
"""What messages are like, if nothing else is said; nobody changes it."""
CALLBACKS: Final = {
    "drop": "dropped", "confirm": "confirmed", "nack": "nacked", "return": "returned",
}  # fmt: skip

Hook = Callable[..., Any]
Prepared = tuple[bytes | None, bytes | None, int]


class BaseProducer(_engine.Ring, Member):
    """Publishes to one exchange and routing key, or to one queue by its name."""

    __slots__ = (
        "__weakref__", "_chan", "_closing", "_declares", "_error", "_failures", "_hooks",
        "_probe_until", "_reserve", "_timer", "_waiting_for_room", "_watchers",
        "config", "core", "exchange", "mode", "policy", "queue", "routing_key",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        queue: str | None,
        *,
        exchange: str = "",
        routing_key: str = "",
        mode: PublishMode,
        policy: BufferPolicy,
        config: Config,
        mandatory: bool = False,
        declare: bool = True,
        properties: dict[str, Any] | None = None,
    ) -> None:
        self.core, self.queue, self.config = core, queue, config
        self.mode, self.policy = mode, policy
        self._declares = declare and queue is not None
        self._hooks: tuple[tuple[str, Hook], ...] = ()
        """Events that somebody wants to hear of, and who."""
        self._watchers: list[tuple[int, Callable[[], None]]] | None = None
        """Who waits until so many have ended; None: nobody."""
        self._waiting_for_room = 0
        self._error: Exception | None = None
        self._chan: Chan | None = None
        self._failures = 0
        self._probe_until = -1
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._reserve: Reserve | None = None
        defaults = {**PERSISTENT, **properties} if properties else PERSISTENT
        if config.deduplicate:
            defaults = self._identified(defaults)
        self.configure(
            exchange=exchange,
            routing_key=routing_key if queue is None else queue,
            properties=defaults,
            mandatory=mandatory,
            confirms=mode is PublishMode.CONFIRM,
            capacity=config.buffer_size,
            capacity_bytes=config.buffer_bytes,
            max_in_flight=config.max_in_flight,
            ttl_ms=int((config.message_ttl or 0) * 1000),
            retry_nacks=config.retry_nacks,
            stamped=config.deduplicate,
        )
        self.exchange, self.routing_key = exchange, routing_key if queue is None else queue
        if config.tracing:
            from lavinmq.client import tracing

            tracing.check()
            self.is_traced = True
        if policy is BufferPolicy.SPILL and config.spill_directory is not None:
            name = name_for(exchange, routing_key if queue is None else queue)
            spill = Spill(Path(config.spill_directory) / name, config.spill_bytes)
            for text in spill.damaged:
                core.tell("error", SpillDamaged(text))
            self._reserve = Reserve(self, spill, self._renew_accepting, self._tell_error)
        self._renew_accepting()

    def _identified(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """The same, with an id for each message that stays, however often it is sent."""
        mark = f"{uuid.uuid4().hex}-{_engine.SEQUENCE_MARK}"
        given: dict[str, Any] = defaults.get("headers") or {}
        headers = {"x-deduplication-header": mark, **given}
        return {"message_id": mark, **defaults, "headers": headers}

    # ---- what the program sees

    @property
    def label(self) -> str:
        """What figures call it."""
        return f"{self.exchange}/{self.routing_key}" if self.queue is None else self.queue

    @property
    def buffer_size(self) -> int:
        """Messages held: those that wait, and those in flight."""
        return self.count + self.spilled

    @property
    def spilled(self) -> int:
        """Messages that are in the file alone."""
        return self._reserve.count if self._reserve is not None else 0

    @property
    def buffer_capacity(self) -> int:
        """How many may be held in memory."""
        return self.capacity

    @property
    def is_troubled(self) -> bool:
        """Whether there is no channel, or the broker closed one and nothing has gone well since."""
        return self._chan is None or self._probe_until >= 0

    @property
    def done(self) -> int:
        """Messages that were confirmed."""
        return self.count_of("confirmed")

    @property
    def closed(self) -> bool:
        """Whether nothing more can be published."""
        return self._error is not None

    def on_drop(self, callback: Hook) -> Hook:
        """Call it with a message and a DropReason when one is given up here."""
        return self._hook("drop", callback)

    def on_confirm(self, callback: Hook) -> Hook:
        """Call it with a message that the broker has confirmed."""
        return self._hook("confirm", callback)

    def on_nack(self, callback: Hook) -> Hook:
        """Call it with a message that the broker has refused, be it to be sent again."""
        return self._hook("nack", callback)

    def on_return(self, callback: Hook) -> Hook:
        """Call it with a message that no queue took."""
        return self._hook("return", callback)

    def on_error(self, callback: Hook) -> Hook:
        """Call it with an error of this producer's channel."""
        return self._hook("error", callback)

    def _hook(self, name: str, callback: Hook) -> Hook:
        self._hooks += ((name, callback),)
        if name in CALLBACKS and not (name == "return" and self.mode is not PublishMode.CONFIRM):
            self.want(CALLBACKS[name])
        return callback

    def _tell(self, name: str, *values: Any) -> None:
        for event, callback in self._hooks:
            if event == name:
                self.core.dispatch(self.core.guarded, callback, values)

    def _tell_error(self, error: Exception) -> None:
        self._tell("error", error)
        self.core.tell("error", error)

    # ---- hooks of the engine

    def bytes_of(self, body: Any, options: dict[str, Any]) -> bytes:
        """Encode what is neither bytes nor text by its content type."""
        if isinstance(body, (bytes, bytearray, memoryview, str)):
            return super().bytes_of(body, options)
        return codecs.encode(body, options)

    def raw(self, body: Any) -> bytes:
        """The bytes of a body of a batch."""
        return body if isinstance(body, bytes) else self.bytes_of(body, {})

    def open_span(self, options: dict[str, Any]) -> None:
        """Write the trace into the headers."""
        from lavinmq.client import tracing

        tracing.inject(self, options)

    def full(self, body: bytes, prepared: Prepared) -> Any:
        """Do what the policy says for a message that there is no room for."""
        if self._error is not None or self._closing:
            raise self._error or ClosedError("the producer was closed")
        if self._is_down():
            return self._refused(body, prepared, DropReason.DISCONNECTED)
        if self._reserve is not None:
            return self._reserve.put(body, prepared)
        if self.policy is BufferPolicy.DROP_NEWEST:
            return self._refused(body, prepared, DropReason.BUFFER_FULL)
        if self.policy is BufferPolicy.DROP_OLDEST:
            is_hopeless = self.n_bytes + len(body) > self.capacity_bytes
            is_hopeless = is_hopeless and not self.could_hold(body)
            while not is_hopeless and self.drop_oldest(DropReason.BUFFER_FULL):
                receipt = self.add(body, prepared)
                if receipt is not None:
                    self._endings()
                    return receipt
            return self._refused(body, prepared, DropReason.BUFFER_FULL)
        if self.policy is BufferPolicy.RAISE:
            self._refused(body, prepared, DropReason.BUFFER_FULL)
            raise BufferFullError(f"{self.capacity} messages or {self.capacity_bytes} bytes wait")
        return self.block(body, prepared)

    def block(self, body: bytes, prepared: Prepared) -> Any:
        """Wait for room; a front's."""
        raise NotImplementedError

    def try_publish(self, body: Any, **options: Any) -> Receipt | None:
        """Publish if there is room now; None if not."""
        if self._error is not None:
            raise self._error
        if not isinstance(body, bytes):
            body = self.bytes_of(body, options)
        if self.is_traced:
            self.open_span(options)
        return self.add(body, self.prepare(options))

    def _is_down(self) -> bool:
        return not self.config.buffer_while_disconnected and not self.core.is_connected

    def _refused(self, body: bytes, prepared: Prepared, reason: DropReason) -> Receipt:
        receipt = self.refuse(body, prepared, reason)
        self._endings()
        return receipt

    def _renew_accepting(self) -> None:
        """Whether a publish may go the short way."""
        self.accepting = (
            self._error is None and not self._closing and not self._is_down() and not self.spilled
        )

    def forked(self, error: Exception) -> None:
        """In the child of a fork: what is here is the parent's, its file too."""
        self._error, self.accepting = error, False
        if self._reserve is not None:
            self._reserve.forked()

    # ---- in the loop: the connection

    async def join(self, link: Link) -> None:
        """Open a channel on a connection, and send what is held."""
        if self._closing and not self.count:
            return
        if self._declares and self.queue is not None:
            await self.core.ensure_queue(link, self.queue)
        chan = await link.channel(ring=self, owner=self)
        if self.mode is PublishMode.CONFIRM:
            try:
                await chan.call("confirm.select", False)
            except asyncio.CancelledError:
                link.discard(chan)
                raise
        if chan.error is not None:  # what ended it came with the answer
            raise chan.error
        if self._error is not None:  # it was closed meanwhile
            await chan.close()
            return
        self._chan = chan
        self.attach(chan.number, link.frame_max)
        chan.sender = self
        self._renew_accepting()
        link.wake()

    def leave(self, cause: Exception) -> None:
        """The connection is gone: what is unconfirmed waits for the next one."""
        self._chan = None
        self.reset()
        self._renew_accepting()
        self.progressed()

    def chan_closed(self, chan: Chan, error: Exception) -> None:
        """The channel is gone; if it alone, another is opened after a while."""
        link = chan.link
        if link.lost is not None or self._chan is not chan or isinstance(error, ClosedError):
            return
        self._chan = None
        self._failures += 1
        # Who is refused is found by sending one at a time: the one that was alone in flight.
        is_found = self.window == 1 and self.in_flight == 1
        last = self.first + self.in_flight
        self.reset()
        if isinstance(error, ChannelClosed) and self.mode is PublishMode.CONFIRM:
            if is_found and self._is_hopeless(error):
                self.give_up_first(DropReason.FLUSH_RETRY_EXCEEDED)
                self._failures = 0
            self.window = 1
            self._probe_until = max(self._probe_until, last)
        self._tell_error(error)
        self.progressed()
        delay = min(0.05 * 2 ** min(self._failures, 9), self.config.reconnect_max_delay)
        self.core.bring_back(self, link, delay)

    def _is_hopeless(self, error: ChannelClosed) -> bool:
        """Whether a message that ends the channel is given up."""
        if self.config.flush_retries is not None:
            return self._failures > self.config.flush_retries
        return not isinstance(error, NotFound)

    def chan_returned(self, message: Message) -> None:
        """No queue took a message; with confirms its end says so."""
        if self.mode is not PublishMode.CONFIRM:
            self._tell("return", message, DropReason.RETURNED)

    def finish(self, cause: Exception) -> None:
        """Nothing more is sent: what is held ends here."""
        if self._error is None:
            self._error = cause if isinstance(cause, ClosedError) else ClosedError(str(cause))
        self.accepting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        chan, self._chan = self._chan, None
        if chan is not None:  # what was to go out before has taken too long
            chan.link.discard(chan)
        if self._reserve is not None:
            self._reserve.close()
        is_late = isinstance(cause.__cause__, ConfirmTimeout)
        self.give_up(DropReason.CONFIRM_TIMEOUT if is_late else DropReason.CLOSED)
        self.progressed()
        watchers, self._watchers = self._watchers, None
        for _, ready in watchers or ():
            ready()
        self.has_room(always=True)

    def send(self, out: _engine.Output, most: int) -> None:
        """Make frames of what waits."""
        if self._reserve is not None:
            self._reserve.look()
        self.pump(out, most, DropReason.TOO_LARGE, DropReason.TTL_EXPIRED)
        retry_in = self.retry_in
        if retry_in is not None and self._timer is None:
            self._timer = self.core.loop.call_later(retry_in + 0.001, self._retry)
        if self.mode is not PublishMode.CONFIRM or self.config.message_ttl is not None:
            self.progressed()

    def _retry(self) -> None:
        self._timer = None
        if self._chan is not None:
            self._chan.link.wake()

    def progressed(self) -> None:
        """Messages have ended, or came: tell who waits for that."""
        self._endings()
        if self._probe_until >= 0 and self.first > self._probe_until:
            self._probe_until = -1
            self._failures = 0
            self.window = self.config.max_in_flight
        if self._reserve is not None:
            self._reserve.look()
        if self._watchers:
            first = self.first
            if not self.spilled:
                ready = [each for each in self._watchers if each[0] <= first]
                self._watchers = [each for each in self._watchers if each[0] > first] or None
                for _, call in ready:
                    call()
        if self._waiting_for_room and 2 * self.count <= self.capacity:
            self.has_room()

    def has_room(self, always: bool = False) -> None:
        """Who waits for room may try again; a front's."""
        raise NotImplementedError

    def _endings(self) -> None:
        """Run callbacks of receipts, and hand outcomes to those of the program."""
        # The end of one may be the end of a batch that it belongs to. Programs may drop messages as
        # fast as they are told of: others have their turn between.
        for _ in range(ROUNDS):
            for receipt in self.take_ended():
                receipt.run_callbacks(self.core.caught)
        if self.has_ended:
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                self.core.loop.call_soon_threadsafe(self._endings)
        outcomes = self.take_outcomes()
        if outcomes:
            self.core.dispatch(self._tell_outcomes, outcomes)

    def _tell_outcomes(self, outcomes: Sequence[tuple[str, Message, Any]]) -> None:
        for name, message, reason in outcomes:
            for event, callback in self._hooks:
                if CALLBACKS.get(event) == name:
                    values = (message, reason) if event in ("drop", "return") else (message,)
                    self.core.guarded(callback, values)

    def tick(self, is_blocked: bool) -> None:
        """The health poll comes by. Raises: ConfirmTimeout for a broker that does not answer."""
        reserve = self._reserve
        is_due = reserve is not None and (reserve.error is not None or reserve.is_missed)
        if self.expire(DropReason.TTL_EXPIRED) or is_due:
            self.progressed()
        timeout = self.config.confirm_timeout
        if timeout is not None and not is_blocked and self.oldest_flight > timeout:
            raise ConfirmTimeout(f"a message is unconfirmed for {self.oldest_flight:.1f} s")

    def watch(self, call: Callable[[], None]) -> None:
        """Call once all that was accepted so far has ended; in the loop."""
        is_empty = self.count == 0 and not self.spilled
        if is_empty or self._error is not None:
            call()
            return
        self._watch(call)

    def _watch(self, call: Callable[[], None]) -> None:
        self._watchers = [] if self._watchers is None else self._watchers
        self._watchers.append((self.last, call))

    async def drained(self) -> None:
        """All that was accepted so far has ended."""
        future: asyncio.Future[None] = self.core.loop.create_future()
        self.watch(lambda: _end(future))
        await future
        if self._reserve is not None and self._error is None:
            # What came out of the file meanwhile has got its number later.
            future = self.core.loop.create_future()
            self.watch(lambda: _end(future))
            await future

    async def closing(self, flush: bool = True) -> None:
        """Accept nothing more, wait for what is held, close the channel. Others may do so, too."""
        self._closing = True
        self.accepting = False
        if flush and self._error is None and (self.config.reconnect or self._chan is not None):
            await self._drain_for_good()
        chan, self._chan = self._chan, None
        if chan is not None:
            await chan.close()

    async def _drain_for_good(self) -> None:
        while self.buffer_size:
            watching = self.core.spawn(self._watched())
            if not self.count:
                self.progressed()
            await watching

    async def _watched(self) -> None:
        """All that is in the ring now has ended."""
        future: asyncio.Future[None] = self.core.loop.create_future()
        self._watch(lambda: _end(future))
        await future


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def check_target(queue: str | None, exchange: str | None, routing_key: str | None) -> None:
    """Refuse a producer to nowhere or to two places. Raises: ConfigError."""
    if queue is None and exchange is None and routing_key is None:
        raise ConfigError("a producer needs a queue, or an exchange and a routing key")
    if queue is not None and (exchange or routing_key):
        raise ConfigError("a producer has a queue or an exchange, not both")
