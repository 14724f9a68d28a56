"""A connection as kombu has it: what comes waits here until somebody drains events."""

from __future__ import annotations

import contextlib
import queue as queues
import socket
from collections.abc import Callable
from typing import Any, Protocol

from lavinmq.client.errors import ClosedError
from lavinmq.client.kombu.values import as_amqp
from lavinmq.client.sync import Client
from lavinmq.client.values import ConnectionState


class Open(Protocol):
    """A channel that is open."""

    callbacks: dict[str, Any]

    def gone(self) -> None:
        """Its connection is no more."""


Event = Callable[[], bool | None]
"""Done by who drains events; true when it was nothing to wait for."""


class Connection:
    """A connection on a client that does not reconnect by itself."""

    def __init__(self, inner: Client, confirms: bool, client: Any) -> None:
        self.inner, self.confirms = inner, confirms
        self.client: Any = client
        self.channels: set[Open] = set()
        self._events: queues.SimpleQueue[Event] = queues.SimpleQueue()
        self._is_told = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._cause: Exception | None = None
        self._is_over = False
        inner.on_state_change(self._state)
        try:
            inner.start()
        except BaseException:
            self._close_pair()
            raise
        link = inner._core.link
        assert link is not None and link.transport is not None
        self.sock = link.transport.get_extra_info("socket")
        self.heartbeat = link.heartbeat
        self.server_properties: dict[str, Any] = dict(link.server_properties)

    @property
    def connected(self) -> bool:
        """False once somebody was told that it is lost.

        kombu makes another one in silence when this is false: a worker would go on without its
        consumers if it had not heard of it.
        """
        return not self._is_over and not self.inner._is_forked

    @property
    def is_lost(self) -> bool:
        """Whether nothing comes any more."""
        return self._cause is not None or self.inner._is_forked

    def heard_of_loss(self, is_opening: bool) -> None:
        """A call has failed for it; those who consume hear it when they drain events."""
        if self.is_lost and (is_opening or not any(channel.callbacks for channel in self.channels)):
            self._is_over = True

    # ---- events

    def post(self, event: Event) -> None:
        """Have something called by who drains events."""
        self._events.put(event)
        if not self._is_told:
            self._is_told = True
            with contextlib.suppress(OSError):  # full: it is told; or closed
                self._writer.send(b"\0")

    def fileno(self) -> int:
        """Readable when there is an event."""
        return self._reader.fileno()

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for an event and call what it is for. Raises: socket.timeout, py-amqp's errors."""
        if self._is_told:
            with contextlib.suppress(OSError):
                self._reader.recv(4096)
            self._is_told = False
        is_patient = not self.is_lost and (timeout is None or timeout > 0)
        try:
            event = self._events.get(is_patient, timeout if is_patient else None)
        except queues.Empty:
            self._check_lost()
            raise TimeoutError("timed out") from None
        if event():
            self.drain_events(timeout)

    def _check_lost(self) -> None:
        if self.is_lost:
            self._is_over = True
            cause = self._cause or ClosedError("the connection is closed")
            raise as_amqp(cause) from cause

    def _state(self, old: ConnectionState, new: ConnectionState, cause: Exception | None) -> None:
        is_over = new in (ConnectionState.RECONNECTING, ConnectionState.CLOSED)
        if is_over and self._cause is None:
            self._cause = cause or ClosedError("the connection is closed")
            self.post(self._check_lost)

    # ---- its end

    def close(self) -> None:
        """Say goodbye and end."""
        self._end(None)

    def collect(self) -> None:
        """End without a word: it was lost, or belongs to the process before a fork."""
        self._end(0)

    def _end(self, timeout: float | None) -> None:
        for channel in list(self.channels):
            channel.gone()
        self.inner.close(timeout=timeout, flush=timeout is None)
        self._close_pair()

    def _close_pair(self) -> None:
        self._reader.close()
        self._writer.close()
