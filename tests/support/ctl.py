"""Runs lavinmqctl against the control socket of a node."""

from __future__ import annotations

import subprocess
import sys
from typing import Protocol

PATIENCE_S = 60.0


class Controlled(Protocol):
    """What has a control socket."""

    @property
    def control_path(self) -> str:
        """Where it is."""


def ctl(node: Controlled, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command prints, and how it ends."""
    return subprocess.run(
        [sys.executable, "-m", "lavinmq.cli.ctl", "--control-unix-path", node.control_path, *words],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
