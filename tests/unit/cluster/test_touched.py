"""Which files are as they were at a position: what a node that comes back need not compare."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq._cluster import Feed, Ring
from lavinmq.files.changes import Change
from tests.unit.cluster.test_kept import SHORT, SIZE, Leader

MANY = 300_000
MOST = 256 * 8192
"""Places for paths."""


def make(leader: Leader, *paths: str) -> None:
    for path in paths:
        leader.make(path)


def test_only_what_was_changed_since_is_not_the_same(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "leader")
    make(leader, "a/one", "b/two")
    position = leader.feed.head
    assert leader.feed.is_same(b"a/one", position)
    assert leader.feed.is_same(b"b/two", position)

    leader.append("a/one", b"m" * SHORT)
    assert not leader.feed.is_same(b"a/one", position)
    assert leader.feed.is_same(b"b/two", position)
    assert leader.feed.is_same(b"a/one", leader.feed.head)
    assert not leader.feed.is_same(b"b/two", 0)


def test_what_is_below_a_directory_that_was_changed_is_not_the_same(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "leader")
    make(leader, "a/one", "ab/two")
    position = leader.feed.head
    leader.note(Change.REMOVE_DIRECTORY, "a")
    assert not leader.feed.is_same(b"a/one", position)
    assert not leader.feed.is_same(b"a/deep/below", position)
    assert leader.feed.is_same(b"ab/two", position)


def test_both_names_of_a_renamed_file_are_not_the_same(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "leader")
    make(leader, "a/new", "a/old")
    position = leader.feed.head
    leader.rename("a/new", "a/old")
    assert not leader.feed.is_same(b"a/new", position)
    assert not leader.feed.is_same(b"a/old", position)


def test_a_ring_that_begins_anew_knows_nothing_of_before() -> None:
    ring = Ring(SIZE, 1000)
    ring.reset(5000)
    feed = Feed(ring)
    assert not feed.is_same(b"a", 4999)
    assert feed.is_same(b"a", 5000)


def test_a_follower_that_leads_knows_what_its_leader_has_changed(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "leader")
    make(leader, "a/one", "b/two")
    position = leader.feed.head
    leader.append("a/one", b"m" * SHORT)
    feed = leader.follow(0, tmp_path / "copy")
    assert not feed.is_same(b"a/one", position)
    assert feed.is_same(b"b/two", position)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=200), st.data())
def test_it_is_what_a_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    leader = Leader(tmp_path_factory.mktemp("t") / "leader")
    last: dict[str, int] = {}
    positions = [leader.feed.head]
    for directory, name in changes:
        path = f"{directory}/{name}"
        leader.note(Change.TRUNCATE, path)
        positions.append(leader.feed.head)
        last[path] = leader.feed.head
    since = data.draw(st.sampled_from(positions))
    for path in {*last, "none/there"}:
        assert leader.feed.is_same(path.encode(), since) == (last.get(path, 0) <= since)


def test_when_there_are_too_many_paths_it_says_that_nothing_is_known(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "leader")
    leader.note(Change.TRUNCATE, "first")
    position = leader.feed.head
    number = 0
    while leader.feed.is_same(b"other", position):
        for _ in range(MANY):
            number += 1
            leader.note(Change.TRUNCATE, f"{number}")
        assert number < MOST
    assert not leader.feed.is_same(b"first", position)
    assert leader.feed.is_same(b"first", leader.feed.head)
