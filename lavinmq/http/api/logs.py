"""The log: the latest entries as text, and new ones as they come.

The live log is a stream of server-sent events. A reader who does not keep up loses entries and is
told how many; nothing of ours waits for it. Source: docs/http-api.md, server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tornado.iostream import StreamClosedError

from lavinmq.http import encoding
from lavinmq.http.call import Call, Reply
from lavinmq.http.errors import ApiError, bad_request
from lavinmq.http.listing import in_portions
from lavinmq.http.routes import ROUTES, Query
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.http.handler import ApiHandler

MAX_WAITING: Final = 128
"""Entries that wait for one reader."""
AT_ONCE: Final = 32
"""Entries written before the reader has to take them."""
MAX_READERS: Final = 64
KEEP_ALIVE_S: Final = 15.0
SOURCE: Final = "lmq.http.livelog"
LEVELS: Final = tuple(name for name in log.LEVELS if name != "none")


@ROUTES.get("/api/logs", content="text/plain")
async def show_logs(_call: Call) -> Reply:
    """Download the latest log entries as text."""
    lines = [_line(entry) async for entry in in_portions(log.recent())]
    return Reply(
        content="".join(lines).encode(errors="backslashreplace"),
        headers={
            "Content-Type": "text/plain",
            "Cache-Control": "no-store",
            "Content-Disposition": "attachment; filename=logs.txt",
        },
    )


def _line(entry: log.Entry) -> str:
    return f"{log.timestamp(entry)} [{entry.level.upper()}] {entry.source} - {_text(entry)}\n"


def _text(entry: log.Entry) -> str:
    return f"{entry.context} {entry.text}" if entry.context else entry.text


@ROUTES.get(
    "/api/livelog", failures=(503,), content="text/event-stream",
    query=(Query("level", f"The least severity: {', '.join(LEVELS)}"),),
)  # fmt: skip
async def follow_log(call: Call) -> None:
    """Follow the log as server-sent events."""
    level = call.query.get("level", ["trace"])[-1].lower()
    if level not in LEVELS:
        raise bad_request(f"Parameter 'level' must be one of {', '.join(LEVELS)}")
    if log.n_followers() >= MAX_READERS:
        raise ApiError(503, "too_many_readers", f"{MAX_READERS} readers follow the log already")
    handler = call.handler
    reader = Reader(asyncio.get_running_loop(), level, call.is_allowed_still, handler.cut_off)
    call.broker.revocation.watch(reader)
    try:
        stored = _newer(log.follow(reader.take), call.headers.get("Last-Event-Id", ""))
        handler.on_gone = reader.close
        handler.set_header("Content-Type", "text/event-stream")
        handler.set_header("Cache-Control", "no-store, no-transform")
        handler.set_header("X-Accel-Buffering", "no")
        await _write(handler, [entry for entry in stored if reader.wants(entry)])
        await handler.flush()  # the headers, when there was nothing
        while True:
            entries, n_lost = await reader.wait(KEEP_ALIVE_S)
            if reader.is_closed or not reader.may_go_on():
                break
            if n_lost:
                handler.write(_event(["warn", SOURCE, f"{n_lost} entries were lost: too slow"]))
            if not entries and not n_lost:
                handler.write(":\n\n")
            await _write(handler, entries)
            await handler.flush()
    except StreamClosedError:
        pass
    finally:
        log.unfollow(reader.take)
        call.broker.revocation.unwatch(reader)
        handler.end()


async def _write(handler: ApiHandler, entries: list[log.Entry]) -> None:
    """Send entries, so many at a time as a slow reader may have waiting in a buffer."""
    for at in range(0, len(entries), AT_ONCE):
        for entry in entries[at : at + AT_ONCE]:
            handler.write(f"id: {entry.id}\n")
            handler.write(_event([entry.level, entry.source, _text(entry)]))
        await handler.flush()


def _event(data: list[str]) -> bytes:
    return b"data: " + encoding.encode(data) + b"\n\n"


def _newer(entries: list[log.Entry], last_id: str) -> list[log.Entry]:
    """What a reader who comes back has not seen; all when it names no entry of ours."""
    if not last_id.isdecimal() or len(last_id) > 20 or not entries:
        return entries
    last = int(last_id)
    return [entry for entry in entries if entry.id > last] if last <= entries[-1].id else entries


class Reader:
    """The entries that wait for one reader; filled from any thread.

    Args: level: the least severity that it wants; may_go_on: whether it may still have entries;
        cut_off: is called when it has gone, or has to go, for it may take nothing any more.
    """

    def __init__(
        self, events: asyncio.AbstractEventLoop, level: str, may_go_on: Callable[[], bool],
        cut_off: Callable[[], object],
    ) -> None:  # fmt: skip
        self.is_closed = False
        self.may_go_on = may_go_on
        self._cut_off = cut_off
        self._events = events
        self._level = log.LEVELS[level]
        self._lock = threading.Lock()
        self._waiting: deque[log.Entry] = deque()
        self._n_lost = 0
        self._is_woken = False
        self._wake = asyncio.Event()

    def wants(self, entry: log.Entry) -> bool:
        """Whether an entry is severe enough."""
        return log.LEVELS[entry.level] >= self._level

    def take(self, entry: log.Entry) -> None:
        """Have an entry wait; the oldest is lost when there are too many."""
        if not self.wants(entry):
            return
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.popleft()
                self._n_lost += 1
            self._waiting.append(entry)
            if self._is_woken:
                return
            self._is_woken = True
        try:
            self._events.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the loop has ended, and the reader with it
            self.is_closed = True

    def close(self) -> None:
        """It has gone, or has to go."""
        self.is_closed = True
        self._wake.set()
        self._cut_off()

    async def wait(self, timeout_s: float) -> tuple[list[log.Entry], int]:
        """Wait for entries. Returns: them, and how many were lost before; nothing in a quiet time.

        Args: timeout_s: how long a quiet time is.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return [], 0
        with self._lock:
            entries, n_lost = list(self._waiting), self._n_lost
            self._waiting.clear()
            self._n_lost = 0
            self._is_woken = False
            self._wake.clear()
        return entries, n_lost
