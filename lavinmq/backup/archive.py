"""An archive of a snapshot, in pieces as they are asked for: a tar file.

`data/` is the data directory; what comes last is `backup.json`, without which the archive is not
whole. A file has an *identity* as long as nobody has changed it for some seconds. One that the
client has with the same identity comes without its content, and says so. Of one that begins with
all that the client has, by its hash, only the rest comes.
Source: docs/backup.md, the pax format of tar: POSIX.1-2001.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from lavinmq import __version__, _core
from lavinmq.files.backup_names import DATA, DIGEST, FROM, IDENTITY, KNOWN, LAST
from lavinmq.integrity.guard import DamagedError, Guard

if TYPE_CHECKING:
    from lavinmq.files.snapshot import Held, Snapshot
    from lavinmq.integrity.keeper import Integrity

PIECE_BYTES: Final = 256 << 10
SETTLED_NS: Final = 3_000_000_000
"""A file that was changed later before the snapshot may be changed again within one tick of its
time, and has no identity."""
SEGMENT: Final = "msgs."
DELETED: Final = "acks."
FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
BLOCK: Final = 512


class Archive:
    """The archive of a snapshot.

    Args: known: what the client has by its path: an identity, or that, its size and its SHA-256,
        with commas; look: has the snapshot learn what has been cut since; integrity: the sums of
        the files: damage is named at the end; more: what else it says of itself.
    """

    def __init__(
        self, snapshot: Snapshot, node: str, known: Mapping[bytes, bytes],
        look: Callable[[], None], integrity: Integrity | None = None,
        more: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._snapshot, self._node, self._known, self._look = snapshot, node, known, look
        self._integrity = integrity
        self._damaged: list[str] = []
        self._more = dict(more or {})
        self._n_bytes = 0
        self._steps = self._pieces()

    def read(self) -> bytes:
        """The next piece; empty at the end. In a thread. Raises: OSError."""
        parts, size = [], 0
        for part in self._steps:
            parts.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                break
        return b"".join(parts)

    def _pieces(self) -> Iterator[bytes]:
        snapshot = self._snapshot
        taken_at = int(snapshot.taken_at)
        n_files = 0
        yield _head(DATA, taken_at, tarfile.DIRTYPE)
        for path in snapshot.directories():
            yield _head(f"{DATA}/{path}", taken_at, tarfile.DIRTYPE)
        for path, held in snapshot.files():
            if self._is_left(path):
                continue
            n_files += 1
            yield from self._file(path, held, taken_at)
        facts = {
            "version": __version__, "node": self._node, "taken_at": snapshot.taken_at,
            "files": n_files, "bytes": self._n_bytes, **self._more,
        }  # fmt: skip
        if self._integrity is not None:
            self._damaged += (each.path for each in self._integrity.damages.all())
        if self._damaged:
            facts["damaged"] = sorted(set(self._damaged))
        content = json.dumps(facts, indent=2).encode() + b"\n"
        yield _head(LAST, taken_at, tarfile.REGTYPE, len(content)) + content + _rest(len(content))
        yield bytes(2 * BLOCK)

    def _is_left(self, path: str) -> bool:
        """Whether it is what a segment has left that is gone: a start would say so."""
        directory, _, name = path.rpartition("/")
        if not name.startswith(DELETED):
            return False
        segment = f"{directory}/{SEGMENT}{name.removeprefix(DELETED)}"
        return self._snapshot.size_of(segment) < 0

    def _file(self, path: str, held: Held, taken_at: int) -> Iterator[bytes]:
        fd = os.open(held.link, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            identity = ""
            if found.st_mtime_ns < self._snapshot.taken_at * 1e9 - SETTLED_NS:
                identity = f"{found.st_ino:x}.{held.size:x}.{found.st_mtime_ns:x}"
            more = {IDENTITY: identity} if identity else {}
            name = f"{DATA}/{path}"
            had = self._known.get(os.fsencode(path), b"").decode().split(",")
            if identity and had[0] == identity:
                self._n_bytes += held.size
                yield _head(name, taken_at, tarfile.REGTYPE, more=more | {KNOWN: "1"})
                return
            size = held.size
            if os.path.basename(path).startswith(SEGMENT):
                size = self._data_end(fd, path, size)
            self._n_bytes += size
            begin, digest = self._begin(fd, path, size, had)
            if begin:
                more |= {FROM: str(begin), DIGEST: digest}
            yield _head(name, taken_at, tarfile.REGTYPE, size - begin, more)
            # What the client has in front was looked at just now, and the rest with it.
            yield from _pieces(fd, begin, size) if begin else self._guarded(fd, path, size)
            yield _rest(size - begin)
        finally:
            os.close(fd)

    def _begin(self, fd: int, path: str, size: int, had: list[str]) -> tuple[int, str]:
        """How many bytes of a file the client has, 0: it has to get all; and the SHA-256 of all."""
        if len(had) != 3 or not 0 < int(had[1]) <= size:
            return 0, ""
        digest, begin = hashlib.sha256(), int(had[1])
        for piece in _pieces(fd, 0, begin):
            digest.update(piece)
        if digest.hexdigest() != had[2]:
            return 0, ""
        digest = hashlib.sha256()
        for piece in self._guarded(fd, path, size):
            digest.update(piece)
        return begin, digest.hexdigest()

    def _guarded(self, fd: int, path: str, size: int) -> Iterator[bytes]:
        """The bytes of a file, as they are compared with its sums."""
        guard = Guard(self._integrity, path)
        for piece in _pieces(fd, 0, size):
            try:
                guard.look(piece)
            except DamagedError:  # it is better than nothing
                self._damaged.append(path)
                guard = Guard(None, path)
            yield piece

    def _data_end(self, fd: int, path: str, size: int) -> int:
        """Where the data of a segment ended at the moment.

        In this order: filling that is there now is left out; a file that is cut meanwhile is
        shorter, and its cut is noted before anything is appended.
        """
        size = min(_core.whole_end(fd, size), os.fstat(fd).st_size)
        self._look()
        return min(size, self._snapshot.size_of(path))


def _pieces(fd: int, at: int, size: int) -> Iterator[bytes]:
    """The bytes of a file from one on; one that was cut since ends in zeros, as it did."""
    while at < size:
        piece = os.pread(fd, min(PIECE_BYTES, size - at), at)
        if not piece:
            piece = bytes(min(PIECE_BYTES, size - at))
        yield piece
        at += len(piece)


def _rest(size: int) -> bytes:
    """What fills a block."""
    return bytes(-size % BLOCK)


def _head(
    name: str, at: int, kind: bytes, size: int = 0, more: Mapping[str, str] | None = None
) -> bytes:
    """What stands before the content of an entry."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mtime = kind, size, at
    info.mode = DIRECTORY_MODE if kind == tarfile.DIRTYPE else FILE_MODE
    info.pax_headers = dict(more or {})
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
