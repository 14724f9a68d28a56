"""The commands of lavinmqctl about queues, exchanges and bindings."""

from __future__ import annotations

from typing import Any

from lavinmq.cli.ctl.session import Session

INTEGERS = ("--expires", "--max-length", "--message-ttl", "--delivery-limit")
TEXTS = ("--dead-letter-exchange", "--dead-letter-routing-key")
BINDING_COLUMNS = "source destination destination_type routing_key arguments"


def list_queues(session: Session) -> None:
    """List the queues of a virtual host."""
    _list(session, "queues", "name messages")


def list_exchanges(session: Session) -> None:
    """List the exchanges of a virtual host."""
    _list(session, "exchanges", "name type")


def list_bindings(session: Session) -> None:
    """List the bindings of a virtual host."""
    _list(session, "bindings", BINDING_COLUMNS)


def create_queue(session: Session) -> None:
    """Create a queue."""
    arguments: dict[str, Any] = {}
    for option in INTEGERS:
        if session.has(option):
            arguments[f"x-{option[2:]}"] = session.integer(option)
    for option in TEXTS:
        if session.has(option):
            arguments[f"x-{option[2:]}"] = session.options[option]
    if session.has("--reject-on-overflow"):
        arguments["x-overflow"] = "reject-publish"
    is_stream = session.has("--stream-queue")
    if is_stream:
        arguments["x-queue-type"] = "stream"
    body = {
        "auto_delete": session.has("--auto-delete"),
        "durable": session.has("--durable") or is_stream,
        "arguments": arguments,
    }
    session.api.put("queues", session.vhost, session.arguments[0], body=body)


def delete_queue(session: Session) -> None:
    """Delete a queue."""
    session.api.delete("queues", session.vhost, session.arguments[0])


def purge_queue(session: Session) -> None:
    """Remove all messages that are ready."""
    session.api.delete("queues", session.vhost, session.arguments[0], "contents")


def pause_queue(session: Session) -> None:
    """Stop deliveries."""
    session.api.put("queues", session.vhost, session.arguments[0], "pause")


def resume_queue(session: Session) -> None:
    """Go on with deliveries."""
    session.api.put("queues", session.vhost, session.arguments[0], "resume")


def restart_queue(session: Session) -> None:
    """Open a closed queue again."""
    session.api.put("queues", session.vhost, session.arguments[0], "restart")


def create_exchange(session: Session) -> None:
    """Create an exchange."""
    kind, name = session.arguments
    arguments: dict[str, Any] = {}
    for option in ("--persist-messages", "--persist-ms"):
        if session.has(option):
            arguments[f"x-{option[2:]}"] = session.integer(option)
    if session.has("--alternate-exchange"):
        arguments["x-alternate-exchange"] = session.options["--alternate-exchange"]
    body = {
        "type": kind,
        "auto_delete": session.has("--auto-delete"),
        "durable": session.has("--durable"),
        "internal": session.has("--internal"),
        "delayed": session.has("--delayed"),
        "arguments": arguments,
    }
    session.api.put("exchanges", session.vhost, name, body=body)


def delete_exchange(session: Session) -> None:
    """Delete an exchange."""
    session.api.delete("exchanges", session.vhost, session.arguments[0])


def _list(session: Session, resource: str, default: str) -> None:
    columns = session.columns(default)
    fields = ",".join(dict.fromkeys(column.partition(".")[0] for column in columns))
    rows = session.api.rows(resource, session.vhost, columns=fields)
    title = f"{resource} for vhost {session.vhost}"
    session.output.table(title, columns, rows, session.arguments)
