"""The commands of lavinmqctl about connections, channels and consumers."""

from __future__ import annotations

from lavinmq.cli.ctl.errors import ApiError
from lavinmq.cli.ctl.session import Session

REASON = "Closed via lavinmqctl"
NOT_FOUND = 404
MQTT_COLUMNS = "client_id conn_name"
SESSION_COLUMNS = "client_id connected subscriptions messages"
CONSUMER_COLUMNS = "queue.name channel_details.name consumer_tag ack_required prefetch_count"


def list_connections(session: Session) -> None:
    """List connections, of one virtual host if one was named."""
    _list(session, "connections", "user peer_host peer_port state")


def list_channels(session: Session) -> None:
    """List channels, of one virtual host if one was named."""
    _list(session, "channels", "name user consumer_count messages_unacknowledged")


def list_consumers(session: Session) -> None:
    """List consumers, of one virtual host if one was named."""
    columns = session.columns(CONSUMER_COLUMNS)
    where = (session.vhost,) if session.has_vhost else ()
    rows = session.api.rows("consumers", *where)
    session.output.table("consumers", columns, rows, session.arguments)


def list_mqtt_connections(session: Session) -> None:
    """List clients of MQTT, of one virtual host if one was named."""
    columns = session.columns(MQTT_COLUMNS)
    where = ("vhosts", session.vhost) if session.has_vhost else ()
    rows = session.api.rows(*where, "connections")
    clients = ({**row, "conn_name": row.get("name")} for row in rows if row.get("client_id"))
    session.output.table("MQTT connections", columns, clients, session.arguments)


def list_mqtt_sessions(session: Session) -> None:
    """List sessions of MQTT clients, of one virtual host if one was named."""
    columns = session.columns(SESSION_COLUMNS)
    where = (session.vhost,) if session.has_vhost else ()
    rows = session.api.rows("mqtt", "sessions", *where)
    session.output.table("MQTT sessions", columns, rows, session.arguments)


def close_connection(session: Session) -> None:
    """Close one connection."""
    name, reason = [*session.arguments, REASON][:2]
    session.output.note(f"Closing connection {name} ...")
    session.api.delete("connections", name, headers=_headers(reason))


def close_all_connections(session: Session) -> None:
    """Close all connections, of one virtual host if one was named."""
    reason = session.arguments[0] if session.arguments else REASON
    where = ("vhosts", session.vhost) if session.has_vhost else ()
    rows = session.api.rows(*where, "connections", columns="name")
    names = [str(row.get("name")) for row in rows]
    closed = []
    for name in names:
        try:
            session.api.delete("connections", name, headers=_headers(reason))
        except ApiError as error:
            if error.code != NOT_FOUND:  # it went by itself
                raise
        else:
            closed.append(name)
    if session.output.is_json:
        session.output.json({"closed_connections": closed})
    else:
        listed = ({"closed_connections": name} for name in closed)
        session.output.table("closed connections", ("closed_connections",), listed)


def _list(session: Session, resource: str, default: str) -> None:
    columns = session.columns(default)
    where = ("vhosts", session.vhost) if session.has_vhost else ()
    rows = session.api.rows(*where, resource)
    session.output.table(resource, columns, rows, session.arguments)


def _headers(reason: str) -> dict[str, str]:
    # A header is one line of printable Latin-1.
    text = "".join(c if c.isprintable() and ord(c) < 256 else "?" for c in reason)
    return {"X-Reason": text}
