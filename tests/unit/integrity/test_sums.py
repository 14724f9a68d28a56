"""Sums of one file find every change of what they cover, and stay right when it grows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.integrity.shelves import Shelves, key_of
from lavinmq.integrity.sums import ALL, BLOCK, FileSums, check
from tests.support.little_disk import files_of_at_most

SIZES = st.one_of(
    st.integers(0, 40), st.integers(BLOCK - 2, BLOCK + 2), st.integers(2 * BLOCK - 1, 3 * BLOCK + 1)
)


def checked(content: bytes, known: FileSums | None, end: int = 0) -> tuple[list[int], FileSums]:
    """The sums of a file of that content."""
    fd = os.memfd_create("sums")
    try:
        os.write(fd, content)
        return check(fd, known, end, len_of)
    finally:
        os.close(fd)


def len_of(_: int) -> None:
    """Read as fast as possible."""


def known(content: bytes) -> FileSums:
    """What is known of a file that was at rest."""
    return checked(content, None, len(content))[1]


@settings(max_examples=50, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_sums_of_what_has_grown_are_those_of_the_whole(sizes: list[int], random: object) -> None:
    content, sums = b"", FileSums()
    for size in sizes:
        content += os.urandom(size)
        bad, sums = checked(content, sums, len(content))
        assert bad == []

    assert sums == known(content)


@settings(max_examples=50, deadline=None)
@given(SIZES.filter(bool), st.data())
def test_every_flipped_bit_is_found_where_it_is(size: int, data: st.DataObject) -> None:
    content = os.urandom(size)
    at = data.draw(st.integers(0, size - 1))
    flipped = bytearray(content)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    before = known(content)

    bad, after = checked(bytes(flipped) + b"more", before, size + 4)

    assert bad == [at // BLOCK]
    assert after is before, "it would bless the damage"


@settings(max_examples=50, deadline=None)
@given(SIZES.filter(bool), st.data())
def test_what_the_broker_has_changed_is_no_damage_and_the_rest_is_looked_at(
    size: int, data: st.DataObject
) -> None:
    content = bytearray(os.urandom(size))
    sums = known(bytes(content))
    start = data.draw(st.integers(0, size - 1))
    end = data.draw(st.integers(start + 1, size))
    sums.change(start, end)
    content[start:end] = bytes(end - start)

    bad, after = checked(bytes(content), sums, size)

    assert bad == []
    assert after == known(bytes(content))
    other = [each for each in range(size) if each // BLOCK not in sums.unknown]
    if other:
        content[other[0]] ^= 1
        assert checked(bytes(content), sums, size)[0] == [other[0] // BLOCK]


@settings(max_examples=50, deadline=None)
@given(SIZES, st.data())
def test_a_file_that_the_broker_has_cut_is_known_up_to_there(
    size: int, data: st.DataObject
) -> None:
    content = os.urandom(size)
    sums = known(content)
    cut = data.draw(st.integers(0, size))
    sums.cut(cut)

    bad, after = checked(content[:cut] + b"new", sums, cut + 3)

    assert bad == []
    assert after == known(content[:cut] + b"new")


def test_a_file_that_became_shorter_while_it_was_read_is_looked_at_again() -> None:
    sums = known(bytes(3 * BLOCK))

    bad, after = checked(bytes(BLOCK), sums)

    assert bad
    assert after is sums


def test_all_of_a_file_may_have_been_changed() -> None:
    sums = known(os.urandom(100))

    sums.change(0, ALL)

    assert checked(b"other", sums, 5)[0] == []


@pytest.fixture
def shelves(tmp_path: Path) -> Shelves:
    (tmp_path / ".sums").mkdir()
    return Shelves(str(tmp_path))


def test_sums_come_back_from_their_shelf(shelves: Shelves, tmp_path: Path) -> None:
    paths = ["users.json", "a/definitions.amqp", "a/b/msgs.0000000001", "a/b/msgs.0000000099"]
    sums = {path: known(os.urandom(BLOCK + 7)) for path in paths}
    for path in paths:
        sums[path].unknown.add(1)
        shelves.get(key_of(path))[path.rpartition("/")[2]] = sums[path]
        shelves.changed(key_of(path))
    shelves.flush()

    others = Shelves(str(tmp_path))
    assert {path: others.sums_of(path) for path in paths} == sums
    assert set(others.directories()) == {"", "a", "a/b"}
    assert others.numbers("a/b") == {0, 1}
    assert len(list((tmp_path / ".sums" / "files" / "a" / "b").iterdir())) == 2


def test_a_damaged_shelf_is_thrown_away(shelves: Shelves, tmp_path: Path) -> None:
    shelves.get(("a", 0))["x"] = known(b"content")
    shelves.changed(("a", 0))
    shelves.flush()
    path = tmp_path / ".sums" / "files" / "a" / "sums.0"
    whole = path.read_bytes()

    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert Shelves(str(tmp_path)).sums_of("a/x") is None
        path.write_bytes(whole[:at])
        assert Shelves(str(tmp_path)).sums_of("a/x") is None


def test_a_shelf_without_sums_is_removed(shelves: Shelves, tmp_path: Path) -> None:
    shelves.get(("a", 0))["x"] = known(b"content")
    shelves.changed(("a", 0))
    shelves.flush()

    del shelves.get(("a", 0))["x"]
    shelves.changed(("a", 0))
    shelves.flush()

    assert list((tmp_path / ".sums" / "files").iterdir()) == []


def test_many_shelves_are_not_kept_in_memory(shelves: Shelves) -> None:
    for number in range(200):
        shelves.get((f"d{number}", 0))["x"] = known(b"%d" % number)
        shelves.changed((f"d{number}", 0))

    assert len(shelves._open) < 50
    assert [shelves.get((f"d{n}", 0))["x"] == known(b"%d" % n) for n in range(200)] == [True] * 200


def test_a_shelf_that_is_written_in_part_replaces_none(shelves: Shelves, tmp_path: Path) -> None:
    """What was not written is written once there is room."""
    for number in range(200):
        shelves.get(("a", 0))[f"x{number}"] = known(b"%d" % number)
    shelves.changed(("a", 0))
    with files_of_at_most(4096), pytest.raises(OSError, match="File too large"):
        shelves.flush()
    assert not (tmp_path / ".sums" / "files" / "a" / "sums.0").exists()

    shelves.flush()

    assert Shelves(str(tmp_path)).sums_of("a/x199") == known(b"199")
