"""Advice in words, as far as the caller may see what it is about. Source: docs/pages.md."""

from __future__ import annotations

from typing import Any

from lavinmq.http import advice
from lavinmq.http.access.table import Role
from lavinmq.http.api import connections
from lavinmq.http.call import Call
from lavinmq.http.listing import in_portions
from lavinmq.http.routes import ROUTES


@ROUTES.get("/api/advice")
async def show_advice(call: Call) -> dict[str, Any]:
    """Say what seems wrong, and on which page it can be mended."""
    broker, vhosts, found = call.broker, call.visible_vhosts(), advice.Found()
    found.add(advice.of_publishers(broker, await connections.visible(call)))
    if call.has_role(Role.MONITORING):
        found.add(advice.of_machine(broker))
        await advice.of_certificates(broker, found)
        async for vhost in in_portions(vhosts):
            found.add(advice.of_definitions(vhost))
    await advice.of_queues(broker, vhosts, found)
    if call.has_role(Role.POLICY):
        await advice.of_policies(vhosts, found)
    return found.to_json()
