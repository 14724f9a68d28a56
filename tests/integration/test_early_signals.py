"""Signals that come while the broker starts: none is forgotten."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = textwrap.dedent("""
    import os
    import signal
    import sys

    from lavinmq import server
    from lavinmq.__main__ import main

    start = server.Server.start
    number = getattr(signal, sys.argv.pop())

    def signalled(self):
        os.kill(os.getpid(), number)
        start(self)

    server.Server.start = signalled
    sys.exit(main(sys.argv[1:]))
""")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_broker_told_to_stop_while_it_starts_stops_in_order(tmp_path: Path, name: str) -> None:
    """It starts, stops at once, and leaves a directory with the mark of an orderly stop."""
    arguments = [
        "-D",
        str(tmp_path),
        "-p",
        "0",
        "-b",
        "127.0.0.1",
        "--http-port=-1",
        "--mqtt-port=-1",
        name,
    ]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "clean_stop").exists()
