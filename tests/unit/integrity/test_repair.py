"""What a repair copies aside is what the disk gives, in its places, or nothing is mended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from lavinmq.integrity.repair import Repair
from lavinmq.integrity.sums import BLOCK
from tests.support.little_disk import files_of_at_most

CONTENT = os.urandom(4 * BLOCK + 100)


@pytest.fixture
def repair(tmp_path: Path) -> Repair:
    """Of a data directory with one file."""
    (tmp_path / "file").write_bytes(CONTENT)
    return Repair(str(tmp_path), cast("Any", None), accepts=False)


def copied(root: Path) -> bytes:
    [path] = (root / ".damaged").glob("*/file")
    return path.read_bytes()


@pytest.mark.parametrize("n_given", [0, 4096])
def test_what_the_disk_gives_stays_where_it_was(
    repair: Repair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_given: int
) -> None:
    """A disk gives what is before a bad sector, and no error with that."""

    def fails(fd: int, n: int, at: int) -> bytes:
        if at != BLOCK:
            return pread(fd, n, at)
        if not n_given:
            raise OSError(5, "Input/output error")
        return pread(fd, n_given, at)

    pread = os.pread
    monkeypatch.setattr(os, "pread", fails)

    assert repair._keep_copy("file") == {1}

    monkeypatch.undo()
    found = copied(tmp_path)
    assert found == CONTENT[:BLOCK] + bytes(BLOCK) + CONTENT[2 * BLOCK :]


def test_without_room_for_a_copy_nothing_counts_as_lost(repair: Repair) -> None:
    with files_of_at_most(BLOCK + 5000), pytest.raises(OSError, match="File too large"):
        repair._keep_copy("file")
