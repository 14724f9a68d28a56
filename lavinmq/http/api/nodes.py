"""The node: its numbers, and those of its memory. Source: docs/http-api.md."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from lavinmq import __version__
from lavinmq.http.access.table import Role
from lavinmq.http.api import overview
from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.errors import ApiError
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES, Query
from lavinmq.stats import system

VHOST: Final = Query("vhost", "Count messages and churn of this virtual host only; may be repeated")
GC_STATS: Final = (
    "gc_no", "heap_size", "free_bytes", "unmapped_bytes", "bytes_since_gc", "bytes_before_gc",
    "non_gc_bytes", "markers_m1", "bytes_reclaimed_since_gc", "reclaimed_bytes_before_gc",
    "expl_freed_bytes_since_gc", "obtained_from_os_bytes",
)  # fmt: skip


async def row(call: Call) -> dict[str, Any]:
    """What is shown of the node; what it uses of the machine only to those who watch it."""
    broker, vhosts = call.broker, call.visible_vhosts()
    wanted = call.query.get("vhost")
    if wanted:
        vhosts = [vhost for vhost in vhosts if vhost.name in wanted]
    counts = await overview.queue_counts(vhosts)
    shown = {
        "uptime": int((time.monotonic() - broker.started_at) * 1000),
        "running": True,
        "name": broker.node_name,
        "applications": [{"name": "lavinmq", "description": "LavinMQ", "version": __version__}],
        "messages_unacknowledged": counts["unacked"],
        "messages_ready": counts["ready"],
        **await overview.churn(
            call, vhosts, is_all=overview.sees_all(call) and not wanted, with_log=True
        ),
    }
    if call.has_role(Role.MONITORING):
        shown |= await broker.system.stats(broker.sampler.samples)
        shown |= {
            "latency": broker.latency.stats(broker.sampler.samples),
            "db_dir": broker.config.data_dir,
            "partitions": [],
            "proc_used": len(asyncio.all_tasks()),
            "run_queue": 0,
            "sockets_used": len(broker.connections)
            + sum(service.n_open for service in broker.services),
            "followers": [] if broker.cluster is None else broker.cluster.followers(),
            "disk_free_alarm": broker.loop.is_held,
            "mem_alarm": False,
        }
    return shown


def _check_name(call: Call) -> None:
    if call.path["name"] != call.broker.node_name:
        raise ApiError(404)


@ROUTES.list("/api/nodes", query=(VHOST,))
async def list_nodes(call: Call) -> Listing[dict[str, Any]]:
    """List the nodes: this one."""
    return Listing([await row(call)], lambda node: node, lambda node: str(node["name"]))


@ROUTES.get("/api/nodes/:name", query=(VHOST,), silent=(404,))
async def show_node(call: Call) -> dict[str, Any]:
    """Show a node."""
    _check_name(call)
    return await row(call)


@ROUTES.get("/api/nodes/gc_stats")
def gc_stats(_call: Call) -> dict[str, int]:
    """Show what is known of the garbage collector; zero is what this runtime does not know."""
    return dict.fromkeys(GC_STATS, 0) | system.heap()


@ROUTES.add("POST", "/api/nodes/gc_collect", statuses=(204,))
async def collect_garbage(_call: Call) -> Reply:
    """Collect garbage and give free memory back to the system."""
    await system.collect()
    return NO_CONTENT


@ROUTES.add("POST", "/api/nodes/:name/gc_collect", statuses=(204,), silent=(404,))
async def collect_garbage_of_node(call: Call) -> Reply:
    """Collect garbage of a node and give free memory back to the system."""
    _check_name(call)
    await system.collect()
    return NO_CONTENT
