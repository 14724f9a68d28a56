"""The history of one thing's rates, in little memory: there is one for each connection and channel.

Most of them do nothing for long: samples in which nothing has grown are counted, and a counter has
rates from the first sample on in which any has grown. Source: docs/monitoring.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

Counters = Mapping[str, int]

_RATE: Final = struct.Struct("=f")


@lru_cache(maxsize=4096)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """The one tuple of these names, as many things have the same counters moving."""
    return names


class Track:
    """The counters of one thing at the last sample, and how fast they grew before that."""

    __slots__ = ("_last", "_moved", "_n_still", "_rates")

    def __init__(self) -> None:
        self._last: tuple[int, ...] = ()
        """The counters; a thing names them always in the same order."""
        self._moved: tuple[str, ...] = ()
        """Those that have grown in the time of `_rates`."""
        self._rates = b""
        """A row of floats for each of `_moved`, all equally long, the oldest first."""
        self._n_still = 0
        """Samples since the last one in `_rates`, in all of which the rates were zero."""

    def sample(self, counters: Counters, elapsed_s: float, samples: int) -> None:
        """Take a sample. Cost: 0.3 µs when nothing has grown, else 1 µs for each counter.

        Args: elapsed_s: since the last one; samples: length of a history now.
        """
        values = tuple(counters.values())
        if values == self._last:
            if self._moved:
                self._n_still += 1
                if self._n_still >= samples:
                    self._moved, self._rates, self._n_still = (), b"", 0
            return
        rows = {name: self._row(name) for name in self._moved}
        unmoved = bytes(len(self._rates) // max(len(self._moved), 1))
        still = bytes(_RATE.size * self._n_still)
        moved: list[str] = []
        kept: list[bytes] = []
        for (name, count), before in zip(
            counters.items(), self._last or (0,) * len(values), strict=False
        ):
            rate = round(max(count - before, 0) / elapsed_s, 1)
            if not rate and name not in rows:
                continue
            row = rows.get(name, unmoved) + still + _RATE.pack(rate)
            row = row[-_RATE.size * samples :]
            if row.count(0) < len(row):
                moved.append(name)
                kept.append(row)
        self._last, self._n_still = values, 0
        self._moved, self._rates = _shared(tuple(moved)), b"".join(kept)

    def _row(self, name: str) -> bytes:
        """The rates of a counter that has grown."""
        size = len(self._rates) // len(self._moved)
        at = self._moved.index(name) * size
        return self._rates[at : at + size]

    def has_moved(self, name: str) -> bool:
        """Whether a counter has grown in the time of a history before the last growth of any."""
        return name in self._moved

    def rate(self, name: str) -> float:
        """How fast a counter grew in the last interval, per second."""
        if self._n_still or name not in self._moved:
            return 0.0
        rate: float = _RATE.unpack(self._row(name)[-_RATE.size :])[0]
        return round(rate, 1)

    def log(self, name: str, samples: int) -> list[float]:
        """The rates of that many intervals, the oldest first."""
        if name not in self._moved:
            return [0.0] * samples
        rates = memoryview(self._row(name)).cast("f")
        shown = [round(rate, 1) for rate in rates] + [0.0] * self._n_still
        return [0.0] * (samples - len(shown)) + shown[-samples:]
