"""Figures of a client that are read while it goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lavinmq.client.consuming import BaseConsumer
from lavinmq.client.metrics import snapshot


class Moving:
    """A tracker of which a delivery comes, and is settled, between any two reads."""

    def __init__(self) -> None:
        self.n_reads = 0

    def __getattr__(self, name: str) -> int:
        self.n_reads += 1
        return 0 if name == "count" else self.n_reads


def test_nothing_is_settled_before_it_came() -> None:
    """Deliveries were read first: of 502 that had come 600 were acknowledged."""
    consumer: Any = BaseConsumer.__new__(BaseConsumer)
    consumer.tracker = Moving()
    core: Any = SimpleNamespace(
        link=None, connects=0, reconnects=0, reconnect_attempts=0, poll_detected=0,
        blocked_seconds=0, bytes_in=0, bytes_out=0, everybody=lambda: [consumer],
    )  # fmt: skip
    together: Any = SimpleNamespace(
        state=SimpleNamespace(value="connected"), seconds=dict, last_error=None, cores=[core]
    )

    figures = snapshot(together)

    for settled in (figures.acked, figures.rejected, figures.redelivered, figures.stale_acks):
        assert settled <= figures.delivered
