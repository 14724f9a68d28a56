"""Tests of what happens without memory, each in a process of its own.

What others have freed in this one would be memory enough.

A file of such tests hands `run` the name of a function; the process that it starts is the file as a
program, which calls `main`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

APART: Final = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""For `run`: what is larger comes from the system each time, not out of what was freed."""


@contextmanager
def no_memory() -> Iterator[None]:
    """There is some for small things only."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 65536, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def run(
    file: str, name: str, directory: Path, more: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Have a function of a file called with a directory. Fails as it does. Args: more: of its
    environment."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), **more}
    argv = [sys.executable, file, name, str(directory)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr
