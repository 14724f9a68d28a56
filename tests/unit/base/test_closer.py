"""Files of segments that are not needed any more: their names go at once, their blocks later."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from tests.support.core import Bench, publish

SEGMENTS = 200
PATIENCE_S = 30

FORKED = """
import os, sys
from pathlib import Path
from tests.unit.base.test_closer import nameless, roll
roll(Path(sys.argv[1]) / "parent")
child = os.fork()
if child == 0:
    roll(Path(sys.argv[1]) / "child")
    os._exit(nameless(Path(sys.argv[1]) / "child"))
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) or nameless(Path(sys.argv[1])))
"""


def roll(directory: Path) -> None:
    """Fill as many segments, and consume what is in them."""
    with closing(Bench(directory)) as bench:
        queue = bench.queue("q")
        bench.send(publish(b"q", bytes(4000)) * SEGMENTS)
        bench.run()
        while bench.get(queue) is not None:
            pass
        bench.run()
        assert len(list((directory / "q").glob("msgs.*"))) <= 1


def nameless(directory: Path) -> int:
    """Descriptors of this process for removed files in a directory, once there is time to close
    them."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = 0
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except FileNotFoundError:
                continue  # the one that listed them
            found += target.startswith(f"{directory}/") and target.endswith(" (deleted)")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def test_removed_files_are_closed(tmp_path: Path) -> None:
    roll(tmp_path / "data")

    assert nameless(tmp_path) == 0


def test_a_fork_closes_its_own(tmp_path: Path) -> None:
    """The thread is the parent's: a descriptor that went to it would be another file there."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
