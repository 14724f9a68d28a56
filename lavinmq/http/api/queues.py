"""Queues: list, show, create, delete, purge, pause, restart.

What goes in and out of them is in `messages.py`. Source: docs/http-api.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lavinmq import _core
from lavinmq.amqp.channel import Consumer
from lavinmq.arguments.names import RESERVED
from lavinmq.http.api import consumers
from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, completed, found
from lavinmq.http.encoding import Pieces, Rows, with_lists
from lavinmq.http.errors import ApiError, access_refused, bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES, Query
from lavinmq.http.synced import all_synced, synced_now
from lavinmq.http.tables import table
from lavinmq.mqtt.connection import Consumer as MqttConsumer
from lavinmq.stats.totals import unacknowledged
from lavinmq.vhost import rights
from lavinmq.vhost.new_queue import declared
from lavinmq.vhost.queue import Queue

if TYPE_CHECKING:
    from lavinmq.vhost.vhost import VHost

STATS: Final = (
    "ack", "deliver", "deliver_no_ack", "deliver_get", "confirm", "get", "get_no_ack", "publish",
    "redeliver", "reject", "return_unroutable", "dedup",
)  # fmt: skip
"""`confirm` and `return_unroutable` are of channels, and 0 for every queue."""
MAX_NAME: Final = 255
RESERVED_PREFIX: Final = 'Prefix ["mqtt.", "amq."] forbidden, please choose another name'

Place = tuple[str, Queue]
"""A queue with the name of its virtual host."""


# --- what is shown ----------------------------------------------------------------------------


def row(call: Call, vhost: str, queue: Queue, *, with_log: bool = False) -> dict[str, Any]:
    """What is shown of a queue. Cost: 15 µs without histories."""
    core, features = queue.core, queue.features
    ready, ready_bytes = core.ready, core.ready_bytes
    # Deliveries of a stream take nothing out of it.
    unacked, unacked_bytes = (0, 0) if queue.is_stream else (core.unacked, core.unacked_bytes)
    single, owner = queue.active_consumer, None
    if queue.exclusive:
        owner = next(iter(queue.consumers), None)
    shown = {
        "name": queue.name,
        "vhost": vhost,
        "durable": queue.durable,
        "exclusive": queue.exclusive,
        "auto_delete": queue.auto_delete,
        "internal": queue.is_internal,
        "arguments": queue.arguments,
        "consumers": len(queue.consumers),
        "messages": ready + unacked,
        "messages_persistent": ready + unacked if queue.durable else 0,
        "total_bytes": ready_bytes + unacked_bytes,
        "ready": ready,
        "messages_ready": ready,
        "ready_bytes": ready_bytes,
        "message_bytes_ready": ready_bytes,
        # LavinMQ counts those of each level on its own, and shows none of them.
        "ready_avg_bytes": ready_bytes // ready if ready and features.max_priority is None else 0,
        "unacked": unacked,
        "messages_unacknowledged": unacked,
        "unacked_bytes": unacked_bytes,
        "message_bytes_unacknowledged": unacked_bytes,
        "unacked_avg_bytes": unacked_bytes // unacked if unacked else 0,
        "policy": features.policy,
        "operator_policy": features.operator_policy,
        "exclusive_consumer_tag": None if owner is None else owner.tag,
        "single_active_consumer_tag": None if single is None else single.tag,
        "state": queue.state,
        "effective_policy_definition": dict(features.policy_definition),
        "effective_arguments": features.effective_arguments,
        "effective_policy_arguments": features.effective_policy_arguments,
        "message_stats": call.broker.sampler.stats(queue, STATS, with_log=with_log),
    }
    if queue.is_stream:
        shown["first_offset"], shown["next_offset"] = core.first_offset, synced_now(core)
    return shown


def stream_facts(queue: Queue) -> dict[str, Any]:
    """What programs that keep offsets need to know; an empty stream has neither a first offset nor
    times, and its last offset is of a message that it had, 0 when it has had none."""
    core = queue.core
    n_segments, first_ms, last_ms = core.span
    end = synced_now(core)
    is_empty = core.first_offset == end
    return {
        "first_offset": None if is_empty else core.first_offset,
        "last_offset": end - 1,
        "first_timestamp": None if is_empty else first_ms or None,
        "last_timestamp": None if is_empty else last_ms or None,
        "created": core.created or None,
        "epoch": core.epochs[-1][0] if core.epochs else None,
        "epochs": [{"epoch": number, "first_offset": first} for number, first in core.epochs],
        "segments": n_segments,
    }


def places(vhosts: list[VHost]) -> Iterator[Place]:
    """The queues of some virtual hosts."""
    for vhost in vhosts:
        for queue in list(vhost.queues.values()):
            yield vhost.name, queue


SORTED_BY: Final = {
    "name": lambda place: place[1].name,
    "vhost": lambda place: place[0],
    "messages": lambda place: place[1].core.ready + unacknowledged(place[1]),
    "messages_ready": lambda place: place[1].core.ready,
    "messages_unacknowledged": lambda place: unacknowledged(place[1]),
    "consumers": lambda place: len(place[1].consumers),
}
"""What operators sort thousands of queues by."""


def listed(call: Call, vhosts: list[VHost]) -> Listing[Place]:
    """A list of the queues of some virtual hosts."""
    return Listing(
        places(vhosts), lambda place: row(call, *place), lambda place: place[1].name, keys=SORTED_BY
    )  # fmt: skip


def queue_of(call: Call) -> Queue:
    """The queue of the path. Raises: ApiError 404."""
    vhost, name = call.vhost, call.path["name"]
    queue: Queue = found(vhost.queues.get(name), "queue", name, vhost.name)
    return queue


@ROUTES.list("/api/queues")
def list_queues(call: Call) -> Listing[Place]:
    """List queues."""
    return listed(call, call.visible_vhosts())


@ROUTES.list("/api/queues/:vhost")
def list_queues_of_vhost(call: Call) -> Listing[Place]:
    """List queues of a virtual host."""
    return listed(call, [call.vhost])


@ROUTES.get(
    "/api/queues/:vhost/:name",
    query=(Query("consumer_list_length", "Show so many consumers at most, 0: all", "integer"),),
)
async def show_queue(call: Call) -> Pieces:
    """Show a queue with the history of its numbers, and its consumers."""
    queue, most = queue_of(call), call.number("consumer_list_length")
    if most is not None and most < 0:
        raise bad_request("Parameter 'consumer_list_length' must not be negative")
    if queue.is_stream:
        await all_synced(queue.core)
    shown = row(call, call.path["vhost"], queue, with_log=True)
    shown = {name: value for name, value in shown.items() if value is not None}
    if queue.is_stream:
        shown["stream"] = stream_facts(queue)
        shown["segments"] = shown["stream"]["segments"]
    details = Rows()
    async for consumer in in_portions(list(islice(queue.consumers, most or None))):
        if isinstance(consumer, Consumer | MqttConsumer) and _is_there(consumer):
            details.add(consumers.row(queue, consumer))
    return with_lists(shown, {"consumer_details": details})


def _is_there(consumer: Consumer | MqttConsumer) -> bool:
    """Whether its client has not gone meanwhile."""
    if isinstance(consumer, MqttConsumer):
        return consumer.connection.is_member
    channel = consumer.channel
    return channel.connection.channels.get(channel.id) is channel


# --- create and delete ------------------------------------------------------------------------


@ROUTES.put(
    "/api/queues/:vhost/:name",
    {
        "durable": Field("boolean", "It outlives the broker", default=False),
        "auto_delete": Field("boolean", "It goes with its last consumer", default=False),
        "arguments": Field("object", "As of queue.declare"),
    },
)
async def put_queue(call: Call) -> Reply:
    """Create a queue, or find out that there is the same."""
    vhost, name = call.vhost, call.path["name"]
    durable, auto_delete = call.body["durable"], call.body["auto_delete"]
    check_name("Queue", name)
    arguments = table(call.body["arguments"] or {}, "Field 'arguments'", call.table_bounds)
    existing = vhost.queues.get(name)
    is_there = (
        existing is not None
        and not existing.is_locked_to(call.actor)
        and existing.is_same(durable, auto_delete, arguments)
    )
    if existing is not None and is_there:
        if existing.is_stored and vhost.recorded.is_syncing:
            await completed(vhost.recorded.when_synced)
        return NO_CONTENT
    if existing is None:
        check_prefix(name)
    if not rights.may_declare_queue(call.user, vhost.name, name, arguments):
        raise access_refused(f"User doesn't have permissions to declare queue '{name}'")
    if existing is not None:
        check_not_locked(call, existing)
        raise bad_request(
            "Existing queue declared with other arguments arg: "
            + existing.difference(durable, auto_delete, arguments, vhost.name)
        )
    _, recorded = await declared(
        vhost.declare_queue(call.actor, name, False, durable, False, auto_delete, arguments)
    )
    if recorded:
        await completed(vhost.recorded.when_synced)
    return CREATED


def check_name(kind: str, name: str) -> None:
    """Raises: ApiError 400 for one that is too long."""
    if len(name.encode("utf-8", "surrogateescape")) > MAX_NAME:
        raise bad_request(f"{kind} name too long, can't exceed {MAX_NAME} characters")


def check_prefix(name: str) -> None:
    """Raises: ApiError 400 for a reserved name."""
    if name.startswith(RESERVED):
        raise bad_request(RESERVED_PREFIX)


@ROUTES.delete(
    "/api/queues/:vhost/:name",
    query=(
        Query("if-unused", "Not if it has consumers or messages", "boolean"),
        Query("if-empty", "Not if it has messages", "boolean"),
    ),
)
async def delete_queue(call: Call) -> Reply:
    """Delete a queue with its messages; consumers are told."""
    vhost, queue = call.vhost, queue_of(call)
    if call.flag("if-unused") and (queue.consumers or _messages(queue)):
        raise bad_request(f"Queue {queue.name} in vhost {vhost.name} in use")
    if call.flag("if-empty") and _messages(queue):
        raise bad_request(f"Queue {queue.name} in vhost {vhost.name} is not empty")
    _, recorded, several = vhost.delete_queue(call.actor, queue.name, False, False)
    vhost.tell_cancelled(several)
    if recorded:
        await completed(vhost.recorded.when_synced)
    return NO_CONTENT


def _messages(queue: Queue) -> int:
    return queue.core.ready + (0 if queue.is_stream else queue.core.unacked)


@ROUTES.delete(
    "/api/queues/:vhost/:name/contents",
    query=(Query("count", "Delete so many of the oldest only", "integer"),),
)
async def purge_queue(call: Call) -> Reply:
    """Delete messages that are ready."""
    queue = queue_of(call)
    check_not_locked(call, queue)
    count = _count(call)
    if count is None:
        purge = call.vhost.purge(call.actor, queue.name)
    elif queue.is_stream:
        raise bad_request("A stream can be purged as a whole only")
    else:
        purge = _core.Purge(queue.core, count)
    async for _ in in_portions(purge):
        pass
    if call.broker.has_copies:
        copied = asyncio.Event()
        call.broker.loop.after_sync(copied.set)
        await copied.wait()
    return NO_CONTENT


def _count(call: Call) -> int | None:
    try:
        count = call.number("count")
    except ApiError:
        raise bad_request("Count must be a number") from None
    if count is not None and count <= 0:
        raise bad_request("Count must be greater than 0")
    return count


def check_not_locked(call: Call, queue: Queue) -> None:
    """Raises: ApiError 400 for a queue that a connection has to itself."""
    if queue.is_locked_to(call.actor):
        raise bad_request(f"Queue '{queue.name}' is exclusive")


# --- operators --------------------------------------------------------------------------------


async def _with_disk(change: Callable[[str], Awaitable[None]], name: str) -> None:
    """Raises: ApiError 500 when the disk refuses the change."""
    try:
        await change(name)
    except OSError as error:
        raise ApiError(
            500, "internal_server_error", f"The state of queue '{name}' cannot be stored: {error}"
        ) from error


@ROUTES.put("/api/queues/:vhost/:name/pause", statuses=(204,))
async def pause_queue(call: Call) -> Reply:
    """Deliver nothing from a queue until it is resumed."""
    queue = queue_of(call)
    check_not_locked(call, queue)
    await _with_disk(call.vhost.operators.pause, queue.name)
    await completed(call.vhost.recorded.when_synced)
    return NO_CONTENT


@ROUTES.put("/api/queues/:vhost/:name/resume", statuses=(204,))
async def resume_queue(call: Call) -> Reply:
    """Deliver again."""
    queue = queue_of(call)
    check_not_locked(call, queue)
    await _with_disk(call.vhost.operators.resume, queue.name)
    await completed(call.vhost.recorded.when_synced)
    return NO_CONTENT


@ROUTES.put("/api/queues/:vhost/:name/restart", statuses=(204,))
async def restart_queue(call: Call) -> Reply:
    """Read the files of a closed queue again."""
    queue = queue_of(call)
    check_not_locked(call, queue)
    if not queue.core.is_closed:
        raise bad_request("Queue was not restarted")
    await call.broker.stored_offsets.ended(queue)
    try:
        await call.vhost.operators.restart(queue.name)
    except (ValueError, OSError) as error:
        raise bad_request(f"Queue was not restarted: {error}") from error
    if queue.is_stream:
        await completed(call.vhost.recorded.when_synced)
    return NO_CONTENT
