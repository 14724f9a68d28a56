"""What a queue has delivered and nobody has settled, from the channels that hold it.

Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lavinmq.amqp.connection import amqp_connections
from lavinmq.http.api.queues import queue_of
from lavinmq.http.call import Call
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES
from lavinmq.process.portions import others_first

if TYPE_CHECKING:
    from lavinmq.vhost.queue import Queue

UNACKED_AT_ONCE: Final = 256
MAX_UNACKED: Final = 100_000
"""Rows of unacked messages that are gathered."""
BASIC_GET: Final = "Basic get"
OURS: Final = "HTTP API"

Unacked = tuple[int, str, int, str]
"""Delivery tag, consumer tag, seconds, name of the channel."""
Page = Callable[[int, int], list[tuple[int, bytes | None, int]]]


@ROUTES.list("/api/queues/:vhost/:name/unacked")
async def list_unacked(call: Call) -> Listing[Unacked]:
    """List messages of a queue that were delivered and are not settled."""
    queue = queue_of(call)
    rows: list[Unacked] = []
    if queue.core.unacked:
        async for name, page in _holders(call, queue):
            await _gather(rows, name, page)
    return Listing(rows, _unacked_row, lambda each: str(each[0]), exact=True)


async def _holders(call: Call, queue: Queue) -> AsyncIterator[tuple[str, Page]]:
    """The channels that may hold deliveries of a queue."""
    vhost = call.vhost
    async for connection in in_portions(amqp_connections(call.broker)):
        if connection.is_member and connection.vhost is vhost:
            peer = connection.name.partition(" -> ")[0]
            for id_ in list(connection.channels):
                yield f"{peer}[{id_}]", partial(connection.link.unacked_of, id_, queue.core)
    for local in call.broker.loop.local_channels():
        yield OURS, partial(local.unacked_of, queue.core)


async def _gather(rows: list[Unacked], name: str, page: Page) -> None:
    """Append what one channel holds, in portions."""
    after = 0
    with suppress(KeyError):  # it has been closed
        while len(rows) < MAX_UNACKED and (found := page(after, UNACKED_AT_ONCE)):
            for tag, consumer, age_s in found:
                shown = BASIC_GET if consumer is None else consumer.decode("utf-8", "replace")
                rows.append((tag, shown, age_s, name))
            if len(found) < UNACKED_AT_ONCE:
                return
            after = found[-1][0]
            await others_first()


def _unacked_row(each: Unacked) -> dict[str, Any]:
    tag, consumer, age_s, channel = each
    return {
        "delivery_tag": tag,
        "consumer_tag": consumer,
        "unacked_for_seconds": age_s,
        "channel_name": channel,
    }
