"""What a start finds by the form of its name among very many directories of queues."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lavinmq.files.changes import Changes, Name
from lavinmq.files.deleted import DOOMED, DeletedFiles
from lavinmq.files.directories import hashed, matching, remove_tree
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

    deleted = DeletedFiles(tmp_path, Disk(), log.get("lmq.test"))
    deleted.remove_left(["q"])

    assert set(tmp_path.iterdir()) == kept
    assert [deleted.is_named(str(path)) for path in (queue, other)] == [False, True]


def test_a_directory_that_keeps_its_name_is_known_until_it_is_set_aside(tmp_path: Path) -> None:
    files = DeletedFiles(tmp_path, Disk(), log.get("lmq.test"))
    path = tmp_path / hashed("q")
    heard: list[Path | None] = []
    path.symlink_to(tmp_path / "nowhere")  # its disk may come back
    files.add(str(path))
    files.make_way(str(path))
    assert not files.is_named(str(path))  # a link loses its name as well

    path.symlink_to(tmp_path / "nowhere")
    files.remove_left(())
    files.set_aside(str(path), heard.append)

    with pytest.raises(OSError, match="link to nowhere"):
        files.is_named(str(path))
    assert files.is_named(str(path))
    (tmp_path / "nowhere").mkdir()
    files.set_aside(str(path), heard.append)
    assert not files.is_named(str(path))
    assert [aside is not None and aside.is_symlink() for aside in heard] == [False, True]


def test_keys_of_exchanges_that_are_gone_are_removed_and_nothing_else(tmp_path: Path) -> None:
    known = dedup.exchange_file(tmp_path, "known")
    kept = {known, tmp_path / "dedup", tmp_path / f"dedup.{hashed('x')[:-1]}"}
    gone = dedup.exchange_file(tmp_path, "gone")
    for path in (*kept, gone, gone.with_name(f"{gone.name}.tmp")):
        path.touch()

    assert list(dedup.remove_others(tmp_path, {known}, Changes())) == []

    assert set(tmp_path.iterdir()) == kept


class HastyChanges(Changes):
    """Somebody else removes each file just before."""

    def unlink(self, path: Name) -> None:
        """Remove what is not there any more."""
        Path(path).unlink()
        super().unlink(path)


def test_a_directory_goes_with_a_file_that_goes_meanwhile(tmp_path: Path) -> None:
    """A large message was on its way into the queue: the other files stayed until the next
    start."""
    path = tmp_path / "q"
    path.mkdir()
    for name in ("msgs.0000000001", "tmp.msgs.0000000017"):
        (path / name).touch()

    remove_tree(path, HastyChanges())

    assert not path.exists()
