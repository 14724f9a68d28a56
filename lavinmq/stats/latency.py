"""How long confirms, syncs and answers to HTTP requests have taken of late, as quantiles.

The histograms are fed once for each sync, each ack to publishers and each request; here each sample
is what they have counted since the one before. Source: docs/monitoring.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

from lavinmq._core import DURATION_BOUNDS
from lavinmq.stats.histogram import Values
from lavinmq.stats.sampler import Gauge

QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
_EDGES: Final = (0.0, *DURATION_BOUNDS)


class _Kind:
    """One histogram with the history of its quantiles."""

    __slots__ = ("gauges", "last", "read")

    def __init__(self, read: Callable[[], Values]) -> None:
        self.read = read
        self.last = read()[0]
        self.gauges = {name: Gauge() for name in QUANTILES}


class Latency:
    """Of one broker. Args: kinds: what is measured by its name, and how to read it."""

    def __init__(self, kinds: Mapping[str, Callable[[], Values]]) -> None:
        self._kinds = {name: _Kind(read) for name, read in kinds.items()}

    def sample(self, samples: int) -> None:
        """Take a sample; 0 when nothing was counted. Args: samples: length of a history now."""
        for kind in self._kinds.values():
            counts, _ = kind.read()
            new = [now - before for now, before in zip(counts, kind.last, strict=True)]
            kind.last = counts
            for name, quantile in QUANTILES.items():
                kind.gauges[name].sample(_quantile(new, quantile) * 1000, samples)

    def stats(self, samples: int) -> dict[str, Any]:
        """By kind: how many were counted, their mean, and quantiles of the samples, the oldest
        first; in milliseconds."""
        shown = {}
        for name, kind in self._kinds.items():
            counts, sum_s = kind.read()
            n = sum(counts)
            shown[name] = {
                "count": n,
                "mean": round(sum_s / n * 1000, 3) if n else 0,
                **{f"{each}_log": gauge.log(samples) for each, gauge in kind.gauges.items()},
            }
        return shown


def _quantile(counts: list[int], quantile: float) -> float:
    """Seconds, interpolated within a step; what is above the last bound counts as that bound."""
    rank, passed = sum(counts) * quantile, 0
    for (low, high), n in zip(pairwise(_EDGES), counts, strict=False):
        if n and passed + n >= rank:
            return low + (high - low) * (rank - passed) / n
        passed += n
    return DURATION_BOUNDS[-1] if sum(counts) else 0.0
