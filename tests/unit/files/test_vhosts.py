"""vhosts.json: the first start, LavinMQ's own format, and what cannot be understood."""

import os
import tarfile
from pathlib import Path

import pytest

from lavinmq.errors import DefinitionsError
from lavinmq.files import vhosts as vhosts_file
from lavinmq.files.saving import Disk
from lavinmq.files.vhosts import VHostDef

RECORDED = Path(__file__).parents[2] / "fixtures" / "data-dir"


def recorded(name: str) -> bytes:
    with tarfile.open(RECORDED / f"{name}.tar.gz") as archive:
        (member,) = (m for m in archive if m.name.endswith("vhosts.json"))
        extracted = archive.extractfile(member)
        assert extracted is not None
        return extracted.read()


def make_directory(data_dir: Path, name: str) -> None:
    directory = data_dir / VHostDef(name).directory
    directory.mkdir()
    (directory / ".vhost").write_text(name)


def test_the_first_start_makes_the_default_vhost_as_lavinmq_does(tmp_path: Path) -> None:
    assert vhosts_file.load(tmp_path) == [VHostDef("/")]
    assert (tmp_path / "vhosts.json").read_bytes() == recorded("basic")


def test_when_definitions_will_be_imported_there_is_no_vhost(tmp_path: Path) -> None:
    assert vhosts_file.load(tmp_path, create_default=False) == []
    assert vhosts_file.load(tmp_path) == []


def test_a_file_of_lavinmq_is_written_back_unchanged(tmp_path: Path) -> None:
    (tmp_path / "vhosts.json").write_bytes(recorded("rich"))
    loaded = vhosts_file.load(tmp_path)

    vhosts_file.save(tmp_path, loaded, Disk())

    assert [vhost.name for vhost in loaded] == ["/", "second/bjbp"]
    assert (tmp_path / "vhosts.json").read_bytes() == recorded("rich")


def test_descriptions_and_tags_are_kept(tmp_path: Path) -> None:
    vhosts = [VHostDef("a", "für alles", ("x", "y")), VHostDef("b")]

    vhosts_file.save(tmp_path, vhosts, Disk())

    assert vhosts_file.load(tmp_path) == vhosts


def test_the_directory_follows_from_the_name() -> None:
    assert VHostDef("/").directory == "42099b4af021e53fd8fd4e056c2568d7c2e3ffa8"


def test_only_the_name_is_needed_and_a_double_counts_once(tmp_path: Path) -> None:
    (tmp_path / "vhosts.json").write_text(
        '[{"name": "a", "dir": "wrong"}, {"name": "b", "tags": 1}, {"name": "a"}]'
    )

    assert vhosts_file.load(tmp_path) == [VHostDef("a"), VHostDef("b")]


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", "[{}]", '[{"name": 1}]', "[" * 100000])
def test_a_damaged_file_is_kept_and_made_anew_of_the_directories(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "vhosts.json").write_text(content)
    for name in ("/", "zwei"):
        make_directory(tmp_path, name)

    loaded = vhosts_file.load(tmp_path)

    assert {vhost.name for vhost in loaded} == {"/", "zwei"}
    assert (tmp_path / "vhosts.json.damaged").read_text() == content
    assert f"{tmp_path / 'vhosts.json'}" in caplog.text
    assert vhosts_file.load(tmp_path) == loaded


def test_entries_of_a_damaged_file_that_make_sense_are_used(tmp_path: Path) -> None:
    make_directory(tmp_path, "there")
    (tmp_path / "vhosts.json").write_text('[{"name": "a", "description": "x"}, 5, {"dir": "b"}]')

    assert vhosts_file.load(tmp_path) == [VHostDef("there"), VHostDef("a", "x")]


def test_directories_that_are_no_vhost_are_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "vhosts.json").write_text("")
    (tmp_path / ("a" * 40)).mkdir()
    (tmp_path / ("a" * 40) / ".vhost").write_text("another name")
    (tmp_path / ("b" * 40)).mkdir()
    os.mkfifo(tmp_path / ("b" * 40) / ".vhost")

    assert vhosts_file.load(tmp_path) == [VHostDef("/")]


def test_vhosts_are_found_when_the_file_is_missing(tmp_path: Path) -> None:
    make_directory(tmp_path, "zwei")

    assert vhosts_file.load(tmp_path) == [VHostDef("zwei")]


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DefinitionsError, match=r"vhosts\.json: No such file or directory"):
        vhosts_file.load(tmp_path / "absent")

    (tmp_path / "vhosts.json").mkdir()
    with pytest.raises(DefinitionsError, match=r"vhosts\.json: Is a directory"):
        vhosts_file.load(tmp_path)


def test_a_file_of_somebody_else_is_read_and_left(tmp_path: Path) -> None:
    with pytest.raises(DefinitionsError):
        vhosts_file.read(tmp_path)
    (tmp_path / "vhosts.json").write_bytes(recorded("rich"))
    assert [each.name for each in vhosts_file.read(tmp_path)] == ["/", "second/bjbp"]
    (tmp_path / "vhosts.json").write_bytes(b"[{")

    with pytest.raises(DefinitionsError):
        vhosts_file.read(tmp_path)
    assert os.listdir(tmp_path) == ["vhosts.json"]
