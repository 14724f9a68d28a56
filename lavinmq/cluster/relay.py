"""Two sockets that take turns: what comes from one goes to the other, bytes and ends alike.

On a loop's thread, asyncio's or uvloop's; `proxy.py` connects both ends. Each way holds 128 KiB at
most: what was read last, and what waits to be written. When one side sends no more, the other is
told after the data. When one is lost, the other is closed after what it is still to get. Neither is
seen of a side from which nothing is read because the other takes nothing: then the kernel is asked.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final, cast

BLOCK: Final = 1 << 16
"""Bytes that are read at once."""
HIGH: Final = 1 << 16
"""Bytes waiting to be written from which on nothing is read for them."""
LOW: Final = HIGH // 4
LINGER_S: Final = 5.0
"""How long the last bytes may wait, after everything else is over, without one of them going."""
HALF_S: Final = 60.0
"""How long a client may stay that neither sends nor takes anything, after the leader has ended."""
CLOSED: Final = 7
"""States of TCP, as the kernel numbers them: both sides have ended, or it was reset."""
SENDS_NO_MORE: Final = (CLOSED, 8, 9)
"""And those in which the other side has ended."""


def new_block() -> memoryview:
    """Return room to read into. One is enough for all relays of a loop: what has been read is
    copied before anything else is."""
    return memoryview(bytearray(BLOCK))


class Relay:
    """A client and the leader, each once it is connected: pass them as protocols to the loop.

    Args: head: sent to the leader before anything else.
    """

    def __init__(
        self, events: asyncio.AbstractEventLoop, block: memoryview, head: bytes = b""
    ) -> None:
        self._events = events
        self.client = End(self, block)
        self.leader = End(self, block)
        self.client.other, self.leader.other = self.leader, self.client
        self.leader.send(head)
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._figures = self._count()
        self._moved_at = 0.0

    async def over(self) -> None:
        """Wait until none of those is left that were connected."""
        for end in (self.client, self.leader):
            if end.transport is not None:
                await end.lost.wait()

    def abort(self) -> None:
        """End both, whatever is under way. Idempotent."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for end in (self.client, self.leader):
            if end.transport is not None:
                end.transport.abort()

    def part(self) -> None:
        """Let go of both, once it is over. They name each other and this: left to the garbage
        collector, which looks seldom, they would be there for hours."""
        for end in (self.client, self.leader):
            del end.other, end.relay
            end.transport = None

    def ended(self, end: End) -> None:
        """One side sends nothing more."""
        if end.other.has_ended:
            self.client.close()
            self.leader.close()
        else:
            end.other.finish()
        self.watch()

    def lost(self, end: End) -> None:
        """One side is gone."""
        if end.other.lost.is_set():
            self.abort()
        else:
            end.other.close()
            self.watch()

    def watch(self) -> None:
        """From now on end everything once nothing moves any more that should."""
        self._moved_at = self._events.time()
        if self._timer is None and not self._is_over:
            self._figures = self._count()
            self._timer = self._events.call_later(LINGER_S, self._look)

    def _look(self) -> None:
        self._timer = None
        figures, now = self._count(), self._events.time()
        if figures != self._figures:
            self._figures, self._moved_at = figures, now
        elif now - self._moved_at >= self._patience_s():
            self.abort()
        ends = (self.client, self.leader)
        if not self._is_over and any(end.needs_watching for end in ends):
            self._timer = self._events.call_later(LINGER_S, self._look)

    def _patience_s(self) -> float:
        """How long nothing need move."""
        client, leader = self.client, self.leader
        if client.lost.is_set() or leader.lost.is_set():
            return LINGER_S
        if client.has_ended and leader.has_ended:
            return LINGER_S
        if leader.has_ended or leader.state in SENDS_NO_MORE or client.state == CLOSED:
            return HALF_S
        return math.inf

    def _count(self) -> tuple[int, ...]:
        ends = (self.client, self.leader)
        return *(end.n_received for end in ends), *(end.n_waiting for end in ends)


class End(asyncio.BufferedProtocol):
    """One side of a relay. What it is sent before it is connected waits, a block at most."""

    other: End

    def __init__(self, relay: Relay, block: memoryview) -> None:
        self.relay = relay
        self._block = block
        self._early = b""
        self._is_full = False
        self.transport: asyncio.Transport | None = None
        """None until it is connected."""
        self.has_ended = False
        """Whether it sends nothing more."""
        self.lost = asyncio.Event()
        self.n_received = 0

    @property
    def needs_watching(self) -> bool:
        """Whether it may stay for longer than it should."""
        return self._is_full or self.has_ended or self.lost.is_set()

    @property
    def state(self) -> int:
        """Of TCP, whether or not it is read; 0 without."""
        if self.transport is None or self.lost.is_set():
            return 0
        with suppress(OSError):
            sock = self.transport.get_extra_info("socket")
            return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0])
        return 0

    @property
    def n_waiting(self) -> int:
        """Bytes that it is still to get."""
        if self.transport is None or self.lost.is_set():
            return 0
        return self.transport.get_write_buffer_size()

    async def connected(self, attempt: Awaitable[object]) -> None:
        """Wait until the loop has connected it. Raises: OSError."""
        try:
            await attempt
        except BaseException:
            self.lost.set()  # uvloop does not say so of one that it closes for this
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there; and so is, maybe, what the other one has sent, or its end."""
        made = cast("asyncio.Transport", transport)
        if self.lost.is_set():  # asyncio says so of one, too, that was given up meanwhile
            made.abort()
            return
        self.transport = made
        self.transport.set_write_buffer_limits(HIGH, LOW)
        early, self._early = self._early, b""
        self.send(early)
        if self.other.lost.is_set():
            self.close()
        elif self.other.has_ended:
            self.finish()
        else:
            self._let_other_read()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to."""
        return self._block

    def buffer_updated(self, nbytes: int) -> None:
        """So much of it has come."""
        self.n_received += nbytes
        self.other.send(bytes(self._block[:nbytes]))

    def eof_received(self) -> bool:
        """It sends nothing more. Returns: that it stays open for what it gets."""
        self.has_ended = True
        self.relay.ended(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if not self.lost.is_set():
            self.lost.set()
            self.relay.lost(self)

    def pause_writing(self) -> None:
        """Too much waits."""
        self._is_full = True
        self._stop_other()
        self.relay.watch()

    def resume_writing(self) -> None:
        """Little waits."""
        self._is_full = False
        self._let_other_read()

    def send(self, data: bytes) -> None:
        """Have it get bytes."""
        if self.transport is None:
            self._early += data
            if self.other.transport is not None:
                self._stop_other()
        elif data and not self.transport.is_closing():
            self.transport.write(data)

    def finish(self) -> None:
        """Tell it, after all bytes, that no more will come."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()

    def close(self) -> None:
        """Close it after all bytes. Before it is connected: as soon as it is."""
        if self.transport is not None:
            self.transport.close()

    def _stop_other(self) -> None:
        other = self.other
        if other.transport is not None and not other.has_ended:
            other.transport.pause_reading()

    def _let_other_read(self) -> None:
        other = self.other
        if other.transport is not None and not other.has_ended and not self._is_full:
            other.transport.resume_reading()
