"""What a disk may hold after its power was lost: rebuilt from the log of the calls made to it.

Durable is what a sync that ended well had found when it began. What came later may have survived in
part, by one of two readings. As on ext4 or XFS: a file has its later changes up to some point, cut
at any byte, but of what was written over older bytes any sectors may be missing; and the sync of a
new file makes its name durable too. By the letter of POSIX: of a
file any subset of its 4 KiB pages, some torn between sectors, with any of the sizes it had; a name
is durable only when its directory was synced. In both, of the changes in a directory any may be
missing, but those of one name keep their order, and a rename is all or nothing.

Uses the records of `disk.py`; knows nothing of a broker.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.support.disk import Call, Record

PAGE, SECTOR = 4096, 512


@dataclass(slots=True, eq=False)
class _File:
    """One file: the changes of its content, each with the number of its record."""

    changes: list[tuple[int, Record]] = field(default_factory=list)
    durable_below: int = 0
    created_at: int = 0

    def content(self, below: int) -> bytearray:
        """What the changes with a number below this one add up to."""
        content = bytearray()
        for number, record in self.changes:
            if number >= below:
                break
            if record.kind is Call.WRITE:
                end = record.offset + len(record.data)
                content.extend(bytes(max(0, record.offset - len(content))))
                content[record.offset : end] = record.data
            else:
                size = record.offset if record.kind is Call.TRUNCATE else 0
                content.extend(bytes(max(0, size - len(content))))
                del content[size:]
        return content


@dataclass(slots=True, eq=False)
class _NameChange:
    """One change in a directory; `file` is the one a creation made, None a directory."""

    number: int
    record: Record
    file: _File | None = None
    is_durable: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names it changes."""
        return (self.record.path, self.record.target) if self.record.target else (self.record.path,)


class Survivors:
    """What is left of a disk when the power goes after the last of some calls.

    Args: `records`, from the first call on an empty directory on; `is_posix`, which reading holds.
    """

    def __init__(self, records: Sequence[Record], *, is_posix: bool = False) -> None:
        self._is_posix = is_posix
        self._end = len(records)
        self._files: dict[int, _File] = {}
        self._names: list[_NameChange] = []
        self._begun: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number, record in enumerate(records):
            self._add(number, record)

    def write_all(self, root: Path) -> None:
        """Make `root` the directory as the programs saw it: nothing is lost."""
        _write_tree(root, {
            path: None if file is None else bytes(file.content(self._end))
            for path, file in self._tree(self._names).items()
        })  # fmt: skip

    def write(self, root: Path, chance: random.Random) -> None:
        """Make `root` a directory that a loss of power may leave."""
        tree = self._tree(self._surviving_names(chance, chance.choice((0.0, 0.5, 1.0))))
        luck = chance.choice((0.0, 0.5, 1.0))
        _write_tree(root, {
            path: None if file is None else self._surviving_content(file, chance, luck)
            for path, file in tree.items()
        })  # fmt: skip

    def _add(self, number: int, record: Record) -> None:
        kind = record.kind
        if kind is Call.OPEN and record.created:
            file = self._files[record.inode] = _File(created_at=number)
            self._names.append(_NameChange(number, record, file))
        elif kind in (Call.WRITE, Call.TRUNCATE) or (kind is Call.OPEN and record.emptied):
            self._files[record.inode].changes.append((number, record))
        elif kind in (Call.MKDIR, Call.RMDIR, Call.UNLINK, Call.RENAME):
            self._names.append(_NameChange(number, record))
        elif kind is Call.SYNC:
            self._begun[record.inode, record.of_directory].append(number)
        elif kind is Call.SYNCED:
            self._synced(record, self._begun[record.inode, record.of_directory].pop(0))

    def _synced(self, record: Record, begun: int) -> None:
        if record.inode == 0:
            for file in self._files.values():
                file.durable_below = begun
            self._harden(begun, lambda change: True)
        elif record.of_directory:
            self._harden(begun, lambda change: _is_in(record.path, change))
        else:
            file = self._files[record.inode]
            file.durable_below = max(begun, file.durable_below)
            if not self._is_posix:
                names = {record.path, *map(str, PurePosixPath(record.path).parents)}
                self._harden(file.created_at + 1, lambda change: not names.isdisjoint(change.names))

    def _harden(self, below: int, is_meant: Callable[[_NameChange], bool]) -> None:
        for change in self._names:
            if change.number < below and is_meant(change):
                change.is_durable = True

    def _surviving_names(self, chance: random.Random, luck: float) -> Iterable[_NameChange]:
        lost: set[str] = set()
        for change in self._names:
            survives = change.is_durable or chance.random() < luck
            if survives and lost.isdisjoint(change.names):
                yield change
            else:
                lost.update(change.names)

    def _tree(self, changes: Iterable[_NameChange]) -> dict[str, _File | None]:
        tree: dict[str, _File | None] = {"": None}
        for change in changes:
            record = change.record
            if record.kind in (Call.OPEN, Call.MKDIR):
                if record.path == "" or _parent(record.path) in tree:
                    tree[record.path] = change.file
            elif record.kind is Call.RENAME:
                _move(tree, record.path, record.target)
            else:
                tree.pop(record.path, None)
        # What is left of a directory that is gone is gone with it.
        return {
            path: file
            for path, file in tree.items()
            if all(str(above) in tree for above in PurePosixPath(path).parents if str(above) != ".")
        }

    def _surviving_content(self, file: _File, chance: random.Random, luck: float) -> bytes:
        pending = [number for number, _ in file.changes if number >= file.durable_below]
        durable = file.content(file.durable_below)
        if not pending:
            return bytes(durable)
        last = chance.choice(pending)
        if self._is_posix:
            states = [file.content(last + 1), file.content(self._end)]
            return _any_pages(durable, states, chance, luck)
        before, after = file.content(last), file.content(last + 1)
        if luck == 0.0:
            return bytes(durable)
        if len(after) > len(before):
            before = after[: chance.randrange(len(before), len(after) + 1)]
        elif len(after) == len(before):
            before = after
        return _some_sectors(durable, before, chance, luck)


def _some_sectors(
    durable: bytearray, written: bytearray, chance: random.Random, luck: float
) -> bytes:
    """What was written, but of the whole sectors that were there before only some."""
    content = bytearray(written)
    for start in range(0, min(len(durable), len(written)) - SECTOR + 1, SECTOR):
        if chance.random() >= luck:
            content[start : start + SECTOR] = durable[start : start + SECTOR]
    return bytes(content)


def _any_pages(
    durable: bytearray, states: Sequence[bytearray], chance: random.Random, luck: float
) -> bytes:
    """Some pages are the durable ones, or zero, others were written in one of the states."""
    size = len(chance.choice([durable, *states]))
    content = bytearray(durable[:size]).ljust(size, b"\0")
    for start in range(0, size, PAGE):
        if chance.random() < luck:
            end = (
                start + PAGE if chance.random() < 0.8 else start + chance.randrange(0, PAGE, SECTOR)
            )
            page = chance.choice(states)[start : min(end, size)]
            content[start : start + len(page)] = page
    return bytes(content)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _is_in(directory: str, change: _NameChange) -> bool:
    return any(name != "" and _parent(name) == directory for name in change.names)


def _move(tree: dict[str, _File | None], path: str, target: str) -> None:
    if path not in tree:
        return
    for name in [name for name in tree if name == path or name.startswith(f"{path}/")]:
        tree[target + name[len(path) :]] = tree.pop(name)


def _write_tree(root: Path, contents: dict[str, bytes | None]) -> None:
    root.mkdir(exist_ok=True)
    for path, content in sorted(contents.items()):
        if content is None:
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_bytes(content)
