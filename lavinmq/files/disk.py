"""The free space of the data directory: decides when publishers have to wait.

Asked every few seconds by `server.py`; never touches messages. Source: docs/formats.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.config.values import Config

LOW_SEGMENTS: Final = 3
WARN_SEGMENTS: Final = 6
HYSTERESIS: Final = 4
"""The alarm ends when the limit and this fraction of it are free again."""
AGAIN_S: Final = 600.0
"""After which it is told again that there is little space."""
_log = log.get("lmq.server")


class DiskWatch:
    """Low below the limit, and until a quarter more than the limit is free: an alarm that came and
    went with every segment would help nobody. Before, it warns, and does not repeat that often.

    Args: clock: seconds that only grow.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self._clock = clock
        self._is_low = False
        self._is_short = False
        self._told_s = 0.0
        """When it was told last that there is little."""

    @property
    def limit(self) -> int:
        """Bytes below which the disk is low."""
        return max(self.config.free_disk_min, LOW_SEGMENTS * self.config.segment_size)

    @property
    def _wanted(self) -> int:
        """Bytes below which it warns."""
        return max(self.config.free_disk_warn, WARN_SEGMENTS * self.config.segment_size)

    def is_low(self) -> bool:
        """Look at the disk; log when that changes the answer. A disk that does not answer changes
        nothing."""
        try:
            free = self.free()
        except OSError as error:
            _log.error("free space of %s is unknown: %s", self.config.data_dir, error.strerror)
            return self._is_low
        self._note(free)
        return self._is_low

    def free(self) -> int:
        """Bytes that the broker may still write. Raises: OSError."""
        found = os.statvfs(self.config.data_dir)
        return found.f_bavail * found.f_frsize

    def _note(self, free: int) -> None:
        limit = self.limit
        was_low, self._is_low = self._is_low, _is_below(free, limit, was=self._is_low)
        if self._is_low != was_low:
            say = _log.warning if self._is_low else _log.notice
            what = "are held" if self._is_low else "go on"
            say("%d MiB free on disk, the limit is %d: publishers %s",
                free >> 20, limit >> 20, what)  # fmt: skip
            self._is_short, self._told_s = _is_below(free, self._wanted, was=True), self._clock()
        elif not self._is_low:
            self._note_short(free)

    def _note_short(self, free: int) -> None:
        was_short = self._is_short
        self._is_short = _is_below(free, self._wanted, was=was_short)
        now_s = self._clock()
        if self._is_short and not (was_short and now_s < self._told_s + AGAIN_S):
            self._told_s = now_s
            _log.warning("only %d MiB free on disk", free >> 20)
        elif was_short and not self._is_short:
            _log.notice("%d MiB free on disk again", free >> 20)


def _is_below(free: int, limit: int, *, was: bool) -> bool:
    """Whether that is too little: below the limit, and then until clearly more is free."""
    return free < (limit + limit // HYSTERESIS if was else limit)
