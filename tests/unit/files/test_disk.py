"""What is logged about free space: when it gets short and when it is back, and not all the time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from lavinmq.config.values import defaults
from lavinmq.files.disk import AGAIN_S, DiskWatch

MIB = 1 << 20
Look = Callable[[int], bool]


class Watched:
    """A watch of a disk with as much free as is said, at a time that is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = defaults()
        config.free_disk_min, config.free_disk_warn = 100 * MIB, 200 * MIB
        self.now_s = 0.0
        self.free = 0
        self.watch = DiskWatch(config, lambda: self.now_s)
        monkeypatch.setattr(
            os, "statvfs", lambda _: SimpleNamespace(f_bavail=self.free, f_frsize=MIB)
        )

    def look(self, free_mib: int, after_s: float = 5.0) -> bool:
        self.free = free_mib
        self.now_s += after_s
        return self.watch.is_low()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Watched:
    caplog.set_level(logging.INFO)
    return Watched(monkeypatch)


def test_little_space_is_told_when_it_begins_and_every_ten_minutes(
    disk: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """It was told every five seconds for as long as it lasted."""
    disk.look(500)
    for _ in range(3):
        disk.look(150)
    assert caplog.messages == ["only 150 MiB free on disk"]

    disk.look(140, AGAIN_S)
    disk.look(140)

    assert caplog.messages == ["only 150 MiB free on disk", "only 140 MiB free on disk"]


def test_the_end_is_told_once_there_is_clearly_more(
    disk: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    for free_mib in (199, 201, 199, 249, 250, 251, 199):
        disk.look(free_mib)

    assert caplog.messages == [
        "only 199 MiB free on disk", "250 MiB free on disk again", "only 199 MiB free on disk",
    ]  # fmt: skip


def test_an_alarm_is_told_at_once_and_counts_as_told(
    disk: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    assert disk.look(99)
    assert disk.look(124)
    assert not disk.look(125)
    assert not disk.look(130)
    assert not disk.look(300)

    assert caplog.messages == [
        "99 MiB free on disk, the limit is 100: publishers are held",
        "125 MiB free on disk, the limit is 100: publishers go on",
        "300 MiB free on disk again",
    ]


def test_the_end_of_an_alarm_is_told_once(disk: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for free_mib in (99, 300, 300):
        disk.look(free_mib)

    assert caplog.messages == [
        "99 MiB free on disk, the limit is 100: publishers are held",
        "300 MiB free on disk, the limit is 100: publishers go on",
    ]
