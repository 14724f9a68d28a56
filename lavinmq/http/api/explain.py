"""What policies and permissions come to, before or after they are made: which names a policy's
pattern matches, and why a user may or may not do something. Nothing is changed.

The answers come from the functions that decide in earnest. Source: docs/policies.md, docs/pages.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from lavinmq.arguments.keys import Kind
from lavinmq.http.api.permissions import user_of
from lavinmq.http.call import Call
from lavinmq.http.errors import bad_request
from lavinmq.http.listing import in_portions
from lavinmq.http.routes import ROUTES, Query
from lavinmq.policy.features import queue_kind
from lavinmq.policy.pattern import Patience, too_long
from lavinmq.policy.policies import TARGETS, Policy
from lavinmq.vhost import rights

if TYPE_CHECKING:
    from lavinmq.auth.users import User
    from lavinmq.vhost.vhost import VHost

MOST: Final = 20
"""Names that are told."""
MAX_PATTERN: Final = 4096
RIGHTS: Final[tuple[rights.Right, ...]] = ("configure", "write", "read")


def _text(call: Call, name: str) -> str:
    """A parameter behind the question mark, empty without one."""
    values = call.query.get(name)
    return values[-1] if values else ""


def _objects(vhost: VHost) -> Iterator[tuple[str, str, Kind]]:
    """What policies apply to: what it is, its name, its kind."""
    for queue in list(vhost.queues.values()):
        if not queue.is_internal:
            yield "queue", queue.name, queue_kind(queue.arguments)
    for exchange in list(vhost.exchanges.values()):
        yield "exchange", exchange.name, Kind.EXCHANGE


@ROUTES.get(
    "/api/policy-matches/:vhost",
    query=(
        Query("pattern", "A regular expression for names"),
        Query("apply-to", "What it is meant for, all without one"),
    ),
)
async def show_matches(call: Call) -> dict[str, Any]:
    """Show which queues and exchanges a policy with a pattern would match."""
    pattern, target = _text(call, "pattern"), _text(call, "apply-to") or "all"
    if target not in TARGETS:
        raise bad_request(f"Unknown apply-to {target!r}; one of {', '.join(TARGETS)}")
    if len(pattern) > MAX_PATTERN:
        raise bad_request(f"Parameter 'pattern' is longer than {MAX_PATTERN}")
    try:
        policy = Policy("", pattern, {}, 0, target)
    except ValueError as error:
        raise bad_request(str(error)) from error
    counts = {"queue": 0, "exchange": 0}
    names: list[dict[str, str]] = []
    patience = Patience()
    async for kind, name, of in in_portions(_objects(call.vhost)):
        is_match = policy.matches(name, of, patience)
        if patience.left <= 0:
            raise bad_request(too_long(pattern))
        if is_match:
            counts[kind] += 1
            if len(names) < MOST:
                names.append({"kind": kind, "name": name})
    return {"queues": counts["queue"], "exchanges": counts["exchange"], "names": names}


@ROUTES.get(
    "/api/permissions/:vhost/:user/effective",
    query=(
        Query("name", "Of a queue or an exchange, which need not exist; empty: the default one"),
        Query("routing_key", "For the topic permissions on an exchange of that name"),
    ),
)
def explain_permissions(call: Call) -> dict[str, Any]:
    """Say what a user may do with a queue or an exchange, and by which permission."""
    user, vhost = user_of(call), call.path["vhost"]
    name, key = _text(call, "name"), _text(call, "routing_key")
    said: dict[str, Any] = {
        right: {
            "allowed": rights.holds(user, right, vhost, name),
            "why": _why(user, vhost, name, right),
        }
        for right in RIGHTS
    }
    topics = user.key_rights(vhost, name)
    said["topic"] = {
        "write": topics is None or topics.can_write(key),
        "read": topics is None or topics.can_read(key),
        "why": "There is no topic permission for this exchange: every routing key is allowed"
        if topics is None
        else f"Topic permission: write {topics.write!r}, read {topics.read!r}",
    }
    return said


def _why(user: User, vhost: str, name: str, right: rights.Right) -> str:
    granted = user.permissions.get(vhost)
    if granted is None:
        return f"There is no permission in the virtual host {vhost!r}: it may not connect to it"
    rule = getattr(granted, right)
    if rule.regex in ("", "^$"):
        return f"The permission to {right} is {rule.regex!r}, which allows nothing"
    does = "matches" if rights.holds(user, right, vhost, name) else "does not match"
    return f"The permission to {right}, {rule.regex!r}, {does}"
