"""Counts of durations in fixed steps, of which quantiles can be told later.

For what Python measures; the message path counts in the same steps (`cext/queue/tally.pyx`).
"""

from __future__ import annotations

from bisect import bisect_left

from lavinmq._core import DURATION_BOUNDS

Values = tuple[list[int], float]
"""Counts of the steps, each on its own, the last one without an upper bound; and the sum in s."""


class Histogram:
    """Durations since the start. Takes a few hundred bytes, whatever is counted."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(DURATION_BOUNDS) + 1)
        self._sum_s = 0.0

    def add(self, took_s: float) -> None:
        """Count one."""
        self._counts[bisect_left(DURATION_BOUNDS, took_s)] += 1
        self._sum_s += took_s

    def values(self) -> Values:
        """What was counted so far."""
        return list(self._counts), self._sum_s
