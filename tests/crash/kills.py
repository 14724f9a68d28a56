"""Brokers that are killed at a file call, in each way in which one can be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch

from tests.crash.conftest import DiskFactory
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk


def calls_of(disk: Disk, pattern: str) -> Counter[Call]:
    """How many calls of each kind that changes files a life came by, for files of a pattern."""
    return Counter(
        record.kind
        for record in disk.records()
        if record.kind in Call.CHANGES and fnmatch(record.path, pattern)
    )


def each_killed(
    on_disk: DiskFactory,
    calls: Mapping[Call, int],
    pattern: str,
    segment_size: int,
    *,
    is_long: bool,
) -> Iterator[tuple[Broker, Disk]]:
    """A broker, not started, with its disk, for each kill at calls that a life has come by.

    A call is numbered among those of its kind for files of the pattern: how many there are of
    other kinds, and for other files, differs from life to life. So does the number of writes, by
    what a socket had to read each time; the last of them may not come, and one that stands for all
    is not of the last quarter.

    Args: calls: how many of each kind there were; is_long: at all of them, and not at one of each
    kind alone.
    """
    assert {Call.OPEN, Call.WRITE, Call.RENAME} <= set(calls)
    struck = set()
    for kind, count in calls.items():
        sure = max(1, count * 3 // 4) if kind is Call.WRITE else count
        for number in range(1, count + 1) if is_long else [random.randint(1, sure)]:
            for action in (Action.KILL_BEFORE, Action.KILL_MIDDLE, Action.KILL_AFTER):
                if action is Action.KILL_MIDDLE and kind is not Call.WRITE:
                    continue
                print(f"{action.name} {kind.name} {number} of {count}, {pattern}")
                broker, disk = on_disk(segment_size=segment_size)
                disk.plan(action, kind, pattern, first=number, last=number)
                yield broker, disk
                if disk.struck:
                    struck.add(kind)
                else:
                    assert kind is Call.WRITE, f"{kind.name} {number} of {count} never came"
    assert struck == set(calls)
