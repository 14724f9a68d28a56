"""Exchanges: list, show, create, delete. The default exchange is `amq.default` here.

Publishing is in `messages.py`. Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from lavinmq.arguments.names import RESERVED
from lavinmq.files.definitions import ExchangeDef
from lavinmq.http.access.table import DEFAULT
from lavinmq.http.api.queues import check_name, check_prefix
from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, completed, found
from lavinmq.http.errors import access_refused, bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import DEFAULT_PAGE_SIZE, MAX_ROWS, Listing
from lavinmq.http.routes import ROUTES, Query
from lavinmq.http.tables import table
from lavinmq.vhost import rights
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.new_queue import declared

if TYPE_CHECKING:
    from lavinmq.vhost.vhost import VHost

INTERNAL: Final = "Not allowed to publish to internal exchange"
STATS: Final = ("publish_in", "publish_out", "unroutable", "dedup")

Place = tuple[str, Exchange]
"""An exchange with the name of its virtual host."""


# --- what is shown ----------------------------------------------------------------------------


def row(call: Call, vhost: str, exchange: Exchange, *, with_log: bool = False) -> dict[str, Any]:
    """What is shown of an exchange."""
    features = exchange.features
    return {
        "name": exchange.name or DEFAULT,
        "vhost": vhost,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
        "policy": features.policy,
        "operator_policy": features.operator_policy,
        "effective_policy_definition": dict(features.policy_definition),
        "effective_arguments": features.effective_arguments,
        "message_stats": call.broker.sampler.stats(exchange, STATS, with_log=with_log),
    }


def places(vhosts: list[VHost]) -> Iterator[Place]:
    """The exchanges of some virtual hosts."""
    for vhost in vhosts:
        for exchange in list(vhost.exchanges.values()):
            yield vhost.name, exchange


def listed(call: Call, vhosts: list[VHost]) -> Listing[Place]:
    """A list of the exchanges of some virtual hosts."""
    return Listing(
        places(vhosts), lambda place: row(call, *place), lambda place: place[1].name or DEFAULT
    )  # fmt: skip


def by_name(call: Call, name: str) -> Exchange:
    """The exchange that a path calls by that name. Raises: ApiError 404."""
    there = call.vhost.exchanges.get("" if name == DEFAULT else name)
    exchange: Exchange = found(there, "exchange", name, call.vhost.name)
    return exchange


@ROUTES.list("/api/exchanges")
def list_exchanges(call: Call) -> Listing[Place]:
    """List exchanges."""
    return listed(call, call.visible_vhosts())


@ROUTES.list("/api/exchanges/:vhost")
def list_exchanges_of_vhost(call: Call) -> Listing[Place]:
    """List exchanges of a virtual host."""
    return listed(call, [call.vhost])


@ROUTES.get("/api/exchanges/:vhost/:name")
def show_exchange(call: Call) -> dict[str, Any]:
    """Show an exchange with the history of its numbers."""
    shown = row(call, call.path["vhost"], by_name(call, call.path["name"]), with_log=True)
    return {name: value for name, value in shown.items() if value is not None}


@ROUTES.get(
    "/api/exchanges/:vhost/:name/delayed",
    query=(Query("count", "How many at most: 100 unless told, at most 10000", "integer"),),
)
def list_delayed(call: Call) -> list[dict[str, Any]]:
    """List the messages that wait in a delayed exchange, the next one first."""
    exchange = by_name(call, call.path["name"])
    count = call.number("count")
    if count is not None and not 0 < count <= MAX_ROWS:
        raise bad_request(f"Parameter 'count' must be between 1 and {MAX_ROWS}")
    if exchange.waiting is None:
        return []
    return [
        {"due_at": due_ms, "routing_key": key.decode("utf-8", "surrogateescape"), "bytes": size}
        for due_ms, key, size in exchange.waiting.core.pending(count or DEFAULT_PAGE_SIZE)
    ]


# --- create and delete ------------------------------------------------------------------------


@ROUTES.put(
    "/api/exchanges/:vhost/:name",
    {
        "type": Field("string", "Such as direct, fanout, topic, headers", required=True),
        "durable": Field("boolean", "It outlives the broker", default=False),
        "auto_delete": Field("boolean", "It goes with its last binding", default=False),
        "internal": Field("boolean", "Only other exchanges publish to it", default=False),
        "delayed": Field("boolean", "Messages with the header x-delay wait in it", default=False),
        "arguments": Field("object", "As of exchange.declare"),
    },
)
async def put_exchange(call: Call) -> Reply:
    """Create an exchange, or find out that there is the same."""
    vhost, name, body = call.vhost, call.path["name"], call.body
    given = body["arguments"] or {}
    if body["delayed"]:
        given = given | {"x-delayed-exchange": True}
    check_name("Exchange", name)
    arguments = table(given, "Field 'arguments'", call.table_bounds)
    existing = vhost.exchanges.get(name)
    flags = body["durable"], body["auto_delete"], body["internal"]
    wanted = ExchangeDef(name, body["type"], *flags, arguments).resolved()
    if existing is not None and existing.is_same(wanted):
        if existing.internal:
            raise bad_request(INTERNAL)
        if existing.durable and vhost.recorded.is_syncing:
            await completed(vhost.recorded.when_synced)
        return NO_CONTENT
    if existing is None:
        check_prefix(name)
    if not rights.may_declare_exchange(call.user, vhost.name, name, arguments):
        raise access_refused(f"User doesn't have permissions to declare exchange '{name}'")
    if existing is not None:
        raise bad_request(
            "Existing exchange declared with other arguments arg: "
            + existing.difference(wanted, vhost.name)
        )
    outcome = vhost.declare_exchange(call.actor, name, body["type"], False, *flags, arguments)
    if await declared(outcome):
        await completed(vhost.recorded.when_synced)
    return CREATED


@ROUTES.delete(
    "/api/exchanges/:vhost/:name",
    query=(Query("if-unused", "Not if it is the source or destination of bindings", "boolean"),),
)
async def delete_exchange(call: Call) -> Reply:
    """Delete an exchange with its bindings."""
    vhost, name = call.vhost, call.path["name"]
    exchange = by_name(call, name)
    if not exchange.name:
        return NO_CONTENT  # it goes nowhere, and nobody is told, as in LavinMQ
    if name.startswith(RESERVED):
        raise access_refused('Can not delete exchange with prefix ["mqtt.", "amq."]')
    if call.flag("if-unused") and exchange.is_used:
        raise bad_request(f"Exchange {name} in vhost {vhost.name} in use")
    if vhost.delete_exchange(call.actor, name, False):
        await completed(vhost.recorded.when_synced)
    return NO_CONTENT
