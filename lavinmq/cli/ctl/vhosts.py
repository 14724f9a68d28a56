"""The commands of lavinmqctl about virtual hosts and their limits."""

from __future__ import annotations

from lavinmq.cli.ctl.errors import CtlError
from lavinmq.cli.ctl.session import Session, json_value
from lavinmq.nearest import hint

LIMITS = ("max-connections", "max-queues")


def add_vhost(session: Session) -> None:
    """Add a virtual host."""
    session.api.put("vhosts", session.arguments[0])


def delete_vhost(session: Session) -> None:
    """Delete a virtual host."""
    session.api.delete("vhosts", session.arguments[0])


def list_vhosts(session: Session) -> None:
    """List virtual hosts."""
    columns = session.columns("name")
    session.output.table("vhosts", columns, session.api.rows("vhosts"), session.arguments)


def set_vhost_limits(session: Session) -> None:
    """Set one limit or both; a negative number takes one away."""
    limits = json_value("limits", session.arguments[0])
    if not isinstance(limits, dict) or not limits:
        raise CtlError("max-queues or max-connections required")
    for name in limits:
        if name not in LIMITS:
            which = hint(name, LIMITS) or f", one of {', '.join(LIMITS)}"
            raise CtlError(f"Unknown limit {name!r}{which}")
    chosen = [name for name in LIMITS if name in limits]
    for name in chosen:
        if not isinstance(limits[name], int) or isinstance(limits[name], bool):
            raise CtlError(f"{name} has to be a whole number")
    for name in chosen:
        session.api.put("vhost-limits", session.vhost, name, body={"value": limits[name]})


def clear_vhost_limits(session: Session) -> None:
    """Take both limits away."""
    for name in LIMITS:
        session.api.delete("vhost-limits", session.vhost, name)


def list_vhost_limits(session: Session) -> None:
    """Show the limits of a virtual host: no row, or one."""
    rows = (
        {"vhost": row.get("vhost"), **(row.get("value") or {})}
        for row in session.api.rows("vhost-limits", session.vhost)
    )
    session.output.table(f"limits of vhost {session.vhost}", ("vhost", *LIMITS), rows)
