"""The wall clock of a process under test, which jumps when the test says so.

Compiles `clock_shim.c`, which is preloaded, and steers it through a mapped file.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_shim.c")


def compile_clock(directory: Path) -> Path:
    """Compile the shim into `directory` and return its path."""
    library = directory / "clock_shim.so"
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(SOURCE)], check=True)
    return library


class Clock:
    """Of one process after the other. Args: shim: the compiled library; path: of the file that
    steers it."""

    def __init__(self, shim: Path, path: Path) -> None:
        self._shim, self._path = shim, path
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def env(self, other: dict[str, str] | None = None) -> dict[str, str]:
        """The environment of a process that is to have this clock, beside what is there already."""
        env = dict(other or {})
        loaded = env.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
        return env | {
            "LD_PRELOAD": f"{loaded}:{self._shim}".lstrip(":"),
            "CLOCK_SHIM_CONTROL": str(self._path),
        }

    def set(self, off_s: float) -> None:
        """From now on it is off by so many seconds."""
        self._control[:8] = struct.pack("<q", int(off_s * 1e9))

    def close(self) -> None:
        """Let go of the file."""
        self._control.close()
