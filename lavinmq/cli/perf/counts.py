"""What `queue-count` and `connection-count` of lavinmqperf share: a batch, a line, Enter, again."""

import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from typing import Self

from lavinmq.cli.perf.interrupts import Interrupts

DOT_EVERY = 10


class Dots:
    """A line with a dot for every ten of something, one for the rest, and how long it took."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._started = time.monotonic()

    def count(self) -> None:
        """Count one more."""
        self._done += 1
        if self._done % DOT_EVERY == 0 or self._done == self._total:
            print(".", end="", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        print(f" {(time.monotonic() - self._started) * 1000:.0f} ms", flush=True)


def own_memory() -> str:
    """Return the resident memory of this process, which is not the broker's, for people."""
    with open("/proc/self/statm", "rb") as statm:
        pages = int(statm.read().split()[1])
    return f"own memory {pages * os.sysconf('SC_PAGE_SIZE') / 2**20:.1f} MiB"


def repeat(
    batch: Callable[[], None],
    totals: Callable[[], str],
    interrupts: Interrupts,
    others: Mapping[int, Callable[[], None]],
) -> None:
    """Do a batch and print the totals until somebody wants no more.

    `others` are descriptors to look after while we wait, and what to do when they are readable.
    """
    while True:
        try:
            batch()
        finally:
            print(f"{totals()}, {own_memory()}", flush=True)
        if interrupts.happened:
            return
        print("Press Enter for another batch, Ctrl-C to stop", flush=True)
        if not _is_entered(interrupts, others):
            return


def _is_entered(interrupts: Interrupts, others: Mapping[int, Callable[[], None]]) -> bool:
    """Wait for the end of a line; false after SIGINT and at the end of the input."""
    if sys.stdin is None:
        return False
    poll = select.poll()
    typed = sys.stdin.fileno()
    for descriptor in (typed, interrupts.fileno(), *others):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        for descriptor in ready & others.keys():
            others[descriptor]()
        if interrupts.happened:
            return False
        if typed in ready:
            # Unbuffered, so that `poll` knows of a second line in what was typed.
            match os.read(typed, 1):
                case b"":
                    return False
                case b"\n":
                    return True
