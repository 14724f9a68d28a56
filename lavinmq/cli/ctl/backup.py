"""The commands of lavinmqctl that make backups and look at them.

A backup is a folder: `data/`, which is a data directory, `files.txt` with a hash of each file, and
`backup.json`, which is written last. Files that have not changed since the last backup in the same
directory are links to that one's. Or it is one tar file with the same in it, or with what has
changed since another backup. Root writes as the owner of the directory. Source: docs/backup.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from lavinmq.cli.ctl.backup_book import (
    PARTIAL,
    Base,
    Entry,
    asked,
    book_of,
    facts_of,
    id_of,
    opened,
    shown,
    written,
)
from lavinmq.cli.ctl.backup_tar import base_of, pack, unpack
from lavinmq.cli.ctl.errors import CtlError, UsageError
from lavinmq.cli.ctl.owner import own_rights, rights_of_owner
from lavinmq.cli.ctl.session import Session
from lavinmq.files.backup_names import BOOK, DATA, LAST
from lavinmq.files.gradual import Gradual

NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")
MOST_ODD: Final = 20
"""Of files that are not as they were, those that are named."""


def backup(session: Session) -> None:
    """Make one."""
    place = session.arguments[0]
    keep = session.integer("--keep")
    if session.has("--archive"):
        if keep is not None:
            raise UsageError("--keep is for folders, not for --archive")
        since = session.options.get("--since")
        _archive(session, place, None if since is None else _since(Path(since)))
        return
    if session.has("--since"):
        raise UsageError("--since is for --archive; a new folder builds on the last one by itself")
    if keep is not None and keep < 1:
        raise UsageError("Invalid value of --keep: at least 1 is kept")
    if place == "-":
        raise UsageError("Only with --archive a backup goes to the standard output")
    with _file_errors(), _rights_in(Path(place)):
        made, facts = _folder(session, Path(place))
        _check_sound(str(made), facts)  # else no older one is removed
        if keep is not None:
            for old in finished(Path(place))[:-keep]:
                if old != made:
                    shutil.rmtree(old)
    session.output.record({"backup": str(made), **facts})


def _check_sound(made: str, facts: dict[str, Any]) -> None:
    """Raises: CtlError when the broker has found damage in what it has sent."""
    damaged = facts.pop("damaged", None)
    if damaged:
        raise CtlError(f"{made} is made, but files of the broker are damaged: {', '.join(damaged)}")


def verify_backup(session: Session) -> None:
    """Tell what is not as it was made."""
    folder = Path(session.arguments[0])
    with _file_errors():
        facts = facts_of(folder)
        odd = [f"{path}: {what}" for path, what in differences(folder, book_of(folder, facts))]
    if odd:
        error = CtlError(f"{folder} is damaged: {len(odd)} files are not as they were made")
        error.details = odd[:MOST_ODD]
        raise error
    session.output.record({"backup": str(folder), **shown(facts), "is_whole": True})


# ---- folders


def finished(directory: Path) -> list[Path]:
    """The backups in a directory that have names of ours, the oldest first."""
    if not directory.is_dir():
        return []
    return sorted(
        each for each in directory.iterdir()
        if NAME.fullmatch(each.name) and _is_whole(each)
    )  # fmt: skip


def _is_whole(folder: Path) -> bool:
    """Whether a backup has come to its end; one that may not be looked at is said to be."""
    try:
        return (folder / LAST).is_file()
    except PermissionError:
        return True


def differences(folder: Path, book: dict[str, Entry]) -> Iterator[tuple[str, str]]:
    """Files that are not as a backup was made, and how they are."""
    data = folder / DATA
    for path, entry in book.items():
        try:
            digest, size = digest_of(data / path)
        except OSError as error:
            yield path, str(error.strerror)
            continue
        if size != entry.size:
            yield path, f"{size} bytes, not {entry.size}"
        elif digest != entry.digest:
            yield path, "other bytes"
    for found in data.rglob("*"):
        name = str(found.relative_to(data))
        if (found.is_symlink() or not found.is_dir()) and name not in book:
            yield name, "is no file of the backup"


def digest_of(path: Path) -> tuple[str, int]:
    """Hash and bytes of a file."""
    with opened(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, os.fstat(file.fileno()).st_size


def _folder(session: Session, directory: Path) -> tuple[Path, dict[str, Any]]:
    """Make a folder in a directory; it has its name once it is whole and on disk."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(directory):
        for left in directory.iterdir():
            if left.name.endswith(PARTIAL) and NAME.fullmatch(left.name[: -len(PARTIAL)]):
                shutil.rmtree(left)  # of a backup that was broken off
        before = finished(directory)
        name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        if before and before[-1].name >= name:
            raise CtlError(f"{before[-1]} is of now or later: one backup a second, by the clock")
        base = _usable(session, before)
        partial = directory / (name + PARTIAL)
        partial.mkdir(mode=0o700)
        try:
            facts = _fill(session, partial, base)
            sync(partial)
            partial.rename(directory / name)
            sync(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return directory / name, shown(facts)


def _fill(session: Session, partial: Path, base: Base | None) -> dict[str, Any]:
    """Write what comes into an empty folder."""
    with _answer(session, base) as stream:
        facts, book = unpack(stream, partial, base)
    content = written(book)
    facts["book"] = id_of(content)
    _write(partial / BOOK, content)
    _write(partial / LAST, json.dumps(facts, indent=2).encode() + b"\n")
    return facts


def _usable(session: Session, before: list[Path]) -> Base | None:
    """The newest backup that can be read, and those of its files that need not come again."""
    for folder in reversed(before):
        try:
            facts = facts_of(folder)
            book = book_of(folder, facts)
        except (CtlError, OSError) as error:
            session.output.warn(f"{folder} is not built upon: {error}")
            continue
        here = {path: each for path, each in book.items() if _has(folder / DATA / path, each.size)}
        return Base(str(folder), str(facts["book"]), here, folder)
    return None


def _since(path: Path) -> Base:
    """The backup on which an archive builds: a folder, of which `files.txt` and `backup.json` are
    enough, or an archive. Raises: CtlError."""
    with _file_errors():
        if not path.is_dir():
            return base_of(path)
        facts = facts_of(path)
        return Base(str(path), str(facts.get("book")), book_of(path, facts), None)


def _has(path: Path, size: int) -> bool:
    """Whether there is a file of that size."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else makes a backup in a directory. Raises: CtlError when somebody does."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise CtlError(f"{directory}: another backup is being made in it") from None
    finally:
        os.close(fd)


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)


def sync(path: Path) -> None:
    """Have all that was written to the file system of a directory on disk. Raises: OSError."""
    from lavinmq import _core

    _core.sync_file_system(str(path))


# ---- archives


def _archive(session: Session, place: str, base: Base | None) -> None:
    """Write what comes to one new file."""
    if place == "-":
        with _answer(session, base) as stream, _file_errors():
            _check_sound("The archive", pack(stream, sys.stdout.buffer.write, base))
        return
    if not place or os.path.lexists(place):
        raise CtlError(f"{place!r} is there already" if place else "The archive needs a name")
    partial = Path(place + PARTIAL)
    with _file_errors(), _rights_in(partial.absolute().parent):
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = _is_at(fd, partial)
            except BlockingIOError:
                is_ours = False
            if not is_ours:  # nor is it when who had the lock before has made it an archive
                raise CtlError(f"{partial}: another backup is being made")
            try:
                facts = _into(session, file, base)
                file.flush()
                os.fsync(fd)
                if os.path.lexists(place):
                    raise CtlError(f"{place!r} is there already")
                partial.rename(place)
            except BaseException:
                partial.unlink()
                raise
        sync(Path(place).resolve().parent)
    _check_sound(place, facts)
    session.output.record({"backup": place, **shown(facts), "size": os.path.getsize(place)})


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _into(session: Session, file: BinaryIO, base: Base | None) -> dict[str, Any]:
    """Write it into a file, in the place of what was broken off."""
    file.truncate(0)
    with _answer(session, base) as stream:
        return pack(stream, Gradual(file).write, base)


@contextmanager
def _answer(session: Session, base: Base | None) -> Iterator[BinaryIO]:
    """What the broker sends to who has a backup. It knows root, not who owns the directory."""
    known = b"" if base is None else asked(base.book)
    with ExitStack() as stack:
        with own_rights():
            from lavinmq.cli.ctl.api import path_of

            stream = stack.enter_context(session.api.download(path_of("backup"), known))
        yield stream


@contextmanager
def _rights_in(directory: Path) -> Iterator[None]:
    """Root writes as the owner of a directory, who may put links into it. Raises: OSError."""
    # Loaded before: the owner may not be let into the directory of an interpreter.
    import lavinmq._core  # noqa: F401

    with rights_of_owner(directory):
        yield


class _file_errors:
    """Makes errors of files those of the command, with the name of the file."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if isinstance(error, OSError):
            what = error.filename or "the backup"
            raise CtlError(f"{what}: {error.strerror or error}") from None
