"""A file that is on disk as it grows: little of it is in memory alone at any time.

More would have whoever syncs the file system wait for all of it: a broker beside a backup, or the
leader of a node that joins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO, Final

SYNC_BYTES: Final = 8 << 20
"""So much is in memory alone, at most, before it is synced."""
LITTLE: Final = 256 << 10
"""What is left of a file when it ends; less of it is left to the sync of all."""


def on_disk(file: BinaryIO) -> None:
    """Have on disk what the system knows of a file. Raises: OSError."""
    os.fdatasync(file.fileno())


class Gradual:
    """Writes to a file, and has it on disk as it goes. Args: sync: how."""

    def __init__(self, file: BinaryIO, sync: Callable[[BinaryIO], object] = on_disk) -> None:
        self._file = file
        self._on_disk = sync
        self._unsynced = 0

    def write(self, data: bytes) -> None:
        """Write what comes next. Raises: OSError."""
        self._file.write(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self._sync()

    def end(self) -> None:
        """All of it has come. Raises: OSError."""
        if self._unsynced >= LITTLE:
            self._sync()

    def _sync(self) -> None:
        self._file.flush()
        self._on_disk(self._file)
        self._unsynced = 0
