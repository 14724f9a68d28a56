"""Goes over all files of a data directory: makes sums of what is at rest, and checks those it has.

A file that differs is suspected, and looked at once more after a moment: the note of a change comes
behind the change. What differs then is damaged, unless it may have been changed by who had the
directory before, or by a loss of power (`life.py`). One thread at a time.
Source: docs/integrity.md.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from lavinmq import _core
from lavinmq.integrity.damage import Damage, Damages
from lavinmq.integrity.life import Life
from lavinmq.integrity.readers import Readers
from lavinmq.integrity.shelves import Shelf, Shelves, key_of, number_of
from lavinmq.integrity.sums import FileSums, Pace, check, is_older
from lavinmq.integrity.touches import Touches
from lavinmq.process import log

QUIET_NS: Final = 5_000_000_000
"""A file that was changed later than so long ago gets no sums."""
SOON_NS: Final = 1_000_000_000
"""The same when somebody waits: more than a tick of the clock by which files have their times."""
TAKE_IN_S: Final = 0.25
SETTLE_S: Final = 1.0
DOUBT_NS: Final = 5_000_000_000
"""A change that a kill may have come between may be so far from the last sign of life."""
FILE_BYTES: Final = 64 << 10
"""What looking at a file costs, as bytes that are read."""
VHOST: Final = re.compile(r"[0-9a-f]{40}$")
TOP: Final = re.compile(r"[a-z_]+\.(?:json|sha256)$")
NOT_KEPT: Final = re.compile(r"tmp\.|transient$|.*(?:\.tmp|\.damaged$|\.deleted-|\.left-)|migrat")
"""What comes and goes, and what is for humans."""
RENAMED_LATE: Final = ("definitions.amqp",)
"""Files whose note of a rename comes later than the next write of theirs may."""
_log = log.get("lmq.integrity")


class Stopped(Exception):
    """It is to end."""


class Suspect(NamedTuple):
    """A file that seems to be damaged."""

    kind: str
    blocks: tuple[int, ...]
    since: float


class Scrub:
    """Of one data directory.

    Args: on_damage: is told of each file, once; on_sync_failed: that what is on disk is not known;
    takes_older: a file that is older than its sums was brought back by somebody, and is taken as it
    is. In a cluster it would lack what this node has said to have.
    """

    def __init__(
        self, root: str, shelves: Shelves, touches: Touches, life: Life, damages: Damages, *,
        on_damage: Callable[[Damage], object], on_sync_failed: Callable[[str, int], object],
        look: Callable[[], bool], readers: Readers, takes_older: bool = False,
    ) -> None:  # fmt: skip
        self._root = root
        self._shelves = shelves
        self._touches = touches
        self._life = life
        self._damages = damages
        self._on_damage = on_damage
        self._on_sync_failed = on_sync_failed
        self._look = look
        self._readers = readers
        self._takes_older = takes_older
        self._suspects: dict[str, Suspect] = {}
        self._unread: dict[str, int | None] = {}
        """Directories that could not be read, and why: each is told of once."""
        self._has_looked = False
        """Whether all that was changed before this life is known."""
        self._take_in_at = 0.0
        self.n_bytes = 0
        """Read so far."""
        self.n_files = 0
        """Looked at in this pass, or in the last one."""

    # ---- notes

    def take_in(self) -> None:
        """Take in the notes of changes. Raises: OSError."""
        self._take_in_at = time.monotonic() + TAKE_IN_S
        is_complete = self._look()
        at = self._touches.at
        try:
            while not self._touches.take_in():
                time.sleep(0)  # others may want the interpreter
        except ValueError:
            is_complete = False
        if not is_complete:
            _log.warning("changes could not be noted: sums of what has changed are made anew")
            self._touches.skip()
            self._life.foreign = self._life.number
        if self._touches.at != at or not is_complete:
            self._shelves.flush()
            self._life.notes = self._touches.at
            self._life.note()
            self._touches.give_back()

    # ---- passes

    def run(
        self, pace: Pace, *, is_deep: bool = True, is_shallow: bool = False,
        is_hurried: bool = False,
    ) -> None:  # fmt: skip
        """Go over all files.

        Args: is_deep: read messages that have not been changed, too, and make sums; is_shallow:
        only what is not in the directories of queues; is_hurried: somebody waits. Raises: OSError;
        what `pace` raises.
        """
        self.n_files = 0
        quiet_ns = SOON_NS if is_hurried else QUIET_NS
        for directory in self._directories(is_shallow=is_shallow):
            self.take_in()
            self._directory(directory, pace, is_deep=is_deep, quiet_ns=quiet_ns)
        self.take_in()
        for directory in self._shelves.directories():
            is_wanted = not is_shallow or directory.count("/") == 0
            if is_wanted and not os.path.isdir(os.path.join(self._root, directory)):
                self._directory(directory, pace, is_deep=is_deep, quiet_ns=quiet_ns)
        for each in self._damages.all():
            if each.path.rpartition("/")[2] not in self._shelves.get(key_of(each.path)):
                self._damages.drop(each.path)  # the broker has made it anew, or removed it
        self._shelves.flush()

    def has_looked(self) -> None:
        """All was compared that was changed before this life: whatever differs now is damage."""
        self._has_looked = True

    def settle(self, *, is_waited_for: bool = False) -> None:
        """Look once more at what is suspected. Args: is_waited_for: wait until that can be done.
        Raises: OSError."""
        if is_waited_for and self._suspects:
            latest = max(each.since for each in self._suspects.values())
            time.sleep(max(0.0, latest + SETTLE_S - time.monotonic()))
        now = time.monotonic()
        due = [path for path, each in self._suspects.items() if now - each.since >= SETTLE_S]
        if not due:
            return
        self.take_in()
        for path in due:
            del self._suspects[path]
            kind, blocks = self._look_again(path)
            if kind:
                self._judge(path, kind, blocks)
        self._shelves.flush()

    def suspect(self, path: str) -> None:
        """Somebody has read something else than there should be."""
        self._suspects.setdefault(path, Suspect("differs", (), time.monotonic() - SETTLE_S))

    @property
    def is_settled(self) -> bool:
        """Whether nothing is suspected."""
        return not self._suspects

    # ---- parts

    def _directories(self, *, is_shallow: bool) -> Iterator[str]:
        """Paths below the root of those that hold something to be kept."""
        yield ""
        left = [name for name in sorted(os.listdir(self._root)) if VHOST.match(name)]
        while left:
            directory = left.pop(0)
            yield directory
            if is_shallow:
                continue
            with suppress(OSError), os.scandir(os.path.join(self._root, directory)) as entries:
                left[:0] = sorted(
                    f"{directory}/{each.name}" for each in entries
                    if each.is_dir(follow_symlinks=False) and not NOT_KEPT.match(each.name)
                )  # fmt: skip

    def _directory(self, directory: str, pace: Pace, *, is_deep: bool, quiet_ns: int) -> None:
        """Look at the files of one directory, and at those that have been there."""
        names = self._names(directory)
        if names is None:
            return
        numbers = {number_of(name) for name in names} | self._shelves.numbers(directory)
        for number in sorted(numbers):
            key = (directory, number)
            here = [name for name in names if number_of(name) == number]
            for name in [each for each in self._shelves.get(key) if each not in names]:
                self._suspected(_path(directory, name), "missing")
            for name in here:
                pace(FILE_BYTES)
                self._file(directory, name, pace, is_deep=is_deep, quiet_ns=quiet_ns)

    def _names(self, directory: str) -> set[str] | None:
        """The files to be kept; None when nobody can tell, which ends no pass over the others."""
        wanted = TOP if not directory else None
        try:
            with os.scandir(os.path.join(self._root, directory)) as entries:
                found = {
                    each.name for each in entries
                    if each.name.isascii() and each.is_file(follow_symlinks=False)
                    and (wanted.match(each.name) if wanted else not NOT_KEPT.match(each.name))
                }  # fmt: skip
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            if self._unread.get(directory) != error.errno:
                _log.error("%s is not looked at: %s", directory or ".", error.strerror)
            self._unread[directory] = error.errno
            return None
        self._unread.pop(directory, None)
        return found

    def _file(self, directory: str, name: str, pace: Pace, *, is_deep: bool, quiet_ns: int) -> None:
        path, key = _path(directory, name), (directory, number_of(name))
        self.n_files += 1
        if time.monotonic() > self._take_in_at:
            self.take_in()  # what is at rest has been noted
        kind, blocks = self._examine(path, self._shelves.get(key), pace, is_deep=is_deep,
                                     quiet_ns=quiet_ns)  # fmt: skip
        if kind:
            self._suspected(path, kind, blocks)
        elif is_deep and path in self._damages:
            self._damages.drop(path)  # it is as it was again

    def _suspected(self, path: str, kind: str, blocks: tuple[int, ...] = ()) -> None:
        self._suspects.setdefault(path, Suspect(kind, blocks, time.monotonic()))

    def _examine(
        self, path: str, shelf: Shelf, pace: Pace, *, is_deep: bool, quiet_ns: int = QUIET_NS
    ) -> tuple[str, tuple[int, ...]]:
        """Compare a file with what is known of it; if that is the same, know it up to its end.

        Returns: what is wrong with it, and where; empty: nothing. Raises: what `pace` raises.
        """
        name = path.rpartition("/")[2]
        known = shelf.get(name)
        self._readers.watch(path)
        try:
            fd = os.open(
                os.path.join(self._root, path),
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
            )
        except FileNotFoundError:
            return ("" if known is None else "missing"), ()
        except OSError as error:
            return ("unreadable" if error.errno == errno.EIO else ""), ()
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return ("" if known is None else "missing"), ()
            if not is_deep and (
                known is None or (name.startswith("msgs.") and _is_same(known, found))
            ):
                return "", ()
            if known is not None and found.st_size < known.covered:
                return "short", ()
            extends = is_deep and abs(time.time_ns() - found.st_mtime_ns) > quiet_ns
            return self._compare(path, fd, found, shelf, pace, extends=extends)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return "unreadable", ()
        finally:
            os.close(fd)

    def _compare(
        self, path: str, fd: int, found: os.stat_result, shelf: Shelf, pace: Pace, *, extends: bool
    ) -> tuple[str, tuple[int, ...]]:
        name = path.rpartition("/")[2]
        known = shelf.get(name)
        is_new = known is None or not _is_same(known, found) or bool(known.unknown)
        if known is None and not extends:
            return "", ()
        end = 0
        if is_new and extends:
            if not self._sync(path, fd):
                return "", ()
            end = found.st_size
            if name.startswith("msgs."):
                end = _core.whole_end(fd, end)  # filling is written over
        bad, fresh = check(fd, known, end, self._counted(pace))
        if bad:
            return "differs", tuple(bad)
        if fresh is not known:
            fresh.size, fresh.mtime_ns = found.st_size, found.st_mtime_ns
        if is_new and (not extends or not _is_same(fresh, os.fstat(fd))):
            if known is not None:
                self._readers.know(path, known)
            return "", ()  # as far as it was known it is right
        self._readers.know(path, fresh)
        if is_new or fresh.life != self._life.number:
            fresh.life = self._life.number
            shelf[name] = fresh
            self._shelves.changed(key_of(path))
        return "", ()

    def _counted(self, pace: Pace) -> Pace:
        def count(n: int) -> None:
            self.n_bytes += n
            pace(n)

        return count

    def _sync(self, path: str, fd: int) -> bool:
        """Have a file on disk before it gets sums: they would outlive a loss of power."""
        try:
            os.fdatasync(fd)
        except OSError as error:
            if error.errno == errno.EIO:
                # Who writes the file would not hear of it any more.
                self._on_sync_failed(os.path.join(self._root, path), error.errno)
            return False
        return True

    # ---- judgement

    def _look_again(self, path: str) -> tuple[str, tuple[int, ...]]:
        shelf = self._shelves.get(key_of(path))
        if path.rpartition("/")[2] not in shelf:
            self._readers.forget(path)  # who reads it may know sums of what it was before
            return "", ()
        return self._examine(path, shelf, lambda _: None, is_deep=True)

    def _judge(self, path: str, kind: str, blocks: tuple[int, ...]) -> None:
        """A file differs, and no note says that the broker has changed it."""
        shelf, name = self._shelves.get(key_of(path)), path.rpartition("/")[2]
        known = shelf[name]
        found = self._stat(path)
        is_changed = found is None or not _is_same(known, found)
        if self._is_excused(path, known, found, is_changed=is_changed):
            _log.notice("%s is not as it was known: it is taken as it is", path)
            del shelf[name]
            self._shelves.changed(key_of(path))
            self._readers.forget(path)
            return
        if kind == "differs" and is_changed and self._is_of_before(known):
            kind = "changed"
        new = self._damages.add(path, kind, blocks)
        if new is not None:
            _log.error("%s is damaged: %s", path, new.text)
            self._on_damage(new)

    def _is_of_before(self, known: FileSums) -> bool:
        """Whether it may have been changed before this life."""
        return not self._has_looked and known.life < self._life.number

    def _is_excused(
        self, path: str, known: FileSums, found: os.stat_result | None, *, is_changed: bool
    ) -> bool:
        """Whether somebody may have changed it who is no damage."""
        life = self._life
        if known.life <= life.lost and (found is None or found.st_mtime_ns < life.booted_ns):
            return True
        if known.life <= life.foreign and is_changed:
            return True
        if self._takes_older and found is not None and is_older(known, found):
            return True
        if not self._is_of_before(known) or not life.last_sign_ns:
            return False
        # A kill may have come between a change of a name and its note.
        near = life.last_sign_ns + DOUBT_NS
        if found is None:
            parent = os.path.join(self._root, os.path.dirname(path))
            return not os.path.isdir(parent) and _changed_ns(parent) < near
        return path.endswith(RENAMED_LATE) and found.st_ctime_ns < near and is_changed

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(os.path.join(self._root, path), follow_symlinks=False)
        except OSError:
            return None


def _is_same(known: FileSums, found: os.stat_result) -> bool:
    return (known.size, known.mtime_ns) == (found.st_size, found.st_mtime_ns)


def _path(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _changed_ns(path: str) -> int:
    """When the next directory above was changed that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return os.stat(path).st_mtime_ns
