"""Brokers that are killed at a file call, in each way in which one can be."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.crash.conftest import DiskFactory
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk


def each_killed(
    on_disk: DiskFactory, points: Sequence[tuple[Call, int]], segment_size: int, *, is_long: bool
) -> Iterator[tuple[Broker, Disk]]:
    """A broker, not started, with its disk, for each kill at calls that a life has come by.

    Args: points: kind and number of each call among `Call.CHANGES`; is_long: at all of them, and
    not at one of each kind alone.
    """
    kinds = {kind for kind, _ in points}
    assert {Call.OPEN, Call.WRITE, Call.RENAME} <= kinds
    chosen = list(points) if is_long else []
    for kind in kinds:
        chosen += [random.choice([point for point in points if point[0] is kind])]
    for kind, number in chosen:
        for action in (Action.KILL_BEFORE, Action.KILL_MIDDLE, Action.KILL_AFTER):
            if action is Action.KILL_MIDDLE and kind is not Call.WRITE:
                continue
            print(f"{action.name} call {number}, {kind.name}")
            broker, disk = on_disk(segment_size=segment_size)
            disk.plan(action, Call.CHANGES, first=number, last=number)
            yield broker, disk
