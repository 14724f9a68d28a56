"""Where a dead letter comes from, read out of its headers.

The rule, here for one message and in `dead_letters` for Spark: a message's origin is the queue that
`x-first-death-queue` names, else the one of its oldest death; reason, exchange and key are those of
the newest death there. So a message that went through queues for retries, and then on from its
dead-letter queue, still belongs to the queue whose consumer gave up. Headers are a client's to
forge: what is not of its type counts as absent. Source: LavinMQ's dead-lettering, header `x-death`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What a broker adds when a letter dies, and what dies with it when the history is to go.
HISTORY = (
    *("x-death", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange"),
    *("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange"),
)
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Origin:
    """The queue a message died in, why, and how it had been published there."""

    queue: str
    reason: str
    exchange: str
    routing_key: str


def origin(headers: Mapping[str, Any]) -> Origin | None:
    """Return the origin of a message with these headers; None for one that never died."""
    deaths = headers.get("x-death")
    entries = [
        entry
        for entry in (deaths if isinstance(deaths, list) else [])
        if isinstance(entry, Mapping) and _text(entry, "queue")
    ]
    first = _text(headers, "x-first-death-queue")
    if not entries and not first:
        return None
    queue = first or str(entries[-1]["queue"])
    entry = next((each for each in entries if each["queue"] == queue), {})
    keys = entry.get("routing-keys")
    key = keys[0] if isinstance(keys, list) and keys and isinstance(keys[0], str) else ""
    return Origin(
        queue=queue,
        reason=_text(entry, "reason") or _text(headers, "x-first-death-reason") or UNKNOWN,
        exchange=_text(entry, "exchange") or "",
        routing_key=key,
    )


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) and value else None
