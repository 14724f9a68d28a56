"""Messages that were chosen from what `browse` has shown: delete, move or copy them.

An id names a place and a digest: what is not the same message any more, or not ready, is left alone
and counted as gone. A move deletes a message where it was once it is on disk where it went. Of a
stream they are copied only: it is appended to, and loses its oldest messages by its limits alone.
Source: decisions 0033, 0061 and 0071, docs/http-api.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lavinmq import _core
from lavinmq.http.api.browse import Pace
from lavinmq.http.api.queues import check_not_locked, queue_of
from lavinmq.http.call import Call, completed
from lavinmq.http.errors import ApiError, bad_request, not_found
from lavinmq.http.fields import Field, Fields
from lavinmq.http.handler import JSON
from lavinmq.http.routes import ROUTES
from lavinmq.vhost import rights

if TYPE_CHECKING:
    from lavinmq.vhost.queue import Queue

MAX_IDS: Final = 1000
Id = tuple[int, ...]
"""Level, segment, position and digest; of a stream offset and digest."""
IDS: Final[Fields] = {
    "ids": Field("array", f"Of browse, {MAX_IDS} at most", required=True),
}
TO: Final[Fields] = {
    **IDS,
    "destination": Field("string", "A queue of the same virtual host", required=True),
}
_ID: Final = re.compile(r"(\d{1,3})\.(\d{1,10})\.(\d{1,10})\.([0-9a-f]{1,16})", re.ASCII)
_STREAM_ID: Final = re.compile(r"(\d{1,18})\.([0-9a-f]{1,16})", re.ASCII)
_UNDONE: Final = (_core.SETTLED_LATER, _core.SETTLED_COLD)


@ROUTES.post("/api/queues/:vhost/:name/browse/delete", IDS, content=JSON)
async def delete_chosen(call: Call) -> dict[str, Any]:
    """Delete messages that browse has shown."""
    queue, ids = _source(call, is_copy=False)
    return await _settled(call, queue, _core.Chosen(queue.core), ids, "deleted")


@ROUTES.post("/api/queues/:vhost/:name/browse/move", TO, content=JSON)
async def move_chosen(call: Call) -> dict[str, Any]:
    """Move messages that browse has shown to the end of another queue."""
    return await _sent(call, is_copy=False)


@ROUTES.post("/api/queues/:vhost/:name/browse/copy", TO, content=JSON)
async def copy_chosen(call: Call) -> dict[str, Any]:
    """Copy messages that browse has shown to the end of another queue."""
    return await _sent(call, is_copy=True)


def _source(call: Call, *, is_copy: bool) -> tuple[Queue, list[Id]]:
    """The queue, and the places in their order. Raises: ApiError, ChannelError."""
    queue = queue_of(call)
    check_not_locked(call, queue)
    rights.check_usable(call.vhost.name, queue)
    if queue.is_stream and not is_copy:
        raise bad_request(
            "A stream is only appended to: its messages can be copied, not moved or deleted"
        )
    if queue.core.is_closed:
        raise ApiError(403, "forbidden", f"Queue '{queue.name}' is closed")
    given = call.body["ids"]
    if len(given) > MAX_IDS:
        raise bad_request(f"Field 'ids' has more than {MAX_IDS} entries")
    place = _stream_place if queue.is_stream else _place
    return queue, sorted({place(each) for each in given})


def _stream_place(given: object) -> Id:
    """Raises: ApiError 400."""
    found = _STREAM_ID.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise bad_request("Field 'ids' has an entry that is no id from browsing a stream")
    return int(found[1]), int(found[2], 16)


def _place(given: object) -> Id:
    """Raises: ApiError 400."""
    found = _ID.fullmatch(given) if isinstance(given, str) else None
    if found is None or max(int(found[2]), int(found[3])) >> 32:
        raise bad_request("Field 'ids' has an entry that is no id from browse")
    level, seg, pos = (int(found[n]) for n in (1, 2, 3))
    return level, seg, pos, int(found[4], 16)


async def _sent(call: Call, *, is_copy: bool) -> dict[str, Any]:
    queue, ids = _source(call, is_copy=is_copy)
    to = call.vhost.queues.get(call.body["destination"])
    if to is None:
        raise not_found(f"Queue '{call.body['destination']}' does not exist")
    check_not_locked(call, to)
    rights.check_usable(call.vhost.name, to)
    if to is queue:
        raise bad_request("Source and destination are the same")
    call.check_room()
    returned = queue.core.returned
    chosen = _core.Chosen(queue.core, to.core, is_copy)
    said = await _settled(call, queue, chosen, ids, "copied" if is_copy else "moved")
    if to.core.is_closed or queue.core.returned != returned:
        raise ApiError(
            500, "internal_server_error",
            f"Queue '{to.name}' cannot be written: what did not arrive is in '{queue.name}'",
        )  # fmt: skip
    return said


async def _settled(
    call: Call, queue: Queue, chosen: _core.Chosen, ids: list[Id], name: str
) -> dict[str, Any]:
    """How many of them it was done with, and how many were gone. What the other queue refuses ends
    it, as does a right that is lost."""
    done = gone = 0
    refused = False
    settle: Callable[..., int] = chosen.copy if queue.is_stream else chosen.settle
    pace = Pace()
    try:
        for each in ids:
            state = _core.SETTLED_LATER
            while state in _UNDONE:
                if not call.is_allowed_still() or (name != "deleted" and call.broker.loop.is_held):
                    state = _core.SETTLED_REFUSED
                    break
                state = settle(*each)
                await pace.pause(chosen, state == _core.SETTLED_COLD)
            done += state == _core.SETTLED_DONE
            gone += state == _core.SETTLED_GONE
            if state == _core.SETTLED_REFUSED:
                refused = True
                break
    except OSError as error:
        raise ApiError(
            500, "internal_server_error", f"Queue '{queue.name}' cannot be read: {error}"
        ) from error
    finally:
        chosen.rest()
    await completed(call.broker.loop.after_sync)
    return {name: done, "gone": gone, "refused": len(ids) - done - gone if refused else 0}
