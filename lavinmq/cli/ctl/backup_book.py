"""What a backup says of itself: `backup.json`, and `files.txt`, its book, with a hash of each file.

The SHA-256 of a book is the name by which increments say on which backup they build: it stands for
every byte of it. Source: docs/backup.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from lavinmq.cli.ctl.errors import CtlError
from lavinmq.files.backup_names import BOOK, LAST

PARTIAL: Final = ".partial"
FACTS: Final = (
    "version", "node", "taken_at", "files", "bytes", "new_bytes", "epoch", "position", "since",
    "damaged",
)  # fmt: skip
"""What an archive may say of itself."""
NO_SENSE: Final = (ValueError, RecursionError, MemoryError)
MOST_DEEP: Final = 16
"""Directories in each other: a data directory has four."""


class Entry(NamedTuple):
    """A file of a backup. Args: digest: SHA-256; identity: by which the broker knows it, or -."""

    digest: str
    size: int
    identity: str


Book = Mapping[str, Entry]
"""The files of a backup, by path."""


class Base(NamedTuple):
    """A backup on which another one builds. Args: name: for people; id: the hash of its book;
    folder: where its files are, None: nobody has them here."""

    name: str
    id: str
    book: Book
    folder: Path | None


def facts_of(folder: Path) -> dict[str, Any]:
    """What a backup says of itself. Raises: CtlError for what is none."""
    if folder.name.endswith(PARTIAL) or not (folder / LAST).is_file():
        raise CtlError(f"{folder} is no backup: there is no {LAST} in it")
    facts = read_facts((folder / LAST).read_bytes())
    if facts is None:
        raise CtlError(f"{folder / LAST} is damaged")
    return facts


def shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Those facts that people are told."""
    return {name: facts[name] for name in FACTS if name in facts}


def read_facts(content: bytes) -> dict[str, Any] | None:
    """Facts as they are written; None: they make no sense."""
    try:
        facts = json.loads(content)
    except NO_SENSE:
        return None
    return facts if isinstance(facts, dict) else None


def book_of(folder: Path, facts: Mapping[str, Any]) -> dict[str, Entry]:
    """The files of a backup by path. Raises: CtlError when it is not as it was written."""
    return read_book((folder / BOOK).read_bytes(), facts, str(folder / BOOK))


def read_book(content: bytes, facts: Mapping[str, Any], name: str) -> dict[str, Entry]:
    """A book as it is written. Args: name: of it, for people. Raises: CtlError."""
    if id_of(content) != facts.get("book"):
        raise CtlError(f"{name} is damaged: it is not as it was written")
    book = {}
    for line in content.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        digest, _, rest = line.partition(" ")
        size, _, rest = rest.partition(" ")
        identity, _, path = rest.partition(" ")
        if not size.isdecimal() or not is_inside(path.split("/")):
            raise CtlError(f"{name} names {path!r}, which is outside of it")
        book[path] = Entry(digest, int(size), identity)
    if facts.get("files") != len(book):
        raise CtlError(f"{name} has {len(book)} files, not {facts.get('files')}")
    return book


def written(book: Book) -> bytes:
    """A book as it is written."""
    lines = "".join(f"{each.digest} {each.size} {each.identity} {path}\n"
                    for path, each in book.items())  # fmt: skip
    return lines.encode("utf-8", "surrogateescape")


def id_of(content: bytes) -> str:
    """The name of a backup with this book."""
    return hashlib.sha256(content).hexdigest()


def asked(book: Book) -> bytes:
    """What the broker is told of a book: a line for each file that need not come as a whole."""
    lines = "".join(f"{each.identity},{each.size},{each.digest} {path}\n"
                    for path, each in book.items())  # fmt: skip
    return lines.encode("utf-8", "surrogateescape")


def is_inside(parts: list[str]) -> bool:
    """Whether the parts of a path lead to a place in a backup."""
    return 0 < len(parts) <= MOST_DEEP and all(
        each not in ("", ".", "..") and "\n" not in each and "\0" not in each for each in parts
    )


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file, which is no link to one and nothing else. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "is no file", str(path))
        yield file
