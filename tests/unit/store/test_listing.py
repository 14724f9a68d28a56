"""Directories of many queues are looked into by threads, and each is told as one look would."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lavinmq import _core
from lavinmq.files.directories import hashed

MANY = 3_000
"""Names of a directory that the kernel does not tell at once."""


def filled(root: Path) -> list[str]:
    """Directories, and what is in the place of some, below another one. Returns: their names."""
    names = [hashed(str(number)) for number in range(200)]
    for number, name in enumerate(names):
        if number % 7 == 6:
            continue
        (root / name).mkdir()
        if number % 5:
            (root / name / ".queue").write_text("x" * number)
        for each in range(number % 3):
            (root / name / f"msgs.{each:010d}").touch()
    return names


def told(listing: _core.Listing, at: int) -> dict[str, bool] | None:
    entries = listing.entries(at)
    return None if entries is None else {n: each.is_file() for n, each in entries.items()}


def there(path: Path) -> dict[str, bool] | None:
    return {each.name: each.is_file() for each in path.iterdir()} if path.exists() else None


@pytest.mark.parametrize("n_threads", [0, 1, 3])
def test_each_directory_is_told_as_it_is(tmp_path: Path, n_threads: int) -> None:
    names = filled(tmp_path)
    listing = _core.Listing(str(tmp_path), names)
    threads = [threading.Thread(target=listing.work) for _ in range(n_threads)]
    for thread in threads:
        thread.start()

    found = [told(listing, at) for at in range(len(names))]

    listing.stop()
    for thread in threads:
        thread.join()
    assert found == [there(tmp_path / name) for name in names]


def test_the_size_of_a_name_is_that_of_its_file(tmp_path: Path) -> None:
    names = filled(tmp_path)
    listing = _core.Listing(str(tmp_path), names)

    for at, name in enumerate(names):
        for entry in (listing.entries(at) or {}).values():
            assert entry.size == (tmp_path / name / entry.name).stat().st_size
            assert entry.path == str(tmp_path / name / entry.name)


def test_a_long_directory_is_told_as_a_whole(tmp_path: Path) -> None:
    name = hashed("long")
    (tmp_path / name).mkdir()
    for number in range(MANY):
        (tmp_path / name / f"msgs.{number:010d}").touch()
    (tmp_path / name / os.fsdecode(b"no utf-8: \xff")).mkdir()

    entries = _core.Listing(str(tmp_path), [name]).entries(0)

    assert entries is not None
    assert sorted(entries) == sorted(os.listdir(tmp_path / name))
    assert sum(entry.is_dir() for entry in entries.values()) == 1


def test_links_are_what_they_lead_to(tmp_path: Path) -> None:
    name, place = hashed("linked"), tmp_path / "elsewhere"
    place.mkdir()
    (tmp_path / name).symlink_to(place)
    (place / "directory").symlink_to(tmp_path)
    (place / "nowhere").symlink_to("missing")
    (place / "file").touch()
    (place / ".queue").symlink_to("file")

    entries = _core.Listing(str(tmp_path), [name]).entries(0)

    assert entries is not None
    kinds = {n: (each.is_file(), each.is_dir()) for n, each in entries.items()}
    assert kinds == {
        "directory": (False, True), "nowhere": (False, False), "file": (True, False),
        ".queue": (True, False),
    }  # fmt: skip
    assert entries[".queue"].size == 0


def test_what_is_no_directory_is_an_error_of_its_own(tmp_path: Path) -> None:
    names = [hashed("file"), hashed("loop"), hashed("q")]
    (tmp_path / names[0]).touch()
    (tmp_path / names[1]).symlink_to(names[1])
    (tmp_path / names[2]).mkdir()
    listing = _core.Listing(str(tmp_path), names)

    with pytest.raises(NotADirectoryError, match=names[0]):
        listing.entries(0)
    with pytest.raises(OSError, match=names[1]):
        listing.entries(1)
    assert listing.entries(2) == {}


def test_a_name_that_cannot_be_looked_at_is_an_error_when_its_size_is_wanted(
    tmp_path: Path,
) -> None:
    name = hashed("q")
    (tmp_path / name).mkdir()
    (tmp_path / name / ".queue").symlink_to(".queue")
    entries = _core.Listing(str(tmp_path), [name]).entries(0)

    assert entries is not None
    with pytest.raises(OSError, match=r"\.queue"):
        _ = entries[".queue"].size


def test_a_list_is_told_once(tmp_path: Path) -> None:
    """One that lacks files would lose messages."""
    name = hashed("q")
    (tmp_path / name).mkdir()
    listing = _core.Listing(str(tmp_path), [name])

    assert listing.entries(0) == {}
    with pytest.raises(IndexError):
        listing.entries(0)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for names in (["short"], ["x" * 39, "y" * 41], ["ü" * 40]):
        with pytest.raises(ValueError):
            _core.Listing(str(tmp_path), names)
    with pytest.raises(TypeError):
        _core.Listing(str(tmp_path), None)  # type: ignore[arg-type]
    os.fstat(0)  # nobody has closed what was never opened
    with pytest.raises(FileNotFoundError):
        _core.Listing(str(tmp_path / "missing"), [])
    listing = _core.Listing(str(tmp_path), [hashed("q")])
    with pytest.raises(IndexError):
        listing.entries(1)
    listing.stop()
    listing.work()
    with pytest.raises(IndexError):
        listing.entries(0)
