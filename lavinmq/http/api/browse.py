"""Browse: see messages of a queue where they are, without taking them.

An answer is bounded in messages, bytes, and messages that were looked at; a cursor in it leads on.
The walk is done in short portions. While others keep the loop busy there are pauses between them,
so that browsing takes two hundredths of the loop; what is not in memory a thread has the kernel
read first. Source: decision 0070, docs/http-api.md.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from lavinmq import _core
from lavinmq.http import encoding, message
from lavinmq.http.api.messages import SHOWN, time_ms, too_large
from lavinmq.http.api.queues import check_not_locked, queue_of
from lavinmq.http.api.streams import offset_at
from lavinmq.http.call import Call, Reply
from lavinmq.http.encoding import Pieces
from lavinmq.http.errors import ApiError, bad_request
from lavinmq.http.fields import Field
from lavinmq.http.handler import JSON
from lavinmq.http.routes import ROUTES
from lavinmq.http.synced import all_synced
from lavinmq.process.portions import others_first
from lavinmq.process.worker import aside
from lavinmq.vhost import rights
from lavinmq.vhost.exchange import raw_key

if TYPE_CHECKING:
    from lavinmq.vhost.queue import Queue

MAX_COUNT: Final = 1000
MAX_SCAN: Final = 1_000_000
MAX_SHOWN: Final = 1 << 20
"""Bytes of a body that are shown at most."""
MAX_TEXT: Final = 1024
"""Bytes of what is looked for."""
AT_ONCE: Final = 16
ROW_BYTES: Final = 512
"""What a message adds to an answer, besides its own bytes."""
IDLE_S: Final = 0.0002
"""A turn of the loop that is shorter: nobody else has much to do."""
SHARE: Final = 49
"""Of a busy loop others get so many times what a walk takes."""
PLACE: Final = struct.Struct(">B?II")
WIDEST: Final = (1 << 63) - 1


class Pace:
    """Pauses between the portions of work that can wait, and reads that a thread does."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def pause(self, walk: _core.Browse | _core.Chosen, is_cold: bool) -> None:
        """Let others have their turn; then go on."""
        worked = time.perf_counter() - self._began
        if is_cold:
            fd, at, n = walk.cold()
            await aside(_have_read, fd, at, n)
        before = time.perf_counter()
        await others_first()
        if time.perf_counter() - before > IDLE_S:
            walk.rest()
            await asyncio.sleep(worked * SHARE)
        self._began = time.perf_counter()


def _have_read(fd: int, at: int, n: int) -> None:
    """Have the kernel read a part of a file; in a thread."""
    try:
        os.pread(fd, n, at)
    finally:
        os.close(fd)


@ROUTES.post(
    "/api/queues/:vhost/:name/browse",
    {
        **SHOWN,
        "position": Field("integer", "Of the first one; negative: from the end", default=0),
        "since": Field("string", "Begin with what was stored at that time, or so long ago"),
        "routing_key": Field("string", "A part of the routing key", default=""),
        "header": Field("string", "A header that has to be there", default=""),
        "value": Field("string", "The value of that header"),
        "text": Field("string", "A part of the body, of 1 MiB at most", default=""),
        "scan": Field("integer", "Look at about so many messages", default=100_000),
        "cursor": Field("string", "The more of another answer: go on there"),
    },
    content=JSON,
)
async def browse(call: Call) -> Reply:
    """See messages that are ready, without taking them."""
    queue, body = queue_of(call), call.body
    check_not_locked(call, queue)
    rights.check_usable(call.vhost.name, queue)
    if queue.core.is_closed:
        raise ApiError(403, "forbidden", f"Queue '{queue.name}' is closed")
    for name, most in (("count", MAX_COUNT), ("scan", MAX_SCAN), ("truncate", MAX_SHOWN)):
        if body[name] is not None and not 0 <= body[name] <= most:
            raise bad_request(f"Field '{name}' must be between 0 and {most}")
    end = await all_synced(queue.core) if queue.is_stream else 0
    walk = await _walk(call, queue, end)
    seen = _Seen(call, queue, walk, end)
    try:
        pieces = Pieces([b'{"messages":'])
        pieces.extend(await encoding.array(seen.rows()))
    finally:
        walk.rest()
    call.check_still()
    tail = {"more": seen.more, "scanned": walk.scanned}
    pieces.add(b"," + encoding.encode(tail)[1:])
    return Reply(content=pieces)


async def _walk(call: Call, queue: Queue, end: int) -> _core.Browse:
    """Where to begin, and what is looked for. Raises: ApiError 400."""
    body, core = call.body, queue.core
    texts = {name: raw_key(body[name] or "") for name in ("routing_key", "header", "text")}
    value = None if body["value"] is None else raw_key(body["value"])
    for name, text in {**texts, "value": value or b""}.items():
        if len(text) > MAX_TEXT:
            raise bad_request(f"Field '{name}' is longer than {MAX_TEXT} bytes")
    if value is not None and not texts["header"]:
        raise bad_request("Field 'value' needs field 'header'")
    wanted = _core.Wanted(texts["routing_key"], texts["text"], texts["header"], value)
    if body["cursor"] is not None:
        return _core.Browse(core, wanted, at=_place(body["cursor"]))
    position, from_ms = body["position"], 0
    if body["since"] is not None:
        at_ms = time_ms(call, body["since"])
        if at_ms is None:
            raise bad_request("Field 'since' is neither a time nor an age such as 5m")
        from_ms = min(max(at_ms, 1), WIDEST)
        if position:
            raise bad_request("Fields 'since' and 'position' exclude each other")
    if queue.is_stream:
        first = core.first_offset
        offset = position + (first if position >= 0 else end)
        if from_ms:
            offset = await offset_at(core, from_ms)
        offset = min(max(offset, first), end)
        return _core.Browse(core, wanted, at=(0, False, offset >> 32, offset & 0xFFFFFFFF))
    if position < 0:
        position = max(core.ready + position, 0)
    return _core.Browse(core, wanted, min(position, WIDEST), from_ms)


def _place(cursor: str) -> tuple[int, bool, int, int]:
    """Raises: ApiError 400."""
    try:
        rank, is_back, seg, pos = PLACE.unpack(base64.urlsafe_b64decode(cursor))
    except (ValueError, struct.error):
        raise bad_request("Field 'cursor' is not one that browse has returned") from None
    return rank, is_back, seg, pos


class _Seen:
    """The messages of one answer. `more`: where the next one goes on, None: there are no more."""

    def __init__(self, call: Call, queue: Queue, walk: _core.Browse, end: int) -> None:
        self.more: str | None = None
        self._call = call
        self._queue = queue
        self._walk = walk
        self._end = end

    async def rows(self) -> AsyncIterator[bytes]:
        """The JSON of each. Raises: ApiError 413 when not even the first fits into an answer."""
        call, walk, body = self._call, self._walk, self._call.body
        limit = room = call.broker.config.max_body_size
        truncate = MAX_SHOWN if body["truncate"] is None else body["truncate"]
        left, scan, pace = body["count"], body["scan"], Pace()
        is_first = True
        while left and walk.scanned < scan and not call.handler.is_gone:
            try:
                rows, state = walk.step(min(left, AT_ONCE), max(room, 0), truncate)
            except OSError as error:
                raise ApiError(500, "internal_server_error", f"Cannot read: {error}") from error
            for row in rows:
                if self._end and row[0][0] >= self._end:
                    return
                yield await _shown(row, body["encoding"])
                room -= ROW_BYTES + len(row[4]) + len(row[6])
                is_first = False
            left -= len(rows)
            if state == _core.SEEN_OVER:
                return
            if state == _core.SEEN_WIDE:
                if is_first:
                    raise too_large(walk.needed, limit)
                break
            await pace.pause(walk, state == _core.SEEN_COLD)
        self.more = base64.urlsafe_b64encode(PLACE.pack(*walk.place())).decode()


async def _shown(row: Any, how: str) -> bytes:
    """The JSON of a row of `Browse.step`."""
    at, is_redelivered, exchange, key, raw, size, body, stored_ms, deliveries = row
    if isinstance(body, _core.FarBody):
        body = await aside(body.__getitem__, slice(0, len(body)))
    *place, digest = at  # the offset, or level, segment and position
    own = {
        **({"offset": place[0]} if len(place) == 1 else {}),
        "id": ".".join(map(str, place)) + f".{digest:x}",
        "stored": stored_ms,
        "redelivered": is_redelivered,
        "delivery_count": deliveries,
    }
    return await message.to_json(own, exchange, key, raw, size, body, how)
