"""The broker at a glance: how much of everything there is, and how fast it goes.

Source: docs/http-api.md.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from lavinmq import __version__
from lavinmq.arguments.exchange_types import EXCHANGE_TYPES, FEDERATION
from lavinmq.http.access.table import Role
from lavinmq.http.api import connections, listeners
from lavinmq.http.call import Call
from lavinmq.http.listing import in_portions
from lavinmq.http.routes import ROUTES, Query
from lavinmq.stats.sampler import Sum, summed
from lavinmq.stats.totals import unacknowledged

if TYPE_CHECKING:
    from lavinmq.vhost.vhost import VHost

MESSAGES: Final = (
    "ack", "deliver", "get", "deliver_get", "publish", "confirm", "redeliver", "reject",
)  # fmt: skip
CHURN: Final = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_deleted",
)  # fmt: skip
RABBITMQ_VERSION: Final = "3.13.7"
"""The release of RabbitMQ whose management interface tools should expect here."""


async def queue_counts(vhosts: list[VHost]) -> dict[str, int]:
    """Queues, their messages and their consumers."""
    queues = ready = unacked = consumers = 0
    for vhost in vhosts:
        queues += len(vhost.queues)
        async for queue in in_portions(list(vhost.queues.values())):
            ready += queue.core.ready
            unacked += unacknowledged(queue)
            consumers += len(queue.consumers)
    return {"queues": queues, "ready": ready, "unacked": unacked, "consumers": consumers}


async def _exchange_counts(vhosts: list[VHost]) -> dict[str, int]:
    """Exchanges, and bindings but those to the default exchange."""
    exchanges = bindings = 0
    for vhost in vhosts:
        exchanges += len(vhost.exchanges)
        async for exchange in in_portions(list(vhost.exchanges.values())):
            bindings += len(exchange.bindings)
    return {"exchanges": exchanges, "bindings": bindings}


async def churn(call: Call, vhosts: list[VHost], *, is_all: bool, with_log: bool) -> dict[str, Any]:
    """What has come and gone. Args: is_all: deleted virtual hosts count as well."""
    broker = call.broker
    total = Sum(CHURN, broker.sampler.samples)
    counted = [broker.churn] if is_all else [vhost.totals.churn for vhost in vhosts]
    async for each in in_portions(counted):
        total.add(each)
    return total.stats(with_log=with_log)


def sees_all(call: Call) -> bool:
    """Whether the caller sees the whole broker, and asks for it."""
    return call.has_role(Role.MONITORING)


def _named(call: Call) -> str:
    """The virtual host to which the totals are limited; empty for none."""
    if "vhost" in call.query:
        return call.query["vhost"][-1]
    given = call.headers.get("x-vhost", "")
    return given.encode("latin-1", "replace").decode(errors="surrogateescape")


@ROUTES.get(
    "/api/overview",
    query=(Query("vhost", "Of this virtual host only, as the header x-vhost says"),),
)
async def overview(call: Call) -> dict[str, Any]:
    """Show totals of everything that the caller may see."""
    broker, vhosts = call.broker, call.visible_vhosts()
    only = _named(call)
    if only:
        vhosts = [vhost for vhost in vhosts if vhost.name in (only, unquote(only))]
    open_ = await connections.visible(call)
    if only:
        open_ = [each for each in open_ if each.vhost in vhosts]
    channels = 0
    async for each in in_portions(open_):
        channels += len(each.channels)
    counts = await queue_counts(vhosts)
    return {
        "lavinmq_version": __version__,
        "product_name": "LavinMQ",
        "product_version": __version__,
        "management_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "erlang_version": "",
        "cluster_name": call.broker.cluster_name,
        "rates_mode": "basic",
        "statistics_db_event_queue": 0,
        "node": broker.node_name,
        "uptime": int(time.monotonic() - broker.started_at),
        "object_totals": {
            "channels": channels,
            "connections": len(open_),
            "consumers": counts["consumers"],
            "queues": counts["queues"],
            **await _exchange_counts(vhosts),
        },
        "queue_totals": await _queue_totals(call, vhosts, counts),
        **await _traffic(call, vhosts),
        "message_stats": await _messages(call, vhosts),
        "churn_rates": await churn(
            call, vhosts, is_all=sees_all(call) and not only, with_log=False
        ),
        "listeners": listeners.shown(broker),
        "exchange_types": [
            {"name": name, "human": each.title} for name, each in EXCHANGE_TYPES.items()
            if name != FEDERATION
        ],
    }  # fmt: skip


async def _queue_totals(
    call: Call, vhosts: list[VHost], counts: dict[str, int]
) -> dict[str, Any]:  # fmt: skip
    samples = call.broker.sampler.samples
    ready, unacked = [0.0] * samples, [0.0] * samples
    async for vhost in in_portions(vhosts):
        totals = vhost.totals
        if not totals.ready.is_zero:
            ready = summed((ready, totals.ready.log(samples)))
        if not totals.unacked.is_zero:
            unacked = summed((unacked, totals.unacked.log(samples)))
    return {
        "messages": counts["ready"] + counts["unacked"],
        "messages_ready": counts["ready"],
        "messages_unacknowledged": counts["unacked"],
        "messages_log": summed((ready, unacked)),
        "messages_ready_log": ready,
        "messages_unacknowledged_log": unacked,
    }


async def _traffic(call: Call, vhosts: list[VHost]) -> dict[str, Any]:
    total = Sum(("recv_oct", "send_oct"), call.broker.sampler.samples)
    async for vhost in in_portions(vhosts):
        total.add(vhost.totals.traffic)
    stats = total.stats(with_log=True)
    return {name: stats[name] for name in ("recv_oct_details", "send_oct_details")}


async def _messages(call: Call, vhosts: list[VHost]) -> dict[str, Any]:
    total = Sum(MESSAGES, call.broker.sampler.samples)
    async for vhost in in_portions(vhosts):
        total.add(vhost.totals.messages)
    return total.stats(with_log=True)
