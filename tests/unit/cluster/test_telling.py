"""Followers are told what all have on disk only when the leader has it on all its disks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.cluster import telling
from lavinmq.cluster.telling import Telling


class Followed:
    """Stands for a feed whose followers have everything at once."""

    changed = 1

    def __init__(self) -> None:
        self.told: list[int] = []

    def mark(self) -> int:
        """The position behind all."""
        return 7

    def has(self, _: int) -> bool:
        """All of it is where it has to be."""
        return True

    def tell(self, position: int) -> None:
        """It is told."""
        self.told.append(position)


def test_a_disk_that_could_not_be_opened_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then nothing is told: what is on it may not be there after a loss of power."""
    other = tmp_path / "other"
    synced: list[list[int]] = []
    monkeypatch.setattr(telling, "AGAIN_S", 0.0)
    monkeypatch.setattr(telling, "TELL_S", 0.0)
    monkeypatch.setattr(telling.file_systems, "others", lambda _: [str(other)])
    monkeypatch.setattr(telling, "sync_file_systems", synced.append)
    feed: Any = Followed()

    async def rounds() -> list[list[int]]:
        config = SimpleNamespace(data_dir=str(tmp_path))
        broker: Any = SimpleNamespace(config=config, events=asyncio.get_running_loop())
        told = Telling(broker, feed, lambda: True)
        found = []
        for _ in range(3):
            await told._tell()
            found.append([*feed.told])
            other.mkdir(exist_ok=True)
        told.close()
        return found

    found = asyncio.run(rounds())

    assert found == [[], [7], [7, 7]]
    assert [len(each) for each in synced] == [2, 2]
