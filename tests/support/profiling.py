"""Where a running program spends its time, as `perf record` of Linux tells it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

EVENT = "cpu-clock"
"""Counted by the kernel itself: virtual machines often have no counters of the processor."""


def missing(directory: Path) -> str:
    """Say why nothing can be profiled here; empty: it can. Tries it in `directory`."""
    if not shutil.which("perf"):
        return "not installed: perf"
    done = subprocess.run(
        ["perf", "record", "-e", EVENT, "-o", directory / "tried.data", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"perf may not record here: {done.stderr.strip()[-200:]}" if done.returncode else ""


def hot_functions(pid: int, seconds: float, directory: Path) -> set[str]:
    """Record a process, perhaps one of a container, and say in which functions it was seen.

    Raises: AssertionError if perf fails.
    """
    data = directory / f"{pid}.data"
    # The files of a container are out of reach for the report: the record keeps their symbols.
    perf = ["perf", "--buildid-dir", str(directory / "symbols")]
    record = [*perf, "record", "-g", "-e", EVENT, "-o", str(data), "-p", str(pid)]
    _run([*record, "--", "sleep", str(seconds)])
    report = [*perf, "report", "-i", str(data), "--stdio", "--no-children", "-g", "none"]
    return set(re.findall(r"^\s*\[[.k]\] (\S+)", _run([*report, "-F", "symbol"]), re.MULTILINE))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout
