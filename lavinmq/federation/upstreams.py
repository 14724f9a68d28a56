"""Upstreams and sets of them, as parameters: every key checked, unknown ones refused by name.

Keys are LavinMQ's and RabbitMQ's. Source: docs/federation.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lavinmq.nearest import hint
from lavinmq.shovel import checks
from lavinmq.shovel.checks import (
    ACK_MODES,
    FAILOVERS,
    MAX_DELAY_S,
    MAX_PREFETCH,
    Check,
    flag,
    number,
    one_of,
    read_places,
    uris,
    word,
)
from lavinmq.shovel.places import Place

UPSTREAM: Final = "federation-upstream"
SET: Final = "federation-upstream-set"
ALL: Final = "all"
"""The set of all upstreams, which is not declared."""
MAX_HOPS: Final = 1000
CLEANUP: Final = ("default", "never")
QUEUE_TYPES: Final = ("classic", "quorum")
CHANNEL_USE: Final = ("multiple", "single")


@dataclass(frozen=True, slots=True)
class Upstream:
    """Another broker, and how messages come from it. `exchange`, `queue`: "" = as it is here."""

    name: str
    places: tuple[Place, ...]
    failover: str
    exchange: str
    queue: str
    prefetch: int
    delay_s: float
    ack_mode: str
    max_hops: int
    expires_ms: int | None
    message_ttl_ms: int | None
    consumer_tag: str
    trusts_user: bool
    queue_type: str | None
    keeps_queue: bool
    """Whether what was made there stays when the link is deleted."""
    is_private: bool = False
    """Whether it is the copy of a set, with other values than those of its parameter."""


def parse(name: str, value: Any, vhost: str, *, is_private: bool = False) -> Upstream:
    """Read the parameter of an upstream. Raises: ValueError, which names the key."""
    if not isinstance(value, dict):
        raise ValueError("Field 'value' must be an object")
    for key in value:
        if key not in KEYS:
            raise ValueError(f"An upstream has no key '{key}'{hint(key, KEYS)}")
    given = {key: each for key, each in value.items() if each is not None}
    if not uris(given.get("uri")):
        raise ValueError("Federation upstream requires field 'uri', a string or an array")
    for key, each in given.items():
        KEYS[key](key, each)
    places = read_places("uri", given["uri"], vhost)
    mode = word(given.get("ack-mode", "on-confirm"), ACK_MODES)
    failover = word(given.get("failover", "shuffle"), FAILOVERS)
    return Upstream(
        name, places, failover, given.get("exchange", ""),
        given.get("queue", ""), given.get("prefetch-count", 1000),
        float(given.get("reconnect-delay", 1)), mode, given.get("max-hops", 1),
        given.get("expires"), given.get("message-ttl"),
        given.get("consumer-tag") or f"federation-link-{name}", given.get("trust-user-id", False),
        given.get("queue-type"), given.get("resource-cleanup-mode") == "never", is_private,
    )  # fmt: skip


def parse_set(value: Any, known: Iterable[str] | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Read a set: names of upstreams, and what is otherwise in each. Raises: ValueError.

    Args: known: the upstreams that there are; None: any name will do.
    """
    if not isinstance(value, list):
        raise ValueError("Field 'value' must be an array of objects with field 'upstream'")
    names = None if known is None else set(known)
    found = []
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("upstream"), str):
            raise ValueError("Field 'value' must be an array of objects with field 'upstream'")
        name = entry["upstream"]
        if names is not None and name not in names:
            raise ValueError(f"There is no upstream '{name}'{hint(name, names)}")
        others = {key: each for key, each in entry.items() if key != "upstream"}
        for key, each in others.items():
            if key == "consumer-tag" or key not in KEYS:
                raise ValueError(f"An upstream of a set has no key '{key}'{hint(key, KEYS)}")
            if each is not None:
                KEYS[key](key, each)
        found.append((name, others))
    return found


def of_set(name: str, value: Mapping[str, Any], others: dict[str, Any], vhost: str) -> Upstream:
    """An upstream as a set has it. Raises: ValueError."""
    return parse(name, {**value, **others}, vhost, is_private=bool(others))


def _any(key: str, value: Any) -> None:
    """It is looked at where it is read."""


KEYS: Final[dict[str, Check]] = {
    "uri": _any,
    "failover": one_of(*FAILOVERS),
    "exchange": checks.name,
    "queue": checks.name,
    "prefetch-count": number(1, MAX_PREFETCH),
    "reconnect-delay": number(0, MAX_DELAY_S),
    "ack-mode": one_of(*ACK_MODES),
    "max-hops": number(1, MAX_HOPS),
    "expires": number(1, 2**53),
    "message-ttl": number(0, 2**53),
    "consumer-tag": checks.name,
    "trust-user-id": flag,
    "queue-type": one_of(*QUEUE_TYPES),
    "resource-cleanup-mode": one_of(*CLEANUP),
    "bind-nowait": flag,
    "channel-use-mode": one_of(*CHANNEL_USE),
}
"""Every key, and what it takes. The last two have no effect: bindings are always sent without
waiting for each, and links have channels of their own."""
OF_PLACES: Final = frozenset({"exchange", "queue", "trust-user-id", "resource-cleanup-mode"})
"""What says where a login is used, and for what."""
