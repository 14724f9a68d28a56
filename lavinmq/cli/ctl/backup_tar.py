"""The tar files of backups: what a broker sends, what is kept as an archive, and what is in one.

`unpack` writes one into a folder, `pack` copies one into an archive with a book. Nothing that an
archive says is believed: paths stay inside, sizes have bounds, and what has a hash is compared.
Source: docs/backup.md, the pax format of tar: POSIX.1-2001.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, Self

from lavinmq.cli.ctl.backup_book import (
    NO_SENSE,
    Base,
    Book,
    Entry,
    id_of,
    is_inside,
    opened,
    read_book,
    read_facts,
    shown,
    written,
)
from lavinmq.cli.ctl.errors import CtlError
from lavinmq.files.backup_names import BOOK, DATA, DIGEST, FROM, IDENTITY, KNOWN, LAST, SINCE
from lavinmq.files.gradual import Gradual

PIECE_BYTES: Final = 256 << 10
BLOCK: Final = 512
MOST_HEADER: Final = 64 << 10
"""Of the headers in front of a file, which are read at once: a path has 4096 bytes."""
MOST_BOOK: Final = 1 << 30
NOT_WHOLE: Final = "The backup is not whole (the log of its broker may say why)"
HEADERS: Final = frozenset(
    [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
     tarfile.GNUTYPE_LONGLINK]
)  # fmt: skip


class _Info(tarfile.TarInfo):
    """An entry of an archive whose headers have a bound: tarfile reads them as a whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read one. Raises: CtlError."""
        info = super().frombuf(buf, encoding, errors)
        if info.type in HEADERS and info.size > MOST_HEADER:
            raise CtlError(f"The archive has a header of {info.size} bytes")
        return info


class _Reading:
    """One archive, from its beginning to its end.

    Args: base: on which it may build. `take` is what becomes of each file: it gets the entry, its
        path, and where its content comes from, and returns what the book has of it.
    """

    def __init__(self, stream: IO[bytes], base: Base | None) -> None:
        self._stream = stream
        self.base = base
        self.since = ""
        """The backup on which it builds, as it says; empty: on none."""
        self.book: dict[str, Entry] = {}
        self.facts: dict[str, Any] = {}
        self.n_new = 0

    def read(
        self, take: Callable[[tarfile.TarInfo, str, IO[bytes]], Entry],
        make: Callable[[str], object],
    ) -> None:  # fmt: skip
        """All of it. Args: make: is told of each directory. Raises: CtlError."""
        facts: dict[str, Any] | None = None
        content = b""
        try:
            with tarfile.open(fileobj=self._stream, mode="r|", tarinfo=_Info) as archive:
                for member in archive:
                    if facts is not None:
                        raise CtlError(f"The archive goes on behind {LAST}")
                    if member.isreg() and member.name == LAST:
                        facts = read_facts(_content(archive, member, 1 << 20))
                        if facts is None:
                            break
                    elif member.isreg() and member.name == BOOK:
                        content = _content(archive, member, MOST_BOOK)
                    elif content:
                        raise CtlError(f"The archive goes on behind {BOOK}")
                    else:
                        self._entry(archive, member, take, make)
        except (tarfile.TarError, http.client.HTTPException, EOFError, *NO_SENSE) as error:
            raise CtlError(f"{NOT_WHOLE}: {error}") from None
        if facts is None:
            raise CtlError(NOT_WHOLE)
        if facts.get("files") != len(self.book):
            raise CtlError(f"The backup has {len(self.book)} files, not {facts.get('files')!r}")
        if content or "book" in facts:
            self._compare(read_book(content, facts, f"{BOOK} of the archive"))
        self.facts = facts

    def _entry(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo,
        take: Callable[[tarfile.TarInfo, str, IO[bytes]], Entry], make: Callable[[str], object],
    ) -> None:  # fmt: skip
        path = _inside(member)
        if member.isdir():
            if path:
                make(path)
            elif member.pax_headers.get(SINCE):
                self._builds_on(member.pax_headers[SINCE])
            return
        if path in self.book:
            raise CtlError(f"The archive has {path!r} twice")
        content = archive.extractfile(member)
        assert content is not None
        self.book[path] = take(member, path, content)
        self.n_new += member.size

    def _builds_on(self, since: str) -> None:
        """Raises: CtlError: on another backup than the one that is there."""
        if self.base is None:
            raise CtlError(
                f"It is an increment, and builds on the backup {since:.64}: give that first"
            )
        if self.base.id != since:
            raise CtlError(
                f"It builds on the backup {since:.64}, and {self.base.name} is"
                f" {self.base.id or 'one without a book'}: one between them is missing"
            )
        self.since = since

    def _compare(self, book: Book) -> None:
        """Raises: CtlError when a file is not as it was written down."""
        for path, entry in book.items():
            found = self.book.get(path)
            if found is None or (found.digest, found.size) != (entry.digest, entry.size):
                raise CtlError(f"{path} is not as it was made; nothing was restored")

    def known(self, path: str, identity: str = "") -> Entry:
        """What the base has by a path. Args: identity: that it has to have. Raises: CtlError."""
        old = None if self.base is None else self.base.book.get(path)
        if old is None or (identity and old.identity != identity):
            raise CtlError(f"The broker leaves out {path}, which is not known here")
        return old

    def begin(self, member: tarfile.TarInfo, path: str) -> int:
        """How many bytes of a file the base has; 0: it comes as a whole. Raises: CtlError."""
        text = member.pax_headers.get(FROM, "")
        if not text:
            return 0
        old = self.known(path)
        if text != str(old.size):
            raise CtlError(f"The broker leaves out {text:.20} bytes of {path}; {old.size} are here")
        return old.size


# ---- into a folder


def unpack(
    stream: IO[bytes], folder: Path, base: Base | None = None
) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Write what an archive holds into a folder. Returns: what it says of itself, its files.

    Args: base: the backup that has what does not come.
    Raises: CtlError for an archive that is not whole, names what is outside of it, or builds on
        another backup.
    """
    reading = _Reading(stream, base)
    data = folder / DATA
    data.mkdir(mode=0o750)
    kept = None if base is None or base.folder is None else base.folder / DATA

    def take(member: tarfile.TarInfo, path: str, content: IO[bytes]) -> Entry:
        identity = _identity(member)
        if member.pax_headers.get(KNOWN):
            old = reading.known(path, identity)
            if kept is None:
                raise CtlError(f"The broker leaves out {path}, which is not known here")
            _take_over(kept / path, data / path)
            return old
        begin = reading.begin(member, path)
        if not begin:
            return Entry(*copy(content, data / path), identity)
        if kept is None:
            raise CtlError(f"The broker leaves out a part of {path}, which is not known here")
        with opened(kept / path) as file:
            front = _Front(file, begin)
            made = copy(front, data / path, content)
        if front.digest != reading.known(path).digest:
            raise CtlError(f"{kept / path} is not as it was made")
        if made[0] != member.pax_headers.get(DIGEST):
            raise CtlError(f"{path} is not as the broker has sent it")
        return Entry(*made, identity)

    reading.read(take, lambda path: (data / path).mkdir(mode=0o750))
    facts = {**shown(reading.facts), "new_bytes": reading.n_new}
    facts.pop("since", None)
    if reading.since:
        facts["since"] = reading.since
    if "book" in reading.facts:
        facts["book"] = reading.facts["book"]
    return facts, reading.book


class _Front:
    """The first bytes of a file, with their hash once they are read."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of all that was read."""
        return self._hash.hexdigest()

    def read(self, n: int) -> bytes:
        """The next bytes; empty behind the last."""
        piece = self._file.read(min(n, self._left))
        self._left -= len(piece)
        self._hash.update(piece)
        return piece


def _take_over(old: Path, new: Path) -> None:
    """Have the file of an earlier backup in this one, too."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copyfile(old, new, follow_symlinks=False)


def copy(content: IO[bytes] | _Front, target: Path, *more: IO[bytes]) -> tuple[str, int]:
    """Write a new file, with holes where it has zeros. Returns: hash and bytes."""
    digest, size = hashlib.sha256(), 0
    with open(target, "xb") as file:  # all of it, however little a disk takes at once
        gradual = Gradual(file)
        for source in (content, *more):
            while piece := source.read(PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                if piece.strip(b"\0"):
                    gradual.write(piece)
                else:
                    file.seek(len(piece), os.SEEK_CUR)
        file.truncate(size)
        os.fchmod(file.fileno(), 0o640)
        gradual.end()
    return digest.hexdigest(), size


# ---- into an archive


def pack(stream: IO[bytes], to: Callable[[bytes], object], base: Base | None) -> dict[str, Any]:
    """Copy what a broker sends into an archive, with a book. Returns: what it says of itself.

    Args: base: the backup on which it is to build. Raises: CtlError.
    """
    reading = _Reading(stream, base)
    to(_head(DATA, tarfile.DIRTYPE, more={SINCE: base.id} if base is not None else None))

    def take(member: tarfile.TarInfo, path: str, content: IO[bytes]) -> Entry:
        identity = _identity(member)
        if member.pax_headers.get(KNOWN):
            to(_head(member.name, tarfile.REGTYPE, more={IDENTITY: identity, KNOWN: "1"}))
            return reading.known(path, identity)
        begin = reading.begin(member, path)
        wanted = (IDENTITY, FROM, DIGEST) if begin else (IDENTITY,)
        more = {name: member.pax_headers[name] for name in wanted if name in member.pax_headers}
        to(_head(member.name, tarfile.REGTYPE, member.size, more))
        digest = hashlib.sha256()
        while piece := content.read(PIECE_BYTES):
            digest.update(piece)
            to(piece)
        to(bytes(-member.size % BLOCK))
        found = member.pax_headers.get(DIGEST, "") if begin else digest.hexdigest()
        return Entry(found, begin + member.size, identity)

    reading.read(take, lambda path: to(_head(f"{DATA}/{path}", tarfile.DIRTYPE)))
    book = written(reading.book)
    since = {"since": base.id} if base is not None else {}
    facts = {**shown(reading.facts), **since, "new_bytes": reading.n_new, "book": id_of(book)}
    for name, content in ((BOOK, book), (LAST, json.dumps(facts, indent=2).encode() + b"\n")):
        to(_head(name, tarfile.REGTYPE, len(content)) + content + bytes(-len(content) % BLOCK))
    to(bytes(2 * BLOCK))
    return facts


def _head(name: str, kind: bytes, size: int = 0, more: Mapping[str, str] | None = None) -> bytes:
    """What stands before the content of an entry."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    info.mode = 0o750 if kind == tarfile.DIRTYPE else 0o640
    info.pax_headers = dict(more or {})
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


# ---- what is in an archive


def base_of(path: Path) -> Base:
    """An archive that was kept, as one on which another one builds. Raises: CtlError, OSError."""
    content, facts = b"", None
    with opened(path) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:", tarinfo=_Info) as archive:
                for member in archive:
                    if member.isreg() and member.name == BOOK:
                        content = _content(archive, member, MOST_BOOK)
                    elif member.isreg() and member.name == LAST:
                        facts = read_facts(_content(archive, member, 1 << 20))
        except (tarfile.TarError, EOFError, *NO_SENSE) as error:
            raise CtlError(f"{path} is no backup: {error}") from None
    if facts is None:
        raise CtlError(f"{path} is no backup that is whole: it has no {LAST}")
    book = read_book(content, facts, f"{BOOK} of {path}")
    return Base(str(path), id_of(content), book, None)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    """A small file of an archive. Raises: CtlError."""
    if member.size > most:
        raise CtlError(f"{member.name} of the archive has {member.size} bytes")
    content = archive.extractfile(member)
    return b"" if content is None else content.read()


def _identity(member: tarfile.TarInfo) -> str:
    identity = member.pax_headers.get(IDENTITY, "-")
    return "-" if set(identity) & set(" ,\n") else identity


def _inside(member: tarfile.TarInfo) -> str:
    """Where an entry belongs in `data/`, empty for that itself. Raises: CtlError."""
    first, *rest = member.name.split("/")
    if first != DATA or (rest and not is_inside(rest)):
        raise CtlError(f"The archive names {member.name[:200]!r}, which is outside of it")
    if not (member.isdir() or (member.isreg() and not member.issparse() and rest)):
        raise CtlError(f"The archive has {member.name!r}, which is neither file nor directory")
    return "/".join(rest)
