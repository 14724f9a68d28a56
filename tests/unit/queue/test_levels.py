"""Levels of a priority queue whose files hold less than was promised: no other level pays for it.

After a loss of power a finished segment may be shorter than its meta file says. The queue counts by
meta files until it has read them.
"""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, TimedEvents, publish
from tests.support.segment_files import record, write_segment
from tests.support.segments import read_queue

HIGHEST = 3
HIGH = [b"high 1", b"high 2"]
LOW = [b"low 1", b"low 2", b"low 3"]
PROMISED = 5
BEHIND = {"nothing": b"", "zeros": bytes(600), "junk": b"\xff" * 600}


def finish_segment(directory: Path, bodies: list[bytes], promised: int, tail: bytes = b"") -> None:
    """Write the first segment, and a meta file that tells of so many messages."""
    write_segment(directory, 1, [record(body) for body in bodies], tail)
    (directory / "meta.0000000001").write_bytes(struct.pack("<I", promised))


def write_levels(root: Path, short: int, tail: bytes = b"") -> None:
    """Write level `short`, with less than it has promised and a newest segment that has nothing,
    and below it level 0, with messages in two segments."""
    level, lowest = root / f"prio.{short:03}", root / "prio.000"
    finish_segment(level, HIGH, PROMISED, tail)
    write_segment(level, 2, [])
    finish_segment(lowest, LOW[:2], 2)
    write_segment(lowest, 2, [record(LOW[2])])


def drain(bench: Bench, queue: _core.Queue) -> list[bytes]:
    """Take everything."""
    bodies = []
    while got := bench.get(queue):
        bodies.append(got.body)
    return bodies


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("short", range(1, HIGHEST + 1))
def test_what_a_level_has_lost_hides_no_other(tmp_path: Path, short: int, behind: str) -> None:
    """edge-cases.md 239"""
    write_levels(tmp_path / "q", short, BEHIND[behind])
    with closing(Bench(tmp_path)) as bench:
        queue = bench.queue("q", max_priority=HIGHEST)
        assert queue.ready == PROMISED + len(LOW)

        assert drain(bench, queue) == HIGH + LOW
        assert queue.ready == queue.ready_bytes == 0


def test_what_comes_later_removes_nothing_below(tmp_path: Path) -> None:
    """A queue that took itself for empty passed over what was behind its cursor, and removed it."""
    write_levels(tmp_path / "q", HIGHEST)
    with closing(Bench(tmp_path)) as bench:
        queue = bench.queue("q", max_priority=HIGHEST)
        for _ in range(len(HIGH) + 1):
            bench.link.get(1, queue, True)
        bench.run()
        bench.send(publish(b"q", b"later"))
        bench.link.get(1, queue, True)
        bench.run()
        bench.link.flush()
        taken = [got.body for got in bench.receive()]
        queue.close()

    kept = [each.body for each in read_queue(tmp_path / "q" / "prio.000")]
    assert taken + kept == [*HIGH, *LOW, b"later"]


@pytest.mark.parametrize("levels", [-1, HIGHEST], ids=["plain", "levels"])
def test_what_has_expired_leaves_no_count_of_what_was_lost(tmp_path: Path, levels: int) -> None:
    """Messages that were promised and are none were ready for ever in a queue nobody consumes."""
    files = tmp_path / "q" / "prio.001" if levels > 0 else tmp_path / "q"
    finish_segment(files, HIGH, PROMISED)
    write_segment(files, 2, [])
    with closing(Bench(tmp_path, TimedEvents())) as bench:
        queue = bench.queue("q", max_priority=levels, ttl_ms=1000)
        assert queue.ready == PROMISED

        bench.advance(5000)

        assert (queue.ready, queue.ready_bytes) == (0, 0)
        bench.send(publish(b"q", b"later"))
        assert drain(bench, queue) == [b"later"]
