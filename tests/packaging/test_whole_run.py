"""`make test-packages` tells at its end what has passed and failed, whatever a test does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.packaging.conftest import ROOT

HANGS = """
import threading


def test_that_hangs() -> None:
    threading.Event().wait()


def test_after_it() -> None:
    pass
"""


def test_one_that_hangs_leaves_the_others_and_the_summary(tmp_path: Path) -> None:
    """Without a worker, what ends a test that hangs ended the run, and no summary was printed."""
    # What a make around this test was told is not for this one.
    environment = {k: v for k, v in os.environ.items() if k not in ("ARGS", "MAKEFLAGS")}
    shown = subprocess.run(
        ["make", "-n", "test-packages"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (line,) = [line for line in shown.replace("\\\n", "").splitlines() if "-m pytest" in line]
    words = shlex.split(line)
    options = [word for word in words[words.index("pytest") + 1 :] if not word.startswith("tests/")]
    hanging = tmp_path / "test_hanging.py"
    hanging.write_text(HANGS)
    # Without a place of its own it would delete at its end what earlier runs left, for minutes.
    command = [
        sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *options,
        "-p", "no:cacheprovider", "--timeout", "3", "--basetemp", str(tmp_path / "temporary"),
        str(hanging),
    ]  # fmt: skip

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500
    )

    assert "1 failed, 1 passed" in done.stdout, (done.returncode, done.stdout, done.stderr)
