"""Streams for programs that read them in ranges: places, segments, raw records, positions.

The facts about a stream are in `queues.py`, single messages as JSON in `messages.py`. Readers keep
offsets; all answers are about what is there now, and an offset that retention has taken is told as
gone (410). Source: docs/http-api.md, decision 0018.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from tornado.iostream import StreamClosedError

from lavinmq import _core
from lavinmq.files import stream_epochs
from lavinmq.http.api.queues import check_not_locked, queue_of
from lavinmq.http.call import NO_CONTENT, Call, Reply, completed, found
from lavinmq.http.errors import ApiError, bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES, Query
from lavinmq.http.synced import all_synced
from lavinmq.process import log
from lavinmq.process.portions import others_first
from lavinmq.stats.lags import lag

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.http.handler import ApiHandler
    from lavinmq.vhost.queue import Queue

OCTETS: Final = "application/octet-stream"
LARGEST: Final = (1 << 62) - 1
"""Of offsets and times."""
SEGMENTS_AT_ONCE: Final = 512
REST_AT_ONCE: Final = 256 << 10
EMPTY_BYTES: Final = 4
"""Of a segment file without records."""
GENERATED: Final = "amq.ctag-"
_log = log.get("lmq.http.server")

Segment = tuple[int, int, int, int, int, int]
"""As of `_core.Queue.segments`."""


def stream_of(call: Call) -> Queue:
    """The stream of the path. Raises: ApiError 404, 400 for another queue, 403 for a closed one."""
    queue = queue_of(call)
    if not queue.is_stream:
        raise bad_request(f"Queue '{queue.name}' is not a stream")
    if queue.core.is_closed:
        raise ApiError(403, "forbidden", f"Queue '{queue.name}' is closed")
    return queue


def _place(call: Call, name: str) -> int | None:
    """An offset or a time behind the question mark. Raises: ApiError 400."""
    value = call.number(name)
    if value is not None and not 0 <= value <= LARGEST:
        raise bad_request(f"Parameter '{name}' must be between 0 and {LARGEST}")
    return value


RANGE: Final = (
    Query("offset", "The first offset, of the oldest message if absent", "integer"),
    Query("end", "The offset behind the last one, of the next message if absent", "integer"),
)


async def _range(call: Call, core: _core.Queue) -> tuple[int, int]:
    """The offsets that were asked for, up to what is on disk; 0 is the first one.

    Raises: ApiError 400.
    """
    offset, end = _place(call, "offset"), _place(call, "end")
    if end is not None and end < (offset or 0):
        raise bad_request("Parameter 'end' must not be below 'offset'")
    next_ = await all_synced(core)
    return offset or core.first_offset, next_ if end is None else min(end, next_)


# --- places -----------------------------------------------------------------------------------


async def offset_at(core: _core.Queue, at_ms: int) -> int:
    """The offset of the first message received then (Unix ms) or later; that of the next message
    when there is none."""
    at_ms = max(-LARGEST, min(at_ms, LARGEST))
    offset, is_over = core.offset_at(at_ms)
    while not is_over:
        await others_first()
        offset, is_over = core.offset_at(at_ms, offset)
    return offset


@ROUTES.get(
    "/api/queues/:vhost/:name/stream/offset",
    query=(Query("timestamp", "Unix milliseconds, required", "integer"),),
)
async def find_offset(call: Call) -> dict[str, Any]:
    """Find the first message of a stream that was received at a time or later."""
    core = stream_of(call).core
    at_ms = _place(call, "timestamp")
    if at_ms is None:
        raise bad_request("Parameter 'timestamp' is required")
    end = await all_synced(core)
    offset = await offset_at(core, at_ms)
    return {"offset": min(offset, end), "found": offset < end}


@ROUTES.list("/api/queues/:vhost/:name/stream/segments", query=RANGE)
async def list_segments(call: Call) -> Listing[Segment]:
    """List segments of a stream that have messages of a range of offsets, the oldest first."""
    core = stream_of(call).core
    offset, end = await _range(call, core)
    reach = core.synced
    is_whole = "offset" not in call.query and "end" not in call.query
    newest, rows = 0, []
    async for each in _segments(core):
        newest = each[0]
        each = _on_disk(each, reach)
        if is_whole or (each[3] < end and each[3] + each[1] > offset):
            rows.append(each)
    return Listing(
        rows, lambda each: _segment_row(each, newest), lambda each: str(each[0]), exact=True
    )  # fmt: skip


async def _segments(core: _core.Queue) -> AsyncIterator[Segment]:
    """The segments, in portions."""
    after = 0
    while several := core.segments(after, SEGMENTS_AT_ONCE):
        for each in several:
            yield each
        after = several[-1][0]
        await others_first()


def _on_disk(each: Segment, reach: tuple[int, int, int]) -> Segment:
    """What a segment has on disk, when that ends at an offset, in a segment, at a position."""
    id_, messages, n_bytes, first_offset = each[:4]
    end, segment, position = reach
    if first_offset + messages <= end:
        return each
    if first_offset >= end:
        return id_, 0, min(n_bytes, EMPTY_BYTES), end, 0, 0
    return id_, end - first_offset, position if id_ == segment else n_bytes, *each[3:]


def _segment_row(each: Segment, newest: int) -> dict[str, Any]:
    id_, messages, n_bytes, first_offset, first_ms, last_ms = each
    return {
        "id": id_,
        "first_offset": first_offset,
        "messages": messages,
        "first_timestamp": first_ms or None,
        "last_timestamp": last_ms or None,
        "bytes": n_bytes,
        "sealed": id_ != newest,
    }


# --- records ----------------------------------------------------------------------------------


@ROUTES.get(
    "/api/queues/:vhost/:name/stream/raw",
    query=(*RANGE, Query("epoch", "In which the reader has come to the offset", "integer")),
    failures=(409, 410, 416),
    content=OCTETS,
)
async def read_raw(call: Call) -> None:
    """Read a range of a stream as records, the way they are stored."""
    queue = stream_of(call)
    check_not_locked(call, queue)
    offset, end = await _range(call, queue.core)
    first, next_ = queue.core.first_offset, queue.core.synced[0]
    _check_epoch(call, queue, offset)
    if offset < first:
        raise ApiError(410, "gone", f"Offset {offset} is gone, the first one is {first}")
    if offset > next_:
        raise ApiError(416, "range_not_satisfiable", f"The next offset is {next_}, not {offset}")
    handler = call.handler
    handler.set_header("Content-Type", OCTETS)
    handler.set_header("Cache-Control", "no-store, no-transform")
    handler.set_header("X-Accel-Buffering", "no")
    try:
        offset = await _send_records(call, queue, offset, end)
        if not call.is_allowed_still():
            _break_off(handler)
            return
        handler.write(_core.raw_end(offset))
        await handler.finish()
    except StreamClosedError:
        raise
    except OSError as error:
        _log.error("stream %r: %s", queue.name, error)
        if not handler._headers_written:
            raise ApiError(
                500, "internal_server_error", f"Stream '{queue.name}' cannot be read: {error}"
            ) from error
        _break_off(handler)


def _check_epoch(call: Call, queue: Queue, offset: int) -> None:
    """Raises: ApiError 409 when what the reader has read may be other messages now."""
    epoch = _place(call, "epoch")
    other = None
    if epoch is not None:
        other = stream_epochs.divergence(queue.core.epochs, epoch, offset)
    if other is not None:
        text = f"The stream is another from offset {other[1]} on: epoch {other[0]} begins there"
        raise ApiError(409, "conflict", f"{text}, and offset {offset} was reached in epoch {epoch}")


async def _send_records(call: Call, queue: Queue, offset: int, end: int) -> int:
    """Send blocks one after the other, each when the one before has left. Returns: where to go on,
    below the end when retention was faster or the stream is gone. Raises: OSError."""
    handler, core, queues = call.handler, queue.core, call.vhost.queues
    while offset < end and queues.get(queue.name) is queue and not core.is_closed:
        if not call.is_allowed_still():
            break
        if offset < core.first_offset:
            break  # the next request is told
        block, offset, segment, position, rest = _core.raw_records(core, offset, end)
        if block:
            handler.write(block)
            await handler.flush()
        while rest:
            part = _core.raw_rest(core, segment, position, min(rest, REST_AT_ONCE))
            if not part:
                raise OSError("the rest of a record is gone")
            handler.write(part)
            await handler.flush()
            position, rest = position + len(part), rest - len(part)
        await others_first()
    return offset


def _break_off(handler: ApiHandler) -> None:
    """Something is missing: end the connection, so that nobody takes the answer for whole."""
    connection: Any = handler.request.connection
    connection.stream.close()


# --- positions --------------------------------------------------------------------------------

Position = tuple[bytes, int]
"""The tag of a consumer, and where it goes on reading."""


@ROUTES.list("/api/queues/:vhost/:name/stream/consumers")
async def list_positions(call: Call) -> Listing[Position]:
    """List where consumers of a stream go on reading, and how many messages are before them.

    Those that were stored last come first."""
    queue = stream_of(call)
    await all_synced(queue.core)
    found: dict[bytes, int] = {}
    for some in _core.StoredOffsets(queue.core):
        for tag, offset in some:
            found.pop(tag, None)  # it was committed once more
            found[tag] = offset
        await others_first()
    # What was stored last comes first: a stream may have very many.
    rows = reversed(found.items())
    return Listing(
        rows, lambda each: _position_row(call.broker, queue, *each), lambda each: _name(each[0])
    )


def _name(tag: bytes) -> str:
    return tag.decode("utf-8", "surrogateescape")


def _position_row(broker: Broker, queue: Queue, tag: bytes, offset: int) -> dict[str, Any]:
    return {
        "name": _name(tag),
        "offset": offset,
        "lag": lag(queue.core, offset),
        "lag_log": broker.lags.log(queue, tag, broker.sampler.samples),
    }


@ROUTES.put(
    "/api/queues/:vhost/:name/stream/consumers/:consumer",
    {"offset": Field("integer", "Where it goes on reading", required=True)},
    statuses=(204,),
    failures=(409,),
)
async def store_position(call: Call) -> Reply:
    """Store where a consumer of a stream goes on reading."""
    queue = stream_of(call)
    check_not_locked(call, queue)
    core, offset = queue.core, call.body["offset"]
    if not 0 <= offset <= core.next_offset:
        raise bad_request(f"Field 'offset' must be between 0 and {core.next_offset}")
    call.check_room()
    _store(core, call.path["consumer"], max(offset, core.first_offset))
    await completed(call.broker.loop.after_sync)  # it is written then
    return NO_CONTENT


@ROUTES.delete("/api/queues/:vhost/:name/stream/consumers/:consumer", failures=(409,))
async def forget_position(call: Call) -> Reply:
    """Forget where a consumer of a stream goes on reading."""
    queue = stream_of(call)
    check_not_locked(call, queue)
    name = call.path["consumer"]
    found(queue.core.stored_offset(_tag(name)) or None, "stored position of", name)
    _store(queue.core, name, 0)
    try:
        await call.broker.stored_offsets.saved(queue)
    except OSError as error:
        raise ApiError(
            500,
            "internal_server_error",
            f"The position of consumer '{name}' cannot be stored: {error}",
        ) from error
    return NO_CONTENT


def _store(core: _core.Queue, name: str, offset: int) -> None:
    """Raises: ApiError 400 for a name that no consumer is remembered by, 409 for one that is
    there."""
    if not core.store_offset(_tag(name), offset):
        raise ApiError(409, "conflict", f"Consumer '{name}' is there: its acknowledgements count")


def _tag(name: str) -> bytes:
    """Raises: ApiError 400."""
    tag = name.encode("utf-8", "surrogateescape")
    if not 0 < len(tag) < 256 or name.startswith(GENERATED):
        raise bad_request("The name of a consumer has 1 to 255 bytes and no reserved prefix")
    return tag
