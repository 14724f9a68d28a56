"""One run of a shovel to an HTTP destination: requests in flight, and what becomes of each.

A message ends in one of four ways: delivered (acknowledged at the source), to be tried again (it
stays there), dead-lettered (rejected there), or the shovel stops. All that is held is what the
source has prefetched. Requests are started and ended by callbacks: no task for each of them.
Source: docs/shovels.md#webhooks.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import ssl
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lavinmq.shovel.connecting import BUFFER_BYTES, Rotation, pause_s
from lavinmq.shovel.endings import whole
from lavinmq.shovel.errors import Stopped
from lavinmq.shovel.http import Answer, Connection, connect
from lavinmq.shovel.requests import MAX_JSON, Requests
from lavinmq.shovel.source import Position, Source

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.client._engine import Message
    from lavinmq.client.aio import AsyncConsumer
    from lavinmq.shovel.hook import Hook, HookPlace
    from lavinmq.shovel.values import Values

OF_ALL: Final = frozenset({408, 429, 502, 503, 504})
"""Statuses that are about the server, not about a message: nothing else is sent meanwhile."""
LARGE: Final = 1 << 20
"""Bytes of bodies above which a request is not made in the loop."""
CLOSE_S: Final = 3.0
SLACK_S: Final = 0.01
"""The loop's clock may be behind by some milliseconds: who is asked to wait is never early."""
LOOK_S: Final = 0.5
"""Between two looks whether an answer is too late."""
Key = object


class Job:
    """Messages of one request."""

    __slots__ = ("is_again", "key", "messages", "number", "tries")

    def __init__(self, number: int, key: Key, messages: list[Message]) -> None:
        self.number, self.key, self.messages = number, key, messages
        self.tries = 0
        self.is_again = False
        """Whether it was sent again at once, because its connection had been kept for too long."""


class Posting:
    """Posts until it is done or cancelled. Args: as those of `Move`."""

    def __init__(
        self, broker: Broker, vhost: str, name: str, values: Values, to: Hook,
        position: Position | None,
    ) -> None:  # fmt: skip
        self.error = ""
        """Why it does not post, as long as it does not."""
        self._broker, self._values, self._to = broker, values, to
        self._source = Source(broker, name, values, self._failed, position)
        self._places: Rotation[HookPlace] = Rotation(to.places, to.failover)
        self._place = self._places.turn()
        self._requests = Requests(to, vhost, name)
        self._numbers = itertools.count(1)
        self._lanes: dict[Key, deque[Message]] = {}
        """With an order: what waits behind the request of its key that is under way."""
        self._ready: deque[Key] = deque()
        self._loose: deque[Message] = deque()
        """Without one: what waits."""
        self._later: list[tuple[float, int, Job]] = []
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._count = self._bytes = self._held = self._held_bytes = self._in_flight = 0
        self._is_all_taken = False
        """Whether nothing more is wanted."""
        self._failures = 0
        self._quiet_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._looker: asyncio.TimerHandle | None = None
        self._context: ssl.SSLContext | None = None
        self._changed = asyncio.Event()
        self._end: Exception | None = None
        self._is_closing = False
        self._n = {"delivered": 0, "rejected": 0, "retries": 0, "requests": 0, "reconnects": 0}

    # ---- how it goes

    @property
    def is_running(self) -> bool:
        """Whether messages go through."""
        return self._source.is_subscribed and not self._failures

    def figures(self) -> dict[str, int]:
        """Numbers of this run."""
        return {
            "message_count": self._count,
            "bytes": self._bytes,
            "confirmed": self._n["delivered"],
            "in_flight": self._held,
            "refused": self._n["retries"],
            "dead_lettered": self._n["rejected"],
            "requests": self._n["requests"],
            "reconnects": self._source.reconnects + self._n["reconnects"],
        }

    def _failed(self, error: Exception) -> None:
        self.error = str(error) or type(error).__name__

    # ---- its life

    async def run(self) -> None:
        """Post; returns when all was posted that was to be. Raises: why it cannot go on."""
        source = self._source
        try:
            if any(place.is_tls for place in self._to.places):
                self._context = await asyncio.to_thread(ssl.create_default_context)
            self._looker = asyncio.get_running_loop().call_later(LOOK_S, self._look)
            await source.client.start()
            queue = await source.find()
            if queue is None:
                return
            async for messages in self._batches(await source.open(queue)):
                self._take(messages)
                self._pump()
                # Without acknowledgements nothing else bounds how many are held, and nothing ever
                # how large they are.
                while self._is_full() or self._is_all_taken:
                    if self._is_all_taken and not self._held:
                        if source.is_all_settled:
                            return
                        break  # a part of it was lost on the way, and comes again
                    await self._wait()
                if self._end is not None:
                    raise self._end
        finally:
            await whole(self._close())

    async def _batches(self, consumer: AsyncConsumer) -> AsyncIterator[list[Message]]:
        """Messages as they come together, no more than are wanted. Raises: why they end."""
        tracker, left = consumer.tracker, self._source.left
        incarnation, before, taken = tracker.incarnation, 0, 0
        async for batch in consumer.batches():
            messages = batch.messages
            if tracker.incarnation != incarnation:
                # What was not settled before the connection was lost comes again.
                incarnation, taken = tracker.incarnation, 0
                before = tracker.acked + tracker.rejected
            if left is not None:
                messages = messages[: left - before - taken]
            taken += len(messages)
            self._is_all_taken = left is not None and before + taken >= left
            self._count += len(messages)
            self._bytes += sum(map(len, messages))
            yield messages
        raise self._source.end

    def _is_full(self) -> bool:
        most = self._values.source.prefetch * 2
        return self._held > most or self._held_bytes > BUFFER_BYTES

    def _look(self) -> None:
        """One timer for all requests: to set and to take away one for each costs more than they."""
        loop = asyncio.get_running_loop()
        for connection in list(self._connections):
            connection.look(loop.time())
        self._looker = loop.call_later(LOOK_S, self._look)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        if self._end is not None:
            raise self._end

    async def _close(self) -> None:
        """What is under way gets its time; what is not settled stays at the source."""
        self._is_closing = True
        await self._source.stop()
        for timer in (self._timer, self._looker):
            if timer is not None:
                timer.cancel()
        for task in self._opening:
            task.cancel()
        if self._in_flight and self._end is None:
            loop = asyncio.get_running_loop()
            end = loop.time() + CLOSE_S
            while self._in_flight and loop.time() < end:
                await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close()
        await self._source.close()

    # ---- what waits

    def _take(self, messages: list[Message]) -> None:
        self._held += len(messages)
        self._held_bytes += sum(map(len, messages))
        if self._to.order_by == "none":
            self._loose.extend(messages)
            return
        for message in messages:
            key = self._key(message)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = deque()
                self._ready.append(key)
            lane.append(message)

    def _key(self, message: Message) -> Key:
        order = self._to.order_by
        if order == "routing-key":
            return message.routing_key
        if order.startswith("header:"):
            return str(message.headers.get(order.removeprefix("header:")))
        return None

    def _next(self) -> Job | None:
        """What is to be sent now; None: nothing."""
        now = asyncio.get_running_loop().time()
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[2]
        most = self._to.batch
        if self._loose:
            return Job(next(self._numbers), None, _portion(self._loose, most))
        if self._ready:
            key = self._ready.popleft()
            return Job(next(self._numbers), key, _portion(self._lanes[key], most))
        return None

    def _pump(self) -> None:
        """Send what can be sent."""
        loop = asyncio.get_running_loop()
        if self._is_closing or self._end is not None:
            return
        if loop.time() < self._quiet_until:
            self._look_again(self._quiet_until)
            return
        # A server that has failed is asked one question until it answers.
        most = 1 if self._failures else self._to.in_flight
        while self._in_flight < most:
            job = self._next()
            if job is None:
                break
            if all(self._source_has_lost(message) for message in job.messages):
                self._finished(job)  # it comes again by another connection
                continue
            self._in_flight += 1
            self._start(job)
        if self._later and self._in_flight < most:
            self._look_again(self._later[0][0])

    def _source_has_lost(self, message: Message) -> bool:
        consumer = self._source.consumer
        return consumer is not None and consumer.is_stale(message)

    def _look_again(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_at(when, self._on_time), when

    def _on_time(self) -> None:
        self._timer = None
        self._pump()

    # ---- requests

    def _start(self, job: Job) -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                self._ask(connection, job)
                return
        task = asyncio.get_running_loop().create_task(self._open(job))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, job: Job) -> None:
        if self._to.failover == "round-robin":
            self._place = self._places.turn()
        place = self._place
        try:
            connection = await connect(
                place, self._context if place.is_tls else None, self._to.connect_timeout_s,
                self._broker.config.webhook_private_networks, self._gone,
            )  # fmt: skip
        except OSError as error:
            self._in_flight -= 1
            self._server_failed(job, str(error), None, place)
            return
        except asyncio.CancelledError:
            self._in_flight -= 1
            raise
        self._connections.add(connection)
        self._ask(connection, job)
        self._pump()  # no request may have been made

    def _ask(self, connection: Connection, job: Job) -> None:
        if sum(map(len, job.messages)) > LARGE:
            task = asyncio.get_running_loop().create_task(self._ask_large(connection, job))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            return
        try:
            request = self._requests.make(connection.place, job.messages, job.number)
        except Exception as error:  # noqa: BLE001 - a message of which no request can be made
            self._cannot_ask(connection, job, error)
            return
        self._asked(connection, job, request)

    async def _ask_large(self, connection: Connection, job: Job) -> None:
        """To copy and to sign it takes long: a thread does that."""
        make = self._requests.make
        try:
            request = await asyncio.to_thread(make, connection.place, job.messages, job.number)
        except asyncio.CancelledError:
            self._in_flight -= 1
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._cannot_ask(connection, job, error)
            self._pump()
            return
        if connection.is_open:
            self._asked(connection, job, request)
        else:
            self._in_flight -= 1
            self._again(job, 0.0)
            self._pump()

    def _cannot_ask(self, connection: Connection, job: Job, error: Exception) -> None:
        self._in_flight -= 1
        if connection.is_open:
            self._idle.append(connection)
        why = f"no request can be made of a message: {error}"
        self._settle(job, "dead-letter", why, False)

    def _asked(self, connection: Connection, job: Job, request: bytes) -> None:
        self._n["requests"] += 1
        connection.ask(request, self._to.timeout_s, partial(self._done, connection, job))

    def _gone(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._is_closing:
            self._n["reconnects"] += 1
        if connection in self._idle:
            self._idle.remove(connection)

    def _done(self, connection: Connection, job: Job, answer: Answer | None, why: str) -> None:
        self._in_flight -= 1
        if answer is None:
            if not connection.is_fresh and not job.is_again and why.startswith("connection"):
                # It was closed while it was not used; that says nothing of the server.
                job.is_again = True
                self._again(job, 0.0)
            else:
                self._server_failed(job, why, None, connection.place)
        else:
            job.is_again = False
            if connection.is_open:
                self._idle.append(connection)
            outcome, is_asked_for = self._to.outcome(answer.status)
            if outcome == "delivered":
                self._works()
                self._settle(job, outcome, "", is_asked_for)
                self._pump()
                return
            said = f"{connection.place.shown} answers {answer.status}"
            if outcome == "retry" and answer.status in OF_ALL:
                self._server_failed(job, said, answer.retry_after_s, connection.place)
            else:
                if answer.text and self._requests.is_shown(answer.text):
                    said = f"{said}: {answer.text}"
                self._works()
                self._settle(job, outcome, said, is_asked_for, answer.retry_after_s)
        self._pump()

    def _works(self) -> None:
        if self._failures:
            self._failures = 0
            self._places.worked()
        self._quiet_until = 0.0

    def _server_failed(
        self, job: Job, why: str, retry_after_s: int | None, place: HookPlace
    ) -> None:
        """Nothing is sent for a while, or another server is asked."""
        if self._values.ack_mode != "on-confirm":
            self._settle(job, "delivered", why, False)
            self.error = why
            return
        self.error = why
        self._n["retries"] += 1
        self._again(job, 0.0)
        now = asyncio.get_running_loop().time()
        is_news = place is self._place or self._to.failover == "round-robin"
        # Those that were under way fail together: that is one failure.
        if is_news and now >= self._quiet_until:
            self._failures += 1
            self._place = self._places.turn()
            cycles, rest = divmod(self._failures, len(self._places))
            if rest == 0 or retry_after_s is not None:
                delay = (
                    pause_s(self._values.delay_s, cycles - 1)
                    if retry_after_s is None
                    else retry_after_s + SLACK_S
                )
                self._quiet_until = now + delay
        self._pump()

    def _again(self, job: Job, delay_s: float) -> None:
        when = asyncio.get_running_loop().time() + delay_s
        heapq.heappush(self._later, (when, job.number, job))

    # ---- outcomes

    def _settle(
        self, job: Job, outcome: str, why: str, is_asked_for: bool,
        retry_after_s: int | None = None,
    ) -> None:  # fmt: skip
        """Do what the answer asks for."""
        if self._values.ack_mode != "on-confirm" and outcome != "stop":
            outcome = "delivered"
        if outcome == "dead-letter" and not is_asked_for and not self._has_dead_letters():
            # Rejecting it would drop it.
            outcome = "retry"
            why = f"{why}; no dead-letter exchange would take the message, so it is tried again"
        if outcome == "retry":
            self.error = why
            self._n["retries"] += 1
            delay = (
                pause_s(self._values.delay_s, job.tries)
                if retry_after_s is None
                else retry_after_s + SLACK_S
            )
            job.tries += 1
            self._again(job, delay)
            return
        if outcome == "stop":
            self._end = Stopped(f"stopped: {why}")
            self._changed.set()
            if self._source.consumer is not None:
                self._source.consumer.finish(self._end)
            return
        count = len(job.messages)
        if outcome == "delivered":
            self._n["delivered"] += count
            if self._values.ack_mode != "no-ack":
                for message in job.messages:
                    message.ack()
            if not self._later:
                self.error = ""
        else:
            self.error = why
            self._n["rejected"] += count
            for message in job.messages:
                message.nack(requeue=False)
        self._finished(job)

    def _finished(self, job: Job) -> None:
        """Its messages are settled, or are not ours any more: the next of its key may go."""
        self._held -= len(job.messages)
        self._held_bytes -= sum(map(len, job.messages))
        if self._to.order_by != "none":
            if self._lanes[job.key]:
                self._ready.append(job.key)
            else:
                del self._lanes[job.key]
        if self._is_all_taken or not self._is_full():
            self._changed.set()

    def _has_dead_letters(self) -> bool:
        """Whether the source is a queue of ours that sends on what is rejected."""
        source: Any = self._values.source
        place = self._source.places.place
        if not place.is_local or source.queue is None:
            return False
        vhost = self._broker.vhosts.get(place.vhost)
        queue = vhost.queues.get(source.queue) if vhost is not None else None
        return queue is not None and queue.features.dead_letter_exchange is not None


def _portion(waiting: deque[Message], most: int) -> list[Message]:
    """What goes into one request: some messages, and no more than JSON is made of."""
    found = [waiting.popleft()]
    size = len(found[0])
    while waiting and len(found) < most and size + len(waiting[0]) <= MAX_JSON:
        size += len(waiting[0])
        found.append(waiting.popleft())
    return found
