"""Which messages and bindings go on, and what they carry about where they have been.

A message has the array `x-received-from`, the newest link last; a mirrored binding `x-bound-from`,
the newest link first. Both end by their length, or where they have been before.
Source: docs/federation.md, RabbitMQ's documentation of federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lavinmq.client._engine import Rewriter

RECEIVED: Final = "x-received-from"
BOUND: Final = "x-bound-from"
MOST_QUEUE_HOPS: Final = 16
"""Links of queues that a message may pass: it stays where it is then."""


class Here(NamedTuple):
    """Where a link brings messages to."""

    name: str
    """What this broker is called in names of what its links make at upstreams: that stays."""
    vhost: str
    cluster: str
    """What it tells its peers that it is called; empty: nothing."""
    id: str
    """A name that no other broker has."""


def marker(
    entry: dict[str, Any], here: Here, most: int, *, ends_here: bool, trusts_user: bool
) -> Rewriter:
    """What makes the properties of messages that a link brings.

    Args: entry: what the link says of itself, without `redelivered`; most: links that a message may
        have passed before; ends_here: whether one that has been here is not taken; trusts_user:
        whether the property `user_id` stays.
    """
    to = {"to": f"{here.id}:{here.vhost}"}
    been: list[dict[str, Any]] = []
    if ends_here:
        been.append(to)
        if here.cluster:
            been.append({"cluster-name": here.cluster, "vhost": here.vhost})
    return Rewriter(
        drops_user_id=not trusts_user, array=RECEIVED, entry=entry | to, tells_redelivered=True,
        most=most, been=been,
    )  # fmt: skip


def bound_from(
    arguments: Mapping[str, Any], here: Here, exchange: str, max_hops: int
) -> list[dict[str, Any]] | None:
    """What a binding carries when it is mirrored to an upstream; None: it is not.

    Args: arguments: of the binding to `exchange`, which is here.
    """
    before = arguments.get(BOUND)
    before = (
        [each for each in before if isinstance(each, Mapping)] if isinstance(before, list) else []
    )
    hops = max_hops
    if before:
        last = before[0].get("hops")
        left = last - 1 if isinstance(last, int) and not isinstance(last, bool) else 0
        hops = min(left, max_hops)
    own = {"id": here.id, "vhost": here.vhost, "exchange": exchange}
    if hops <= 0 or any({key: each.get(key) for key in own} == own for each in before):
        return None
    return [{**own, "hops": hops}, *map(dict, before)]
