"""What a disk may hold after its power was lost: rebuilt from the log of the calls made to it.

Durable is what a sync that ended well had found when it began. What came later may have survived in
part, by one of three readings.

JOURNALING, as on ext4 or XFS with luck in neither: a file has its later changes up to some point,
cut at any byte, but of what was written over older bytes any sectors may be missing; and the sync
of a new file makes its name durable too. Of the changes in a directory any may be missing.

METADATA_FIRST, as a journal is written: names, truncations, holes and room ahead survive in their
order up to some point that lies behind all that was synced, whatever became of the data written
before or after them. Of that, any sectors of what was there may be missing, and any end of what was
appended.

POSIX, by the letter: of a file any subset of its 4 KiB pages, some torn between sectors, with any
of the sizes it had; a name is durable only when its directory was synced; of the changes in a
directory any may be missing.

In all of them the changes of one name keep their order, and a rename is all or nothing.

Uses the records of `disk.py`; knows nothing of a broker.
"""

from __future__ import annotations

import enum
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.support.disk import Call, Record

PAGE, SECTOR = 4096, 512


class Reading(enum.Enum):
    """What a disk owes to who did not sync."""

    JOURNALING = "journaling"
    METADATA_FIRST = "metadata-first"
    POSIX = "posix"


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
            _apply(content, record)
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

    Args: `records`, from the first call on an empty directory on; `reading`, which one holds.
    """

    def __init__(self, records: Sequence[Record], *, reading: Reading = Reading.JOURNALING) -> None:
        self._reading = reading
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
        luck = chance.choice((0.0, 0.5, 1.0))
        if self._reading is Reading.METADATA_FIRST:
            first_lost = self._first_lost(chance)
            names: Iterable[_NameChange] = [
                change for change in self._names if change.number < first_lost
            ]
        else:
            first_lost = self._end
            names = self._surviving_names(chance, chance.choice((0.0, 0.5, 1.0)))
        _write_tree(root, {
            path: None if file is None else self._surviving_content(file, chance, luck, first_lost)
            for path, file in self._tree(names).items()
        })  # fmt: skip

    def write_chosen(self, root: Path, is_whole: Callable[[str], bool]) -> None:
        """Make `root` a directory in which some files are whole, by their paths, and others have
        what was synced; all names are there."""
        _write_tree(root, {
            path: None if file is None else bytes(
                file.content(self._end if is_whole(path) else file.durable_below)
            )
            for path, file in self._tree(self._names).items()
        })  # fmt: skip

    def _add(self, number: int, record: Record) -> None:
        kind = record.kind
        if kind is Call.OPEN and record.created:
            file = self._files[record.inode] = _File(created_at=number)
            self._names.append(_NameChange(number, record, file))
        elif kind in _CONTENT or (kind is Call.OPEN and record.emptied):
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
                file.durable_below = max(begun, file.durable_below)
            self._harden(begun, lambda change: True)
        elif record.of_directory:
            self._harden(begun, lambda change: _is_in(record.path, change))
        else:
            file = self._files[record.inode]
            file.durable_below = max(begun, file.durable_below)
            if self._reading is not Reading.POSIX:
                names = {record.path, *map(str, PurePosixPath(record.path).parents)}
                self._harden(file.created_at + 1, lambda change: not names.isdisjoint(change.names))

    def _harden(self, below: int, is_meant: Callable[[_NameChange], bool]) -> None:
        for change in self._names:
            if change.number < below and is_meant(change):
                change.is_durable = True

    def _first_lost(self, chance: random.Random) -> int:
        """Up to which call, exclusive, what was done to names and sizes has survived."""
        least = 0
        for change in self._names:
            if change.is_durable:
                least = change.number + 1
        for file in self._files.values():
            for number, record in file.changes:
                if record.kind is not Call.WRITE and number < file.durable_below:
                    least = max(least, number + 1)
        return chance.choice((least, chance.randrange(least, self._end + 1), self._end))

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
                for path in [record.path, *_below(tree, record.path)]:
                    tree.pop(path, None)
        # What is left of a directory that is gone is gone with it.
        return {
            path: file
            for path, file in tree.items()
            if all(str(above) in tree for above in PurePosixPath(path).parents if str(above) != ".")
        }

    def _surviving_content(
        self, file: _File, chance: random.Random, luck: float, first_lost: int
    ) -> bytes:
        pending = [number for number, _ in file.changes if number >= file.durable_below]
        durable = file.content(file.durable_below)
        if not pending:
            return bytes(durable)
        if self._reading is Reading.METADATA_FIRST:
            changes = [change for change in file.changes if change[0] >= file.durable_below]
            return _some_data(durable, changes, first_lost, chance, luck)
        last = chance.choice(pending)
        if self._reading is Reading.POSIX:
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


_CONTENT = (Call.WRITE, Call.TRUNCATE, Call.PUNCH, Call.ALLOCATE)


def _apply(content: bytearray, record: Record) -> None:
    """Do to a file what the call did."""
    if record.kind is Call.WRITE:
        end = record.offset + len(record.data)
        content.extend(bytes(max(0, record.offset - len(content))))
        content[record.offset : end] = record.data
    elif record.kind is Call.PUNCH:
        end = min(record.offset + record.length, len(content))
        content[record.offset : end] = bytes(max(0, end - record.offset))
    elif record.kind is Call.ALLOCATE:
        if not record.keeps_size:
            content.extend(bytes(max(0, record.offset + record.length - len(content))))
    else:
        size = record.offset if record.kind is Call.TRUNCATE else 0
        content.extend(bytes(max(0, size - len(content))))
        del content[size:]


def _some_data(
    content: bytearray,
    changes: Sequence[tuple[int, Record]],
    first_lost: int,
    chance: random.Random,
    luck: float,
) -> bytes:
    """Sizes and holes as they were before a call, and of the data what happened to be written."""
    written = _Written([number for number, _ in changes], chance, luck)
    for number, record in changes:
        if record.kind is not Call.WRITE:
            if number < first_lost:
                _apply(content, record)
            continue
        start, end = record.offset, record.offset + len(record.data)
        while start < end and start <= len(content):
            after = min(end, (start // SECTOR + 1) * SECTOR)
            if number <= written.last(start // SECTOR):
                content[start:after] = record.data[start - record.offset : after - record.offset]
            start = after
    return bytes(content)


class _Written:
    """Up to which change each sector of a file was written: a later one has the earlier ones."""

    def __init__(self, numbers: Sequence[int], chance: random.Random, luck: float) -> None:
        self._numbers = numbers
        self._chance = chance
        self._luck = luck
        self._last: dict[int, int] = {}

    def last(self, sector: int) -> int:
        """The number of its last change that is there; -1 when none is."""
        if sector not in self._last:
            self._last[sector] = self._any()
        return self._last[sector]

    def _any(self) -> int:
        if self._chance.random() < self._luck:
            return self._numbers[-1]
        return self._chance.choice(self._numbers) if self._luck else -1


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


def _below(tree: dict[str, _File | None], path: str) -> list[str]:
    return [name for name in tree if name.startswith(f"{path}/")]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _is_in(directory: str, change: _NameChange) -> bool:
    return any(name != "" and _parent(name) == directory for name in change.names)


def _move(tree: dict[str, _File | None], path: str, target: str) -> None:
    if path not in tree or _parent(target) not in tree:
        return  # what it would be in is not there: all or nothing
    for name in [path, *_below(tree, path)]:
        tree[target + name[len(path) :]] = tree.pop(name)


def _write_tree(root: Path, contents: dict[str, bytes | None]) -> None:
    root.mkdir(exist_ok=True)
    for path, content in sorted(contents.items()):
        if content is None:
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_bytes(content)
