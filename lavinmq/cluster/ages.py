"""How old what comes behind a position is: when the head of the log was seen where.

Looked at ten times a second, so a lag in seconds is right to a tenth of one. Bounded: of what was
seen longer ago than it keeps, the oldest that it has counts.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from operator import itemgetter
from typing import Final

MOST: Final = 1000
_POSITION: Final = itemgetter(0)


class Ages:
    """Positions of a head that only rises, each with the time at which it was seen first."""

    def __init__(self, head: int) -> None:
        self._seen = deque([(head, time.monotonic())], maxlen=MOST)

    @property
    def head_s(self) -> float:
        """Seconds since the head has moved."""
        return time.monotonic() - self._seen[-1][1]

    def look(self, head: int) -> None:
        """Note where the head is. Behind where it was: other files have taken the place of ours."""
        if head < self._seen[-1][0]:
            self._seen.clear()
        if not self._seen or head > self._seen[-1][0]:
            self._seen.append((head, time.monotonic()))

    def of(self, position: int) -> float:
        """Seconds since there is something behind a position, as seen; 0: there is nothing."""
        at = bisect_right(self._seen, position, key=_POSITION)
        return time.monotonic() - self._seen[at][1] if at < len(self._seen) else 0.0
