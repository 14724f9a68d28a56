"""Running a load generator against a broker, with an account of who used how much CPU meanwhile.

Owns the generators' processes and how they are talked to. Called by `procedure.py`. A generator
prints one JSON object. A *staged* one (`churnflood.c`) prepares, prints `ready`, works when it
gets a line, prints its JSON, and keeps its connections until it gets another.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf import measure
from perf.measure import BenchError

READY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class GeneratorRun:
    """One run of a generator: its own JSON, and seconds spent by whom while it worked."""

    report: dict[str, Any]
    wall_s: float
    broker_cpu_s: float
    generator_cpu_s: float
    other_cores: float


def run_generator(
    argv: Sequence[str], core: int, broker_pid: int, timeout_s: float
) -> GeneratorRun:
    """Run a generator to its end and account for the CPU used in exactly that time.

    Args: `core` is the generator's; `broker_pid` the root of the broker's process tree. Raises
    `BenchError` when the generator fails or takes too long.
    """
    account = _Account(broker_pid)
    with _started(argv, core) as process:
        try:
            _wait_readable(os.pidfd_open(process.pid), timeout_s)
            # Read before reaping: nothing may come between the generator's end and this sample.
            account.close()
        finally:
            os.kill(process.pid, signal.SIGKILL)  # does nothing to one that ended: not reaped yet
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        output, complaint = process.communicate()
    if process.returncode != 0:
        raise _failure(argv, process, complaint)
    return account.run(json.loads(output), usage.ru_utime + usage.ru_stime)


@contextmanager
def staged_generator(
    argv: Sequence[str], core: int, broker_pid: int, timeout_s: float
) -> Iterator[GeneratorRun]:
    """Run a staged generator; within the context its work is done and its connections are open.

    Only the work counts, not what was prepared. Arguments and errors as in `run_generator`.
    """
    with _started(argv, core) as process:
        try:
            if _line(argv, process, READY_TIMEOUT_S) != "ready\n":
                raise BenchError(f"{Path(argv[0]).name} is no staged generator")
            cpu = measure.tree_cpu_s(process.pid)
            account = _Account(broker_pid)
            _say_go(process)
            report = json.loads(_line(argv, process, timeout_s))
            account.close()
            yield account.run(report, measure.tree_cpu_s(process.pid) - cpu)
        finally:
            process.kill()  # its connections close with it


class _Account:
    """What the broker and the whole machine used between the creation and `close`."""

    def __init__(self, broker_pid: int) -> None:
        self._broker_pid = broker_pid
        self._busy = measure.machine_busy_s()
        self._broker_cpu = measure.tree_cpu_s(broker_pid)
        self._started = time.monotonic()
        self._wall = 0.0

    def close(self) -> None:
        self._wall = time.monotonic() - self._started
        self._broker_cpu = measure.tree_cpu_s(self._broker_pid) - self._broker_cpu
        self._busy = measure.machine_busy_s() - self._busy

    def run(self, report: dict[str, Any], generator_cpu_s: float) -> GeneratorRun:
        other = max(0.0, self._busy - self._broker_cpu - generator_cpu_s) / self._wall
        return GeneratorRun(report, self._wall, self._broker_cpu, generator_cpu_s, other)


def _started(argv: Sequence[str], core: int) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        measure.pinned(core, argv), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def _line(argv: Sequence[str], process: subprocess.Popen[str], timeout_s: float) -> str:
    """Return the next line of a generator that never prints two without being told to go on."""
    assert process.stdout is not None, "not piped"
    _wait_readable(os.dup(process.stdout.fileno()), timeout_s)
    if line := process.stdout.readline():
        return line
    _, complaint = process.communicate()
    raise _failure(argv, process, complaint)


def _say_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None, "not piped"
    process.stdin.write("\n")
    process.stdin.flush()


def _failure(argv: Sequence[str], process: subprocess.Popen[str], complaint: str) -> BenchError:
    return BenchError(f"{Path(argv[0]).name}: {complaint.strip() or process.returncode}")


def _wait_readable(handle: int, timeout_s: float) -> None:
    """Wait until a descriptor has something to say; closes it. Raises `BenchError`."""
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise BenchError(f"the generator did not end within {timeout_s:.0f} s")
    finally:
        os.close(handle)
