"""Parameters of virtual hosts and of the whole broker: list, show, set, delete.

Shovels and federation are made of parameters; these are checked when they are set.
Source: docs/http-api.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from lavinmq.arguments.names import check_label
from lavinmq.definitions_json.document import MANAGED
from lavinmq.definitions_json.entry import doubt
from lavinmq.http import link_parameters
from lavinmq.http.api.policies import NOTE
from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, found
from lavinmq.http.errors import bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES
from lavinmq.nearest import hint
from lavinmq.policy import secret_values
from lavinmq.policy.parameters import Parameter, ParameterStore
from lavinmq.vhost import bridge
from lavinmq.vhost.vhost import VHost

FIELDS: Final = {"value": Field("any", "What it says: any JSON", required=True)}
PLACES: Final = {"operator_policy": "/api/operator-policies", "vhost-limits": "/api/vhost-limits"}
"""Where to set what documents of definitions have among the parameters."""


def _row(call: Call, parameter: Parameter, vhost: str | None) -> dict[str, Any]:
    value, component = parameter.value, parameter.component
    if not call.user.has_tag("administrator"):
        value = secret_values.hidden(component, value)
    return {
        "name": parameter.name,
        "value": value,
        "component": parameter.component,
        "vhost": vhost,
    }


def _listing(call: Call, vhosts: Iterable[VHost], component: str | None) -> Listing[Any]:
    rows = [
        (parameter, vhost.name)
        for vhost in vhosts
        for parameter in vhost.rules.parameters.all(component)
    ]
    return Listing(rows, lambda each: _row(call, *each), lambda each: each[0].name)


@ROUTES.list("/api/parameters")
@ROUTES.list("/api/parameters/:component")
def list_parameters(call: Call) -> Listing[Any]:
    """List parameters."""
    return _listing(call, call.visible_vhosts(), call.path.get("component"))


@ROUTES.list("/api/parameters/:component/:vhost")
def list_vhost_parameters(call: Call) -> Listing[Any]:
    """List parameters of a virtual host."""
    return _listing(call, [call.vhost], call.path["component"])


@ROUTES.get("/api/parameters/:component/:vhost/:name")
def show_parameter(call: Call) -> dict[str, Any]:
    """Show a parameter."""
    vhost, name = call.vhost, call.path["name"]
    there = vhost.rules.parameters.get(call.path["component"], name)
    return _row(call, found(there, "parameter", name, vhost.name), vhost.name)


@ROUTES.put("/api/parameters/:component/:vhost/:name", FIELDS)
def put_parameter(call: Call) -> Reply:
    """Set a parameter; shovels and federation follow it."""
    component = call.path["component"]
    if component in MANAGED:
        raise bad_request(f"Component '{component}' is set at {PLACES[component]}")
    store = call.vhost.rules.parameters
    there = store.get(component, call.path["name"])
    if there is not None:
        call.body["value"] = secret_values.restored(component, call.body["value"], there.value)
    value = call.body["value"]
    if secret_values.has_stars(component, value):
        raise bad_request("Field 'value' has *** for a password: it has to be given again")
    default_user = call.broker.users.default_user
    upstreams = [each.name for each in store.all("federation-upstream")]
    vhost = call.path["vhost"]
    link_parameters.check(component, value, call.user, vhost, default_user, upstreams)
    reply = _put(call, store, component)
    note = _note(component, call.path["name"])
    return replace(reply, headers={NOTE: note}) if note else reply


def _note(component: str, name: str) -> str:
    """What to say of a component that is nearly a known one, or of MQTT's parameter by another name
    than its own, as a header may hold it."""
    if component == bridge.COMPONENT and name != bridge.NAME:
        only = f"component {component} has only '{bridge.NAME}'"
        return f"no effect in this release: parameter {quote(name, safe='')}, {only}"
    known = link_parameters.COMPONENTS
    meant = "" if component in known else hint(component, known)
    return meant and f"no effect in this release: component {quote(component, safe='')}{meant}"


@ROUTES.delete("/api/parameters/:component/:vhost/:name")
def delete_parameter(call: Call) -> Reply:
    """Delete a parameter."""
    vhost, name = call.vhost, call.path["name"]
    is_gone = vhost.rules.parameters.delete(call.path["component"], name)
    found(is_gone or None, "parameter", name, vhost.name)
    return NO_CONTENT


@ROUTES.list("/api/global-parameters")
def list_global_parameters(call: Call) -> Listing[Parameter]:
    """List parameters of the whole broker."""
    return Listing(
        call.broker.parameters.all(), lambda each: _row(call, each, None), lambda each: each.name
    )


@ROUTES.get("/api/global-parameters/:name")
def show_global_parameter(call: Call) -> dict[str, Any]:
    """Show a parameter of the whole broker."""
    name = call.path["name"]
    return _row(call, found(call.broker.parameters.get(None, name), "parameter", name), None)


@ROUTES.put("/api/global-parameters/:name", FIELDS)
def put_global_parameter(call: Call) -> Reply:
    """Set a parameter of the whole broker."""
    return _put(call, call.broker.parameters, None)


@ROUTES.delete("/api/global-parameters/:name")
def delete_global_parameter(call: Call) -> Reply:
    """Delete a parameter of the whole broker."""
    name = call.path["name"]
    found(call.broker.parameters.delete(None, name) or None, "parameter", name)
    return NO_CONTENT


def _put(call: Call, store: ParameterStore, component: str | None) -> Reply:
    """Raises: ApiError 400."""
    name, value = call.path["name"], call.body["value"]
    why = doubt(value)
    if why:
        raise bad_request(f"Field 'value' {why}")
    is_new = store.get(component, name) is None
    try:
        if is_new:
            check_label("Parameter", name)
            if component is not None:
                check_label("Component", component)
    except ValueError as error:
        raise bad_request(str(error)) from error
    store.put(Parameter(component and sys.intern(component), name, value))
    return CREATED if is_new else NO_CONTENT
