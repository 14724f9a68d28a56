"""Bindings: list, create, delete, in all the ways that paths address them.

The bindings of every queue to the default exchange are shown where a queue, or that exchange, is
asked about; lists over a virtual host leave them out. Source: docs/http-api.md.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

from lavinmq.fieldtable import EMPTY, FieldTable, Timestamp
from lavinmq.http.api.exchanges import by_name
from lavinmq.http.api.queues import queue_of
from lavinmq.http.call import NO_CONTENT, Call, Reply, completed, found
from lavinmq.http.encoding import rfc3339
from lavinmq.http.errors import ApiError, access_refused, bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES
from lavinmq.http.tables import table
from lavinmq.vhost.destination import Destination
from lavinmq.vhost.exchange import Exchange, live_incoming
from lavinmq.vhost.queue import Queue

if TYPE_CHECKING:
    from lavinmq.vhost.vhost import VHost

NOT_DEFAULT: Final = "Not allowed to bind to the default exchange"
TO_QUEUE: Final = "/api/bindings/:vhost/e/:source/q/:queue"
TO_EXCHANGE: Final = "/api/bindings/:vhost/e/:source/e/:destination"


class Binding(NamedTuple):
    """A binding; that of a queue to the default exchange has no arguments."""

    vhost: str
    source: str
    to: Destination
    key: str
    arguments: FieldTable | None

    @property
    def properties_key(self) -> str:
        """What identifies it among those between the same two."""
        return properties_key(self.key, self.arguments)


# --- the key of a binding ---------------------------------------------------------------------


def properties_key(routing_key: str, arguments: FieldTable | None) -> str:
    """The routing key, and the arguments, if there are any, as sorted text in base64."""
    if not arguments:
        return routing_key or "~"
    pairs = ",".join(f"{name}:{_shown(arguments[name])}" for name in sorted(arguments))
    raw = pairs.encode("utf-8", "surrogateescape")
    return f"{routing_key}~{base64.urlsafe_b64encode(raw).decode()}"


def _shown(value: Any) -> str:
    """An argument as text, in the words of LavinMQ's language."""
    if value is None:
        return ""
    return value if isinstance(value, str) else _inspected(value)


def _inspected(value: Any) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case Timestamp():
            return str(rfc3339(value))
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case bytes():
            return f"Bytes[{', '.join(map(str, value))}]"
        case Mapping():
            inner = ", ".join(f"{_inspected(k)} => {_inspected(v)}" for k, v in value.items())
            return "{" + inner + "}"
        case list() | tuple():
            return f"[{', '.join(map(_inspected, value))}]"
    return str(value)


# --- what is shown ----------------------------------------------------------------------------


def row(binding: Binding) -> dict[str, Any]:
    """What is shown of a binding."""
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.to.name,
        "destination_type": binding.to.kind,
        "routing_key": binding.key,
        "arguments": binding.arguments,
        "properties_key": binding.properties_key,
    }


def listed(bindings: Iterable[Binding]) -> Listing[Binding]:
    """A list of bindings."""
    return Listing(bindings, row, lambda binding: (binding.to.name, binding.key))


def implicit(vhost: str, queue: Queue) -> Iterator[Binding]:
    """The binding of a queue to the default exchange, which sessions of MQTT do not have."""
    if not queue.is_session:
        yield Binding(vhost, "", queue, queue.name, None)


def from_exchange(vhost: VHost, exchange: Exchange) -> Iterator[Binding]:
    """The bindings of which an exchange is the source."""
    if not exchange.name:
        for queue in list(vhost.queues.values()):
            yield from implicit(vhost.name, queue)
    for to, key, arguments in exchange.live_bindings():
        yield Binding(vhost.name, exchange.name, to, key, arguments)


def to_destination(vhost: VHost, to: Destination) -> Iterator[Binding]:
    """The bindings of which a queue or exchange is the destination."""
    if isinstance(to, Queue):
        yield from implicit(vhost.name, to)
    for source, key, arguments in live_incoming(to):
        yield Binding(vhost.name, source.name, to, key, arguments)


def between(vhost: VHost, source: Exchange, to: Destination) -> Iterator[Binding]:
    """The bindings between two."""
    return (each for each in to_destination(vhost, to) if each.source == source.name)


def of_vhosts(vhosts: list[VHost]) -> Iterator[Binding]:
    """All bindings that somebody has made."""
    for vhost in vhosts:
        for exchange in list(vhost.exchanges.values()):
            if exchange.name:
                yield from from_exchange(vhost, exchange)


@ROUTES.list("/api/bindings")
def list_bindings(call: Call) -> Listing[Binding]:
    """List bindings."""
    return listed(of_vhosts(call.visible_vhosts()))


@ROUTES.list("/api/bindings/:vhost")
def list_bindings_of_vhost(call: Call) -> Listing[Binding]:
    """List bindings of a virtual host."""
    return listed(of_vhosts([call.vhost]))


@ROUTES.list("/api/queues/:vhost/:name/bindings")
def list_bindings_of_queue(call: Call) -> Listing[Binding]:
    """List bindings of a queue."""
    return listed(to_destination(call.vhost, queue_of(call)))


@ROUTES.list("/api/exchanges/:vhost/:name/bindings/source")
def list_bindings_from_exchange(call: Call) -> Listing[Binding]:
    """List bindings whose source is an exchange."""
    return listed(from_exchange(call.vhost, by_name(call, call.path["name"])))


@ROUTES.list("/api/exchanges/:vhost/:name/bindings/destination")
def list_bindings_to_exchange(call: Call) -> Listing[Binding]:
    """List bindings whose destination is an exchange."""
    return listed(to_destination(call.vhost, by_name(call, call.path["name"])))


# --- between two ------------------------------------------------------------------------------


def _ends(call: Call) -> tuple[Exchange, Queue | Exchange]:
    """Source and destination of the path. Raises: ApiError 404."""
    source = by_name(call, call.path["source"])
    if "queue" in call.path:
        vhost, name = call.vhost, call.path["queue"]
        queue: Queue = found(vhost.queues.get(name), "queue", name, vhost.name)
        return source, queue
    return source, by_name(call, call.path["destination"])


async def _find(call: Call, source: Exchange, to: Destination) -> Binding | None:
    """The binding of the path; its key may be percent-encoded once more, as RabbitMQ shows it."""
    given = call.path["props"]
    wanted = [given, unquote(given, errors="surrogateescape")]
    for key in ["", *wanted] if "~" in wanted else wanted:
        if (source, key, EMPTY) in to.incoming:
            return Binding(call.path["vhost"], source.name, to, key, EMPTY)
    async for each in in_portions(between(call.vhost, source, to)):
        if each.properties_key in wanted:
            return each
    return None


def _check_not_default(source: Exchange, to: Destination) -> None:
    """Raises: ApiError 403."""
    if not source.name or not to.name:
        raise access_refused(NOT_DEFAULT)


@ROUTES.list(TO_QUEUE)
@ROUTES.list(TO_EXCHANGE)
def list_bindings_between(call: Call) -> Listing[Binding]:
    """List bindings between an exchange and a queue or another exchange."""
    return listed(between(call.vhost, *_ends(call)))


@ROUTES.get(f"{TO_QUEUE}/*props")
@ROUTES.get(f"{TO_EXCHANGE}/*props")
async def show_binding(call: Call) -> dict[str, Any]:
    """Show a binding."""
    there = await _find(call, *_ends(call))
    return row(found(there, "binding", call.path["props"], call.vhost.name))


FIELDS: Final = {
    "routing_key": Field("any", "Text; also spelt routingKey"),
    "routingKey": Field("any", "Text"),
    "arguments": Field("object", "As of queue.bind"),
}


@ROUTES.post(TO_QUEUE, FIELDS, statuses=(201,))
@ROUTES.post(TO_EXCHANGE, FIELDS, statuses=(201,))
async def post_binding(call: Call) -> Reply:
    """Bind; what is bound already stays so."""
    vhost, body = call.vhost, call.body
    source, to = _ends(call)
    _check_not_default(source, to)
    key = body["routingKey"] if body["routing_key"] is None else body["routing_key"]
    if not isinstance(key, str):
        raise bad_request("Field 'routing_key' is required")
    if len(key.encode()) > 255:
        raise bad_request("Field 'routing_key' is longer than 255 bytes")
    arguments = table(body["arguments"] or {}, "Field 'arguments'", call.table_bounds)
    if isinstance(to, Queue):
        recorded = vhost.bindings.bind_queue(call.actor, to.name, source.name, key, arguments)
        place = quote(to.name, safe="")
    elif to.internal:
        raise bad_request("Not allowed to bind to an internal exchange")
    else:
        recorded = vhost.bindings.bind_exchange(call.actor, to.name, source.name, key, arguments)
        place = call.handler.request.path.rstrip("/")
    await completed(partial(vhost.bindings.when_in_force, recorded))
    made = quote(properties_key(key, arguments), safe="~=", errors="surrogateescape")
    return Reply(201, headers={"Location": f"{place}/{made}"})


@ROUTES.delete(f"{TO_QUEUE}/*props", silent=(404,))
@ROUTES.delete(f"{TO_EXCHANGE}/*props", silent=(404,))
async def delete_binding(call: Call) -> Reply:
    """Unbind."""
    vhost = call.vhost
    source, to = _ends(call)
    _check_not_default(source, to)
    binding = await _find(call, source, to)
    if binding is None or binding.arguments is None:
        raise ApiError(404)
    names = call.actor, to.name, source.name, binding.key, binding.arguments
    unbind = (
        vhost.bindings.unbind_queue if isinstance(to, Queue) else vhost.bindings.unbind_exchange
    )
    if unbind(*names):
        await completed(vhost.recorded.when_synced)
    return NO_CONTENT
