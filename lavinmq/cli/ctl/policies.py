"""The commands of lavinmqctl about policies, operator policies and parameters."""

from __future__ import annotations

from lavinmq.cli.ctl.errors import CtlError
from lavinmq.cli.ctl.session import Session, json_value

POLICY_COLUMNS = ("vhost", "name", "pattern", "apply-to", "priority", "definition")
PARAMETER_COLUMNS = ("component", "name", "value")


def list_policies(session: Session) -> None:
    """List the policies of a virtual host."""
    _list(session, "policies")


def set_policy(session: Session) -> None:
    """Set a policy."""
    _set(session, "policies")


def clear_policy(session: Session) -> None:
    """Delete a policy."""
    session.api.delete("policies", session.vhost, session.arguments[0])


def list_operator_policies(session: Session) -> None:
    """List the operator policies of a virtual host."""
    _list(session, "operator-policies")


def set_operator_policy(session: Session) -> None:
    """Set an operator policy."""
    _set(session, "operator-policies")


def clear_operator_policy(session: Session) -> None:
    """Delete an operator policy."""
    session.api.delete("operator-policies", session.vhost, session.arguments[0])


def list_parameters(session: Session) -> None:
    """List the parameters of a virtual host, maybe of one component."""
    if session.arguments:
        rows = session.api.rows("parameters", session.arguments[0], session.vhost)
    else:
        everywhere = session.api.rows("parameters")
        rows = (row for row in everywhere if row.get("vhost") == session.vhost)
    session.output.table(f"parameters of vhost {session.vhost}", PARAMETER_COLUMNS, rows)


def set_parameter(session: Session) -> None:
    """Set a parameter."""
    component, name, text = session.arguments
    body = {"value": json_value("value", text)}
    session.api.put("parameters", component, session.vhost, name, body=body)


def clear_parameter(session: Session) -> None:
    """Delete a parameter."""
    component, name = session.arguments
    session.api.delete("parameters", component, session.vhost, name)


def _list(session: Session, resource: str) -> None:
    rows = session.api.rows(resource, session.vhost)
    title = f"{resource.replace('-', ' ')} for vhost {session.vhost}"
    session.output.table(title, POLICY_COLUMNS, rows)


def _set(session: Session, resource: str) -> None:
    name, pattern, text = session.arguments
    definition = json_value("definition", text)
    if not isinstance(definition, dict):
        raise CtlError("Invalid definition: it has to be a JSON object")
    body = {
        "pattern": pattern,
        "definition": definition,
        "priority": session.integer("--priority", 0),
        "apply-to": session.options.get("--apply-to", "all"),
    }
    session.api.put(resource, session.vhost, name, body=body)
