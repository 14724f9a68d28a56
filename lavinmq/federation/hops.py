"""Which messages and bindings go on, and what they carry about where they have been.

A message has the array `x-received-from`, the newest link last; a mirrored binding `x-bound-from`,
the newest link first. Both end by their length, or where they have been before.
Source: docs/federation.md, RabbitMQ's documentation of federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lavinmq.client._engine import add_header, encode_header, encode_properties

if TYPE_CHECKING:
    from lavinmq.client._engine import Message

RECEIVED: Final = "x-received-from"
BOUND: Final = "x-bound-from"
MOST_QUEUE_HOPS: Final = 16
"""Links of queues that a message may pass: it stays where it is then."""
USER_ID: Final = 0x10
"""The flag of that property, in the second byte of encoded ones."""


class Here(NamedTuple):
    """Where a link brings messages to."""

    name: str
    """What this broker is called in names of what its links make at upstreams: that stays."""
    vhost: str
    cluster: str
    """What it tells its peers that it is called; empty: nothing."""
    id: str
    """A name that no other broker has."""


class Marker:
    """Makes the properties of messages that a link brings.

    Args: entry: what the link says of itself, without `redelivered`; most: links that a message may
        have passed before; ends_here: whether one that has been here is not taken; trusts_user:
        whether the property `user_id` stays.
    """

    def __init__(
        self, entry: dict[str, Any], here: Here, most: int, *, ends_here: bool, trusts_user: bool
    ) -> None:
        entry = {**entry, "to": f"{here.id}:{here.vhost}"}
        self._entry, self._here, self._most = entry, here, most
        self._ends_here, self._trusts_user = ends_here, trusts_user
        self._first = tuple(
            encode_header(RECEIVED, [{**entry, "redelivered": again}]) for again in (False, True)
        )

    def marked(self, message: Message) -> bytes | None:
        """Encoded properties with one more entry; None: it goes no further."""
        raw = message.raw_properties
        if self._trusts_user or not raw[1] & USER_ID:
            found = add_header(raw, RECEIVED, self._first[message.redelivered])
            if found is not None:
                return found
        properties = message.properties
        headers = dict(properties.get("headers") or {})
        passed = headers.get(RECEIVED)
        passed = passed if isinstance(passed, list) else []
        if len(passed) >= self._most or (self._ends_here and self._has_been_here(passed)):
            return None
        headers[RECEIVED] = [*passed, {**self._entry, "redelivered": message.redelivered}]
        properties["headers"] = headers
        if not self._trusts_user:
            properties.pop("user_id", None)
        return encode_properties(properties)

    def _has_been_here(self, passed: list[Any]) -> bool:
        here = self._here
        return any(
            each.get("to") == self._entry["to"]
            or (here.cluster and (each.get("cluster-name"), each.get("vhost")) == here[2:0:-1])
            for each in passed
            if isinstance(each, Mapping)
        )


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
