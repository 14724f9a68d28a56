"""Which other file systems hold parts of a data directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lavinmq.files import file_systems

VHOST, QUEUE = "a" * 40, "b" * 40


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that says to be on another file system, and all below it."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    stat = os.stat

    def other(name: str | Path, **options: bool) -> os.stat_result:
        found = stat(name, **options)
        if os.path.realpath(name).startswith(str(path)):
            return os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))
        return found

    monkeypatch.setattr(file_systems.os, "stat", other)
    return path


def others(data_dir: Path, *mounted: str) -> list[str]:
    mounts = data_dir.parent / "mounts"
    lines = [f"36 35 98:0 / {path} rw,noatime shared:1 - ext4 /dev/x rw\n" for path in mounted]
    mounts.write_text("".join(lines))
    return file_systems.others(str(data_dir), str(mounts))


def test_links_of_virtual_hosts_and_queues_are_found(tmp_path: Path, elsewhere: Path) -> None:
    data_dir = tmp_path / "data"
    (data_dir / VHOST).mkdir(parents=True)
    (data_dir / VHOST / QUEUE).mkdir()
    assert others(data_dir) == []

    (data_dir / VHOST / ("c" * 40)).symlink_to(elsewhere)
    assert others(data_dir) == [str(data_dir / VHOST / ("c" * 40))]

    (elsewhere / QUEUE).mkdir()
    (data_dir / ("d" * 40)).symlink_to(elsewhere)
    (found,) = others(data_dir)
    assert Path(found).resolve() == elsewhere


def test_links_to_the_same_file_system_and_to_nowhere_are_none(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    (data_dir / VHOST).mkdir(parents=True)
    (tmp_path / "near").mkdir()
    (data_dir / VHOST / QUEUE).symlink_to(tmp_path / "near")
    (data_dir / ("c" * 40)).symlink_to(tmp_path / "nowhere")

    assert others(data_dir) == []


def test_mounts_are_found_by_their_names(tmp_path: Path, elsewhere: Path) -> None:
    data_dir = elsewhere.parent / "data dir"
    (data_dir / VHOST).mkdir(parents=True)
    inside = elsewhere / "x y"
    inside.mkdir()
    as_written = str(inside).replace(" ", "\\040")

    assert others(data_dir, "/proc", as_written) == []
    assert file_systems.others(str(elsewhere.parent), str(tmp_path / "mounts")) == [str(inside)]
