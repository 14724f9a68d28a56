"""A link of an exchange: the upstream collects what bindings here ask for, the link fetches it.

At the upstream stand a queue, in which messages wait, and an internal exchange, which has the
bindings of the exchange here. Nobody can list those of another broker. So each run makes the
internal exchange anew under the other of its two names, gives it all bindings, and deletes the old
one then: a message reaches the queue once, whichever of them it passes, and what was unbound while
there was no connection is gone. Source: docs/federation.md.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, Final

from lavinmq.client.errors import ChannelClosed, ConnectionClosed, NotFound
from lavinmq.federation.hops import bound_from
from lavinmq.federation.link import Link, LinkRun, connected_once
from lavinmq.fieldtable import FieldTable
from lavinmq.process.portions import others_first
from lavinmq.shovel.passing import hand_over
from lavinmq.shovel.source import quietly

if TYPE_CHECKING:
    from lavinmq.client.aio import AsyncConsumer, AsyncProducer
    from lavinmq.client.link import Chan
    from lavinmq.shovel.runner import Run
    from lavinmq.vhost.destination import Destination
    from lavinmq.vhost.exchange import Exchange

TYPE: Final = "x-federation-upstream"
"""Of the internal exchange; a broker that does not have it gets a fanout."""
CLEANUP_S: Final = 10.0
MOST: Final = 250
"""Bytes of a name, behind which there is room to tell two apart."""
AT_ONCE: Final = 500
"""Bindings that are sent before the upstream is asked whether it has them."""
LOOK: Final = 32
"""Bindings that are looked at before others have their turn."""
Change = tuple[bool, str, FieldTable]
"""Whether it is a new binding; its key and arguments."""
Mirrored = tuple[str, FieldTable]
Binding = tuple["Destination", str, FieldTable]


class ExchangeLink(Link):
    """One upstream of an exchange."""

    __slots__ = ()

    @property
    def exchange(self) -> str:
        """Its name at the upstream."""
        return self.upstream.exchange or self.resource

    @property
    def names(self) -> tuple[str, str]:
        """Of the internal exchange; the first one is the queue's as well."""
        name = f"federation: {self.exchange} -> {self.here.name}:{self.here.vhost}:{self.resource}"
        raw = name.encode(errors="surrogateescape")
        if len(raw) > MOST:
            # Names of AMQP end at 255 bytes: the rest is told apart by a digest.
            digest = hashlib.sha256(raw).hexdigest()[:32]
            name = f"{raw[: MOST - 33].decode(errors='ignore')} {digest}"
        return name, f"{name} B"

    def made(self) -> Run:
        """A new run."""
        return ExchangeRun(self, self._broker)

    async def clean_up(self) -> None:
        """Delete the queue and the internal exchange, over a fresh connection."""
        if self.upstream.keeps_queue:
            return
        client = await connected_once(self._broker, self, CLEANUP_S)
        try:
            await client.delete_queue(self.names[0])
            for name in self.names:
                await client.delete_exchange(name)
        finally:
            await quietly(client.close())


class ExchangeRun(LinkRun):
    """One run of it."""

    __slots__ = (
        "_changes", "_exchange", "_following", "_internal", "_is_mirrored", "_link",
        "_mirrored",
    )  # fmt: skip

    def __init__(self, link: ExchangeLink, broker: Any) -> None:
        super().__init__(link, broker, most_hops=link.upstream.max_hops, ends_here=True)
        self._link = link
        self._changes: list[Change] = []
        """Of bindings here, which the upstream has not heard of."""
        self._following: asyncio.Task[None] | None = None
        """As long as it is told of some."""
        self._mirrored: dict[Mirrored, int] = {}
        """Bindings of the exchange here by what they ask for, and how many ask for the same."""
        self._exchange: Exchange | None = None
        self._internal = ""
        self._is_mirrored = False

    @property
    def is_running(self) -> bool:
        """Whether messages come, and all that are asked for."""
        return self._is_mirrored and super().is_running

    def origin(self) -> dict[str, Any]:
        """What the messages come from."""
        return {"exchange": self._link.exchange}

    async def bring(self) -> None:
        """Mirror the bindings, then fetch. Raises: why it cannot."""
        consumer, producer = await self._begin()
        while (messages := await consumer._next()) is not None:
            await hand_over(consumer, producer, messages)
        raise consumer._error or NotFound(404, "the consumer has ended")

    async def _begin(self) -> tuple[AsyncConsumer, AsyncProducer]:
        """Have all that is needed, here and at the upstream. Raises: why it cannot be."""
        link = self._link
        vhost = self.broker.vhosts.get(link.here.vhost)
        exchange = vhost.exchanges.get(link.resource) if vhost is not None else None
        if exchange is None:
            raise NotFound(404, f"exchange '{link.resource}' is gone")
        self._exchange = exchange
        # All that there are, those of a queue that is deleted as well: their ends will be told.
        exchange.watchers = (*exchange.watchers, self._bindings_changed)
        there = list(exchange.bindings)
        await self._declare_queue(exchange)
        producer = await self.open_producer(link.resource, "")
        # Who may read the queue is the one who changes what fills it: another upstream that is the
        # same virtual host stops here, and disturbs nothing.
        consumer = await self.open_consumer(link.names[0], link.resource, None, exclusive=True)
        chan = await self._make_internal()
        await self._mirror(chan, there)
        await chan.close()
        await quietly(self.client._core.release())
        self._is_mirrored = True
        self._follow()
        return consumer, producer

    def ending(self) -> None:
        """Look at bindings no more."""
        self._is_mirrored = False
        if self._following is not None:
            self._following.cancel()
        exchange = self._exchange
        if exchange is not None:
            mine = self._bindings_changed
            exchange.watchers = tuple(each for each in exchange.watchers if each != mine)

    # ---- what stands at the upstream

    async def _declare_queue(self, exchange: Exchange) -> None:
        """The exchange, if it is missing, and the queue."""
        client, link, upstream = self.client, self._link, self.upstream
        try:
            await client.exchange(link.exchange, exchange.type, passive=True)
        except NotFound:
            await client.exchange(
                link.exchange, exchange.type, durable=exchange.durable,
                auto_delete=exchange.auto_delete, arguments=dict(exchange.arguments),
            )  # fmt: skip
        arguments: dict[str, Any] = {"x-internal-purpose": "federation"}
        for key, value in (("x-expires", upstream.expires_ms),
                           ("x-message-ttl", upstream.message_ttl_ms),
                           ("x-queue-type", upstream.queue_type)):  # fmt: skip
            if value is not None:
                arguments[key] = value
        await client.queue(link.names[0], arguments=arguments)

    async def _make_internal(self) -> Chan:
        """The internal exchange that is not there; a channel to give it bindings by."""
        client, (first, second) = self.client, self._link.names
        is_first_there = await self._is_there(first)
        self._internal = second if is_first_there else first
        if is_first_there and await self._is_there(second):
            await client.delete_exchange(second)  # a run was cut off in the midst of this
        await self._declare_internal()
        return await self._channel()

    async def _channel(self) -> Chan:
        """By which the upstream hears of bindings. Raises: why there is none."""
        connection = await self.client._core.connected(None)
        return await connection.channel()

    async def _is_there(self, exchange: str) -> bool:
        try:
            await self.client.exchange(exchange, TYPE, passive=True)
        except NotFound:
            return False
        return True

    async def _declare_internal(self) -> None:
        more = {
            "x-downstream-name": self._link.here.name, "x-internal-purpose": "federation",
            "x-max-hops": self.upstream.max_hops,
        }  # fmt: skip
        options = {"durable": True, "auto_delete": True, "internal": True}
        call = self.client._core.call
        flags = (False, *options.values(), False)
        try:
            await call("exchange.declare", 0, self._internal, TYPE, *flags, more)
        except (ChannelClosed, ConnectionClosed) as error:
            if error.code not in (406, 503):
                raise
            await self.client.wait_connected()
            await call("exchange.declare", 0, self._internal, "fanout", *flags, more)

    async def _mirror(self, chan: Chan, there: list[Binding]) -> None:
        """Give the new internal exchange all bindings; then the old one goes."""
        first, second = self._link.names
        for at in range(0, len(there), AT_ONCE):
            await self._bind(chan, [(True, *each[1:]) for each in there[at : at + AT_ONCE]])
        await chan.call("queue.bind", 0, first, self._internal, "", False, {})
        old = second if self._internal == first else first
        await chan.call("exchange.delete", 0, old, False, False)

    def _bindings_changed(self, is_new: bool, key: str, arguments: FieldTable) -> None:
        self._changes.append((is_new, key, arguments))
        self._follow()

    def _follow(self) -> None:
        """Bind and unbind as it was done here, unless somebody is about to."""
        if self._is_mirrored and self._changes and self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while self._changes:
                chan = await self._channel()
                while self._changes:
                    changes, self._changes = self._changes[:AT_ONCE], self._changes[AT_ONCE:]
                    await self._bind(chan, changes)
                await chan.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, another run begins anew
            self.failed(error)
            self.lose()
        finally:
            self._following = None

    async def _bind(self, chan: Chan, changes: list[Change]) -> None:
        """Send what others do not ask for already, then wait until the upstream has it."""
        link = self._link
        for n, (is_new, key, arguments) in enumerate(changes, 1):
            if n % LOOK == 0:
                await others_first()
            count = self._mirrored.get((key, arguments), 0) + (1 if is_new else -1)
            if count <= 0:
                self._mirrored.pop((key, arguments), None)
            else:
                self._mirrored[key, arguments] = count
            if count != (1 if is_new else 0):
                continue
            plain = dict(arguments)
            carried = bound_from(plain, link.here, link.resource, self.upstream.max_hops)
            if carried is None:
                continue
            name = "exchange.bind" if is_new else "exchange.unbind"
            chan.send(
                name,
                0,
                self._internal,
                link.exchange,
                key,
                True,
                {**plain, "x-bound-from": carried},
            )
        await self._confirmed(chan)

    async def _confirmed(self, chan: Chan) -> None:
        """Whatever was sent by the channel is done. Raises: why it was refused."""
        flags = (True, False, False, False, False)
        await chan.call("exchange.declare", 0, self._link.exchange, "", *flags, {})
