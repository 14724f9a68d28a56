"""Runs the commands that an operator wants to have run when a node begins or ceases to lead.

Nobody waits for them, and what they return changes nothing. Source: docs/clustering.md.
"""

from __future__ import annotations

import subprocess
import threading

from lavinmq.process import log

_log = log.get("lmq.cluster")


def run_hook(command: str) -> None:
    """Run a command by the shell; an empty one is none."""
    if not command:
        return
    try:
        process = subprocess.Popen(command, shell=True)
    except OSError as error:
        _log.error("%r could not be run: %s", command, error)
        return
    threading.Thread(target=process.wait, name="hook", daemon=True).start()
