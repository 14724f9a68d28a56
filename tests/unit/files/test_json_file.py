"""Small JSON files: round trips, and what damage costs: nothing that was there."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lavinmq.errors import DefinitionsError
from lavinmq.files.json_file import JsonFile


def only_positive(entry: object) -> int:
    if not isinstance(entry, int) or entry < 0:
        raise ValueError("not positive")
    return entry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.json"


def test_a_missing_file_has_no_content_and_is_not_made(path: Path) -> None:
    assert JsonFile(path).load(dict) is None
    assert JsonFile(path).load_entries(only_positive) == []
    assert not path.exists()


@pytest.mark.parametrize("content", [{}, {"ü": [1, None, "x", 1.5]}, {"half": "\ud800"}])
def test_what_was_saved_is_loaded(path: Path, content: dict[str, object]) -> None:
    JsonFile(path).save(content)

    assert JsonFile(path).load(dict) == content


DAMAGED = [b"", b"{", b'[{"name": "p', b"[]", b"\0" * 20, b"\xff\xfe", b"[" * 100000, b"1"]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_file_is_left_alone_until_the_first_save_and_kept_then(
    path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash of the original can leave a file empty or cut; then it does not start any more."""
    path.write_bytes(damaged)
    file = JsonFile(path)

    assert file.load(dict) is None
    assert str(path) in caplog.text
    assert os.listdir(path.parent) == ["file.json"]
    assert path.read_bytes() == damaged

    file.save({"new": 1})
    file.save({"new": 2})

    assert json.loads(path.read_bytes()) == {"new": 2}
    kept = path.with_name("file.json.damaged")
    assert (kept.read_bytes() if damaged else b"") == damaged
    assert len(os.listdir(path.parent)) == (2 if damaged else 1)


def test_an_earlier_damaged_copy_is_not_overwritten(path: Path) -> None:
    for content in (b"first", b"second", b"third"):
        path.write_bytes(content)
        file = JsonFile(path)
        file.load(list)
        file.save([])

    assert path.with_name("file.json.damaged").read_bytes() == b"first"
    assert path.with_name("file.json.damaged.1").read_bytes() == b"second"
    assert path.with_name("file.json.damaged.2").read_bytes() == b"third"


def test_an_entry_that_makes_no_sense_stays_in_the_file(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text('[1, -2, {"x": NaN}, 3]')
    file = JsonFile(path)

    assert file.load_entries(only_positive) == [1, 3]
    assert "entry 2 is ignored: not positive" in caplog.text
    file.save_entries(lambda: [4])

    assert json.loads(path.read_text()) == [4, -2, {"x": "NaN"}]


def test_a_file_that_cannot_be_read_is_never_replaced(path: Path) -> None:
    os.mkfifo(path)
    file = JsonFile(path)

    assert file.load(dict) is None
    with pytest.raises(DefinitionsError, match="could not be read: Not a regular file"):
        file.save({})
    assert path.is_fifo()


def test_a_disk_that_refuses_the_copy_saves_the_damaged_file(path: Path) -> None:
    path.write_bytes(b"damaged")
    file = JsonFile(path)
    file.load(dict)
    path.with_name("file.json.damaged.tmp").mkdir()

    with pytest.raises(DefinitionsError, match=r"file\.json"):
        file.save({})

    assert path.read_bytes() == b"damaged"


def test_saves_of_many_threads_do_not_disturb_each_other(path: Path) -> None:
    """edge-cases.md 311"""
    file = JsonFile(path)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda number: file.save({"n": number}), range(40)))

    assert JsonFile(path).load(dict) in [{"n": number} for number in range(40)]


@pytest.mark.parametrize("content", [*DAMAGED, b'{"odd": 1}'])
def test_a_needed_file_that_cannot_be_understood_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    def check(found: dict[str, object]) -> None:
        if "odd" in found:
            raise ValueError("it is odd")

    with pytest.raises(DefinitionsError, match=rf"{path}: .*; it is left as it is: mend"):
        JsonFile(path, is_needed=True).load(dict, check)
    assert path.read_bytes() == content
