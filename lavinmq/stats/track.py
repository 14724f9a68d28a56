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


@lru_cache(maxsize=64)
def _counts(n: int) -> struct.Struct:
    """How so many counters stand behind their number."""
    return struct.Struct(f"=B{n}Q")


@lru_cache(maxsize=4096)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """The one tuple of these names, as many things have the same counters moving."""
    return names


class Track:
    """The counters of one thing at the last sample, and how fast they grew before that."""

    __slots__ = ("_moved", "_n_still", "_packed")

    def __init__(self) -> None:
        self._moved: tuple[str, ...] = ()
        """Those that have grown in the time of the rates."""
        self._n_still = 0
        """Samples since the last one of the rates, in all of which they were zero."""
        self._packed = b""
        """The counters behind their number; a thing names them always in the same order. Then the
        rates: a row of floats for each of `_moved`, all equally long, the oldest first."""

    def sample(self, counters: Counters, elapsed_s: float, samples: int) -> None:
        """Take a sample. Cost: 0.3 µs when nothing has grown, else 1 µs for each counter.

        Args: elapsed_s: since the last one; samples: length of a history now.
        """
        form = _counts(len(counters))
        counts = form.pack(len(counters), *counters.values())
        if self._packed.startswith(counts):
            if self._moved:
                self._n_still += 1
                if self._n_still >= samples:
                    self._moved, self._n_still, self._packed = (), 0, counts
            return
        last = form.unpack_from(self._packed)[1:] if self._packed else (0,) * len(counters)
        rows = {name: self._row(name) for name in self._moved}
        unmoved = bytes(len(next(iter(rows.values()), b"")))
        still = bytes(_RATE.size * self._n_still)
        moved: list[str] = []
        kept: list[bytes] = []
        for (name, count), before in zip(counters.items(), last, strict=True):
            rate = round(max(count - before, 0) / elapsed_s, 1)
            if not rate and name not in rows:
                continue
            row = rows.get(name, unmoved) + still + _RATE.pack(rate)
            row = row[-_RATE.size * samples :]
            if row.count(0) < len(row):
                moved.append(name)
                kept.append(row)
        self._moved, self._n_still = _shared(tuple(moved)), 0
        self._packed = b"".join((counts, *kept))

    def _row(self, name: str) -> bytes:
        """The rates of a counter that has grown."""
        begin = _counts(self._packed[0]).size
        size = (len(self._packed) - begin) // len(self._moved)
        at = begin + self._moved.index(name) * size
        return self._packed[at : at + size]

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
