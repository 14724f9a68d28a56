"""A link: what it shows, and what its runs share.

Source: docs/federation.md.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from lavinmq.client._engine import Passage
from lavinmq.client.aio import AsyncClient, AsyncConsumer, AsyncProducer
from lavinmq.client.errors import ConnectionLost
from lavinmq.client.values import ConnectionState
from lavinmq.federation.hops import Here, marker
from lavinmq.shovel import places
from lavinmq.shovel.connecting import CLOSE_S, PlaceClient, Rotation
from lavinmq.shovel.endings import begun, whole
from lavinmq.shovel.passing import Trouble, open_producer, refusal
from lavinmq.shovel.runner import Run, Runner
from lavinmq.shovel.source import quietly, tag_of

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.federation.upstreams import Upstream

FIGURES: Final = (
    "message_count", "bytes", "confirmed", "dropped", "in_flight", "refused", "reconnects",
)  # fmt: skip
"""What is counted: messages taken from the upstream, their bytes, those that are safe here, those
that have passed too many links, those whose end is not known, attempts that were refused here, and
connections that were made again."""
MOST_NAME: Final = 255
"""Bytes of the name that an upstream has for itself, as of other names of AMQP."""
NOTHING: Final[tuple[int, ...]] = (0, 0, 0, 0)
STATUS: Final = {"Running": "running", "Starting": "starting", "Error": "stopped",
                 "Paused": "paused", "Terminated": "terminated"}  # fmt: skip
"""LavinMQ's words; a link that fails waits, which it calls stopped."""


class Link(Runner):
    """One upstream of one exchange or queue.

    Args: kind: `exchange` or `queue`; resource: its name here.
    """

    __slots__ = ("_broker", "here", "kind", "resource", "upstream")

    def __init__(
        self, broker: Broker, here: Here, kind: str, resource: str, upstream: Upstream, *,
        is_paused: bool, after: asyncio.Task[None] | None,
    ) -> None:  # fmt: skip
        super().__init__(upstream.delay_s, FIGURES, is_paused=is_paused, after=after)
        self.kind, self.resource, self.upstream, self.here = kind, resource, upstream, here
        self._broker = broker

    def __str__(self) -> str:
        return (
            f"federation link of {self.kind} {self.resource!r} to upstream {self.upstream.name!r}"
            f" of vhost {self.here.vhost!r}"
        )

    def row(self) -> dict[str, Any]:
        """As the API shows it."""
        since = self.since or time.time()
        shown = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return {
            "upstream": self.upstream.name, "vhost": self.here.vhost, "timestamp": shown,
            "type": self.kind, "uri": self.upstream.places[0].shown, "resource": self.resource,
            "error": self.error or None, "status": STATUS[self.state],
            "consumer-tag": self.upstream.consumer_tag, "is_private": self.upstream.is_private,
            **self.figures(),
            "last_error_at": round(self.error_at * 1000) if self.error_at is not None else None,
        }  # fmt: skip

    async def clean_up(self) -> None:
        """It is deleted: what it made at the upstream goes."""

    def made(self) -> Run:
        """A new run."""
        raise NotImplementedError


class LinkRun:
    """What runs of both kinds of links share: two clients, marks, and handing over."""

    __slots__ = (
        "_ends_here", "_is_lost", "_most_hops", "_passage", "_rotation", "_sums", "_task",
        "_trouble", "broker", "client", "consumer", "link", "own", "producer", "upstream",
    )  # fmt: skip

    def __init__(self, link: Link, broker: Broker, *, most_hops: int, ends_here: bool) -> None:
        self.link, self.broker, self.upstream = link, broker, link.upstream
        name = f"Federation link: {self.upstream.name}/{link.resource}"
        rotation = Rotation(self.upstream.places, self.upstream.failover)
        rest = name, self.upstream.delay_s, self.upstream.prefetch, self.failed
        self.client = PlaceClient(broker, rotation, *rest)
        inside = places.parse("amqp://", link.here.vhost)
        self.own = PlaceClient(broker, Rotation((inside,), "ordered"), *rest)
        self.producer: AsyncProducer | None = None
        self.consumer: AsyncConsumer | None = None
        self._rotation = rotation
        self._most_hops, self._ends_here = most_hops, ends_here
        self._trouble = Trouble()
        self._passage: Passage | None = None
        self._sums = NOTHING
        """What was counted with consumers before the one of now."""
        self._task: asyncio.Task[None] | None = None
        """That runs it, as long as it does."""
        self._is_lost = False
        """Whether something is lost that another run has to begin with."""

    @property
    def is_running(self) -> bool:
        """Whether messages come."""
        producer = self.producer
        return producer is not None and not producer.is_troubled and self.client.connected

    def figures(self) -> dict[str, int]:
        """Numbers of this run, of those in FIGURES."""
        producer = self.producer
        count, n_bytes, stopped, acked = self._counted()
        dropped = stopped if self._ends_here else 0
        return {
            "message_count": count, "bytes": n_bytes,
            "confirmed": max(acked - dropped, 0), "dropped": dropped,
            "in_flight": producer.count if producer is not None else 0,
            "refused": producer.nacks + producer.unrouted if producer is not None else 0,
            "reconnects": self.own._core.reconnects,
        }  # fmt: skip

    def failed(self, error: Exception) -> None:
        """Why it does not go on; what it hears while it ends is no reason."""
        if self._task is not None:
            self._trouble.say(error, self._counted()[0])

    @property
    def error(self) -> str:
        """Why no messages come, as long as they do not."""
        text = self._trouble.text(self.is_running, self._counted()[0])
        return text or refusal(self.producer)

    def _counted(self) -> tuple[int, ...]:
        """Messages, their bytes, those that went no further, and those that were acknowledged."""
        passage, consumer = self._passage, self.consumer
        if passage is None or consumer is None:
            return self._sums
        now = (passage.count, passage.n_bytes, passage.stopped, consumer.tracker.acked)
        return tuple(sum(pair) for pair in zip(self._sums, now, strict=True))

    async def run(self) -> None:
        """Bring messages until it is cancelled. Raises: why it cannot go on."""
        task = self._task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            await self._work()
        except asyncio.CancelledError:
            # Who wants the link to end cancels the task, too: then that counts.
            if not self._is_lost or task.uncancel() > before:
                raise
            raise ConnectionLost(self.error or "the connection to the upstream was lost") from None
        finally:
            self._task = None
            await whole(self._close())

    async def _work(self) -> None:
        await asyncio.gather(self.client.start(), self.own.start())
        await self.own.wait_connected()
        await self.client.wait_connected()
        # What was mirrored is compared anew after each loss: that is another run.
        self.client.changed = self._changed
        await self.bring()

    def origin(self) -> dict[str, Any]:
        """What the messages come from."""
        raise NotImplementedError

    async def bring(self) -> None:
        """Do the work. Raises: why it cannot be done."""
        raise NotImplementedError

    def ending(self) -> None:
        """It ends."""

    def _cluster(self) -> dict[str, Any]:
        """What the upstream says that it is called."""
        found: dict[str, Any] = {"vhost": self._rotation.place.vhost}
        link = self.client._core.link
        name = link.server_properties.get("cluster_name") if link is not None else None
        # It goes into each message: no peer makes them as large as it likes.
        if isinstance(name, str) and len(name.encode(errors="surrogateescape")) <= MOST_NAME:
            found["cluster-name"] = name
        return found

    def _changed(self, new: ConnectionState, cause: Exception | None) -> None:
        if new in (ConnectionState.RECONNECTING, ConnectionState.CLOSED):
            if cause is not None:
                self.failed(cause)
            self.lose()

    def lose(self) -> None:
        """End this run: what it has made has to be made anew."""
        if self._task is not None and not self._is_lost:
            self._is_lost = True
            self._task.cancel()

    async def open_producer(self, exchange: str, key: str) -> AsyncProducer:
        """To an exchange here. Raises: why there is none."""
        self.producer = await open_producer(self.own, exchange, key, self.upstream.ack_mode)
        return self.producer

    async def open_consumer(
        self, queue: str, exchange: str, key: str | None, *, exclusive: bool,
        budget: int | None = None,
    ) -> AsyncConsumer:  # fmt: skip
        """Of a queue of the upstream, whose messages go to an exchange here; with their own routing
        keys, if none is given. Args: budget: how many at first. Raises: why there is none."""
        assert self.producer is not None
        entry = {"uri": self._rotation.place.shown, **self.origin(), **self._cluster()}
        rewriter = marker(
            entry, self.link.here, self._most_hops, ends_here=self._ends_here,
            trusts_user=self.upstream.trusts_user,
        )  # fmt: skip
        # A queue that has gone takes nothing: what was for it stays at the upstream.
        mandatory = key is not None and self.upstream.ack_mode == "on-confirm"
        passage = Passage(
            self.producer, exchange=exchange, routing_key=key, mandatory=mandatory,
            rewriter=rewriter, gives_back=not self._ends_here, budget=budget,
        )  # fmt: skip
        opening = self.client.consumer(
            queue, self.upstream.prefetch, no_ack=self.upstream.ack_mode == "no-ack",
            exclusive=exclusive, tag=tag_of(self.upstream.consumer_tag), declare=False,
        )  # fmt: skip
        self._sums = self._counted()
        self._passage = opening.made.passage = passage
        self.consumer = opening.made
        self.consumer.is_bounded = True
        # What goes on by the passage is acknowledged before the link ends, also while it begins.
        await begun(opening, CLOSE_S)
        self.consumer.on_cancel(self._cancelled)
        return self.consumer

    def _cancelled(self, error: Exception) -> None:
        self.failed(error)
        self.lose()

    async def _close(self) -> None:
        self.ending()
        if self.consumer is not None and self.consumer.subscribed:
            await quietly(self.consumer.pause())
        if self.producer is not None and self.own.connected:
            await quietly(self.producer.close())
        await asyncio.gather(quietly(self.client.close()), quietly(self.own.close(flush=False)))


async def connected_once(broker: Broker, link: Link, timeout_s: float) -> AsyncClient:
    """A fresh client of an upstream, for what is to be deleted there. Raises: why there is none."""
    rotation = Rotation(link.upstream.places, link.upstream.failover)
    name = f"Federation link: {link.upstream.name}/{link.resource}"
    client = PlaceClient(broker, rotation, name, link.upstream.delay_s, 1, lambda _: None)
    await client.start()
    try:
        await client.wait_connected(timeout_s)
    except BaseException:
        await quietly(client.close())
        raise
    return client
