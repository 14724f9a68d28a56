"""The broker is killed before, in and after single file calls of a fixed workload, then restarted.

In the short form a sample of the points, with some of each kind of call; in the long form all. A
failure names its point.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.crash.conftest import DiskFactory
from tests.crash.workload import Workload
from tests.support.disk import Action, Call, Disk

SEGMENT_SIZE = 4096
KINDS = (
    Call.OPEN, Call.WRITE, Call.SYNC, Call.TRUNCATE, Call.RENAME, Call.UNLINK, Call.MKDIR,
    Call.RMDIR,
)  # fmt: skip
SAMPLE = 1
Point = tuple[Action, Call, int]

pytestmark = pytest.mark.crash


def points_of(disk: Disk, is_long: bool, chance: random.Random) -> Iterator[Point]:
    """All points, or before or after one call of each kind, in one write, and some others."""
    numbers = {
        kind: [record.number for record in disk.records() if record.kind is kind] for kind in KINDS
    }
    everything = [
        (action, kind, number)
        for kind in KINDS
        for number in numbers[kind]
        for action in (Action.KILL_BEFORE, Action.KILL_AFTER, Action.KILL_MIDDLE)
        if action is not Action.KILL_MIDDLE or kind is Call.WRITE
    ]
    if is_long:
        yield from everything
        return
    for kind in KINDS:
        action = chance.choice((Action.KILL_BEFORE, Action.KILL_AFTER))
        yield action, kind, chance.choice(numbers[kind])
    yield Action.KILL_MIDDLE, Call.WRITE, chance.choice(numbers[Call.WRITE])
    for file in ("msgs.", "acks."):  # a segment must not lose one without the other
        unlinks = [
            record.number
            for record in disk.records()
            if record.kind is Call.UNLINK and file in record.path
        ]
        yield Action.KILL_AFTER, Call.UNLINK, unlinks[0]
    yield from chance.sample(everything, SAMPLE)


def test_a_kill_at_any_file_call_loses_nothing_that_was_answered(
    on_disk: DiskFactory, is_long: bool
) -> None:
    chance = random.Random()
    broker, disk = on_disk(log=True, segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, Call.CHANGES)
    workload = Workload()
    assert workload.run(broker), "it does not even work without a kill"
    workload.check(broker)

    for action, kind, number in points_of(disk, is_long, chance):
        print(f"{action.name} call {number}, {kind.name}")
        broker, killing = on_disk(segment_size=SEGMENT_SIZE)
        killing.plan(action, Call.CHANGES, first=number, last=number)
        workload = Workload()

        was_killed = not workload.run(broker)

        killing.heal()
        assert was_killed or killing.struck == 0
        workload.check(broker)


def test_half_written_and_half_read_files_are_finished_unnoticed(on_disk: DiskFactory) -> None:
    broker, disk = on_disk(segment_size=SEGMENT_SIZE)
    disk.plan(Action.SHORT, Call.WRITE | Call.READ)
    workload = Workload()

    assert workload.run(broker)

    workload.check(broker)
    assert disk.struck > 100


def test_no_file_is_mapped(on_disk: DiskFactory) -> None:
    """A failing disk is an error code for a call, for a mapped file it is a signal."""
    broker, disk = on_disk(segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, Call.MMAP)

    assert Workload().run(broker)

    assert disk.matched == 0
