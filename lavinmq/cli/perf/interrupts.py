"""Ctrl-C for lavinmqperf: once to stop and sum up, twice to abort."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Self


class Interrupts:
    """Counts SIGINT while entered; its descriptor is readable from the first one on.

    The second ends the process with status 1. Outside the main thread, which alone may handle
    signals, nothing is counted. It is entered once.
    """

    def __init__(self) -> None:
        # A signal handler may not take a lock the main thread could hold: it writes here instead.
        self._wake = os.eventfd(0)
        self.happened = False

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._wake

    def __enter__(self) -> Self:
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)
        os.close(self._wake)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self.happened:
            os.write(sys.stderr.fileno(), b"Aborting\n")
            os._exit(1)
        self.happened = True
        os.eventfd_write(self._wake, 1)
