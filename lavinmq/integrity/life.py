"""`.sums/life`: the lives of the brokers that kept the sums, and what has come between them.

A change that was not noted may be somebody else's who had the directory: LavinMQ, or a release
that keeps no sums. The time of the lock file tells. After a loss of power files may be older than
their sums. In both cases what differs is not called damage. Source: docs/integrity.md.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lavinmq.integrity.shelves import HOME

FILE: Final = "life"
BOOT: Final = "/proc/sys/kernel/random/boot_id"


@dataclass(slots=True)
class Life:
    """This life, and what is known of those before. Its methods raise OSError."""

    root: str
    lock: str = ""
    """Time of the lock file, as this life has left it; empty: nobody can tell who comes between."""
    number: int = 1
    foreign: int = 0
    """Files that were looked at last in this life or before it may have been changed by others."""
    lost: int = 0
    """The same: they may be older than their sums, by a loss of power."""
    notes: int = 0
    """From where on notes of changes have not been taken in."""
    ended: bool = False
    last_sign_ns: int = 0
    """When the life before was seen last; 0: it ended in order, or nobody knows."""
    booted_ns: int = 0

    @classmethod
    def begin(cls, root: str, found: bytes, lock: bytes) -> Life:
        """The next life. Args: found: time of the lock file as it was found; lock: as it is now;
        empty: it is not locked."""
        life = cls(root, lock.decode())
        life.booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        before = _read(life._path)
        if before is None:
            return life
        life.number = before["number"] + 1
        life.foreign, life.lost = before["foreign"], before["lost"]
        life.notes = before["notes"]
        if not lock or before["lock"] != found.decode():
            life.foreign = before["number"]
        if not before["ended"]:
            life.last_sign_ns = os.stat(life._path).st_mtime_ns
            if before["boot"] != boot():
                life.lost = before["number"]
        return life

    @property
    def _path(self) -> str:
        return os.path.join(self.root, HOME, FILE)

    def note(self) -> None:
        """Write it."""
        value = {
            "number": self.number, "foreign": self.foreign, "lost": self.lost, "lock": self.lock,
            "boot": boot(), "notes": self.notes, "ended": self.ended,
        }  # fmt: skip
        with open(f"{self._path}.tmp", "wb") as file:  # all of it, however little a disk takes
            file.write(orjson.dumps(value))
        os.rename(f"{self._path}.tmp", self._path)

    def sign(self) -> None:
        """Leave a sign of life."""
        os.utime(self._path)


def boot() -> str:
    """Which boot of the machine this is; empty if it does not say."""
    try:
        with open(BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb", buffering=0) as file:
            value = orjson.loads(file.read())
        kinds = {"number": int, "foreign": int, "lost": int, "notes": int, "lock": str, "boot": str,
                 "ended": bool}  # fmt: skip
        if all(isinstance(value[name], kind) for name, kind in kinds.items()):
            return dict(value)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return None
