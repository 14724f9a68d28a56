"""The commands of lavinmqctl that make backups and look at them.

A backup is a folder: `data/`, which is a data directory, `files.txt` with a hash of each file, and
`backup.json`, which is written last. Files that have not changed since the last backup in the same
directory are links to that one's. Source: docs/backup.md.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, NamedTuple

from lavinmq.cli.ctl.errors import CtlError, UsageError
from lavinmq.cli.ctl.session import Session
from lavinmq.files.backup_names import BOOK, DATA, IDENTITY, KNOWN, LAST

PIECE_BYTES: Final = 256 << 10
PARTIAL: Final = ".partial"
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
        if keep is not None:
            for old in finished(Path(place))[:-keep]:
                shutil.rmtree(old)
    session.output.record({"backup": str(made), **facts})


def verify_backup(session: Session) -> None:
    """Tell what is not as it was made."""
    folder = Path(session.arguments[0])
    with _file_errors():
        facts = facts_of(folder)
        odd = [f"{path}: {what}" for path, what in differences(folder)]
    if odd:
        error = CtlError(f"{folder} is damaged: {len(odd)} files are not as they were made")
        error.details = odd[:MOST_ODD]
        raise error
    session.output.record({"backup": str(folder), **facts, "is_whole": True})


# ---- folders


def finished(directory: Path) -> list[Path]:
    """The backups in a directory, the oldest first."""
    if not directory.is_dir():
        return []
    return sorted(each for each in directory.iterdir() if _is_backup(each))


def _is_backup(folder: Path) -> bool:
    return not folder.name.endswith(PARTIAL) and (folder / LAST).is_file()


def facts_of(folder: Path) -> dict[str, Any]:
    """What a backup says of itself. Raises: CtlError for what is none."""
    if not _is_backup(folder):
        raise CtlError(f"{folder} is no backup: there is no {LAST} in it")
    try:
        facts = json.loads((folder / LAST).read_bytes())
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise CtlError(f"{folder / LAST} is damaged")
    return facts


def book_of(folder: Path) -> dict[str, Entry]:
    """The files of a backup by path. Raises: CtlError."""
    book = {}
    text = (folder / BOOK).read_bytes().decode("utf-8", "surrogateescape")
    for line in text.splitlines():
        digest, _, rest = line.partition(" ")
        size, _, rest = rest.partition(" ")
        identity, _, path = rest.partition(" ")
        if not (size.isdecimal() and path):
            raise CtlError(f"{folder / BOOK} is damaged: {line[:100]!r}")
        book[path] = Entry(digest, int(size), identity)
    return book


def differences(folder: Path) -> Iterator[tuple[str, str]]:
    """Files that are not as a backup was made, and how they are."""
    book, data = book_of(folder), folder / DATA
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
        if not found.is_dir() and name not in book:
            yield name, "is no file of the backup"


def digest_of(path: Path) -> tuple[str, int]:
    """Hash and bytes of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, os.fstat(file.fileno()).st_size


def _folder(session: Session, directory: Path) -> tuple[Path, dict[str, Any]]:
    """Make a folder in a directory; it has its name once it is whole and on disk."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = finished(directory)
    last = before[-1] if before else None
    known = book_of(last) if last is not None else {}
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    made = directory / name
    if made.exists():
        raise CtlError(f"{made} is there already: a backup a second")
    partial = directory / (name + PARTIAL)
    partial.mkdir(mode=0o700)
    try:
        asked = "".join(
            f"{each.identity} {path}\n" for path, each in known.items() if each.identity != "-"
        )
        with _answer(session, asked) as stream:
            facts, book = unpack(stream, partial, last, known)
        lines = "".join(f"{each.digest} {each.size} {each.identity} {path}\n"
                        for path, each in book.items())  # fmt: skip
        _write(partial / BOOK, lines.encode("utf-8", "surrogateescape"))
        _write(partial / LAST, json.dumps(facts, indent=2).encode() + b"\n")
        sync(partial)
        partial.rename(made)
        sync(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return made, facts


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
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if facts is not None:
                    raise CtlError(f"The archive goes on behind {LAST}")
                content = archive.extractfile(member) if member.isreg() else None
                if member.name == LAST and content is not None:
                    facts = json.loads(content.read(1 << 20))
                    continue
                path = _inside(member)
                if member.isdir():
                    (folder / DATA / path).mkdir(mode=0o750)
                    continue
                identity = member.pax_headers.get(IDENTITY, "-")
                target = folder / DATA / path
                if member.pax_headers.get(KNOWN):
                    old = known.get(path)
                    if old is None or last is None or old.identity != identity:
                        raise CtlError(f"The broker leaves out {path}, which is not known here")
                    _take_over(last / DATA / path, target)
                    book[path] = old
                    continue
                assert content is not None
                digest, size = _copy(content, target)
                n_new += size
                book[path] = Entry(digest, size, identity)
    except (tarfile.TarError, http.client.HTTPException, EOFError) as error:
        raise CtlError(f"The backup is not whole, the broker's log may say why: {error}") from None
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise CtlError("The backup is not whole; the broker's log may say why")
    if facts.get("files") != len(book):
        raise CtlError(f"The backup has {len(book)} files, not {facts.get('files')}")
    return {**facts, "new_bytes": n_new}, book


def _inside(member: tarfile.TarInfo) -> str:
    """Where an entry belongs in `data/`, empty for that itself. Raises: CtlError."""
    first, *rest = member.name.split("/")
    if first != DATA or not all(each not in ("", ".", "..") for each in rest):
        raise CtlError(f"The archive names {member.name!r}, which is outside of it")
    if not (member.isdir() or (member.isreg() and rest)):
        raise CtlError(f"The archive has {member.name!r}, which is neither file nor directory")
    return "/".join(rest)


def _take_over(old: Path, new: Path) -> None:
    """Have the file of an earlier backup in this one, too."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copyfile(old, new, follow_symlinks=False)


def _copy(content: IO[bytes], target: Path) -> tuple[str, int]:
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
    """Write what comes to one file."""
    if place == "-":
        with _answer(session, "") as stream, _file_errors():
            _pour(stream, sys.stdout.buffer)
        return
    partial = Path(place + PARTIAL)
    with _file_errors():
        try:
            with open(partial, "xb") as file, _answer(session, "") as stream:
                os.fchmod(file.fileno(), 0o600)
                _pour(stream, file)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(place)
            sync(Path(place).resolve().parent)
        except FileExistsError:
            raise CtlError(
                f"{partial} is there: another backup is made, or was broken off"
            ) from None
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
    session.output.record({"backup": place, "bytes": os.path.getsize(place)})


def _pour(stream: IO[bytes], to: BinaryIO) -> None:
    """Copy all; it has to end as an archive does. Raises: CtlError."""
    end = b""
    try:
        while piece := stream.read(PIECE_BYTES):
            to.write(piece)
            end = (end + piece)[-1024:]
    except http.client.HTTPException as error:
        raise CtlError(f"The backup is not whole, the broker's log may say why: {error}") from None
    if len(end) < 1024 or end.strip(b"\0"):
        raise CtlError("The backup is not whole; the broker's log may say why")


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
