"""Ports for a broker that is started to be trained or measured, and waiting until it listens."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from toolchain import BuildError


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def wait_until_listening(
    ports: Sequence[int], process: subprocess.Popen[bytes], log: Path, limit_s: float
) -> None:
    """Return when all ports answer. Raises: BuildError, with the end of the log."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            for port in ports:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-4000:]
                raise BuildError(f"the broker does not start\n{said}") from None
            time.sleep(0.002)
