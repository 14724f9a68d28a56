"""A broker that compacts the log of sessions and cleans retained messages all the time, in files of
few bytes: a program for tests that watch it do so.

Takes the options that every test gives a broker.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Self

import lavinmq.mqtt.stores as stores
from lavinmq import _core
from lavinmq.__main__ import main

FILE_SIZE = 1500
LOOK_S = 0.001
AGAIN_S = 1.0
"""One that has not ended by then has failed."""


class Eager:
    """Whether a store is due: it is, unless somebody is at it."""

    until_s = 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() > self.until_s

    def note_begun(self) -> None:
        self.until_s = time.monotonic() + AGAIN_S

    def note_over(self) -> None:
        self.until_s = 0.0


class EagerLog(Eager, _core.SessionLog):
    def __new__(cls, loop: _core.Loop, directory: str) -> Self:
        return super().__new__(cls, loop, directory, FILE_SIZE)

    def compact_some(self) -> bool:
        self.note_begun()
        return super().compact_some()

    def superseded(self, floor: int) -> None:
        super().superseded(floor)
        self.note_over()


class EagerStore(Eager, _core.RetainedStore):
    def __new__(cls, loop: _core.Loop, directory: str) -> Self:
        return super().__new__(cls, loop, directory, FILE_SIZE)

    def clean_some(self) -> bool:
        self.note_begun()
        return super().clean_some()

    def superseded(self, floor: int) -> None:
        super().superseded(floor)
        self.note_over()


if __name__ == "__main__":
    found = vars(_core) | {"SessionLog": EagerLog, "RetainedStore": EagerStore}
    stores._core = SimpleNamespace(**found)  # type: ignore[assignment]
    stores._LOOK_S = LOOK_S  # type: ignore[misc]
    sys.exit(main())
