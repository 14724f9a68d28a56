"""Messages: publish, get, read a stream, and move.

An answer with messages is as long as a request's body may be: what does not fit stays where it is.
What was taken is settled when the answer is made; if it cannot be made, or nobody is there to hear
it, the messages are put back. Source: docs/http-api.md, docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from lavinmq import _core
from lavinmq.amqp.walk_errors import walk_error
from lavinmq.arguments.interval import interval_ms
from lavinmq.arguments.names import MAX_BYTES
from lavinmq.errors import TOO_FEW
from lavinmq.http import encoding, payload, properties
from lavinmq.http.api.exchanges import INTERNAL, by_name
from lavinmq.http.api.queues import check_not_locked, queue_of
from lavinmq.http.api.streams import offset_at
from lavinmq.http.call import Call, Reply, completed, found
from lavinmq.http.errors import ApiError, bad_request, not_found
from lavinmq.http.fields import Field, to_integer
from lavinmq.http.handler import JSON
from lavinmq.http.listing import in_portions
from lavinmq.http.routes import ROUTES
from lavinmq.http.synced import all_synced
from lavinmq.process.portions import others_first
from lavinmq.vhost import rights
from lavinmq.vhost.exchange import raw_key

if TYPE_CHECKING:
    from lavinmq.vhost.exchange import Exchange
    from lavinmq.vhost.queue import Queue

BASIC_PUBLISH: Final = 60 << 16 | 40
WHOLE: Final = (1 << 63) - 1
ROW_BYTES: Final = 256
"""What a message adds to an answer, besides its own bytes."""
MOVED_AT_ONCE: Final = 64
READ_AT_ONCE: Final = 64

# Mode → whether it goes back, whether it is acknowledged.
MODES: Final = {
    "get": (False, True),
    "ack_requeue_true": (True, False),
    "ack_requeue_false": (False, True),
    "reject_requeue_true": (True, False),
    "reject_requeue_false": (False, False),
}


def local_channel(call: Call) -> _core.LocalChannel:
    """A channel of the caller to the virtual host of the path; to be closed."""
    name = call.user.name.encode("utf-8", "surrogateescape")
    return _core.LocalChannel(
        call.broker.loop, call.vhost.core, name, call.user.has_tag("impersonator")
    )  # fmt: skip


# --- publish ----------------------------------------------------------------------------------


@ROUTES.post(
    "/api/exchanges/:vhost/:name/publish",
    {
        "properties": Field("object", "Such as content_type, headers, expiration", required=True),
        "routing_key": Field("string", "At most 255 bytes", required=True),
        "payload": Field("string", "The body", required=True),
        "payload_encoding": Field("string", "string or base64", required=True),
    },
    content=JSON,
    has_large_body=True,
)
async def publish(call: Call) -> dict[str, bool]:
    """Publish a message; in durable queues it is on disk when this is answered."""
    body, user = call.body, call.user
    exchange = _target(call)
    if call.payload is None:
        content: bytes | bytearray = payload.decode(body["payload"], body["payload_encoding"])
    else:
        content = await payload.decode_long(call.payload, body["payload_encoding"])
        call.check_still()
        exchange = _target(call)  # others may have changed what there is, and who may use it
    limit = call.broker.config.max_message_size
    if len(content) > limit:
        raise bad_request(f"message size {len(content)} larger than max size {limit}")
    key = raw_key(body["routing_key"])
    if len(key) > 255:
        raise bad_request("Field 'routing_key' is longer than 255 bytes")
    raw = properties.encode(_stamped(call, body["properties"]), call.table_bounds)
    _check_dead_letter(call, body["properties"])
    loop = call.broker.loop
    call.check_room()
    breaks = loop.breaks
    channel = local_channel(call)
    try:
        error, is_routed, is_durable = await _published(
            channel, exchange.core, raw_key(exchange.name), key, raw, content
        )
    except _core.QueueClosedError as refused:
        raise _cannot_be_written() from refused
    finally:
        channel.close()
    if error:
        given = body["properties"].get("user_id")
        text = raw_key(given) if isinstance(given, str) else b""
        raise walk_error(error, BASIC_PUBLISH, 0, 0, text, user.name)
    if is_durable:
        if not await _stored(loop):
            raise ApiError(
                503, "service_unavailable", f"{TOO_FEW}: the message may be kept, or lost"
            )  # fmt: skip
        if loop.breaks != breaks:
            raise _cannot_be_written()
    return {"routed": is_routed}


async def _stored(loop: _core.Loop) -> bool:
    """Wait until what was published is on disk. Returns: False: too few nodes are there for
    that."""
    stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def tell(is_stored: bool) -> None:
        if not stored.done():
            stored.set_result(is_stored)

    loop.after_sync(partial(tell, True), partial(tell, False))
    return await stored


async def _published(channel: _core.LocalChannel, *message: Any) -> tuple[int, bool, bool]:
    """What `LocalChannel.publish` answers. A large message is stored in portions."""
    answers = [answer async for answer in in_portions(_tries(channel, *message)) if answer]
    return answers[0]


def _tries(channel: _core.LocalChannel, *message: Any) -> Iterator[tuple[int, bool, bool] | None]:
    """Publish, over as many turns as it takes; the last answer counts."""
    while (answer := channel.publish_some(*message)) is None:
        yield None
    yield answer


def _target(call: Call) -> Exchange:
    """The exchange of the path. Raises: ApiError 400, 404; ChannelError 403."""
    exchange = by_name(call, call.path["name"])
    _check_keys(call, exchange)
    if exchange.internal:
        raise bad_request(INTERNAL)
    return exchange


def _cannot_be_written() -> ApiError:
    return ApiError(500, "internal_server_error", "A queue cannot be written")


def _stamped(call: Call, given: dict[str, Any]) -> dict[str, Any]:
    """The properties, with the time if the broker is to add it."""
    loop = call.broker.loop
    if not loop.is_stamping or to_integer(given.get("timestamp")) is not None:
        return given
    return given | {"timestamp": _now_ms(call) // 1000}


def _now_ms(call: Call) -> int:
    return time.time_ns() // 1_000_000 + call.broker.loop.clock_offset_ms


def _check_keys(call: Call, exchange: Exchange) -> None:
    """Raises: ChannelError 403 for a routing key, or one in CC or BCC, that is not allowed."""
    granted = call.vhost.publishing.key_rights(call.user, exchange.name)
    if granted is None:
        return
    headers = _headers(call.body["properties"])
    keys: list[object] = [call.body["routing_key"]]
    for copies in (headers.get("CC"), headers.get("BCC")):
        keys += copies if isinstance(copies, list) else ()
    texts = [key for key in keys if isinstance(key, str)]
    rights.check_keys(call.user, granted, exchange.name, texts)


def _check_dead_letter(call: Call, given: dict[str, Any]) -> None:
    """Who may not publish to an exchange must not get there by a death that the headers arrange.

    Raises: ChannelError 403.
    """
    headers = _headers(given)
    target, key = (headers.get(f"x-dead-letter-{of}") for of in ("exchange", "routing-key"))
    if isinstance(target, str) and len(raw_key(target)) <= MAX_BYTES:
        keys = [key] if isinstance(key, str) and len(raw_key(key)) <= MAX_BYTES else []
        call.vhost.publishing.check_letter(call.user, target, keys)
    elif isinstance(key, str) and len(raw_key(key)) <= MAX_BYTES:
        rights.check_letter_key(call.user, call.vhost.name)


def _headers(given: dict[str, Any]) -> dict[str, Any]:
    headers = given.get("headers")
    return headers if isinstance(headers, dict) else {}


# --- get --------------------------------------------------------------------------------------

SHOWN: Final = {
    "count": Field("integer", "Messages at most", default=1),
    "encoding": Field(
        "string", "auto: text if it is UTF-8", default="auto", choices=("auto", "base64")
    ),
    "truncate": Field("integer", "Bytes of a payload to show"),
}


@ROUTES.post(
    "/api/queues/:vhost/:name/get",
    {
        **SHOWN,
        "ack_mode": Field("string", "What becomes of them: " + ", ".join(MODES)),
        "ackmode": Field("string", "The same"),
        "requeue": Field("boolean", "Not together with get", default=False),
        "queue": Field("any", "Tools send it; the path counts"),
    },
    content=JSON,
)
async def get_messages(call: Call) -> Reply:
    """Take messages, or look at them and put them back."""
    queue = queue_of(call)
    check_not_locked(call, queue)
    body = call.body
    mode = body["ack_mode"] or body["ackmode"] or "get"
    if mode not in MODES:
        raise bad_request(f"Field 'ack_mode' must be one of {', '.join(MODES)}")
    if body["requeue"] and mode == "get":
        raise bad_request("Cannot requeue message on get")
    if body["count"] < 0:
        raise bad_request("Field 'count' must not be negative")
    truncate = _truncate(call)
    rights.check_usable(call.vhost.name, queue)
    if queue.core.is_closed:
        raise ApiError(403, "forbidden", f"Queue '{queue.name}' is closed")
    call.vhost.get_used(queue)
    is_requeued, is_ack = MODES[mode]
    channel = local_channel(call)
    try:
        tags: list[int] = []
        pieces = await encoding.array(_taken(call, channel, queue, truncate, is_requeued, tags))
        if call.handler.is_gone:
            raise ApiError(500, "internal_server_error", "The client has closed its connection")
        call.check_still()
        async for tag in in_portions(tags):
            channel.settle(tag, is_requeued, is_ack)
    finally:
        channel.close()
    return Reply(content=pieces)


def _truncate(call: Call) -> int:
    """Bytes of a payload to show. Raises: ApiError 400."""
    given: int | None = call.body["truncate"]
    if given is not None and given < 0:
        raise bad_request("Field 'truncate' must not be negative")
    return WHOLE if given is None else min(given, WHOLE)


async def _taken(
    call: Call, channel: _core.LocalChannel, queue: Queue, truncate: int, is_look: bool,
    tags: list[int],
) -> AsyncIterator[bytes]:  # fmt: skip
    """The JSON of messages that are taken one after the other; their tags are appended to `tags`.

    Raises: ApiError 413 when not even the first fits into an answer."""
    limit = room = call.broker.config.max_body_size
    async for _ in in_portions(range(min(call.body["count"], WHOLE))):
        await _reached(queue)
        taken = channel.take(queue.core, max(room - ROW_BYTES, 0), truncate, is_look)
        if taken is None:
            return
        if isinstance(taken, int):
            if room == limit:
                raise too_large(taken, limit)
            return
        message, left = taken[:-1], taken[-1]
        tags.append(message[0])
        shown = await _shown(message, left, call.body["encoding"])
        room -= _taken_of(message, shown)
        yield shown


def _taken_of(message: Any, shown: bytes) -> int:
    """Bytes of an answer that a message takes: escapes may make its JSON six times as long."""
    return max(ROW_BYTES + len(message[4]) + len(message[6]), len(shown))


async def _reached(queue: Queue) -> None:
    """Wait until the next message of a queue can be taken, or there is none."""
    while not queue.core.reach():
        await others_first()


def too_large(needed: int, limit: int) -> ApiError:
    """413: it stays where it is."""
    return ApiError(
        413, "payload_too_large",
        f"The next message takes {needed} bytes, and an answer may have {limit}: use 'truncate'",
    )  # fmt: skip


async def _shown(message: Any, left: int, how: str) -> bytes:
    """The JSON of a message, as `LocalChannel.take` returns it."""
    _, is_redelivered, exchange, key, raw, size, body = message
    kind, text = await payload.encode(body, how)
    head = {
        "payload_bytes": size,
        "redelivered": is_redelivered,
        "exchange": exchange.decode("utf-8", "surrogateescape"),
        "routing_key": key.decode("utf-8", "surrogateescape"),
        "message_count": left,
        "payload_encoding": kind,
    }
    shown = await properties.to_json(raw)
    return b"".join(
        (encoding.encode(head)[:-1], b',"properties":', shown, b',"payload":', text, b"}")
    )


# --- streams ----------------------------------------------------------------------------------


@ROUTES.post(
    "/api/queues/:vhost/:name/stream",
    {
        **SHOWN,
        "offset": Field(
            "any", "first, last, next, an offset (negative: from the end), a time or an age",
            default="first",
        ),
    },
    content=JSON,
)  # fmt: skip
async def read_stream(call: Call) -> Reply:
    """Read messages of a stream."""
    queue = queue_of(call)
    if not queue.is_stream:
        found(None, "stream", queue.name, call.vhost.name)
    check_not_locked(call, queue)
    truncate = _truncate(call)
    end = await all_synced(queue.core)
    offset = await _offset(call, queue, end)
    pieces = await encoding.array(_read(call, queue, offset, end, truncate))
    call.check_still()
    return Reply(content=pieces)


async def _read(
    call: Call, queue: Queue, offset: int, end: int, truncate: int
) -> AsyncIterator[bytes]:
    """The JSON of messages of a stream. Raises: ApiError 413 when not even the first fits into an
    answer."""
    limit = room = call.broker.config.max_body_size
    left = max(call.body["count"], 0)
    is_first = True
    while left and offset < end and not queue.core.is_closed:
        rows, offset, needed = _core.read_stream(
            queue.core, offset, min(left, READ_AT_ONCE), max(room, 0), truncate
        )
        rows = [row for row in rows if row[0] < end]
        for row in rows:
            shown = await _shown(row, queue.core.ready, call.body["encoding"])
            room -= _taken_of(row, shown)
            yield shown
            is_first = False
        left -= len(rows)
        if needed and is_first and offset < end:
            raise too_large(needed, limit)
        if needed:
            return
        await others_first()


async def _offset(call: Call, queue: Queue, end: int) -> int:
    """Where reading begins, in a stream that ends there. Raises: ApiError 400."""
    given, core = call.body["offset"], queue.core
    number = to_integer(given)
    if number is not None:
        return min(max(number if number >= 0 else end + number, 0), WHOLE)
    match given:
        case "first":
            return core.first_offset
        case "next":
            return end
        case "last":
            segments = core.segments()
            return segments[-1][3] if segments else end
    at_ms = time_ms(call, given) if isinstance(given, str) else None
    if at_ms is None:
        raise bad_request(f"invalid offset {given}")
    return await offset_at(core, at_ms)


def time_ms(call: Call, text: str) -> int | None:
    """Unix milliseconds of a time in RFC 3339, or of so long ago; None for what is neither."""
    age = interval_ms(text)
    if age is not None:
        return _now_ms(call) - age
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


# --- move -------------------------------------------------------------------------------------


@ROUTES.post(
    "/api/queues/:vhost/:name/move",
    {
        "destination": Field("string", "A queue of the same virtual host", required=True),
        "count": Field("integer", "Messages at most; all that are there if absent"),
    },
    content=JSON,
)
async def move_messages(call: Call) -> dict[str, int]:
    """Move messages from the head of a queue to the end of another, as if published there."""
    vhost, queue = call.vhost, queue_of(call)
    check_not_locked(call, queue)
    to = vhost.queues.get(call.body["destination"])
    if to is None:
        raise not_found(f"Queue '{call.body['destination']}' does not exist")
    count = queue.core.ready if call.body["count"] is None else call.body["count"]
    if count < 0:
        raise bad_request("Field 'count' must not be negative")
    for each in (queue, to):
        rights.check_usable(vhost.name, each)
    if queue is to:
        raise bad_request("Source and destination are the same")
    if queue.is_stream:
        raise bad_request("Messages of a stream cannot be moved, only read")
    call.check_room()
    moved, returned = 0, queue.core.returned
    move = _core.Move(queue.core, to.core)
    count = min(count, queue.core.ready)
    async for _ in in_portions(repeat(None)):
        await _reached(queue)
        if moved == count or call.broker.loop.is_held or not call.is_allowed_still():
            break
        moved_now = move.some(min(count - moved, MOVED_AT_ONCE))
        if moved_now is None:  # a large one goes in portions, or older ones come back first
            await others_first()
            continue
        moved += moved_now
        if moved_now == 0:
            break
    await completed(call.broker.loop.after_sync)
    moved -= min(moved, queue.core.returned - returned)
    if to.core.is_closed or queue.core.returned != returned:
        raise ApiError(
            500, "internal_server_error",
            f"Queue '{to.name}' cannot be written: {moved} messages were moved, the others are in"
            f" '{queue.name}'",
        )  # fmt: skip
    return {"moved": moved}
