"""MQTT: sessions with their subscriptions, shared subscriptions, what virtual hosts keep of it.

A session is a queue, so whatever is done to one is done to its queue. Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from lavinmq.http.call import Call, found
from lavinmq.http.clients import client_of, is_shared, sessions_in, sessions_of, shared_in
from lavinmq.http.listing import Listing, in_portions
from lavinmq.http.routes import ROUTES
from lavinmq.vhost.exchange import live_incoming
from lavinmq.vhost.subscribing import PREFIX, SHARE, options_of, parts_of

if TYPE_CHECKING:
    from lavinmq.fieldtable import FieldTable
    from lavinmq.http.api.queues import Place
    from lavinmq.mqtt.connection import Connection as MqttConnection
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

_EXPIRES: Final = "x-expires"
_NOBODY: Final = {
    "connected": False, "connection": None, "user": None, "protocol": None, "keepalive": None,
    "connected_at": None, "receive_maximum": None, "has_will": None, "in_flight": None,
    "received": None, "publish": None, "denied": None, "dropped": None,
}  # fmt: skip
"""What a session does not have while its client is away."""


# --- what is shown ----------------------------------------------------------------------------


def row(vhost: VHost, queue: Queue) -> dict[str, Any]:
    """What is shown of a session."""
    core, client = queue.core, client_of(queue)
    return {
        "client_id": queue.name.removeprefix(PREFIX),
        "vhost": vhost.name,
        "queue": queue.name,
        "durable": queue.durable,
        "expiry": _expiry_s(queue),
        "subscriptions": len(queue.incoming),
        "messages": core.ready + core.unacked,
        "messages_ready": core.ready,
        "messages_unacknowledged": core.unacked,
        "message_bytes": core.ready_bytes + core.unacked_bytes,
        **(_NOBODY if client is None else _of_client(client)),
    }


def _expiry_s(queue: Queue) -> int | None:
    """Seconds that a session is kept without its client; None: for ever."""
    if not queue.durable:
        return 0
    expires_ms = queue.arguments.get(_EXPIRES)
    return expires_ms // 1000 if isinstance(expires_ms, int) else None


def _of_client(client: MqttConnection) -> dict[str, Any]:
    counters = client.link.mqtt_counters()
    return {
        "connected": True,
        "connection": client.name,
        "user": client.user.name,
        "protocol": client.protocol,
        "keepalive": client.keep_alive_s,
        "connected_at": client.connected_at_ms,
        "receive_maximum": client.receive_maximum,
        "has_will": client.has_will,
        "in_flight": counters.get("in_flight", 0),
        "received": counters.get("received", 0),
        "publish": counters.get("publish", 0),
        "denied": counters.get("denied", 0),
        "dropped": counters.get("dropped", 0),
    }


def subscription_row(key: str, arguments: FieldTable) -> dict[str, Any]:
    """What is shown of a subscription; `group`: it is shared by that one."""
    options, parts = options_of(arguments), parts_of(key)
    group, text = (None, key) if parts is None else parts
    return {
        "filter": text, "group": group, "qos": options.qos, "no_local": options.no_local,
        "retain_as_published": options.retain_as_published,
        "retain_handling": options.retain_handling, "subscription_id": options.subscription_id,
    }  # fmt: skip


def shared_row(vhost: VHost, queue: Queue) -> dict[str, Any]:
    """What is shown of a shared subscription. Its queue is bound with its filter alone."""
    core = queue.core
    group = queue.name.removeprefix(PREFIX + SHARE).partition("/")[0]
    return {
        "group": group,
        "filter": next((key for _, key, _ in queue.incoming), ""),
        "vhost": vhost.name,
        "queue": queue.name,
        "members": len(queue.consumers),
        "messages": core.ready + core.unacked,
        "messages_ready": core.ready,
        "messages_unacknowledged": core.unacked,
        "message_bytes": core.ready_bytes + core.unacked_bytes,
    }


async def vhost_row(call: Call, vhost: VHost) -> dict[str, Any]:
    """What a virtual host has of MQTT. Bytes of retained messages are those of their files."""
    n_sessions = n_shared = n_clients = messages = 0
    async for queue in in_portions(list(vhost.queues.values())):
        if not queue.is_session:
            continue
        messages += queue.core.ready + queue.core.unacked
        if is_shared(queue):
            n_shared += 1
            continue
        n_sessions += 1
        n_clients += client_of(queue) is not None
    known = sessions_of(call.broker, vhost)
    retained = None if known is None else known.stores.retained
    log = None if known is None else known.stores.log
    return {
        "vhost": vhost.name,
        "clients": n_clients,
        "sessions": n_sessions,
        "shared_subscriptions": n_shared,
        "subscriptions": 0 if known is None else len(known.exchange.bindings) - n_shared,
        "messages": messages,
        "retained_messages": 0 if retained is None else len(retained),
        "retained_bytes": 0 if retained is None else retained.file_bytes,
        "retained_memory": 0 if retained is None else retained.memory,
        "session_bytes": 0 if log is None else log.file_bytes,
        "session_memory": 0 if log is None else log.memory,
        "wills_waiting": 0 if known is None else len(known.wills),
        "is_well": known is None or known.stores.are_well,
    }


# --- endpoints --------------------------------------------------------------------------------


@ROUTES.list("/api/mqtt")
async def list_vhosts(call: Call) -> Listing[dict[str, Any]]:
    """List what virtual hosts have of MQTT: clients, sessions, subscriptions, retained messages."""
    rows = [await vhost_row(call, vhost) for vhost in call.visible_vhosts()]
    return Listing(rows, lambda each: each, lambda each: str(each["vhost"]))


@ROUTES.list("/api/mqtt/sessions")
def list_sessions(call: Call) -> Listing[Place]:
    """List sessions of MQTT clients."""
    return _listed(call, call.visible_vhosts())


@ROUTES.list("/api/mqtt/sessions/:vhost")
def list_sessions_of_vhost(call: Call) -> Listing[Place]:
    """List sessions of MQTT clients of a virtual host."""
    return _listed(call, [call.vhost])


def _listed(call: Call, vhosts: list[VHost]) -> Listing[Place]:
    by_name = {vhost.name: vhost for vhost in vhosts}
    return Listing(
        _places(vhosts, is_of_shared=False), lambda place: row(by_name[place[0]], place[1]), _names,
        keys={
            "client_id": lambda place: place[1].name,
            "vhost": lambda place: place[0],
            "messages": lambda place: place[1].core.ready + place[1].core.unacked,
            "subscriptions": lambda place: len(place[1].incoming),
        },
    )  # fmt: skip


def _names(place: Place) -> tuple[str, ...]:
    client = client_of(place[1])
    client_id = place[1].name.removeprefix(PREFIX)
    return (client_id,) if client is None else (client_id, client.user.name, client.name)


def _places(vhosts: list[VHost], *, is_of_shared: bool) -> Iterator[Place]:
    for vhost in vhosts:
        for queue in shared_in(vhost) if is_of_shared else sessions_in(vhost):
            yield vhost.name, queue


@ROUTES.list("/api/mqtt/shared-subscriptions")
def list_shared(call: Call) -> Listing[Place]:
    """List shared subscriptions of MQTT clients."""
    vhosts = call.visible_vhosts()
    by_name = {vhost.name: vhost for vhost in vhosts}
    return Listing(
        _places(vhosts, is_of_shared=True), lambda place: shared_row(by_name[place[0]], place[1]),
        lambda place: place[1].name.removeprefix(PREFIX + SHARE),
    )  # fmt: skip


def _session(call: Call) -> Queue:
    """The session of the path. Raises: ApiError 404."""
    vhost, client_id = call.vhost, call.path["client_id"]
    queue = vhost.queues.get(PREFIX + client_id)
    if queue is not None and (not queue.is_session or is_shared(queue)):
        queue = None
    session: Queue = found(queue, "session", client_id, vhost.name)
    return session


@ROUTES.get("/api/mqtt/sessions/:vhost/:client_id")
def show_session(call: Call) -> dict[str, Any]:
    """Show the session of an MQTT client."""
    shown = row(call.vhost, _session(call))
    return {name: value for name, value in shown.items() if value is not None}


@ROUTES.list("/api/mqtt/sessions/:vhost/:client_id/subscriptions")
def list_subscriptions(call: Call) -> Listing[tuple[str, FieldTable]]:
    """List the subscriptions of an MQTT client."""
    several = ((key, arguments) for _, key, arguments in live_incoming(_session(call)))
    return Listing(several, lambda each: subscription_row(*each), lambda each: each[0])
