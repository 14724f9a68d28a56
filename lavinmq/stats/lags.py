"""How far the stored offsets of streams are behind, and were before.

A stream may have very many of them, most of which nobody uses any more: recorded are those that
were committed last. One that rests keeps its place for as long as a history is, for it may be the
one that is looked for. Sampled with everything else (see `totals.py`); a stream without stored
offsets costs a look. Source: decision 0059.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from lavinmq.stats.sampler import Gauge

if TYPE_CHECKING:
    from lavinmq import _core

MAX_OF_STREAM: Final = 12
"""As many as a chart has colours."""
MAX_LAGS: Final = 1000


class Stream(Protocol):
    """A stream, as far as it is read."""

    core: _core.Queue


def lag(core: _core.Queue, offset: int) -> int:
    """Messages on disk that a consumer has before it which goes on at an offset."""
    return max(0, core.synced[0] - max(offset, core.first_offset))


class _Line:
    """One consumer's lag. `n_resting`: samples since it has gone on."""

    __slots__ = ("gauge", "n_resting", "offset")

    def __init__(self) -> None:
        self.gauge = Gauge()
        self.offset = self.n_resting = 0

    def sample(self, core: _core.Queue, offset: int, samples: int) -> None:
        self.gauge.sample(lag(core, offset), samples)
        self.n_resting = self.n_resting + 1 if offset == self.offset else 0
        self.offset = offset


class Lags:
    """Of one broker."""

    def __init__(self) -> None:
        self._lines: WeakKeyDictionary[Stream, dict[bytes, _Line]] = WeakKeyDictionary()
        self._n = 0

    def begin(self) -> None:
        """A round begins: count what there is, since streams may have gone."""
        self._n = sum(map(len, self._lines.values()))

    def sample(self, stream: Stream, samples: int) -> None:
        """Take a sample of a stream. Args: samples: length of a history now."""
        core = stream.core
        if not core.n_offsets and not self._lines:
            return
        lines = self._lines.get(stream, {})
        offsets = {tag: core.stored_offset(tag) for tag in lines}
        self._forget(lines, [tag for tag, offset in offsets.items() if not offset])
        if len(lines) < core.n_offsets:
            self._renew(lines, core.newest_offsets(MAX_OF_STREAM), samples)
        for tag, line in lines.items():
            line.sample(core, core.stored_offset(tag), samples)
        if lines:
            self._lines[stream] = lines
        else:
            self._lines.pop(stream, None)

    def _renew(self, lines: dict[bytes, _Line], newest: list[bytes], samples: int) -> None:
        """Give a place to those that were committed last; others have rested long make room."""
        new = [tag for tag in newest if tag not in lines]
        n_free = MAX_OF_STREAM - len(lines)
        resting = [
            tag for tag, line in lines.items() if line.n_resting >= samples and tag not in newest
        ]
        self._forget(lines, resting[: max(len(new) - n_free, 0)])
        for tag in new:
            if len(lines) < MAX_OF_STREAM and self._n < MAX_LAGS:
                lines[tag] = _Line()
                self._n += 1

    def _forget(self, lines: dict[bytes, _Line], tags: list[bytes]) -> None:
        for tag in tags:
            del lines[tag]
            self._n -= 1

    def log(self, stream: Stream, tag: bytes, samples: int) -> list[float]:
        """The lag of a consumer at that many samples, the oldest first; nothing when it is not
        recorded."""
        line = self._lines.get(stream, {}).get(tag)
        return line.gauge.log(samples) if line is not None else []
