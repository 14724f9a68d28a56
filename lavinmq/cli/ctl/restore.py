"""`lavinmqctl restore`: a data directory made of backups, for a broker that is not running.

The first is whole, and each of the others builds on the one before it. Everything is written beside
first, compared with the hashes of its backup, and synced. Only then it takes its place,
`vhosts.json` and `users.json` last. Root reads backups, and writes as the owner of the
directory. Source: docs/backup.md.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from lavinmq.cli.ctl.backup import sync
from lavinmq.cli.ctl.backup_book import Base, Entry, book_of, facts_of, opened, shown
from lavinmq.cli.ctl.backup_tar import copy, unpack
from lavinmq.cli.ctl.errors import CtlError
from lavinmq.cli.ctl.owner import own_rights, rights_of_owner
from lavinmq.cli.ctl.session import Session
from lavinmq.files.backup_names import DATA
from lavinmq.files.snapshot import OWN

LAST_NAMES: Final = ("vhosts.json", "users.json")
"""By these a start finds everything else."""


def restore(session: Session) -> None:
    """Make the directory, which must be empty or not there."""
    # Loaded before: the owner of the directory may not be let into the one of an interpreter.
    import lavinmq._core  # noqa: F401

    *sources, target = session.arguments
    data_dir = Path(target)
    try:
        with rights_of_owner(data_dir):
            facts = _restore(sources, data_dir)
    except OSError as error:
        raise CtlError(f"{error.filename or target}: {error.strerror or error}") from None
    session.output.record({"data_dir": target, **shown(facts)})


def _restore(sources: list[str], data_dir: Path) -> dict[str, Any]:
    """Returns: what the last backup says of itself. Raises: CtlError, OSError."""
    is_new = not data_dir.exists()
    if not is_new and set(os.listdir(data_dir)) - OWN:
        raise CtlError(f"{data_dir} is not empty: a backup is restored to an empty directory")
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with _beside(data_dir) as folder:
            facts, made = _chain(sources, folder)
            sync(folder)
            _move(made / DATA, data_dir)
    except BaseException:
        if is_new and not os.listdir(data_dir):
            data_dir.rmdir()
        raise
    sync(data_dir)
    return facts


@contextmanager
def _beside(data_dir: Path) -> Iterator[Path]:
    """A directory on the same file system, for a time."""
    folder = data_dir / f".backup-{time.time_ns()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _chain(sources: list[str], folder: Path) -> tuple[dict[str, Any], Path]:
    """Copy a backup, and what builds on it, one after the other. Returns: what the last one says of
    itself, and where it is. Raises: CtlError naming the one that does not fit."""
    base: Base | None = None
    for number, source in enumerate(sources):
        step = folder / str(number)
        step.mkdir(mode=0o700)
        try:
            facts, book = _read(source, step, base)
            if base is not None and "since" not in facts:
                raise CtlError("It is a whole backup, which builds on none: give it alone")
        except CtlError as error:
            raise CtlError(f"{source}: {error}") from None
        if base is not None and base.folder is not None:
            shutil.rmtree(base.folder)
        base = Base(source, str(facts.get("book", "")), book, step)
    assert base is not None
    assert base.folder is not None
    return facts, base.folder


def _read(source: str, folder: Path, base: Base | None) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Copy a backup. Returns: what it says of itself, its files. Raises: CtlError."""
    if source == "-":
        return unpack(sys.stdin.buffer, folder, base)
    backup = Path(source)
    with own_rights():
        is_folder = backup.is_dir()
    if not is_folder:
        with _source(lambda: open(source, "rb")) as archive:
            return unpack(archive, folder, base)
    with own_rights():
        facts = facts_of(backup)
        book = book_of(backup, facts)
        found = [each for each in (backup / DATA).rglob("*") if each.is_dir()]
        directories = [each for each in found if not each.is_symlink()]
    (folder / DATA).mkdir(mode=0o750)
    for each in directories:
        (folder / each.relative_to(backup)).mkdir(mode=0o750, parents=True, exist_ok=True)
    for path, entry in book.items():
        with _source(partial(opened, backup / DATA / path)) as file:
            made = copy(file, folder / DATA / path)
        if made != (entry.digest, entry.size):
            raise CtlError(f"{backup / DATA / path} is not as it was made; nothing was restored")
    return facts, book


@contextmanager
def _source(
    open_it: Callable[[], AbstractContextManager[io.BufferedReader]],
) -> Iterator[io.BufferedReader]:
    """A file of a backup, which may be for root alone, while the owner of the directory writes."""
    with ExitStack() as stack:
        with own_rights():
            file = stack.enter_context(open_it())
        yield file


def _move(data: Path, data_dir: Path) -> None:
    names = sorted(os.listdir(data), key=lambda name: (name in LAST_NAMES, name))
    for name in names:
        os.rename(data / name, data_dir / name)
