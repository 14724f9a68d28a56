"""Writes definitions: one row for each user, queue and all else, in the order of a document.

`rows` goes through a broker step by step, for a caller that makes JSON of them. The functions for
single rows also take what `files/definitions.py` reads from a data directory. What comes and goes
by itself is left out: exclusive queues, the queues of delayed exchanges, and what binds them.
Source: docs/definitions.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

from lavinmq import fieldtable
from lavinmq.auth.permissions import Permissions
from lavinmq.auth.users import SCRAM_KEY, User
from lavinmq.broker import Broker
from lavinmq.definitions_json.document import LIMITS, MANAGED, OPERATOR_POLICY
from lavinmq.fieldtable import FieldTable
from lavinmq.files import vhosts
from lavinmq.policy.parameters import Parameter
from lavinmq.policy.policies import Policy
from lavinmq.vhost.destination import Destination
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.vhost import VHost

Row = dict[str, Any]

OF_A_VHOST: Final = ("queues", "exchanges", "bindings", "policies", "parameters")
SECTIONS: Final = (
    "users", "vhosts", "permissions", "topic_permissions", *OF_A_VHOST, "global_parameters",
)  # fmt: skip
"""The sections of a document, in their order."""


class ExchangeLike(Protocol):
    """An exchange, or the record of one."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: FieldTable


class QueueLike(Protocol):
    """A queue, or the record of one."""

    name: str
    durable: bool
    auto_delete: bool
    arguments: FieldTable


def rows(broker: Broker) -> Iterator[tuple[str, Row]]:
    """Section and row of everything in a broker."""
    for user in broker.users.all():
        yield "users", user_row(user, broker.user_limits.of(user.name))
    for name in list(broker.vhosts):
        stored = broker.vhosts.stored(name)
        if stored is not None:
            yield "vhosts", vhosts.as_json(stored)
    for user in broker.users.all():
        for name, granted in list(user.permissions.items()):
            yield "permissions", permission_row(user, name, granted)
    for topic in broker.users.topic_rows():
        yield "topic_permissions", topic._asdict()
    for vhost in list(broker.vhosts.values()):
        yield from rows_of(vhost)
    for parameter in broker.parameters.all():
        yield "global_parameters", parameter_row(parameter, None)


def rows_of(vhost: VHost) -> Iterator[tuple[str, Row]]:
    """Section and row of everything in a virtual host."""
    for queue in list(vhost.queues.values()):
        if _is_exported(queue):
            yield "queues", queue_row(queue, vhost.name)
    exchanges = [each for each in vhost.exchanges.values() if not each.internal]
    for exchange in exchanges:
        yield "exchanges", exchange_row(exchange, vhost.name)
    for exchange in exchanges:
        for to, key, arguments in exchange.live_bindings():
            if _is_exported(to):
                row = binding_row(exchange.name, to.name, to.kind, key, arguments, vhost.name)
                yield "bindings", row
    yield from _rules_of(vhost)


def _rules_of(vhost: VHost) -> Iterator[tuple[str, Row]]:
    rules = vhost.rules
    for policy in rules.policies.all():
        yield "policies", policy.to_json(vhost.name)
    for parameter in rules.parameters.all():
        if parameter.component not in MANAGED:
            yield "parameters", parameter_row(parameter, vhost.name)
    for policy in rules.operator_policies.all():
        yield "parameters", operator_policy_row(policy, vhost.name)
    limits = rules.limits.all()
    if limits:
        yield "parameters", limits_row(limits, vhost.name)


def _is_exported(thing: Destination) -> bool:
    if isinstance(thing, Queue):
        return not (thing.exclusive or thing.is_internal or thing.is_session)
    return not (isinstance(thing, Exchange) and thing.internal)


def user_row(user: User, limits: dict[str, int]) -> Row:
    """A user. Its tags are a list here."""
    return {
        "hashing_algorithm": user.hashing_algorithm,
        "name": user.name,
        "password_hash": user.password_hash,
        **({SCRAM_KEY: user.scram} if user.scram else {}),
        "tags": list(user.tags),
        "limits": limits,
    }


def permission_row(user: User, vhost: str, granted: Permissions) -> Row:
    """What a user may do in a virtual host."""
    return {
        "user": user.name,
        "vhost": vhost,
        "configure": granted.configure.regex,
        "read": granted.read.regex,
        "write": granted.write.regex,
    }


def queue_row(queue: QueueLike, vhost: str) -> Row:
    """A queue."""
    return {
        "name": queue.name,
        "vhost": vhost,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": queue.arguments,
    }


def exchange_row(exchange: ExchangeLike, vhost: str) -> Row:
    """An exchange; a delayed one as clients declare it, which other brokers understand."""
    type_, arguments = exchange.type, exchange.arguments
    if arguments.get("x-delayed-exchange") is True:
        arguments = fieldtable.amended(
            arguments, {"x-delayed-type": type_}, removed=("x-delayed-exchange",)
        )
        type_ = "x-delayed-message"
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": type_,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": arguments,
    }


def binding_row(
    source: str, destination: str, kind: str, key: str, arguments: FieldTable, vhost: str
) -> Row:
    """A binding."""
    return {
        "source": source,
        "vhost": vhost,
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
        "arguments": arguments,
    }


def parameter_row(parameter: Parameter, vhost: str | None) -> Row:
    """A parameter; one of the whole broker has no virtual host."""
    row: Row = {"name": parameter.name, "component": parameter.component, "value": parameter.value}
    return row if vhost is None else row | {"vhost": vhost}


def operator_policy_row(policy: Policy, vhost: str) -> Row:
    """An operator policy, which stands among the parameters."""
    value = {
        "pattern": policy.pattern,
        "definition": dict(policy.definition),
        "priority": policy.priority,
        "apply-to": policy.apply_to,
    }
    return {"component": OPERATOR_POLICY, "vhost": vhost, "name": policy.name, "value": value}


def limits_row(limits: dict[str, int], vhost: str) -> Row:
    """The limits of a virtual host, which stand among the parameters."""
    return {"component": LIMITS, "vhost": vhost, "name": "limits", "value": limits}
