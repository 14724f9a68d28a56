"""What both fronts' consumers share: subscribing, settling, pausing, and coming back.

A consumer has a channel of its own. Its tracker knows which incarnation of the channel a delivery
came by; what is settled for an earlier one is counted and not sent. It comes back after a lost
connection, a closed channel and a cancel by the broker; access refused (403) ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lavinmq.client import _engine
from lavinmq.client._engine import Message
from lavinmq.client.config import Config
from lavinmq.client.core import Core, Member, told_as
from lavinmq.client.errors import (
    AccessRefused,
    ChannelClosed,
    ClosedError,
    ConfigError,
    ConsumerCancelled,
    Error,
)
from lavinmq.client.link import ALL, Chan, Link
from lavinmq.client.stream_place import StreamPlace
from lavinmq.client.topology import NOTHING

if TYPE_CHECKING:
    from lavinmq.client.producing import BaseProducer

BACKLOG_MESSAGES: Final = 20_000
BACKLOG_BYTES: Final = 64 << 20
OFFSET: Final = "x-stream-offset"
MOST_WORKERS: Final = 10_000
_numbers = itertools.count(1)

Hook = Callable[..., Any]


def check_workers(workers: int) -> None:
    """Refuse a number of workers that is none. Raises: ConfigError."""
    # A bool is an int, and nobody means it.
    if type(workers) is not int or not 1 <= workers <= MOST_WORKERS:
        raise ConfigError(f"option workers is {workers!r}, allowed are 1 to {MOST_WORKERS}")


class BaseConsumer(Member):
    """Takes messages of one queue."""

    __slots__ = (
        "__weakref__", "_chan", "_closing", "_declares", "_error", "_heard", "_held", "_held_bytes",
        "_hooks", "_is_paused", "_is_subscribed", "_oldest", "_place", "_subscribing", "_told",
        "_unheard", "answers", "arguments", "config", "core", "exclusive", "failures",
        "handler_errors", "is_bounded", "no_ack", "passage", "prefetch", "queue", "resubscriptions",
        "tag", "tracing", "tracker",
    )  # fmt: skip
    queue: str

    def __init__(
        self,
        core: Core,
        queue: str,
        *,
        config: Config,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
        tag: str = "",
        declare: bool = True,
    ) -> None:
        self.core, self.queue, self.config = core, queue, config
        self.prefetch, self.no_ack, self.exclusive = config.prefetch, no_ack, exclusive
        self.arguments = dict(arguments) if arguments else NOTHING
        self.tag = tag or f"{config.program_name}-{os.getpid()}-{next(_numbers)}"
        self.tracker = _engine.Tracker(0 if no_ack else 2 * self.prefetch)
        self.tracker.wake = self.wake
        self.failures = 0
        self.handler_errors = 0
        self.resubscriptions = 0
        self._hooks: tuple[tuple[str, Hook], ...] = ()
        """Events that somebody wants to hear of, and who."""
        self._declares = declare
        self.is_bounded = no_ack
        """Whether reading stops while the program has very much to take: of messages that need no
        ack, and for programs that have nothing else on their connection."""
        self.passage: _engine.Passage | None = None
        """By which messages go on to a producer without becoming objects; set before it opens. Only
        those that cannot go on at once come to the program, which hands them over."""
        self._chan: Chan | None = None
        self._is_subscribed = self._is_paused = self._closing = False
        self._subscribing: Chan | None = None
        """By which it is just asked for messages."""
        self._unheard = 0
        """Pauses whose answer was not heard: messages of before may still come."""
        self.answers: BaseProducer | None = None
        """Of who answers questions: ends with it."""
        self._error: Exception | None = None
        self._held = 0
        self._held_bytes = 0
        self._told = self._heard = 0
        self._place = StreamPlace() if OFFSET in self.arguments else None
        if self._place is not None:
            self.tracker.notes_given_back = True
        self._oldest: tuple[int, int, float] | None = None
        self.tracing: Any = None
        if config.tracing:
            from lavinmq.client import tracing

            tracing.check()
            self.tracing = tracing

    # ---- what the program sees

    @property
    def subscribed(self) -> bool:
        """Whether the broker sends messages to it now."""
        return self._is_subscribed

    @property
    def has_channel(self) -> bool:
        """Whether a channel is open for it."""
        return self._chan is not None

    @property
    def unacked(self) -> int:
        """Deliveries that are not settled."""
        return self.tracker.count

    @property
    def done(self) -> int:
        """Deliveries that the broker was told of, and sent more; all, if it need not be told.

        A broker that delivers a message and closes, again and again, gets nothing done by that.
        """
        return self.tracker.delivered if self.no_ack else self._heard

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closing or self._error is not None

    def ack(self, tag: int, multiple: bool = False) -> int:
        """Acknowledge a delivery, or all up to it; return how many that settled."""
        return self.tracker.ack(tag, multiple)

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> int:
        """Refuse a delivery, or all up to it; return how many that settled."""
        return self.tracker.nack(tag, multiple, requeue)

    def on_cancel(self, callback: Hook) -> Hook:
        """Call it with an error when the broker ends the consumer; it comes back by itself."""
        return self._hook("cancel", callback)

    def on_resubscribe(self, callback: Hook) -> Hook:
        """Call it when the consumer is back."""
        return self._hook("resubscribe", callback)

    def on_error(self, callback: Hook) -> Hook:
        """Call it with an error of a handler, or of the channel."""
        return self._hook("error", callback)

    def on_unacked_age(self, callback: Hook) -> Hook:
        """Call it with seconds when a delivery is unsettled for longer than `max_unacked_age`."""
        return self._hook("unacked_age", callback)

    def _hook(self, name: str, callback: Hook) -> Hook:
        self._hooks += ((name, callback),)
        return callback

    def _tell(self, name: str, *values: Any) -> None:
        for event, callback in self._hooks:
            if event == name:
                self.core.dispatch(self.core.guarded, callback, values)

    def handler_failed(self, message: Message, error: BaseException, requeue: bool) -> None:
        """The program's code raised: refuse the message, and tell."""
        self.handler_errors += 1
        message.nack(requeue)
        told = told_as(error)
        self._tell("error", told)
        self.core.tell("error", told)

    # ---- what a front provides

    def wake(self) -> None:
        """There is something to send; called from the thread that settled it."""
        raise NotImplementedError

    def arrived(self, messages: list[Message]) -> None:
        """Messages came; in the loop."""
        raise NotImplementedError

    def ended(self) -> None:
        """Nothing more comes: who waits goes on; in the loop."""
        raise NotImplementedError

    def drop_arrived(self) -> None:
        """What came and was not taken yet is the broker's again, and will come again; in the loop.

        Without this a program that is slow would hold as many copies as there were connections.
        """
        raise NotImplementedError

    def all_taken(self) -> None:
        """The passage has taken all that it was to; in the loop."""

    def is_stale(self, message: Message) -> bool:
        """Whether it came by a channel that is gone, and so will come again."""
        return not self.no_ack and message.incarnation != self.tracker.incarnation

    # ---- in the loop

    async def join(self, link: Link) -> None:
        """Subscribe on a connection. Raises: ChannelClosed and the like."""
        if self._closing or self._error is not None:
            return
        if self._declares:
            await self.core.ensure_queue(link, self.queue)
        chan = await link.channel(tracker=self.tracker, owner=self)
        if self._is_leaving():
            await chan.close()
            return
        chan.port.no_ack = self.no_ack
        self.tracker.reset(chan.number)
        if self.passage is not None:
            self.passage.restart(self.tracker, self.no_ack)
            chan.port.passage = self.passage
            if self.passage.is_all_taken:
                self.all_taken()  # what said so went with the old channel
        self._chan = chan
        chan.sender = self
        if self.prefetch:
            await chan.call("basic.qos", 0, self.prefetch, False)
        if not self._is_paused:
            await self._consume(chan)
        self.failures = 0

    def _is_leaving(self) -> bool:
        """Whether it was closed, also while something else was waited for."""
        return self._closing

    async def _consume(self, chan: Chan) -> None:
        """Subscribe, unless that is done, or somebody does it."""
        if self._is_subscribed or self._subscribing is chan:
            return
        self._subscribing = chan
        try:
            await self._ask_for_messages(chan)
        except asyncio.CancelledError:
            self._is_subscribed = self._chan is chan  # the broker was asked, and will
            raise
        finally:
            self._subscribing = None
        if self._is_paused:  # since it was asked for
            await self.pausing()

    async def _ask_for_messages(self, chan: Chan) -> None:
        arguments = self.arguments
        if self.tracker.limit:
            # To the broker a consumer that was paused is another one afterwards, and what the
            # program has not settled is not its.
            most = self.tracker.count + (1 + self._unheard) * self.prefetch
            self.tracker.limit = max(2 * self.prefetch, most)
        if self._place is not None and self._place.next_offset is not None:
            arguments = {**arguments, OFFSET: self._place.next_offset}
        flags = (False, self.no_ack, self.exclusive, False)
        await chan.call("basic.consume", 0, self.queue, self.tag, *flags, arguments)
        if self._chan is not chan:  # what ended it came with the answer
            raise chan.error or ConsumerCancelled(f"the broker ended the consumer of {self.queue}")
        self._is_subscribed = True

    @property
    def next_offset(self) -> int | None:
        """Where a stream goes on by what was settled before the channel ended; None: where the
        program said, or it is no stream."""
        return None if self._place is None else self._place.next_offset

    def renamed(self, old: str, new: str) -> None:
        """The queue has another name now."""
        if self.queue == old:
            self.queue = new

    def leave(self, cause: Exception) -> None:
        """The connection is gone; what came and is not settled is the broker's again."""
        self._forget_channel()

    def _forget_channel(self) -> None:
        if self._place is not None:
            self._note_place(self._place)
            self._place.leave()
        if self._chan is not None:
            self._chan.link.hold_reading(self, False)
        self._chan = None
        self._is_subscribed = False
        self._unheard = 0
        self._oldest = None
        self.tracker.reset(0)
        if not self.no_ack:
            self.drop_arrived()
            self._held = self._held_bytes = 0

    def chan_cancelled(self, chan: Chan, tag: str) -> None:
        """The broker ended the consumer, as it does when its queue is deleted."""
        self._is_subscribed = False
        self._tell("cancel", ConsumerCancelled(f"the broker ended the consumer of {self.queue}"))
        chan.link.discard(chan)
        self._come_back(chan)

    def chan_closed(self, chan: Chan, error: Exception) -> None:
        """The broker closed the channel."""
        if chan.link.lost is not None or self._chan is not chan or isinstance(error, ClosedError):
            return
        self._tell("error", error)
        self.core.tell("error", error)
        if isinstance(error, AccessRefused):
            self._forget_channel()
            self.finish(error)
            return
        self._come_back(chan)

    def _come_back(self, chan: Chan) -> None:
        """Subscribe anew on the same connection, after a while."""
        if self._chan is not chan:
            return
        self._forget_channel()
        self.failures += 1
        delay = min(0.05 * 2 ** min(self.failures, 9), self.config.reconnect_max_delay)
        self.core.bring_back(self, chan.link, delay)

    async def rejoin(self, link: Link) -> None:
        """Subscribe again; who is refused its rights ends. Raises: why it cannot."""
        if self.has_channel or self._closing:
            return
        try:
            await self.join(link)
        except AccessRefused as error:
            self.finish(error)
            return
        except Error as error:
            if self._is_leaving():
                return
            self._tell("error", error)
            chan = self._chan
            if chan is not None and chan.error is not None:
                self._forget_channel()
            raise
        if self._chan is not None:
            self.resubscriptions += 1
            self._tell("resubscribe")

    def send(self, out: _engine.Output, most: int) -> None:
        """Write acks and refusals."""
        if self._place is not None:
            self._note_place(self._place)
        self.tracker.flush(out)
        self._told = self.tracker.acked + self.tracker.rejected

    def progressed(self) -> None:
        """Messages came."""
        chan = self._chan
        if chan is None:
            return
        messages = chan.port.take()
        if messages or self.passage is not None:
            self._heard = self._told
        if not messages:
            if self.passage is not None and self.passage.is_all_taken:
                self.all_taken()
            return
        if self._place is not None and self.passage is None:
            for message in messages:
                offset = message.headers.get(OFFSET)
                if not isinstance(offset, int):
                    continue
                if self.no_ack:
                    self._place.next_offset = offset + 1
                else:
                    self._place.deliver(message.delivery_tag, offset)
        if self.is_bounded:
            self._held += len(messages)
            self._held_bytes += sum(map(len, messages))
            is_much = self._held > BACKLOG_MESSAGES or self._held_bytes > BACKLOG_BYTES
            if is_much and self._is_subscribed:  # who ends it waits for an answer
                chan.link.hold_reading(self, True)
        self.arrived(messages)

    def taken(self, count: int, n_bytes: int) -> None:
        """The program has taken messages; in the loop."""
        self._held = max(0, self._held - count)
        self._held_bytes = max(0, self._held_bytes - n_bytes)
        is_low = self._held <= BACKLOG_MESSAGES // 2 and self._held_bytes <= BACKLOG_BYTES // 2
        if is_low and self._chan is not None:
            self._chan.link.hold_reading(self, False)

    def _note_place(self, place: StreamPlace) -> None:
        """Remember where a stream goes on."""
        if self.passage is not None:
            offset = self.passage.next_offset
            place.next_offset = place.next_offset if offset is None else offset
            return
        # In this order: what is settled meanwhile may be among those given back, and waits there.
        settled = self.tracker.settled_to
        place.settle(settled, self.tracker.take_given_back(), self.tracker.limit)

    def tick(self, is_blocked: bool) -> None:
        """The health poll comes by: look for deliveries that wait for too long."""
        age = self.config.max_unacked_age
        if age is None:
            return
        settled, now = self.tracker.settled_to, self.core.loop.time()
        mark = (self.tracker.incarnation, settled)
        if not self.tracker.count:
            self._oldest = None
        elif self._oldest is None or self._oldest[:2] != mark:
            self._oldest = (*mark, now)
        elif now - self._oldest[2] > age:
            self._tell("unacked_age", now - self._oldest[2])

    def rest(self) -> None:
        """Nothing happens for now."""
        self.tracker.rest()

    async def pausing(self) -> None:
        """Stop new messages; those that are here stay."""
        self._is_paused = True
        if self._chan is not None and self._is_subscribed:
            self._is_subscribed = False
            self._chan.link.hold_reading(self, False)
            self._unheard += 1  # for good on this channel, if nobody waits for the answer
            await self._chan.call("basic.cancel", self.tag, False)
            self._unheard -= 1

    async def resuming(self) -> None:
        """Let them come again."""
        self._is_paused = False
        if self._chan is not None and not self._is_subscribed and not self._closing:
            await self._consume(self._chan)

    async def closing(self, flush: bool = True) -> None:
        """Stop, send what is settled, and give back what is not."""
        if self._closing:
            return
        self._closing = True
        chan = self._chan
        self._is_subscribed = False
        self.ended()
        if chan is not None and chan.error is None:
            chan.link.hold_reading(self, False)
            self.send(chan.link.out, ALL)  # pump would stop where the peer takes nothing for now
            with contextlib.suppress(ChannelClosed):  # the broker was first; `on_error` has heard
                await chan.close()
        self._chan = None

    def forked(self, error: Exception) -> None:
        """In the child of a fork: nothing comes; what is here is the parent's."""
        self._error = error

    def finish(self, cause: Exception) -> None:
        """Nothing comes any more."""
        if self._error is None:
            self._error = cause
        self._is_subscribed = False
        self.tracker.wake = None
        chan, self._chan = self._chan, None
        if chan is not None:  # the broker gives no more to who has gone
            chan.link.discard(chan)
        if not self.no_ack:  # it is the broker's again
            self.drop_arrived()
        self.core.exit(self)
        self.ended()
