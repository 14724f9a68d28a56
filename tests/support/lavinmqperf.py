"""lavinmqperf as a process of its own, and the broker's connections as the system sees them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.patience import PATIENCE

TIMEOUT_S = 25.0 * PATIENCE
COMMAND = [sys.executable, "-m", "lavinmq.cli.perf"]
ESTABLISHED = "01"


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


class Finished(NamedTuple):
    """What a process that has ended left behind."""

    status: int
    output: str
    errors: str


def perf(*arguments: str, typed: str = "", status: int = 0) -> Finished:
    """Run lavinmqperf to its end with this input and check its exit status."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=typed,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


class Running:
    """A lavinmqperf that goes on until its input ends, or it is interrupted."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read_until(self, text: str) -> str:
        """Return what it prints up to and including the line with this text."""
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if text in line:
                return "".join(lines)
        raise AssertionError(f"no {text!r} in {lines}")

    def enter(self) -> None:
        """Press Enter."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def abort(self) -> None:
        """Press Ctrl-C until the process ends."""

        def has_ended() -> bool:
            self.interrupt()
            return self._process.poll() is not None

        until(has_ended)

    def wait(self) -> None:
        """Wait for it to end by itself, its input still open."""
        self._process.wait(TIMEOUT_S)

    def finish(self) -> Finished:
        """End its input and wait for its end."""
        output, errors = self._process.communicate(timeout=TIMEOUT_S)
        return Finished(self._process.returncode, output, errors)


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    """Start lavinmqperf; it is killed if it is still there at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


class Socket(NamedTuple):
    """An established TCP connection as `/proc/net/tcp` has it; `timer` 02 is keepalive."""

    local: str
    local_port: int
    remote_port: int
    timer: str


def sockets() -> list[Socket]:
    """Return both ends of all established IPv4 connections of this machine."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, _, timer, *_ = line.split()
        if state == ESTABLISHED:
            address, port = local.split(":")
            quads = bytes.fromhex(address)[::-1]
            found.append(
                Socket(
                    ".".join(map(str, quads)),
                    int(port, 16),
                    int(remote.split(":")[1], 16),
                    timer.split(":")[0],
                )
            )
    return found
