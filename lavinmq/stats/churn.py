"""How often connections, channels, queues and consumers have come and gone.

One for each virtual host and one for the whole broker, which also counts what deleted virtual hosts
have seen. Incremented where it happens; never goes down. Source: docs/monitoring.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from lavinmq.stats.track import Track

Event = Literal[
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_deleted", "consumer_added", "consumer_removed",
]  # fmt: skip

EVENTS: Final[tuple[Event, ...]] = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_deleted", "consumer_added", "consumer_removed",
)  # fmt: skip


class Churn:
    """Counts of events. Args: whole: that of the broker, which counts the same."""

    __slots__ = ("_counts", "_whole", "track")

    def __init__(self, whole: Churn | None = None) -> None:
        self._counts: dict[str, int] = dict.fromkeys(EVENTS, 0)
        self._whole = whole
        self.track: Track | None = None

    def count(self, event: Event, times: int = 1) -> None:
        """It has happened."""
        self._counts[event] += times
        if self._whole is not None:
            self._whole._counts[event] += times

    def counters(self) -> dict[str, int]:
        """All counts by the names that the API gives them."""
        return dict(self._counts)
