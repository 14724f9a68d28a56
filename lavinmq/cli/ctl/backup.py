"""The commands of lavinmqctl that make backups and look at them.

A backup is a folder: `data/`, which is a data directory, `files.txt` with a hash of each file, and
`backup.json`, which is written last. Files that have not changed since the last backup in the same
directory are links to that one's. Source: docs/backup.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import stat
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, NamedTuple

from lavinmq.cli.ctl.errors import CtlError, UsageError
from lavinmq.cli.ctl.session import Session
from lavinmq.files.backup_names import BOOK, DATA, IDENTITY, KNOWN, LAST

PIECE_BYTES: Final = 256 << 10
PARTIAL: Final = ".partial"
NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")
FACTS: Final = ("version", "node", "taken_at", "files", "bytes", "new_bytes", "damaged")
"""What an archive may say of itself."""
MOST_DEEP: Final = 16
"""Directories in each other: a data directory has four."""
NO_SENSE: Final = (ValueError, RecursionError, MemoryError)
NOT_WHOLE: Final = "The backup is not whole (the log of its broker may say why)"
MOST_ODD: Final = 20
"""Of files that are not as they were, those that are named."""


class Entry(NamedTuple):
    """A file of a backup. Args: digest: SHA-256; identity: by which the broker knows it, or -."""

    digest: str
    size: int
    identity: str


def backup(session: Session) -> None:
    """Make one."""
    place = session.arguments[0]
    keep = session.integer("--keep")
    if session.has("--archive"):
        if keep is not None:
            raise UsageError("--keep is for folders, not for --archive")
        _archive(session, place)
        return
    if keep is not None and keep < 1:
        raise UsageError("Invalid value of --keep: at least 1 is kept")
    if place == "-":
        raise UsageError("Only with --archive a backup goes to the standard output")
    with _file_errors():
        made, facts = _folder(session, Path(place))
        damaged = facts.pop("damaged", None)
        if damaged:
            raise CtlError(  # and no older one is removed
                f"{made} is made, but files of the broker are damaged: {', '.join(damaged)}"
            )
        if keep is not None:
            for old in finished(Path(place))[:-keep]:
                if old != made:
                    shutil.rmtree(old)
    session.output.record({"backup": str(made), **facts})


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
        if NAME.fullmatch(each.name) and (each / LAST).is_file()
    )  # fmt: skip


def facts_of(folder: Path) -> dict[str, Any]:
    """What a backup says of itself. Raises: CtlError for what is none."""
    if folder.name.endswith(PARTIAL) or not (folder / LAST).is_file():
        raise CtlError(f"{folder} is no backup: there is no {LAST} in it")
    facts = _facts((folder / LAST).read_bytes())
    if facts is None:
        raise CtlError(f"{folder / LAST} is damaged")
    return facts


def shown(facts: dict[str, Any]) -> dict[str, Any]:
    """Those facts that people are told."""
    return {name: facts[name] for name in FACTS if name in facts}


def _facts(content: bytes) -> dict[str, Any] | None:
    try:
        facts = json.loads(content)
    except NO_SENSE:
        return None
    return facts if isinstance(facts, dict) else None


def book_of(folder: Path, facts: dict[str, Any]) -> dict[str, Entry]:
    """The files of a backup by path. Raises: CtlError when it is not as it was written."""
    content = (folder / BOOK).read_bytes()
    if hashlib.sha256(content).hexdigest() != facts.get("book"):
        raise CtlError(f"{folder / BOOK} is damaged: it is not as it was written")
    book = {}
    for line in content.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        digest, _, rest = line.partition(" ")
        size, _, rest = rest.partition(" ")
        identity, _, path = rest.partition(" ")
        if not size.isdecimal() or not is_inside(path.split("/")):
            raise CtlError(f"{folder / BOOK} names {path!r}, which is outside of it")
        book[path] = Entry(digest, int(size), identity)
    if facts.get("files") != len(book):
        raise CtlError(f"{folder / BOOK} has {len(book)} files, not {facts.get('files')}")
    return book


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


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file, which is no link to one and nothing else. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "is no file", str(path))
        yield file


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
        last, known = _usable(session, before)
        partial = directory / (name + PARTIAL)
        partial.mkdir(mode=0o700)
        try:
            facts = _fill(session, partial, last, known)
            sync(partial)
            partial.rename(directory / name)
            sync(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return directory / name, shown(facts)


def _fill(
    session: Session, partial: Path, last: Path | None, known: dict[str, Entry]
) -> dict[str, Any]:
    """Write what comes into an empty folder."""
    asked = "".join(f"{each.identity} {path}\n" for path, each in known.items())
    with _answer(session, asked) as stream:
        facts, book = unpack(stream, partial, last, known)
    lines = "".join(f"{each.digest} {each.size} {each.identity} {path}\n"
                    for path, each in book.items())  # fmt: skip
    content = lines.encode("utf-8", "surrogateescape")
    facts["book"] = hashlib.sha256(content).hexdigest()
    _write(partial / BOOK, content)
    _write(partial / LAST, json.dumps(facts, indent=2).encode() + b"\n")
    return facts


def _usable(session: Session, before: list[Path]) -> tuple[Path | None, dict[str, Entry]]:
    """The newest backup that can be read, and those of its files that need not come again."""
    for folder in reversed(before):
        try:
            book = book_of(folder, facts_of(folder))
        except (CtlError, OSError) as error:
            session.output.warn(f"{folder} is not built upon: {error}")
            continue
        return folder, {
            path: each for path, each in book.items()
            if each.identity != "-" and _has(folder / DATA / path, each.size)
        }  # fmt: skip
    return None, {}


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


def unpack(
    stream: IO[bytes], folder: Path, last: Path | None, known: dict[str, Entry]
) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Write what an archive holds into a folder. Returns: what it says of itself, its files.

    Args: last: the backup that has the files that come without content; known: those.
    Raises: CtlError for an archive that is not whole, or names what is outside of it.
    """
    facts: dict[str, Any] | None = None
    book: dict[str, Entry] = {}
    n_new = 0
    (folder / DATA).mkdir(mode=0o750)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if facts is not None:
                    raise CtlError(f"The archive goes on behind {LAST}")
                if member.name == LAST and member.isreg():
                    content = archive.extractfile(member)
                    facts = _facts(content.read(1 << 20)) if content is not None else None
                    if facts is None:
                        break
                    continue
                path = _inside(member)
                if member.isdir():
                    if path:
                        (folder / DATA / path).mkdir(mode=0o750)
                    continue
                book[path] = _unpacked(archive, member, path, folder, last, known)
                n_new += 0 if book[path] is known.get(path) else book[path].size
    except (tarfile.TarError, http.client.HTTPException, EOFError, *NO_SENSE) as error:
        raise CtlError(f"{NOT_WHOLE}: {error}") from None
    if facts is None:
        raise CtlError(NOT_WHOLE)
    if facts.get("files") != len(book):
        raise CtlError(f"The backup has {len(book)} files, not {facts.get('files')!r}")
    return {**shown(facts), "new_bytes": n_new}, book


def _unpacked(
    archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, folder: Path,
    last: Path | None, known: dict[str, Entry],
) -> Entry:  # fmt: skip
    """Write one file."""
    identity = member.pax_headers.get(IDENTITY, "-")
    target = folder / DATA / path
    if member.pax_headers.get(KNOWN):
        old = known.get(path)
        if old is None or last is None or old.identity != identity:
            raise CtlError(f"The broker leaves out {path}, which is not known here")
        _take_over(last / DATA / path, target)
        return old
    content = archive.extractfile(member)
    assert content is not None
    digest, size = copy(content, target)
    return Entry(digest, size, identity if " " not in identity else "-")


def is_inside(parts: list[str]) -> bool:
    """Whether the parts of a path lead to a place in a backup."""
    return 0 < len(parts) <= MOST_DEEP and all(
        each not in ("", ".", "..") and "\n" not in each and "\0" not in each for each in parts
    )


def _inside(member: tarfile.TarInfo) -> str:
    """Where an entry belongs in `data/`, empty for that itself. Raises: CtlError."""
    first, *rest = member.name.split("/")
    if first != DATA or (rest and not is_inside(rest)):
        raise CtlError(f"The archive names {member.name[:200]!r}, which is outside of it")
    if not (member.isdir() or (member.isreg() and not member.issparse() and rest)):
        raise CtlError(f"The archive has {member.name!r}, which is neither file nor directory")
    return "/".join(rest)


def _take_over(old: Path, new: Path) -> None:
    """Have the file of an earlier backup in this one, too."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copyfile(old, new, follow_symlinks=False)


def copy(content: IO[bytes], target: Path) -> tuple[str, int]:
    """Write a new file, with holes where it has zeros. Returns: hash and bytes."""
    digest, size = hashlib.sha256(), 0
    with open(target, "xb", buffering=0) as file:
        while piece := content.read(PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            if piece.strip(b"\0"):
                file.write(piece)
            else:
                file.seek(len(piece), os.SEEK_CUR)
        file.truncate(size)
        os.fchmod(file.fileno(), 0o640)
    return digest.hexdigest(), size


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)


def sync(path: Path) -> None:
    """Have all that was written to the file system of a directory on disk. Raises: OSError."""
    from lavinmq import _core

    _core.sync_file_system(str(path))


# ---- archives


def _archive(session: Session, place: str) -> None:
    """Write what comes to one new file."""
    if place == "-":
        with _answer(session, "") as stream, _file_errors():
            _pour(stream, sys.stdout.buffer)
        return
    if not place or os.path.lexists(place):
        raise CtlError(f"{place!r} is there already" if place else "The archive needs a name")
    partial = Path(place + PARTIAL)
    with _file_errors():
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CtlError(f"{partial}: another backup is being made") from None
            try:
                file.truncate(0)  # of a backup that was broken off
                with _answer(session, "") as stream:
                    _pour(stream, file)
                file.flush()
                os.fsync(fd)
                if os.path.lexists(place):
                    raise CtlError(f"{place!r} is there already")
                partial.rename(place)
            except BaseException:
                partial.unlink()
                raise
        sync(Path(place).resolve().parent)
    session.output.record({"backup": place, "bytes": os.path.getsize(place)})


def _pour(stream: IO[bytes], to: BinaryIO) -> None:
    """Copy all; it has to end as an archive does. Raises: CtlError."""
    end = b""
    try:
        while piece := stream.read(PIECE_BYTES):
            to.write(piece)
            end = (end + piece)[-1024:]
    except http.client.HTTPException as error:
        raise CtlError(f"{NOT_WHOLE}: {error}") from None
    if len(end) < 1024 or end.strip(b"\0"):
        raise CtlError(NOT_WHOLE)


def _answer(session: Session, known: str) -> Any:
    """What the broker sends."""
    from lavinmq.cli.ctl.api import path_of

    return session.api.download(path_of("backup"), known.encode("utf-8", "surrogateescape"))


class _file_errors:
    """Makes errors of files those of the command, with the name of the file."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if isinstance(error, OSError):
            what = error.filename or "the backup"
            raise CtlError(f"{what}: {error.strerror or error}") from None
