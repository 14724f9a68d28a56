"""Questions and answers over direct reply-to: no queue for answers is declared.

Questions are published and answered on one channel. When the connection is lost, who waits hears
that at once: whether the question was dealt with is not known, so it is not asked again.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final

from lavinmq.client import _engine
from lavinmq.client._engine import Message
from lavinmq.client.core import Core
from lavinmq.client.errors import (
    BufferFullError,
    ClientConnectionError,
    Error,
    ReturnedError,
    RpcTimeout,
)
from lavinmq.client.link import Chan, ChannelOwner, Link

REPLY_TO: Final = "amq.rabbitmq.reply-to"


class RpcCaller(ChannelOwner):
    """Asks; one for each client, made with its first question."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._chan: Chan | None = None
        self._ring = _engine.Ring()
        self._ring.configure(confirms=False, capacity=1 << 20)
        self._ids = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._lock = asyncio.Lock()

    async def call(
        self, queue: str, body: Any, timeout: float | None, options: dict[str, Any]
    ) -> Message:
        """Ask through a queue; return the answer. Raises: RpcTimeout, ReturnedError, Error."""
        timeout = self._core.config.rpc_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(queue, body, options)
        except TimeoutError as error:
            if isinstance(error, Error):
                raise
            if not self._core.is_connected:
                raise ClientConnectionError(f"no connection within {timeout:g} s") from None
            raise RpcTimeout(f"no answer from {queue} within {timeout:g} s") from None

    async def _ask(self, queue: str, body: Any, options: dict[str, Any]) -> Message:
        link = await self._core.connected(None)
        async with self._lock:
            if self._chan is None or self._chan.error or self._chan.link is not link:
                self._chan = await self._open(link)
        number = str(next(self._ids))
        future: asyncio.Future[Message] = self._core.loop.create_future()
        self._waiting[number] = future
        routing = {"exchange": "", "routing_key": queue, "mandatory": True, **options}
        prepared = self._ring.prepare({**routing, "reply_to": REPLY_TO, "correlation_id": number})
        try:
            if self._ring.add(body, prepared) is None:
                raise BufferFullError(f"{self._ring.n_bytes} bytes of questions wait already")
            link.wake()
            return await future
        finally:
            self._waiting.pop(number, None)

    async def _open(self, link: Link) -> Chan:
        chan = await link.channel(owner=self)
        chan.port.no_ack = True
        flags = (False, True, False, False)
        try:
            await chan.call("basic.consume", 0, REPLY_TO, "", *flags, {})
        except asyncio.CancelledError:
            link.discard(chan)
            raise
        self._ring.attach(chan.number, link.frame_max)
        chan.sender = self
        return chan

    def bytes_of(self, body: Any, options: dict[str, Any]) -> bytes:
        """The bytes of a question."""
        from lavinmq.client import codecs

        if isinstance(body, (bytes, bytearray, memoryview, str)):
            return self._ring.bytes_of(body, options)
        return codecs.encode(body, options)

    def send(self, out: _engine.Output, most: int) -> None:
        """Write questions."""
        self._ring.pump(out, most)

    def progressed(self) -> None:
        """Answers came; those nobody waits for any more are passed over."""
        if self._chan is None:
            return
        for message in self._chan.port.take():
            future = self._waiting.get(message.correlation_id or "")
            if future is not None and not future.done():
                future.set_result(message)

    def chan_returned(self, message: Message) -> None:
        """No queue took a question."""
        future = self._waiting.get(message.correlation_id or "")
        if future is not None and not future.done():
            future.set_exception(ReturnedError(f"no queue {message.routing_key}"))

    def chan_closed(self, chan: Chan, error: Exception) -> None:
        """Everybody who waits hears why."""
        if chan is not self._chan:
            return
        self._ring.give_up(error)
        self._ring.reset()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
