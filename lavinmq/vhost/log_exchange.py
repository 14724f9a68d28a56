"""Publishes the broker's own log to the exchange `amq.lavinmq.log` of the virtual host `/`.

Entries come from any thread and wait, a bounded number of them, for the loop's thread, which
publishes a few times a second. What is logged while that happens comes from publishing itself and
is left out, so that no entry causes another one without end. Off unless the operator wants it.
Source: docs/protocol.md, docs/configuration.md.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.errors import ChannelError
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.vhost.vhost import VHost
    from lavinmq.vhost.vhosts import VHosts

EXCHANGE: Final = "amq.lavinmq.log"
VHOST: Final = "/"
MOST_WAITING: Final = 1024
"""Entries; when more come before they are published, the oldest go."""
PAUSE_S: Final = 0.05
"""Between two rounds: whatever publishing leads to later cannot keep the loop busy."""
CONTENT_TYPE: Final = b"text/plain"
PROPERTIES: Final = struct.Struct(f">HB{len(CONTENT_TYPE)}sQ")
FLAGS: Final = 0x8000 | 0x0040
"""Content type and timestamp are there."""


class LogExchange(logging.Handler):
    """Takes what `lmq.…` logs, between `start` and `stop`.

    Args: loop: the message path's; vhosts: where the exchange is made when it is missing.
    """

    def __init__(self, loop: _core.Loop, vhosts: VHosts) -> None:
        super().__init__()
        self._loop = loop
        self._vhosts = vhosts
        self._waiting: deque[log.Entry] = deque(maxlen=MOST_WAITING)
        self._is_scheduled = False
        self._publisher = 0
        self._timer: asyncio.TimerHandle | None = None
        self._channel: _core.LocalChannel | None = None
        self._vhost: VHost | None = None

    def start(self) -> None:
        """Begin: make the exchange and listen to the log."""
        self._open()
        logging.getLogger("lmq").addHandler(self)

    def stop(self) -> None:
        """End; what still waits is left out. Idempotent."""
        logging.getLogger("lmq").removeHandler(self)
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._close()

    def emit(self, record: logging.LogRecord) -> None:
        """An entry was logged, in any thread."""
        if threading.get_ident() == self._publisher:
            return
        try:
            entry = log.entry_of(record)
        except Exception:  # noqa: BLE001 - arguments that do not fit: the log itself says so
            return
        self._waiting.append(entry)
        if not self._is_scheduled:  # under the handler's lock
            self._is_scheduled = True
            with suppress(RuntimeError):  # the event loop is closed: it is the end
                self._loop.events.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        self._timer = self._loop.events.call_later(PAUSE_S, self._round)

    def _round(self) -> None:
        """Publish what has come together."""
        self._is_scheduled = False
        entries = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if self._loop.is_held:  # publishers wait for the disk; the log does not
            return
        self._publisher = threading.get_ident()
        try:
            channel, exchange = self._open()
            if channel is not None and exchange is not None:
                for entry in entries:
                    self._publish(channel, exchange, entry)
        finally:
            self._publisher = 0

    def _publish(
        self, channel: _core.LocalChannel, exchange: _core.Exchange, entry: log.Entry
    ) -> None:
        """One entry; its severity is the routing key."""
        body = f"{entry.source} - {entry.text}"[: log.ENTRY_CHARACTERS]
        properties = PROPERTIES.pack(
            FLAGS, len(CONTENT_TYPE), CONTENT_TYPE, max(int(entry.created), 0)
        )
        channel.publish(
            exchange, EXCHANGE.encode(), entry.level.capitalize().encode(), properties,
            body.encode("utf-8", "backslashreplace"), is_awaited=False,
        )  # fmt: skip

    def _open(self) -> tuple[_core.LocalChannel | None, _core.Exchange | None]:
        """A channel, and the exchange, made when there is none; Nones while that is impossible."""
        vhost = self._vhosts.get(VHOST)
        if vhost is not self._vhost:
            self._close()
        if vhost is None:
            return None, None
        try:
            exchange = vhost.own_exchange(EXCHANGE, "topic")
        except ChannelError:  # the disk refuses; the next round tries again
            return None, None
        if self._channel is None:
            self._vhost = vhost
            self._channel = _core.LocalChannel(self._loop, vhost.core, b"", True)
        return self._channel, exchange.core

    def _close(self) -> None:
        self._vhost = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
