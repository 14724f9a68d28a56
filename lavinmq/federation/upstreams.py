"""Upstreams and sets of them, as parameters: every key checked, unknown ones refused by name.

Keys are LavinMQ's and RabbitMQ's. Source: docs/federation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lavinmq.nearest import hint
from lavinmq.shovel import places
from lavinmq.shovel.places import Place
from lavinmq.shovel.values import ACK_MODES, FAILOVERS, uris

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
    found = []
    for number, uri in enumerate(uris(given["uri"])):
        try:
            found.append(places.parse(uri, vhost))
        except ValueError as error:
            which = "Field 'uri'" if isinstance(given["uri"], str) else f"Item {number} of 'uri'"
            raise ValueError(f"{which} {error}") from None
    mode = str(given.get("ack-mode", "on-confirm")).lower().replace("_", "-")
    return Upstream(
        name, tuple(found), given.get("failover", "shuffle"), given.get("exchange", ""),
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


Check = Callable[[str, Any], None]


def _text(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"Field '{key}' must be a string")
    if len(value.encode(errors="surrogateescape")) > 255:
        raise ValueError(f"Field '{key}' is longer than 255 bytes")


def _any(key: str, value: Any) -> None:
    """It is looked at where it is read."""


def _flag(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"Field '{key}' must be true or false")


def _number(least: int, most: int) -> Check:
    def check(key: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"Field '{key}' must be a whole number from {least} to {most}")

    return check


def _one_of(*words: str) -> Check:
    def check(key: str, value: Any) -> None:
        if not isinstance(value, str) or value.lower().replace("_", "-") not in words:
            raise ValueError(f"Field '{key}' must be one of {', '.join(words)}")

    return check


KEYS: Final[dict[str, Check]] = {
    "uri": _any,
    "failover": _one_of(*FAILOVERS),
    "exchange": _text,
    "queue": _text,
    "prefetch-count": _number(1, 65_535),
    "reconnect-delay": _number(0, 2**31 - 1),
    "ack-mode": _one_of(*ACK_MODES),
    "max-hops": _number(1, MAX_HOPS),
    "expires": _number(1, 2**53),
    "message-ttl": _number(0, 2**53),
    "consumer-tag": _text,
    "trust-user-id": _flag,
    "queue-type": _one_of(*QUEUE_TYPES),
    "resource-cleanup-mode": _one_of(*CLEANUP),
    "bind-nowait": _flag,
    "channel-use-mode": _one_of(*CHANNEL_USE),
}
"""Every key, and what it takes. The last two have no effect: bindings are always sent without
waiting for each, and links have channels of their own."""
