"""Channels: list, show, change the prefetch. Source: docs/http-api.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from lavinmq.http.api import connections, consumers
from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.encoding import Pieces, Rows, with_lists
from lavinmq.http.errors import bad_request, not_found
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES
from lavinmq.stats.totals import MESSAGES

if TYPE_CHECKING:
    from lavinmq.amqp.channel import Channel
    from lavinmq.http.clients import Client

MAX_PREFETCH: Final = 65535


def row(call: Call, channel: Channel, *, with_log: bool = False) -> dict[str, Any]:
    """What is shown of a channel."""
    connection = channel.connection
    prefetch = unacked = shared = 0
    if not channel.is_over:  # it may have closed since it was listed
        prefetch, shared = connection.link.prefetch(channel.id)
        unacked = connection.link.unacked(channel.id)
    return {
        "number": channel.id,
        "name": channel.name,
        "vhost": connection.vhost.name,
        "user": connection.user.name,
        "consumer_count": sum(not each.is_for_replies for each in channel.consumers.values()),
        "prefetch_count": prefetch,
        "global_prefetch_count": shared,
        "confirm": channel.mode == "confirm",
        "transactional": channel.mode == "tx",
        "messages_unacknowledged": unacked,
        "connection_details": connections.peer_of(connection) | {"name": connection.name},
        "state": state(channel),
        "message_stats": call.broker.sampler.stats(channel, MESSAGES, with_log=with_log),
    }


def state(channel: Channel) -> str:
    """`flow` while the client wants no deliveries."""
    if channel.is_over:
        return "closed"
    return "running" if channel.is_flowing else "flow"


def listed(call: Call, of: list[Client]) -> Listing[Channel]:
    """A list of the channels of connections."""
    return Listing(
        _of_connections(of), lambda channel: row(call, channel), lambda channel: channel.name
    )  # fmt: skip


def _of_connections(several: Iterable[Client]) -> Iterator[Channel]:
    """The channels of connections, while they may change: one may have very many."""
    for connection in several:
        for channel in list(connection.channels.values()):
            if not channel.is_over:
                yield channel


async def by_name(call: Call, name: str) -> Channel:
    """A channel that the caller may see. Raises: ApiError 404."""
    peer, _, number = name.removesuffix("]").rpartition("[")
    if peer and number.isdecimal() and len(number) <= 5 and name.endswith("]"):
        for connection in await connections.visible(call):
            if connection.name.startswith(f"{peer} -> "):
                channel = connection.channels.get(int(number))
                if channel is not None and not channel.is_over:
                    return channel
    raise not_found(f"Channel {name} does not exist")


@ROUTES.list("/api/channels")
async def list_channels(call: Call) -> Listing[Channel]:
    """List channels."""
    return listed(call, await connections.visible(call))


@ROUTES.list("/api/vhosts/:vhost/channels")
async def list_channels_of_vhost(call: Call) -> Listing[Channel]:
    """List channels of a virtual host."""
    return listed(call, await connections.visible(call, call.path["vhost"]))


@ROUTES.list("/api/connections/:name/channels")
async def list_channels_of_connection(call: Call) -> Listing[Channel]:
    """List channels of a connection."""
    return listed(call, [call.connection])


@ROUTES.get("/api/channels/:name")
async def show_channel(call: Call) -> Pieces:
    """Show a channel with its consumers."""
    channel = await by_name(call, call.path["name"])
    shown, details = row(call, channel, with_log=True), Rows()
    async for each in in_portions(consumers.of_channel(channel)):
        if channel.is_over:
            break
        details.add(consumers.row(each.queue, each))
    return with_lists(shown, {"consumer_details": details})


@ROUTES.put(
    "/api/channels/:name",
    {"prefetch": Field("integer", "Unacknowledged messages of each consumer, 0: any number")},
    statuses=(204,),
)  # fmt: skip
async def change_channel(call: Call) -> Reply:
    """Change the prefetch of a channel, of the consumers that it has as well."""
    channel, prefetch = call.channel, call.body["prefetch"]
    if prefetch is None:
        return NO_CONTENT
    if not 0 <= prefetch <= MAX_PREFETCH:
        raise bad_request(f"prefetch must be between 0 and {MAX_PREFETCH}")
    channel.set_prefetch(prefetch)
    return NO_CONTENT
