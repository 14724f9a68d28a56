"""A data directory as it was between two turns of the loop, held by links to its files.

Every file gets a second name in a directory of the snapshot's own, so that what is removed stays
until the snapshot is released. Meanwhile notes say what changes; once few are left to be taken in,
the loop's thread does that, and the moment at which it does is the snapshot's. What is appended
later is behind the size that a file had then; so the snapshot is what a kill at that moment would
have left. As long as it is held nothing may make holes in the files, nor write over filling: that
is cut first, and the note of it says where the data ended (`take_in_later`).
Source: docs/backup.md, decision 0109.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from lavinmq.files.changes import Change

LINKS: Final = ".backup-"
"""How the directory of a snapshot begins, in the data directory."""
OWN: Final = {
    ".lock", "clean_stop", "lost+found", ".clustering_id", ".clustering_state", ".joining",
    ".sums", ".damaged",
}  # fmt: skip
"""What is of the node; a copy has had no orderly stop, and is another node of a cluster."""
HEAD: Final = Struct("<BHHqq")
NOTES_AT_ONCE: Final = 64
MOST_LEFT_BYTES: Final = 16 << 10
"""Notes that the loop's thread takes in at once: a few milliseconds."""


class SnapshotError(Exception):
    """There can be none; the text says why."""


class Held(NamedTuple):
    """A file. Args: link: its other name; size: bytes that it had; ino: its number."""

    link: str
    size: int
    ino: int


Tree = dict[str, "Tree | Held"]


class Snapshot:
    """Files below `root`. Its methods are called by one thread at a time, and raise OSError."""

    def __init__(self, root: str) -> None:
        self.taken_at = 0.0
        """Unix time of its moment; 0 = it has not come."""
        self._root = root
        self._links = os.path.join(root, f"{LINKS}{time.time_ns()}")
        self._n = 0
        self._tree: Tree = {}
        self._replaced: set[str] = set()
        """What was given its name by a rename since somebody looked which file has it."""
        self._cut: set[str] = set()
        """Files that were cut since the moment."""

    # ---- taking it

    def scan(self) -> None:
        """Link what is there now. Raises: SnapshotError."""
        os.mkdir(self._links, 0o700)
        self._scan("", self._tree)

    def take_in(self, notes: bytes) -> None:
        """Do again what has been noted, in order. Raises: SnapshotError."""
        for number, note in enumerate(_read(notes)):
            if number % NOTES_AT_ONCE == 0:
                time.sleep(0)  # the loop may want the interpreter
            self._do(*note)
        for path in self._replaced:
            self._look(path)
        self._replaced.clear()

    def finish(self, notes: bytes) -> bool:
        """Take in what is left and have this be the moment, unless that is too much: many changes,
        or a directory, which may have any number of files."""
        if len(notes) > MOST_LEFT_BYTES:
            return False
        if any(kind == Change.RENAME and self._is_directory(to) for kind, _, to, _ in _read(notes)):
            return False
        self.take_in(notes)
        self.taken_at = time.time()
        return True

    def take_in_later(self, notes: bytes) -> None:
        """What was noted since its moment: a file that is cut had filling behind its data."""
        for kind, path, _, end in _read(notes):
            if kind == Change.TRUNCATE and path not in self._cut:
                self._cut.add(path)
                if end < self.size_of(path):
                    self._resize(path, end, is_cut=True)

    def size_of(self, path: str) -> int:
        """Bytes that a file had, as far as is known by now; -1 when there was none."""
        tree, name = self._place(path)
        held = tree.get(name)
        return held.size if isinstance(held, Held) else -1

    def release(self) -> None:
        """Let go of the files."""
        shutil.rmtree(self._links, ignore_errors=True)

    # ---- what is in it

    def directories(self) -> Iterator[str]:
        """Paths below the root, each behind that of the one it is in."""
        for path, _ in self._walk("", self._tree, wants_files=False):
            yield path

    def files(self) -> Iterator[tuple[str, Held]]:
        """Paths below the root, and what they hold."""
        for path, each in self._walk("", self._tree, wants_files=True):
            assert each is not None
            yield path, each

    def _walk(
        self, path: str, tree: Tree, *, wants_files: bool
    ) -> Iterator[tuple[str, Held | None]]:
        for name, each in tree.items():
            below = f"{path}/{name}" if path else name
            if isinstance(each, dict):
                if not wants_files:
                    yield below, None
                yield from self._walk(below, each, wants_files=wants_files)
            elif wants_files:
                yield below, each

    # ---- the tree

    def _scan(self, path: str, tree: Tree) -> None:
        """Link all files of a directory, and those below it."""
        with suppress(FileNotFoundError), os.scandir(os.path.join(self._root, path)) as entries:
            for entry in entries:
                if not path and (entry.name in OWN or entry.name.startswith(LINKS)):
                    continue
                below = f"{path}/{entry.name}" if path else entry.name
                if entry.is_symlink():
                    raise SnapshotError(f"{below} is a link to another place")
                if entry.is_dir():
                    inner = tree.setdefault(entry.name, {})
                    if isinstance(inner, dict):
                        self._scan(below, inner)
                elif entry.is_file(follow_symlinks=False):
                    held = tree.get(entry.name)
                    if not isinstance(held, Held) or held.ino != entry.inode():
                        self._link(below)

    def _place(self, path: str) -> tuple[Tree, str]:
        """The directory that a path is in, and its last name. Of one that is not known, nothing is
        kept: it has another name by now, as is noted further on."""
        *parents, name = path.split("/")
        tree = self._tree
        for each in parents:
            inner = tree.get(each)
            tree = inner if isinstance(inner, dict) else {}
        return tree, name

    def _link(self, path: str) -> None:
        """Link what has a name now, if it is a file."""
        self._n += 1
        link = os.path.join(self._links, str(self._n))
        try:
            os.link(os.path.join(self._root, path), link, follow_symlinks=False)
        except (FileNotFoundError, PermissionError) as error:
            if isinstance(error, PermissionError) and not self._is_directory(path):
                raise
            return
        found = os.stat(link, follow_symlinks=False)
        tree, name = self._place(path)
        self._drop(tree, name)
        tree[name] = Held(link, found.st_size, found.st_ino)

    def _is_directory(self, path: str) -> bool:
        return os.path.isdir(os.path.join(self._root, path))

    def _drop(self, tree: Tree, name: str) -> None:
        """Forget what has a name."""
        old = tree.pop(name, None)
        if isinstance(old, Held):
            os.unlink(old.link)
        elif old is not None:
            for _, each in self._walk("", old, wants_files=True):
                assert each is not None
                os.unlink(each.link)

    def _resize(self, path: str, size: int, *, is_cut: bool = False) -> None:
        tree, name = self._place(path)
        held = tree.get(name)
        if held is None:
            self._link(path)  # else it is gone again, which is noted further on
        elif isinstance(held, Held) and (is_cut or size > held.size):
            tree[name] = held._replace(size=size)

    def _do(self, kind: int, path: str, target: str, end: int) -> None:
        if path in OWN:
            return
        tree, name = self._place(path)
        match kind:
            case Change.MAKE:
                if name not in tree:
                    self._link(path)
            case Change.APPEND | Change.PATCH:
                self._resize(path, end)
            case Change.TRUNCATE:
                self._resize(path, end, is_cut=True)
            case Change.RENAME:
                self._rename(path, target)
            case Change.REMOVE | Change.REMOVE_DIRECTORY:
                self._drop(tree, name)
            case Change.MAKE_DIRECTORY:
                tree.setdefault(name, {})

    def _rename(self, path: str, target: str) -> None:
        tree, name = self._place(path)
        moved = tree.pop(name, None)
        to, new = self._place(target)
        if isinstance(moved, dict) or (moved is None and self._is_directory(target)):
            self._drop(to, new)
            inner: Tree = moved if isinstance(moved, dict) else {}
            to[new] = inner
            self._scan(target, inner)  # what was made in it before has no such path any more
        else:
            self._drop(to, new)
            if moved is not None:
                to[new] = moved
            self._replaced.add(target)

    def _look(self, path: str) -> None:
        """Hold the file that has the name now: what was linked by the name that it had before may
        have been the next one already, which is not whole."""
        tree, name = self._place(path)
        held = tree.get(name)
        if isinstance(held, dict):
            return
        try:
            ino = os.stat(os.path.join(self._root, path), follow_symlinks=False).st_ino
        except FileNotFoundError:
            return  # it is gone again, which is noted further on
        if held is None or held.ino != ino:
            self._link(path)


def _read(notes: bytes) -> Iterator[tuple[int, str, str, int]]:
    """Kind, path, target and end of each note."""
    at = 0
    while at < len(notes):
        kind, n, n_target, _, end = HEAD.unpack_from(notes, at)
        at += HEAD.size
        path, target = notes[at : at + n], notes[at + n : at + n + n_target]
        at += n + n_target
        yield kind, os.fsdecode(path), os.fsdecode(target), end


def remove_left(root: str) -> None:
    """At a start: remove what snapshots have left, when they ended with the process."""
    for entry in os.scandir(root):
        if entry.name.startswith(LINKS) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
