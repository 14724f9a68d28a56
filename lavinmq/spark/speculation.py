"""Says whether Spark runs tasks twice on suspicion (spark.speculation): a sink must not have that.

Data sources are planned in a process that Spark does not show its configuration. But that process
descends from the driver, whose command line and properties files hold it: what a PySpark session
is built with, what is given to spark-submit, and spark-defaults.conf. Not seen is what a program
sets on a JVM that is running already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from lavinmq.spark.options import OptionError

KEY = "spark.speculation"
DRIVER = "org.apache.spark."
_PROPERTY = re.compile(r"\s*(spark\.[\w.]+)\s*[=:\s]\s*(.*?)\s*$")


def refuse_speculation(proc: Path = Path("/proc")) -> None:
    """Raise OptionError if the driver above this process runs with speculation."""
    if _is_set_here() or is_speculative(proc, os.getpid()):
        raise OptionError(
            f"{KEY} is on: two attempts of one task would publish its rows twice; switch it off"
        )


def is_speculative(proc: Path, pid: int) -> bool:
    """Look through the ancestors of a process for a driver with speculation."""
    while pid > 1:
        command = _words(proc / str(pid) / "cmdline")
        if any(word.startswith(DRIVER) for word in command):
            environment = dict(
                word.split("=", 1) for word in _words(proc / str(pid) / "environ") if "=" in word
            )
            if (value := _configured(command, environment)) is not None:
                return value.strip().lower() == "true"
        pid = _parent(proc / str(pid) / "stat")
    return False


def _is_set_here() -> bool:
    """Say whether a session of this very process has it."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    value = context.getConf().get(KEY, "false") if context is not None else "false"
    return str(value).lower() == "true"


def _configured(command: list[str], environment: Mapping[str, str]) -> str | None:
    """Return the value a driver was started with: its arguments, then its properties files."""
    found, files = None, []
    for word, after in zip(command, [*command[1:], ""], strict=True):
        setting = after if word in ("--conf", "-c") else word.removeprefix("--conf=")
        setting = setting.removeprefix("-D")
        if setting.startswith(f"{KEY}="):
            found = setting.split("=", 1)[1]
        if word == "--properties-file":
            files = [Path(after)]
    if found is not None:
        return found
    if not files:
        home = environment.get("SPARK_HOME", "")
        directory = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
        files = [Path(directory) / "spark-defaults.conf"] if directory else []
    return _read_property(files[0]) if files else None


def _read_property(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    value = None
    for line in lines:
        if (match := _PROPERTY.match(line)) and match[1] == KEY:
            value = match[2]
    return value


def _words(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def _parent(path: Path) -> int:
    try:
        # The name of the process is in parentheses and may hold anything, also a parenthesis.
        return int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
