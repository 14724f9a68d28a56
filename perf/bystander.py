"""A well-behaved client in a process of its own: how long it waits while another one is hostile.

It publishes a small message to a transient queue, waits for the confirm, fetches it, and begins
anew after a millisecond. `perf/hostile.py` starts it and reads its figures from a pipe. Each round
trip is timed twice: by the clock, and by the processor time that the broker's main thread has used
meanwhile. The second one is what the broker did instead of answering, whatever else the machine
did.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from tests.support.raw_connection import Address, Channel, Connection

PAUSE_S = 0.001
TIMEOUT_S = 600.0
QUEUE = "bystander"


@dataclass(slots=True)
class Wait:
    """The longest round trip: by the clock, by the broker's processor time, and of how many."""

    longest_ms: float = 0.0
    computed_ms: float = 0.0
    trips: int = 0

    def take(self, took_ms: float, computed_ms: float) -> None:
        """Count one round trip."""
        self.longest_ms = max(self.longest_ms, took_ms)
        self.computed_ms = max(self.computed_ms, computed_ms)
        self.trips += 1


class Bystander:
    """The process; a context manager. `watch` measures for the time of a block."""

    def __init__(self, port: int, pid: int, core: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, port, pid, core), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    @contextlib.contextmanager
    def watch(self) -> Iterator[dict[str, Any]]:
        """Measure during the block, and until the round trip that its end falls into is over."""
        self._pipe.send("begin")
        self._pipe.recv()
        found: dict[str, Any] = {}
        try:
            yield found
        finally:
            self._pipe.send("end")
            found.update(self._pipe.recv())

    def __enter__(self) -> Bystander:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send("stop")
        self._process.join(5)
        self._process.kill()


def _work(pipe: Pipe, port: int, pid: int, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    with Connection.open(Address("127.0.0.1", port), name=QUEUE, timeout=TIMEOUT_S) as connection:
        channel = connection.channel()
        channel.declare_queue(QUEUE)
        channel.confirm_select()
        wait = Wait()
        pipe.send("ready")
        while True:
            _round_trip(channel, pid, wait)
            if not pipe.poll(PAUSE_S):
                continue
            asked = pipe.recv()
            if asked == "stop":
                return
            if asked == "begin":
                wait = Wait()
                pipe.send("begun")
            else:
                _round_trip(channel, pid, wait)
                pipe.send(asdict(wait))


def _round_trip(channel: Channel, pid: int, wait: Wait) -> None:
    computed, began = processor_ns(pid), time.perf_counter()
    channel.publish("", QUEUE, b"beat")
    channel.confirm(TIMEOUT_S)
    got = channel.get(QUEUE, no_ack=True)
    took = time.perf_counter() - began
    assert got is not None and got.body == b"beat", "another message was due"
    # The kernel brings that figure up to date some hundred times a second only.
    computed_ms = (processor_ns(pid) - computed) / 1e6
    wait.take(took * 1e3, min(computed_ms, took * 1e3))


def processor_ns(pid: int) -> int:
    """Processor time of a process's main thread, in nanoseconds; 0 when it is gone.

    Source: the kernel's sched-stats.rst, /proc/PID/task/TID/schedstat, first figure.
    """
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
    except (OSError, IndexError):
        return 0
