"""Changes of an archive: stopped at any step, they happen once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lavinmq.pipeline.errors import PipelineError
from lavinmq.pipeline.files import Files
from lavinmq.pipeline.ledger import KEPT_CHANGES, SUCCESS, Ledger, data_files
from tests.spark.jobs import stop_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, str(tmp_path / "archive of 100% ünïcode"))


def stage(ledger: Ledger, *names: str, whole: bool = True) -> None:
    """Write files as a job of Spark does."""
    place = Path(ledger.begin().removeprefix("file:"))
    for name in names:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    if whole:
        (place / SUCCESS).touch()


def contents(files: Files) -> dict[str, str | None]:
    return {file.path: files.read(file.path) for file in data_files(files)}


A, B, C = (f"date=2026-01-0{n}/part-0000{n}-6e1b.c000.zstd.parquet" for n in (1, 2, 3))
ALL = {
    "date=2026-01-01/x-00000.zstd.parquet": A,
    "date=2026-01-02/x-00001.zstd.parquet": B,
    "date=2026-01-03/x-00002.zstd.parquet": C,
}


@pytest.mark.parametrize("step", ["staged", "change", "half moved", "moved"])
def test_a_change_that_is_stopped_happens_once(
    files: Files, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(files, "w")
    stage(ledger, A, B, C)
    with monkeypatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(RuntimeError, match="stopped here"):
            ledger.publish(0, "x")
    seen = contents(files)

    following = Ledger(files, "w")
    following.settle()
    if following.last() < 0:
        stage(following, A, B, C)
        following.publish(0, "x")

    assert seen.items() <= ALL.items()
    assert contents(files) == ALL
    assert not following.is_pending()
    assert not [name for name in files.names("_lavinmq/w") if name.startswith("staged")]


def test_a_change_replaces_files(files: Files) -> None:
    ledger = Ledger(files, "w")
    stage(ledger, A, B)
    old = [file.path for file in ledger.publish(0, "x")]
    stage(ledger, "part-0-6e1b.c000.parquet")

    added = ledger.publish(1, "y", directory="date=2026-01-09", remove=old)

    assert [file.path for file in added] == ["date=2026-01-09/y-00000.parquet"]
    assert list(contents(files)) == ["date=2026-01-09/y-00000.parquet"]


def test_new_files_are_on_disk_before_old_ones_go(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power could leave neither."""
    ledger = Ledger(files, "w")
    stage(ledger, A)
    old = [file.path for file in ledger.publish(0, "x")]
    stage(ledger, B)
    root = Path(files.root.removeprefix("file:"))
    synced: set[int] = set()
    seen: dict[str, set[str]] = {}
    write, delete = Files.write, Files.delete

    def on_disk() -> set[str]:
        paths = (root, *root.rglob("*"))
        return {str(path.relative_to(root)) for path in paths if path.stat().st_ino in synced}

    def noting_write(files: Files, name: str, text: str, **more: bool) -> bool:
        seen[name.rpartition(".")[2]] = on_disk()
        return write(files, name, text, **more)

    def noting_delete(files: Files, name: str) -> None:
        seen.setdefault(name, on_disk())
        delete(files, name)

    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    monkeypatch.setattr(Files, "write", noting_write)
    monkeypatch.setattr(Files, "delete", noting_delete)
    (added,) = ledger.publish(1, "y", remove=old)

    assert any(path.endswith(B) for path in seen["json"])
    assert {added.path, "date=2026-01-02", "."} <= seen[old[0]]


def test_a_number_is_taken_once(files: Files) -> None:
    one, other = Ledger(files, "w"), Ledger(files, "w")
    stage(one, A)
    stage(other, B)
    one.publish(0, "x")

    with pytest.raises(PipelineError, match="another run has made change 0"):
        other.publish(0, "y")

    assert list(contents(files)) == ["date=2026-01-01/x-00000.zstd.parquet"]


def test_what_was_not_written_whole_is_not_published(files: Files) -> None:
    ledger = Ledger(files, "w")
    stage(ledger, A, whole=False)

    with pytest.raises(PipelineError, match="is not whole"):
        ledger.publish(0, "x")

    assert contents(files) == {}


def test_old_changes_are_forgotten(files: Files) -> None:
    ledger = Ledger(files, "w")
    for number in range(KEPT_CHANGES + 5):
        stage(ledger, f"part-{number}-6e1b.c000.parquet")
        ledger.publish(number, f"x{number}")

    assert ledger.last() == KEPT_CHANGES + 4
    assert not ledger.is_pending()
    assert len(files.names("_lavinmq/w/changes")) < 3 * KEPT_CHANGES
    assert len(contents(files)) == KEPT_CHANGES + 5


def test_a_small_file_is_replaced_or_kept(files: Files) -> None:
    assert files.write("dir/state.json", json.dumps("a")) is True
    assert files.write("dir/state.json", json.dumps("b")) is True
    assert files.write("dir/state.json", json.dumps("c"), replace=False) is False

    assert files.read("dir/state.json") == '"b"'
    assert files.read("dir/other.json") is None
    assert [name for name in files.names("dir") if "draft" in name] == []
