"""What can be kept of damaged files where there is no peer that has them: no broker runs.

A damaged file is copied to `.damaged/<time>/` first. Of a segment the messages stay whose bytes are
right. What others decide by (users, rights, definitions) is not guessed: a person takes it as it
is, or brings it back from a backup. Source: docs/integrity.md.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from lavinmq.files.standing import STATE_FILE, Standing
from lavinmq.files.whole import sync_directory
from lavinmq.integrity.segment import VERSION, Mended, mend
from lavinmq.integrity.sums import BLOCK

if TYPE_CHECKING:
    from lavinmq.integrity.damage import Damage
    from lavinmq.integrity.keeper import Integrity

ASIDE: Final = ".damaged"
MADE_ANEW: Final = ("deliveries", "dedup", "consumer_offsets", "epochs", ".queue", ".vhost")
"""Files that the broker can do without: what is lost with each."""
LOST: Final = {
    "deliveries": "how often messages were delivered",
    "dedup": "keys of duplicates",
    "consumer_offsets": "where consumers of the stream were",
    "epochs": "epochs of the stream",
}


class Outcome(NamedTuple):
    """What became of a file. Args: is_mended: it is damaged no more; text: for people; n_lost:
    messages, None: nobody can tell."""

    path: str
    is_mended: bool
    text: str
    n_lost: int | None = 0


class Repair:
    """Of one data directory, which is locked, and where no broker runs. Its methods raise OSError.

    Args: accepts: takes files as they are that are not guessed.
    """

    def __init__(self, root: str, integrity: Integrity, *, accepts: bool) -> None:
        self._root = root
        self._integrity = integrity
        self._accepts = accepts
        self._aside = os.path.join(root, ASIDE, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))

    def run(self, told: Callable[[Outcome], object]) -> bool:
        """Mend what can be mended. Returns: whether nothing is damaged any more."""
        for damage in self._integrity.damages.all():
            outcome = self._mend(damage)
            if outcome.is_mended:
                self._integrity.forget(damage.path)
            told(outcome)
        is_good = not len(self._integrity.damages)
        if is_good and os.path.exists(os.path.join(self._root, STATE_FILE)):
            standing = Standing(self._root)
            standing.load()
            standing.note_damage(is_damaged=False)
        return is_good

    def _mend(self, damage: Damage) -> Outcome:
        path = damage.path
        name = path.rpartition("/")[2]
        kind, _, number = name.partition(".")
        if kind == "msgs" and number.isdigit():
            return self._mend_segment(damage, number)
        if kind == "acks" and number.isdigit():
            return self._mend_acks(damage)
        if damage.kind == "missing":
            return self._without(damage, name)
        if kind == "meta" and number.isdigit():
            self._put_aside(path)
            return Outcome(path, True, "is made anew: nothing is lost")
        if name.startswith(MADE_ANEW):
            self._put_aside(path)
            lost = LOST.get(name.partition(".")[0])
            return Outcome(path, True, f"is made anew; lost: {lost or 'nothing'}")
        if name.startswith("mqtt_"):
            self._keep_copy(path)
            return Outcome(path, True, "stays: the broker leaves out what is damaged in it", None)
        if self._accepts:
            self._keep_copy(path)
            return Outcome(path, True, "is taken as it is")
        return Outcome(path, False, "bring it back from a backup, or look at it and use --accept")

    def _without(self, damage: Damage, name: str) -> Outcome:
        """A file is gone."""
        if damage.path.count("/") >= 2 or name == ".vhost" or self._accepts:
            return Outcome(damage.path, True, "is gone, and done without")
        return Outcome(damage.path, False, "bring it back from a backup, or use --accept")

    # ---- segments

    def _mend_segment(self, damage: Damage, number: str) -> Outcome:
        directory = os.path.dirname(self._place(damage.path))
        meta = os.path.join(directory, f"meta.{number}")
        n_before = _count(meta)
        if damage.kind == "missing":
            for each in (meta, os.path.join(directory, f"acks.{number}")):
                with suppress(FileNotFoundError):
                    os.unlink(each)
                self._integrity.forget(os.path.relpath(each, self._root))
            n = "an unknown number of" if n_before is None else str(n_before)
            return Outcome(damage.path, True, f"is gone, and with it {n} messages", n_before)
        is_stream = any(name.startswith("created.") for name in os.listdir(directory))
        bad = self._keep_copy(damage.path) | set(damage.blocks)
        mended = self._mended(damage.path, bad, is_stream=is_stream)
        self._write(damage.path, mended)
        if not is_stream:  # there it says which offsets come behind
            with suppress(FileNotFoundError):
                os.unlink(meta)
            self._integrity.forget(os.path.relpath(meta, self._root))
        sync_directory(directory)
        n_lost = mended.n_lost if n_before is None else max(n_before - mended.n_kept, 0)
        return Outcome(
            damage.path, True, f"keeps {mended.n_kept} messages, {n_lost} are lost", n_lost
        )

    def _mended(self, path: str, bad: set[int], *, is_stream: bool) -> Mended:
        with open(os.path.join(self._aside, path), "rb") as file:
            if os.fstat(file.fileno()).st_size < len(VERSION):
                return Mended()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                content = memoryview(whole)
                try:
                    return mend(content, bad, is_stream=is_stream)
                finally:
                    content.release()

    def _write(self, path: str, mended: Mended) -> None:
        """Put what is left in the place of a segment, by way of a name that no start reads."""
        place = self._place(path)
        beside = os.path.join(os.path.dirname(place), f"tmp.{os.path.basename(place)}.mended")
        shutil.copyfile(os.path.join(self._aside, path), beside)
        with open(beside, "r+b", buffering=0) as file:
            file.truncate(mended.size)
            os.pwrite(file.fileno(), VERSION, 0)
            for start, end in mended.fillers:
                for at in range(start, end, BLOCK):
                    os.pwrite(file.fileno(), bytes(min(BLOCK, end - at)), at)
            for start, head in mended.heads():
                os.pwrite(file.fileno(), head, start)
            os.fchmod(file.fileno(), os.stat(place).st_mode & 0o777)
            os.fsync(file.fileno())
        os.replace(beside, place)

    def _mend_acks(self, damage: Damage) -> Outcome:
        """Deleted positions; what is lost of them is delivered again."""
        path = damage.path
        if damage.kind == "missing":
            return Outcome(path, True, "is gone: messages of its segment are delivered again")
        bad = self._keep_copy(path) | set(damage.blocks)
        with open(os.path.join(self._aside, path), "rb") as file:
            content = file.read()
        kept = b"".join(
            content[at : at + BLOCK] for at in range(0, len(content), BLOCK)
            if at // BLOCK not in bad
        )  # fmt: skip
        place = self._place(path)
        beside = os.path.join(os.path.dirname(place), f"tmp.{os.path.basename(place)}")
        with open(beside, "wb") as out:
            out.write(kept[: len(kept) // 4 * 4])
            out.flush()
            os.fchmod(out.fileno(), os.stat(place).st_mode & 0o777)
            os.fsync(out.fileno())
        os.replace(beside, place)
        n = (len(content) - len(kept)) // 4
        return Outcome(path, True, f"up to {n} messages that were settled are delivered again")

    # ---- files

    def _place(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _put_aside(self, path: str) -> None:
        self._keep_copy(path)
        os.unlink(self._place(path))

    def _keep_copy(self, path: str) -> set[int]:
        """Copy a file aside. Returns: blocks that the disk does not give; they are zeros."""
        target = os.path.join(self._aside, path)
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        bad: set[int] = set()
        fd = os.open(self._place(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            with open(target, "wb") as out:  # all of it, however little a disk takes at once
                for at in range(0, size, BLOCK):
                    wanted, block = min(BLOCK, size - at), b""
                    with suppress(OSError):
                        block = os.pread(fd, wanted, at)
                    if len(block) == wanted:
                        out.write(block)
                    else:  # the disk gives none of it, or what is before a bad sector
                        bad.add(at // BLOCK)
                        out.seek(at + wanted)
                out.truncate(size)
                os.fsync(out.fileno())
        finally:
            os.close(fd)
        return bad


def _count(meta: str) -> int | None:
    """How many messages a finished segment had; None: it does not say."""
    try:
        with open(meta, "rb") as file:
            content = file.read(4)
    except OSError:
        return None
    return int.from_bytes(content, "little") if len(content) == 4 else None
