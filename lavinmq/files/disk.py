"""The free space of the data directory: decides when publishers have to wait.

Asked every few seconds by `server.py`; never touches messages. Source: docs/formats.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.config.values import Config

LOW_SEGMENTS: Final = 3
WARN_SEGMENTS: Final = 6
HYSTERESIS: Final = 4
"""The alarm ends when the limit and this fraction of it are free again."""
_log = log.get("lmq.server")


class DiskWatch:
    """Low below the limit, and until a quarter more than the limit is free: an alarm that came and
    went with every segment would help nobody."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._is_low = False

    @property
    def limit(self) -> int:
        """Bytes below which the disk is low."""
        return max(self.config.free_disk_min, LOW_SEGMENTS * self.config.segment_size)

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
        was_low = self._is_low
        self._is_low = free < (limit + limit // HYSTERESIS if was_low else limit)
        if self._is_low != was_low:
            say = _log.warning if self._is_low else _log.notice
            what = "are held" if self._is_low else "go on"
            say("%d MiB free on disk, the limit is %d: publishers %s",
                free >> 20, limit >> 20, what)  # fmt: skip
        elif not self._is_low and free < max(
            self.config.free_disk_warn, WARN_SEGMENTS * self.config.segment_size
        ):
            _log.warning("only %d MiB free on disk", free >> 20)
