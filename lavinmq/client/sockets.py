"""Plain sockets of many connections behind one descriptor of the event loop.

A transport of the loop takes more than a kilobyte, which is much of a connection that does nothing.
Who has thousands of them, as a broker with links, gives them one of these: the kernel watches their
sockets by an epoll of its own, and the loop watches that. Events are of the level: what is not read
now is told again, and what is told of a socket is tried, never believed. In the loop.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lavinmq.client.link import Link

AT_ONCE: Final = 16
"""Sockets that are looked at before others of the loop have their turn: with as much as one may
bring at once that is less than 5 ms."""
LOW: Final = 4
"""Writing goes on when this part of what it was stopped at is left."""
READING: Final = 0x1
WRITING: Final = 0x4
"""EPOLLIN and EPOLLOUT, as plain numbers."""


class Sockets:
    """Those that the loop watches by one descriptor, which is there while there is one of them."""

    __slots__ = ("_all", "_epoll")

    def __init__(self) -> None:
        self._all: dict[int, SocketTransport] = {}
        self._epoll: select.epoll | None = None

    def __len__(self) -> int:
        return len(self._all)

    def add(self, link: Link, sock: socket.socket) -> None:
        """Let a link speak by a connected socket, which is not the caller's any more."""
        sock.setblocking(False)
        if self._epoll is None:
            self._epoll = select.epoll()
            link.loop.add_reader(self._epoll.fileno(), self._ready)
        self._epoll.register(sock.fileno(), READING)
        descriptor = sock.detach()
        transport = self._all[descriptor] = SocketTransport(self, link, descriptor)
        link.connection_made(transport)

    def watch(self, descriptor: int, before: int, wanted: int) -> None:
        """Look for other events. With none a socket is not looked at: the kernel would tell of its
        end all the time."""
        assert self._epoll is not None
        if not wanted:
            self._epoll.unregister(descriptor)
        elif not before:
            self._epoll.register(descriptor, wanted)
        else:
            self._epoll.modify(descriptor, wanted)

    def forget(self, link: Link, descriptor: int) -> None:
        """It is about to be closed."""
        del self._all[descriptor]
        if not self._all and self._epoll is not None:
            link.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _ready(self) -> None:
        if self._epoll is None:
            return
        for descriptor, events in self._epoll.poll(0, AT_ONCE):
            transport = self._all.get(descriptor)
            if transport is not None:
                transport.ready(events)


class SocketTransport(asyncio.Transport):
    """One of them, as its link sees it."""

    __slots__ = (
        "_descriptor", "_high", "_home", "_is_closing", "_is_stopped", "_left", "_link", "_watched",
    )  # fmt: skip

    def __init__(self, home: Sockets, link: Link, descriptor: int) -> None:
        self._home, self._link, self._descriptor = home, link, descriptor
        self._left: bytearray | None = None
        """What the kernel has not taken yet."""
        self._high = 0
        self._is_closing = self._is_stopped = False
        self._watched = READING

    def fileno(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._descriptor

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`: who can say which descriptor it is."""
        return self if name == "socket" else default

    def is_closing(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """How much may be left before writing is to stop."""
        self._high = high or 0

    def ready(self, events: int) -> None:
        """The kernel has told of something."""
        try:
            if events & ~WRITING and self._watched & READING:
                self._read()
            if self._left is not None:
                self._write_on()
        except OSError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - one of them may not stop the others
            context = {"message": "bug in a link", "exception": error}
            self._link.loop.call_exception_handler(context)
            self._fail(error)

    # ---- reading

    def pause_reading(self) -> None:
        """Let the kernel keep what comes."""
        self._watch(self._watched & ~READING)

    def resume_reading(self) -> None:
        """Take it again."""
        if not self._is_closing:
            self._watch(self._watched | READING)

    def _read(self) -> None:
        with self._link.get_buffer(-1) as buffer:
            try:
                n_bytes = os.readv(self._descriptor, (buffer,))
            except BlockingIOError:
                return
        if n_bytes:
            self._link.buffer_updated(n_bytes)
        elif not self._link.eof_received():
            self.close()

    # ---- writing

    def write(self, data: Any) -> None:
        """Send now what the kernel takes, and the rest when it takes more."""
        if self._is_closing and self._left is None:
            return
        left = self._left
        if left is not None:
            left += data
        else:
            try:
                n_bytes = os.write(self._descriptor, data)
            except BlockingIOError:
                n_bytes = 0
            except OSError as error:
                self._is_closing = True
                self._watch(0)
                self._link.loop.call_soon(self._fail, error)
                return
            if n_bytes == len(data):
                return
            left = self._left = bytearray(memoryview(data)[n_bytes:])
            self._watch(self._watched | WRITING)
        if len(left) > self._high and not self._is_stopped:
            self._is_stopped = True
            self._link.pause_writing()

    def _write_on(self) -> None:
        assert self._left is not None
        try:
            del self._left[: os.write(self._descriptor, self._left)]
        except BlockingIOError:
            return
        n_left = len(self._left)
        if not n_left:
            self._left = None
            self._watch(self._watched & ~WRITING)
        if self._is_stopped and n_left <= self._high // LOW:
            self._is_stopped = False
            self._link.resume_writing()
        if self._left is None and self._is_closing:
            self._end(None)

    # ---- the end

    def close(self) -> None:
        """Read no more, send what is left, and end."""
        if self._is_closing:
            return
        self._is_closing = True
        self._watch(self._watched & ~READING)
        if self._left is None:
            self._link.loop.call_soon(self._end, None)

    def abort(self) -> None:
        """End at once."""
        if self._descriptor < 0:
            return
        self._is_closing = True
        self._left = None
        self._watch(0)
        self._link.loop.call_soon(self._end, None)

    def _fail(self, error: Exception) -> None:
        self._is_closing = True
        self._left = None
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        descriptor = self._descriptor
        if descriptor < 0:
            return
        self._watch(0)
        self._descriptor = -1
        self._home.forget(self._link, descriptor)
        os.close(descriptor)
        self._link.connection_lost(error)

    def _watch(self, wanted: int) -> None:
        before, self._watched = self._watched, wanted
        if wanted != before and self._descriptor >= 0:
            self._home.watch(self._descriptor, before, wanted)
