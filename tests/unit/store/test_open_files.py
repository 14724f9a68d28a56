"""How many files queues keep open between their uses."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from tests.support.core import Bench, properties, publish

LEVELS = 100


def open_below(directory: Path) -> int:
    """Descriptors of this process for files in a directory."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{directory}/")
        except FileNotFoundError:
            continue  # the one that listed them
    return found


def test_levels_of_a_priority_queue_count_as_stores(tmp_path: Path) -> None:
    """Each of 16 queues kept 256 files open, which took all descriptors: publishers were told that
    the disk was short of space."""
    with closing(Bench(tmp_path)) as bench:
        bench.loop.set_max_files(3 * LEVELS)
        queue = bench.queue("q", max_priority=LEVELS)
        for priority in range(LEVELS // 2):
            bench.send(publish(b"q", b"x", properties(priority=priority)))
        bench.run()
        assert open_below(tmp_path) >= LEVELS // 2

        for priority in range(LEVELS + 1):
            bench.send(publish(b"q", b"%d" % priority, properties(priority=priority)))
        bench.run()
        assert open_below(tmp_path) == 0

        got = [bench.get(queue) for _ in range(LEVELS + 1)]
        bench.run()
        assert open_below(tmp_path) == 0
        assert [each.body for each in got[: LEVELS // 2] if each is not None] == [
            b"%d" % priority for priority in range(LEVELS, LEVELS // 2, -1)
        ]


def test_a_deleted_queue_counts_no_more(tmp_path: Path) -> None:
    with closing(Bench(tmp_path)) as bench:
        bench.loop.set_max_files(3 * LEVELS)
        many = bench.queue("many", max_priority=LEVELS)
        for priority in range(LEVELS + 1):
            bench.send(publish(b"many", b"x", properties(priority=priority)))
        bench.exchange.unbind(b"many", b"", many)
        many.delete()
        bench.queue("q")

        bench.send(publish(b"q", b"x"))
        bench.run()

        assert open_below(tmp_path) == 1
