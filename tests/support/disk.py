"""The disk of a broker under test: what it was asked to do, and when it is to fail.

Compiles `disk_shim.c`, which is preloaded into a broker, steers it through a mapped control file
and reads its log. Tells nothing about what the files mean.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.patience import PATIENCE

SOURCE = Path(__file__).with_name("disk_shim.c")
FOREVER = (1 << 64) - 1
STRIKE_TIMEOUT_S = 15.0 * PATIENCE

_CONTROL = struct.Struct("<4I4Q256s")
_COUNTERS = struct.Struct("<2Q")
_COUNTERS_AT = 32
_RECORD = struct.Struct("<QQq6I")


class Call(enum.IntFlag):
    """Kinds of calls; the numbers are those of the shim."""

    OPEN = 1 << 0
    OPEN_READ = 1 << 1
    WRITE = 1 << 2
    READ = 1 << 3
    SYNC = 1 << 4
    TRUNCATE = 1 << 5
    RENAME = 1 << 6
    UNLINK = 1 << 7
    MKDIR = 1 << 8
    RMDIR = 1 << 9
    MMAP = 1 << 10
    DUP = 1 << 11
    SYNCED = 1 << 12
    PUNCH = 1 << 13
    ALLOCATE = 1 << 14
    STAT = 1 << 15
    CACHED = 1 << 16
    CHANGES = OPEN | WRITE | SYNC | TRUNCATE | RENAME | UNLINK | MKDIR | RMDIR | PUNCH | ALLOCATE


class Action(enum.IntEnum):
    """What happens to the calls of a plan; KILL_MIDDLE does half of a write, all of any other; HOLD
    keeps those that change or name something back until the next plan, or `heal`."""

    NOTHING = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    KILL_MIDDLE = 3
    FAIL = 4
    SHORT = 5
    HOLD = 6


@dataclass(frozen=True, slots=True)
class Record:
    """A call that was done. `path` is below the root; `time_ns` is CLOCK_MONOTONIC, before it;
    `number` is what the plan counts, 0 for a call that it does not.
    """

    time_ns: int
    kind: Call
    path: str
    target: str
    inode: int
    offset: int
    data: bytes
    created: bool
    emptied: bool
    of_directory: bool
    keeps_size: bool
    number: int

    @property
    def length(self) -> int:
        """Bytes that a PUNCH or an ALLOCATE is about, from `offset` on."""
        return int.from_bytes(self.data, "little")


def compile_shim(directory: Path) -> Path:
    """Compile the shim into `directory` and return its path."""
    library = directory / "disk_shim.so"
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-lpthread"], check=True)
    return library


class Disk:
    """What lies below `root`, as one broker after the other sees it.

    Args: `shim`, the compiled library; `root`, the data directory; `directory`, where the control
    file and the log go, outside the root.
    """

    def __init__(self, shim: Path, root: Path, directory: Path) -> None:
        self._shim = shim
        self._root = root
        self._control_path = directory / "disk.control"
        self.log_path = directory / "disk.log"
        self._control_path.write_bytes(bytes(mmap.PAGESIZE))
        with self._control_path.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def env(self, *, log: bool = False) -> dict[str, str]:
        """Return the environment of a broker that is to use this disk."""
        shim = {
            # A sanitizer's runtime has to stay the first one.
            "LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')}:{self._shim}".lstrip(":"),
            "DISK_SHIM_ROOT": str(self._root),
            "DISK_SHIM_CONTROL": str(self._control_path),
        }
        return shim | ({"DISK_SHIM_LOG": str(self.log_path)} if log else {})

    def plan(
        self,
        action: Action,
        kinds: Call,
        pattern: str = "",
        *,
        first: int = 1,
        last: int = FOREVER,
        error: int = 0,
        sync_us: int = 0,
    ) -> None:
        """From now on let `action` happen to the matching calls from number `first` to `last`.

        Args: `pattern`, a shell pattern for the path below the root, in which `*` takes slashes
        too; `error`, an errno; `sync_us`, how long a sync pretends to work, 0 for a real one.
        """
        self._control[:4] = bytes(4)  # nothing happens while the rest is being written
        fields = (error, sync_us, first, last, 0, 0, pattern.encode())
        self._control[4 : _CONTROL.size] = _CONTROL.pack(action, kinds, *fields)[4:]
        self._control[:4] = action.to_bytes(4, "little")

    def heal(self) -> None:
        """Let nothing happen any more; the counters stay."""
        self._control[:4] = bytes(4)

    @property
    def matched(self) -> int:
        """How many calls have matched the plan."""
        return int(_COUNTERS.unpack_from(self._control, _COUNTERS_AT)[0])

    @property
    def struck(self) -> int:
        """To how many calls something was done."""
        return int(_COUNTERS.unpack_from(self._control, _COUNTERS_AT)[1])

    def wait_for_strikes(self, count: int = 1) -> None:
        """Wait until something was done to so many calls."""
        deadline = time.monotonic() + STRIKE_TIMEOUT_S
        while self.struck < count:
            assert time.monotonic() < deadline, f"only {self.struck} calls were struck"
            time.sleep(0.005)

    def records(self) -> list[Record]:
        """Return the log; a last record that was cut short by a kill is left out."""
        return list(_parse(self.log_path.read_bytes()))

    def close(self) -> None:
        """Let go of the control file."""
        self._control.close()


def _parse(log: bytes) -> Iterator[Record]:
    at = 0
    while at + _RECORD.size <= len(log):
        time_ns, inode, offset, kind, flags, *lengths, number = _RECORD.unpack_from(log, at)
        at += _RECORD.size
        if at + sum(lengths) > len(log):
            return
        parts = []
        for length in lengths:
            parts.append(log[at : at + length])
            at += length
        path, target, data = parts
        yield Record(
            time_ns, Call(kind), path.decode(), target.decode(), inode, offset, data,
            bool(flags & 1), bool(flags & 2), bool(flags & 4), bool(flags & 8), number,
        )  # fmt: skip
