"""Rates of counters and their history, for everything that counts messages or bytes.

Every `stats_interval` the sampler looks at the counters of all tracked things, in portions, and
notes how fast each has grown. What does not move costs nothing but the look: a history is made when
a counter first moves, and goes when it has been still for as long as a history is.
Source: docs/monitoring.md.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from lavinmq.process.portions import in_portions
from lavinmq.stats.track import Counters, Track

NOTHING: Final[Counters] = {}


class Tracked(Protocol):
    """Something with counters. `track` is None until one of them has moved."""

    track: Track | None

    def counters(self) -> Counters:
        """What has been counted since it was made; never goes down."""


class Gauge:
    """The last values of something that goes up and down; nothing is kept while all are zero."""

    __slots__ = ("_log",)

    def __init__(self) -> None:
        self._log: array[float] | None = None

    @property
    def is_zero(self) -> bool:
        """Whether it has been zero for as long as a history is."""
        return self._log is None

    def sample(self, value: float, samples: int) -> None:
        """Take a sample. Args: samples: length of a history now."""
        log = self._log
        if log is None:
            if not value:
                return
            log = self._log = array("d", bytes(8 * (samples - 1)))
        log.append(value)
        del log[: max(len(log) - samples, 0)]
        if not value and not any(log):
            self._log = None

    def log(self, samples: int) -> list[float]:
        """The values of that many samples, the oldest first; whole numbers as such."""
        log = self._log or ()
        shown = [int(value) if value.is_integer() else round(value, 3) for value in log]
        return [0] * (samples - len(shown)) + shown


class Sampler:
    """Samples everything that `things` yields.

    Args: things: all that is counted; call_soon: of the event loop.
    """

    def __init__(
        self, things: Callable[[], Iterable[Tracked]], call_soon: Callable[..., Any]
    ) -> None:
        self._things = things
        self._call_soon = call_soon
        self._sampled_at = time.monotonic()
        self._is_busy = False
        self.samples = 0
        """Length of all histories now."""
        self.duration_s = 0.0
        """How long the last round took, others' turns included."""
        self.total_s = 0.0
        """The same of all rounds."""

    def sample(self, size: int) -> None:
        """Begin a round, unless the last one is still going on. Args: size: most of a history."""
        if self._is_busy:
            return
        self._is_busy = True
        self.samples = min(self.samples + 1, size)
        now = time.monotonic()
        elapsed_s = max(now - self._sampled_at, 0.001)
        self._sampled_at = now
        in_portions(self._call_soon, self._round(elapsed_s))

    def _round(self, elapsed_s: float) -> Iterator[None]:
        began = time.perf_counter()
        try:
            for thing in self._things():
                counters = thing.counters()
                if thing.track is None:
                    if not any(counters.values()):
                        yield
                        continue
                    thing.track = Track()
                thing.track.sample(counters, elapsed_s, self.samples)
                yield
        finally:
            self._is_busy = False
            self.duration_s = time.perf_counter() - began
            self.total_s += self.duration_s

    def stats(
        self, thing: Tracked, names: Iterable[str], *, with_log: bool = False
    ) -> dict[str, Any]:
        """Each counter with its details, as the API shows them."""
        counters = thing.counters()
        track = thing.track or UNMOVED
        shown: dict[str, Any] = {}
        for name in names:
            shown[name] = counters.get(name, 0)
            details: dict[str, Any] = {"rate": track.rate(name)}
            if with_log:
                details["log"] = track.log(name, self.samples)
            shown[f"{name}_details"] = details
        return shown


UNMOVED: Final = Track()


class Sum:
    """The counters of several things together, with their rates and histories.

    Args: names: of the counters; samples: length of a history now.
    """

    def __init__(self, names: Iterable[str], samples: int) -> None:
        self._names = tuple(names)
        self._samples = samples
        self._counts = dict.fromkeys(self._names, 0)
        self._rates = dict.fromkeys(self._names, 0.0)
        self._logs: dict[str, list[float]] = {}

    def add(self, thing: Tracked) -> None:
        """Add one thing. Cost: 10 µs for each counter that has moved lately."""
        counters = thing.counters()
        for name in self._names:
            self._counts[name] += counters.get(name, 0)
            if thing.track is None or not thing.track.has_moved(name):
                continue
            self._rates[name] += thing.track.rate(name)
            log = thing.track.log(name, self._samples)
            self._logs[name] = summed((self._logs[name], log)) if name in self._logs else log

    def stats(self, *, with_log: bool = False) -> dict[str, Any]:
        """Each counter with its details, as `Sampler.stats` shows those of one thing."""
        shown: dict[str, Any] = {}
        for name in self._names:
            shown[name] = self._counts[name]
            details: dict[str, Any] = {"rate": round(self._rates[name], 1)}
            if with_log:
                details["log"] = self._logs.get(name) or [0.0] * self._samples
            shown[f"{name}_details"] = details
        return shown


def summed(logs: Iterable[list[float]]) -> list[float]:
    """The sum of histories; shorter ones count as zero in the past they have not seen."""
    total: list[float] = []
    for log in logs:
        if len(log) > len(total):
            total = [0.0] * (len(log) - len(total)) + total
        offset = len(total) - len(log)
        for at, value in enumerate(log):
            total[offset + at] = round(total[offset + at] + value, 1)
    return total
