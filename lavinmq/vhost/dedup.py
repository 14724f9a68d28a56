"""Deduplication: from the arguments of an exchange or a queue to its cache of keys and their file.

What is a duplicate is decided in the message path. This checks the arguments of exchanges (those of
queues are checked with the others), and finds, reads and removes the files.
Source: docs/deduplication.md.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Set
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeGuard

from lavinmq import _core
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.fieldtable import FieldTable, Timestamp
from lavinmq.files.changes import Changes
from lavinmq.files.directories import hashed, matching
from lavinmq.files.saving import Disk
from lavinmq.files.whole import read_regular
from lavinmq.process.log import Log
from lavinmq.process.portions import PORTION_S, others_first

DEFAULT_SIZE: Final = 128
DEFAULT_HEADER: Final = "x-deduplication-header"
FILE: Final = "dedup"
"""Name of a queue's file; that of an exchange has a hash of the exchange's name behind it."""

_OF_EXCHANGES: Final = re.compile(f"{re.escape(FILE)}\\.[0-9a-f]{{40}}.*", re.DOTALL)
_UINT32_MAX: Final = (1 << 32) - 1
_MAX_FILE: Final = 128 << 20
"""Twice what the largest cache leaves behind."""


class Deduplicated(Protocol):
    """An exchange or a queue."""

    name: str

    @property
    def dedup(self) -> _core.DedupCache | None:
        """What it knows of the messages that it has had."""


def is_wanted(arguments: FieldTable) -> bool:
    """Whether duplicates are to be dropped; streams keep what they get."""
    return (
        arguments.get("x-message-deduplication") is True
        and arguments.get("x-queue-type") != "stream"
    )


def check_exchange(arguments: FieldTable) -> None:
    """Refuse what an exchange cannot mean. Raises: ChannelError 406 with the reason."""
    if not is_wanted(arguments):
        return
    for name in ("x-cache-size", "x-cache-ttl"):
        value = arguments.get(name)
        if value is None:
            continue
        if not _is_integer(value):
            raise _refused(f"{name} header not a Int")
        if value < 0:
            raise _refused(f"{name} header less than minimum value 0")
        if value > _UINT32_MAX:
            raise _refused(f"{name} header greater than maximum value {_UINT32_MAX}")
    if not isinstance(arguments.get(DEFAULT_HEADER, ""), str | None):
        raise _refused(f"{DEFAULT_HEADER} header not a String")


def cache_for(arguments: FieldTable, loop: _core.Loop, path: Path | None) -> _core.DedupCache:
    """The cache that checked arguments ask for.

    Args: path: of the file that keeps the keys, None when they go with the broker.
    """
    header = arguments.get(DEFAULT_HEADER)
    size, ttl_ms = arguments.get("x-cache-size"), arguments.get("x-cache-ttl")
    return _core.DedupCache(
        loop,
        (header if isinstance(header, str) else DEFAULT_HEADER).encode("utf-8", "surrogateescape"),
        max(0, size) if _is_integer(size) else DEFAULT_SIZE,
        min(max(0, ttl_ms), _UINT32_MAX) if _is_integer(ttl_ms) else -1,
        None if path is None else str(path),
        boot_number(),
    )  # fmt: skip


def clamp_note(arguments: FieldTable) -> str | None:
    """A line for the log when fewer keys are remembered than was asked for."""
    size = arguments.get("x-cache-size")
    if is_wanted(arguments) and _is_integer(size) and size > _core.KEYS_MAX:
        return f"x-cache-size {size} is more than is remembered: {_core.KEYS_MAX} keys"
    return None


def load(cache: _core.DedupCache, path: Path) -> str | None:
    """Take over the keys of the file, if there is one. Returns: a line for the log, or None.

    What cannot be understood is forgotten: a key too few costs a duplicate, one too many a message.
    """
    try:
        data = _read(path)
        if data is not None:
            cache.load(data)
    except (OSError, ValueError) as error:
        return _unread(path, error)
    return _note(cache, path) if data is not None else None


async def load_later(cache: _core.DedupCache, path: Path, disk: Disk) -> str | None:
    """The same while others are served: a thread waits for the disk, and keys come in portions."""
    try:
        data = await disk.run(partial(_read, path))
        if data is None:
            return None
        if cache.is_sync_wanted(data):
            await disk.run(partial(_core.sync_file_system, str(path.parent)))
    except (OSError, ValueError) as error:
        return _unread(path, error)
    cache.load_begin(data)
    until = time.perf_counter() + PORTION_S
    while cache.load_some():
        if time.perf_counter() >= until:
            await others_first()
            until = time.perf_counter() + PORTION_S
    return _note(cache, path)


def _read(path: Path) -> bytes | None:
    """Raises: OSError; ValueError: it is too large."""
    try:
        if path.stat().st_size > _MAX_FILE:
            raise ValueError("it is too large")
        return read_regular(str(path))
    except FileNotFoundError:
        return None


def _unread(path: Path, error: OSError | ValueError) -> str:
    why = error.strerror if isinstance(error, OSError) else error
    return f"{path}: {why}: duplicates of earlier messages are not noticed"


def _note(cache: _core.DedupCache, path: Path) -> str | None:
    found = cache.damaged
    if found == _core.KEYS_OF_OTHER_BOOT:
        return (
            f"{path}: the machine has stopped without the broker: keys of earlier messages are"
            " forgotten"
        )
    if found == _core.KEYS_UNREADABLE:
        return f"{path} holds no keys: duplicates of earlier messages are not noticed"
    return f"{path}: {found} of its keys are damaged and forgotten" if found else None


def exchange_file(directory: Path, name: str) -> Path:
    """The file of an exchange, in the directory of its virtual host."""
    return directory / f"{FILE}.{hashed(name)}"


def remove(path: Path, changes: Changes) -> None:
    """Remove a file of keys, whole or half written; one that is missing is no error."""
    for each in (path, path.with_name(f"{path.name}.tmp")):
        with contextlib.suppress(FileNotFoundError):
            changes.unlink(each)


def remove_others(directory: Path, known: Set[Path], changes: Changes) -> Iterator[Path]:
    """Remove the files of exchanges that are no more. Gives those that stay: they do no harm before
    an exchange of that name is made."""
    for path in matching(directory, _OF_EXCHANGES):
        if path not in known:
            try:
                changes.unlink(path)
            except OSError:
                yield path.with_name(path.name.removesuffix(".tmp"))


def report(log: Log, things: Iterable[Deduplicated]) -> None:
    """Log which keys cannot be written, or can be again."""
    for thing in things:
        error = thing.dedup.take_news() if thing.dedup is not None else None
        if error:
            log.error(
                "Deduplication keys of %r cannot be written: %s. A restart forgets them",
                thing.name, os.strerror(error),
            )  # fmt: skip
        elif error is not None:
            log.notice("Deduplication keys of %r are written again", thing.name)


@functools.cache
def boot_number() -> int:
    """A number that no other boot of the machine has. Not 0; of no use when there is none: then
    each process has its own, and keys outlive an orderly stop only."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        return int(text.replace("-", "")[:16], 16) | 1
    except (OSError, ValueError):
        return secrets.randbits(64) | 1


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def _refused(text: str) -> ChannelError:
    return ChannelError(ReplyCode.PRECONDITION_FAILED, text)
