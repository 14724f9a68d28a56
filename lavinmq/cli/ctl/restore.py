"""`lavinmqctl restore`: a data directory made of a backup, for a broker that is not running.

Everything is written beside first, compared with the hashes of its backup, and synced. Only then it
takes its place, `vhosts.json` and `users.json` last. Source: docs/backup.md.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lavinmq.cli.ctl.backup import book_of, digest_of, facts_of, sync, unpack
from lavinmq.cli.ctl.errors import CtlError
from lavinmq.cli.ctl.session import Session
from lavinmq.files.backup_names import DATA

LAST_NAMES: Final = ("vhosts.json", "users.json")
"""By these a start finds everything else."""


def restore(session: Session) -> None:
    """Make the directory, which must be empty or not there."""
    source, target = session.arguments
    data_dir = Path(target)
    try:
        if data_dir.exists() and any(data_dir.iterdir()):
            raise CtlError(f"{data_dir} is not empty: a backup is restored to an empty directory")
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _beside(data_dir) as folder:
            facts = _read(source, folder)
            _own(folder / DATA, data_dir)
            sync(folder)
            _move(folder / DATA, data_dir)
        sync(data_dir)
    except OSError as error:
        raise CtlError(f"{error.filename or target}: {error.strerror or error}") from None
    session.output.record({"data_dir": target, **facts})


@contextmanager
def _beside(data_dir: Path) -> Iterator[Path]:
    """A directory on the same file system, for a time."""
    folder = data_dir / f".backup-{time.time_ns()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(source: str, folder: Path) -> dict[str, Any]:
    """Copy a backup. Returns: what it says of itself. Raises: CtlError."""
    if source == "-":
        return unpack(sys.stdin.buffer, folder, None, {})[0]
    if not os.path.isdir(source):
        with open(source, "rb") as file:
            return unpack(file, folder, None, {})[0]
    backup = Path(source)
    facts, book = facts_of(backup), book_of(backup)
    (folder / DATA).mkdir(mode=0o750)
    for each in (backup / DATA).rglob("*"):
        if each.is_dir():
            (folder / each.relative_to(backup)).mkdir(mode=0o750, parents=True, exist_ok=True)
    for path, entry in book.items():
        shutil.copyfile(backup / DATA / path, folder / DATA / path, follow_symlinks=False)
        (folder / DATA / path).chmod(0o640)
        if digest_of(folder / DATA / path) != (entry.digest, entry.size):
            raise CtlError(f"{backup / DATA / path} is not as it was made; nothing was restored")
    return facts


def _own(data: Path, data_dir: Path) -> None:
    """Root makes files for whoever has the directory."""
    if os.geteuid() != 0:
        return
    owner = data_dir.stat()
    for each in data.rglob("*"):
        os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _move(data: Path, data_dir: Path) -> None:
    names = sorted(os.listdir(data), key=lambda name: (name in LAST_NAMES, name))
    for name in names:
        os.rename(data / name, data_dir / name)
