"""What a start finds by the form of its name among very many directories of queues."""

from __future__ import annotations

import re
from pathlib import Path

from lavinmq.files.changes import Changes
from lavinmq.files.deleted import DOOMED, DeletedFiles
from lavinmq.files.directories import hashed, matching
from lavinmq.files.saving import Disk
from lavinmq.process import log
from lavinmq.vhost import dedup


def test_names_match_as_a_whole(tmp_path: Path) -> None:
    for name in ("a1", "a1b", "xa1", "a1\n"):
        (tmp_path / name).touch()

    assert matching(tmp_path, re.compile("a[0-9]")) == [tmp_path / "a1"]
    assert matching(tmp_path / "missing", re.compile("a")) == []


def test_a_start_removes_what_is_left_of_deleted_queues_and_nothing_else(tmp_path: Path) -> None:
    queue, other = tmp_path / hashed("q"), tmp_path / hashed("other")
    kept = {queue, other, tmp_path / f"q{DOOMED}1", tmp_path / "definitions.amqp"}
    for path in (*kept, Path(f"{queue}{DOOMED}12"), Path(f"{queue}{DOOMED}3\n")):
        path.mkdir()
        (path / ".queue").touch()

    DeletedFiles(tmp_path, Disk(), log.get("lmq.test")).remove_left()

    assert set(tmp_path.iterdir()) == kept


def test_keys_of_exchanges_that_are_gone_are_removed_and_nothing_else(tmp_path: Path) -> None:
    known = dedup.exchange_file(tmp_path, "known")
    kept = {known, tmp_path / "dedup", tmp_path / f"dedup.{hashed('x')[:-1]}"}
    gone = dedup.exchange_file(tmp_path, "gone")
    for path in (*kept, gone, gone.with_name(f"{gone.name}.tmp")):
        path.touch()

    assert list(dedup.remove_others(tmp_path, {known}, Changes())) == []

    assert set(tmp_path.iterdir()) == kept
