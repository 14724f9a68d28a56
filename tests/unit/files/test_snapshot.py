"""A snapshot is the directory at one moment, whatever happens while files are linked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.files import snapshot as module
from lavinmq.files.changes import Change, Changes
from lavinmq.files.snapshot import MOST_LEFT_BYTES, Snapshot, SnapshotError, remove_left

HEAD = Struct("<BHHqq")
DIRECTORIES = ("", "one", "two", "one/in")
NAMES = ("a", "b", "c.tmp")
KINDS = ("make", "append", "append", "patch", "cut", "replace", "remove", "move", "directory",
         "rename_directory", "remove_directory")  # fmt: skip
OPERATIONS = st.tuples(
    st.sampled_from(KINDS), st.sampled_from(DIRECTORIES), st.sampled_from(NAMES),
    st.sampled_from(DIRECTORIES), st.integers(0, 60),
)  # fmt: skip


class Place:
    """A directory whose changes are noted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changes = Changes()
        self.notes = b""
        self.keeps = False
        """Whether files only grow from now on, as those of a broker do while one is held."""
        self._next = 0

    def watch(self) -> None:
        """Keep notes from now on."""

        def note(kind: int, path: str, target: str, _fd: int, start: int, end: int) -> None:
            raw, to = (
                os.path.relpath(each, self.root).encode() if each else b""
                for each in (path, target)
            )
            self.notes += HEAD.pack(kind, len(raw), len(to), start, end) + raw + to

        self.changes.note = note

    def take(self) -> bytes:
        notes, self.notes = self.notes, b""
        return notes

    def do(self, kind: str, directory: str, name: str, other: str, size: int) -> None:
        """One change, unless what it is about is not there."""
        if kind.endswith("directory") and not directory:
            return  # the root stays
        path, target = self.root / directory / name, self.root / other / f"{name}2"
        self._next += 1
        try:
            if kind in ("append", "patch", "cut"):
                self._change(kind, path, b"%06d" % self._next * size)
            elif kind == "replace":
                self._replace(path, b"%06d" % self._next * size)
            elif kind.endswith("directory"):
                self._do_directory(kind, self.root / directory)
            elif kind == "make":
                self.changes.touch(path, os.O_EXCL)
            elif kind == "remove":
                self.changes.unlink(path)
            else:
                self.changes.rename(path, target)
        except OSError:
            pass

    def _change(self, kind: str, path: Path, content: bytes) -> None:
        fd = self.changes.open(path, 0)
        end = os.fstat(fd).st_size
        if kind == "append":
            self.changes.write(path, fd, content, end)
        elif kind == "patch" and end and not self.keeps:
            self.changes.write(path, fd, b"!", end // 2, Change.PATCH)
        elif kind == "cut" and not self.keeps:
            self.changes.truncate(path, fd, end // 2)
        os.close(fd)

    def _replace(self, path: Path, content: bytes) -> None:
        aside = path.with_name(path.name + ".new")
        fd = self.changes.open(aside, os.O_CREAT | os.O_TRUNC)
        self.changes.write(aside, fd, content, 0)
        os.close(fd)
        self.changes.rename(aside, path)

    def _do_directory(self, kind: str, path: Path) -> None:
        if kind == "directory":
            self.changes.make_directory(path)
        elif kind == "rename_directory":
            self.changes.rename(path, f"{path}.gone")
        else:
            self.changes.remove_directory(path)


def tree_of(root: Path) -> dict[str, bytes | None]:
    """What is in a directory, by path."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if module.LINKS not in str(path)
    }


def held_by(snapshot: Snapshot) -> dict[str, bytes | None]:
    """The same of a snapshot."""
    found: dict[str, bytes | None] = dict.fromkeys(snapshot.directories())
    for path, held in snapshot.files():
        found[path] = Path(held.link).read_bytes()[: held.size]
    return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty directory."""
    return Place(tmp_path)


@given(
    before=st.lists(OPERATIONS, max_size=12), during=st.lists(OPERATIONS, max_size=12),
    between=st.lists(OPERATIONS, max_size=8), left=st.lists(OPERATIONS, max_size=4),
    after=st.lists(OPERATIONS, max_size=8),
)  # fmt: skip
def test_it_is_what_was_there_at_its_moment(
    before: list[Any], during: list[Any], between: list[Any], left: list[Any], after: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        place = Place(Path(name))
        place.do("directory", "one", "", "", 0)
        for each in before:
            place.do(*each)
        place.watch()
        interrupt(patch, place, iter(during))
        snapshot = Snapshot(name)
        snapshot.scan()
        patch.undo()
        snapshot.take_in(place.take())
        for each in between:
            place.do(*each)
        snapshot.take_in(place.take())
        for each in left:
            place.do(*each)
        notes = place.take()
        if not snapshot.finish(notes):
            snapshot.take_in(notes)  # a directory was renamed
            assert snapshot.finish(b"")
        wanted = tree_of(place.root)
        place.keeps = True
        for each in after:
            place.do(*each)

        assert held_by(snapshot) == wanted
        snapshot.release()
        assert not list(place.root.glob(module.LINKS + "*"))


def interrupt(patch: pytest.MonkeyPatch, place: Place, operations: Iterator[Any]) -> None:
    """Have something change before and after each link is made."""
    link = os.link

    def with_changes(*args: Any, **others: Any) -> None:
        for each in (next(operations, None),):
            if each is not None:
                place.do(*each)
        link(*args, **others)
        last = next(operations, None)
        if last is not None:
            place.do(*last)

    patch.setattr(os, "link", with_changes)


def test_too_many_notes_are_not_taken_in_on_the_loop(place: Place) -> None:
    snapshot = Snapshot(str(place.root))
    snapshot.scan()

    assert not snapshot.finish(bytes(MOST_LEFT_BYTES + 1))
    assert snapshot.taken_at == 0


def test_a_directory_is_not_taken_in_on_the_loop(place: Place) -> None:
    place.do("directory", "one", "", "", 0)
    snapshot = Snapshot(str(place.root))
    snapshot.scan()
    place.watch()
    place.do("rename_directory", "one", "", "", 0)
    notes = place.take()

    assert not snapshot.finish(notes)
    snapshot.take_in(notes)
    assert snapshot.finish(b"") and list(snapshot.directories()) == ["one.gone"]


def test_files_of_the_node_and_of_other_snapshots_are_left_out(place: Place) -> None:
    for name in (".lock", "clean_stop", "users.json"):
        (place.root / name).write_text(name)
    other = Snapshot(str(place.root))
    other.scan()
    snapshot = Snapshot(str(place.root))
    snapshot.scan()

    assert held_by(snapshot) == {"users.json": b"users.json"}


def test_a_directory_elsewhere_is_refused_by_name(place: Place, tmp_path_factory: Any) -> None:
    (place.root / "queue").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(SnapshotError, match="queue is a link"):
        Snapshot(str(place.root)).scan()


def test_what_a_killed_one_has_left_is_removed(place: Place) -> None:
    (place.root / "users.json").write_text("[]")
    Snapshot(str(place.root)).scan()
    remove_left(str(place.root))

    assert [each.name for each in place.root.iterdir()] == ["users.json"]
