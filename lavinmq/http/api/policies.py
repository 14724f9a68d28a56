"""Policies and operator policies: list, show, set, delete.

Who changes one is answered when all queues and exchanges follow it. Source: docs/policies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from lavinmq.arguments.keys import KEYS
from lavinmq.arguments.names import check_label
from lavinmq.http.call import CREATED, NO_CONTENT, Call, Reply, completed, found
from lavinmq.http.errors import bad_request
from lavinmq.http.fields import Field
from lavinmq.http.listing import Listing
from lavinmq.http.routes import ROUTES, Endpoint
from lavinmq.policy.pattern import too_long
from lavinmq.policy.policies import TARGETS, Policy, PolicyStore
from lavinmq.vhost.vhost import VHost

FIELDS: Final = {
    "pattern": Field("string", "A regular expression for names", True, lax=True),
    "definition": Field(
        "object", f"What applies to what matches: {', '.join(KEYS)}", required=True
    ),
    "priority": Field("integer", "Of all that match the highest applies", default=0),
    "apply-to": Field("string", "What it is meant for", default="all", choices=tuple(TARGETS)),
}

NOTE: Final = "Lavinmq-Note"
"""The header of an answer without a body that has something to say."""

Stores = Callable[[VHost], PolicyStore]


def _policies(vhost: VHost) -> PolicyStore:
    return vhost.rules.policies


def _operator_policies(vhost: VHost) -> PolicyStore:
    return vhost.rules.operator_policies


def _note(keys: list[str]) -> str:
    """What is kept and does nothing, as a header may hold it."""
    names = ", ".join(quote(key, safe="") for key in keys)
    return f"no effect in this release: {names}"


def _row(policy: Policy, vhost: str, *, is_operator: bool) -> dict[str, Any]:
    row = policy.to_json(vhost)
    if policy.stumbles:
        row["warning"] = f"{too_long(policy.pattern)} some names: it is not applied to them"
    idle = policy.without_effect(is_operator=is_operator)
    return {**row, "without_effect": idle} if idle else row


def _listing(vhosts: Iterable[VHost], stores: Stores) -> Listing[Any]:
    rows = [
        (policy, vhost.name, stores(vhost).is_operator)
        for vhost in vhosts
        for policy in stores(vhost).all()
    ]
    return Listing(
        rows, lambda each: _row(each[0], each[1], is_operator=each[2]), lambda each: each[0].name
    )


def _register(path: str, what: str, stores: Stores) -> None:
    """The endpoints of one kind of policies."""

    def list_all(call: Call) -> Listing[Any]:
        return _listing(call.visible_vhosts(), stores)

    def list_one(call: Call) -> Listing[Any]:
        return _listing([call.vhost], stores)

    def show(call: Call) -> dict[str, Any]:
        vhost, name = call.vhost, call.path["name"]
        store = stores(vhost)
        policy: Policy = found(store.get(name), "policy", name, vhost.name)
        return _row(policy, vhost.name, is_operator=store.is_operator)

    async def put(call: Call) -> Reply:
        name, store, rules = call.path["name"], stores(call.vhost), call.vhost.rules
        is_new = store.get(name) is None
        policy = _policy(call, is_new=is_new, is_operator=store.is_operator)
        (rules.put_operator_policy if store.is_operator else rules.put_policy)(policy)
        await completed(rules.when_applied)
        reply = CREATED if is_new else NO_CONTENT
        idle = policy.without_effect()
        return replace(reply, headers={NOTE: _note(idle)}) if idle else reply

    async def delete(call: Call) -> Reply:
        rules, name = call.vhost.rules, call.path["name"]
        is_operator = stores(call.vhost).is_operator
        remove = rules.delete_operator_policy if is_operator else rules.delete_policy
        found(remove(name) or None, "policy", name, call.vhost.name)
        await completed(rules.when_applied)
        return NO_CONTENT

    def described(endpoint: Endpoint, text: str) -> Endpoint:
        endpoint.__doc__ = text
        return endpoint

    ROUTES.list(path)(described(list_all, f"List {what} policies."))
    ROUTES.list(f"{path}/:vhost")(described(list_one, f"List {what} policies of a virtual host."))
    one = f"{path}/:vhost/:name"
    ROUTES.get(one)(described(show, f"Show one of the {what} policies."))
    ROUTES.put(one, FIELDS)(described(put, f"Set one of the {what} policies."))
    ROUTES.delete(one)(described(delete, f"Delete one of the {what} policies."))


def _policy(call: Call, *, is_new: bool, is_operator: bool) -> Policy:
    """The policy of a request. Raises: ApiError 400."""
    body = call.body
    try:
        if is_new:
            check_label("Policy", call.path["name"])
        body["pattern"].encode()
        policy = Policy.of(
            call.path["name"], body["pattern"], body["definition"], body["priority"],
            body["apply-to"], is_operator=is_operator,
        )  # fmt: skip
    except ValueError as error:
        raise bad_request(str(error)) from error
    for key in policy.unusable():
        value = policy.definition[key]
        raise bad_request(f"Policy definition '{key}' cannot be {value!r}")
    return policy


_register("/api/policies", "users'", _policies)
_register("/api/operator-policies", "operators'", _operator_policies)
