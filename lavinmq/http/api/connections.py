"""Connections: list, show, close. Source: docs/http-api.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lavinmq.errors import ReplyCode
from lavinmq.fieldtable import EMPTY, FieldTable, FieldTableError, from_content
from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.clients import clients
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES
from lavinmq.mqtt.connection import Connection as MqttConnection

if TYPE_CHECKING:
    from lavinmq.http.clients import Client

BYTES: Final = ("send_oct", "recv_oct")
REASON: Final = "Closed via management plugin"


def row(call: Call, connection: Client, *, with_log: bool = False) -> dict[str, Any]:
    """What is shown of a connection."""
    return {
        "name": connection.name,
        "pid": connection.name,
        "vhost": connection.vhost.name,
        "user": connection.user.name,
        "protocol": connection.protocol,
        "type": "network",
        "state": state(connection),
        "connected_at": connection.connected_at_ms,
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max,
        "timeout": connection.heartbeat_s,
        "auth_mechanism": connection.auth_mechanism,
        "client_properties": client_properties(connection),
        **_of_mqtt(connection),
        **ends(connection),
        **call.broker.sampler.stats(connection, BYTES, with_log=with_log),
    }


def _of_mqtt(connection: Client) -> dict[str, Any]:
    """What only clients of MQTT have."""
    if not isinstance(connection, MqttConnection):
        return {}
    return {"client_id": connection.client_id, "keepalive": connection.keep_alive_s}


def state(connection: Client) -> str:
    """`blocked` while a publish of its waits for the disk, `flow` while publishes would."""
    if not connection.is_member:
        return "closed"
    if connection.is_blocked:
        return "blocked"
    return "flow" if connection.broker.loop.is_held else "running"


def client_properties(connection: Client) -> FieldTable:
    """What the client says about itself."""
    try:
        return from_content(connection.client_properties)
    except FieldTableError:  # it has been read before
        return EMPTY


def ends(connection: Client) -> dict[str, Any]:
    """Both addresses of a connection, and what TLS there is between them."""
    between = connection.ends
    return {
        "host": between.host,
        "port": between.port,
        **peer_of(connection),
        "ssl": between.tls is not None,
        "tls_version": between.tls.version if between.tls else None,
        "cipher": between.tls.cipher if between.tls else None,
    }


def peer_of(connection: Client) -> dict[str, Any]:
    """The address of the client."""
    return {"peer_host": connection.ends.peer_host, "peer_port": connection.ends.peer_port}


async def visible(call: Call, vhost: str | None = None) -> list[Client]:
    """The open connections that the caller may see, in the order of their coming.

    Args: vhost: of this virtual host only; the route has checked the right to it.
    """
    names = {each.name for each in call.visible_vhosts()} if vhost is None else {vhost}
    # Found in portions, because there may be very many.
    return [
        connection
        async for connection in in_portions(clients(call.broker))
        if connection.is_member and connection.vhost.name in names
    ]


def listed(call: Call, connections: list[Client]) -> Listing[Client]:
    """A list of connections."""
    return Listing(connections, lambda connection: row(call, connection), _names)


def _names(connection: Client) -> tuple[str, ...]:
    if isinstance(connection, MqttConnection):
        return connection.name, connection.user.name, connection.client_id
    given = client_properties(connection).get("connection_name")
    return connection.name, connection.user.name, given if isinstance(given, str) else ""


@ROUTES.list("/api/connections")
async def list_connections(call: Call) -> Listing[Client]:
    """List connections."""
    return listed(call, await visible(call))


@ROUTES.list("/api/vhosts/:vhost/connections")
async def list_connections_of_vhost(call: Call) -> Listing[Client]:
    """List connections to a virtual host."""
    return listed(call, await visible(call, call.path["vhost"]))


@ROUTES.list("/api/connections/username/:username")
async def list_connections_of_user(call: Call) -> Listing[Client]:
    """List connections of a user."""
    return listed(call, await _of_user(call))


@ROUTES.get("/api/connections/:name")
def show_connection(call: Call) -> dict[str, Any]:
    """Show a connection."""
    shown = row(call, call.connection, with_log=True)
    return {name: value for name, value in shown.items() if value is not None}


@ROUTES.delete("/api/connections/:name")
def close_connection(call: Call) -> Reply:
    """Close a connection; the header X-Reason is what its client is told."""
    _close(call, call.connection)
    return NO_CONTENT


@ROUTES.delete("/api/connections/username/:username")
async def close_connections_of_user(call: Call) -> Reply:
    """Close all connections of a user, which is the caller unless that is an administrator."""
    name = call.path["username"]
    async for connection in in_portions(clients(call.broker)):
        if connection.is_member and connection.user.name == name:
            _close(call, connection)
    return NO_CONTENT


async def _of_user(call: Call) -> list[Client]:
    name = call.path["username"]
    return [each for each in await visible(call) if each.user.name == name]


def _close(call: Call, connection: Client) -> None:
    # Headers are read as Latin-1; who writes anything else means UTF-8.
    reason = call.headers.get("X-Reason", "").encode("latin-1", "replace").decode(errors="replace")
    if connection.is_member:  # else it has closed since it was found
        connection.close(ReplyCode.CONNECTION_FORCED, reason or REASON)
