"""What does not fit into memory, in files, in order: a program that crashes finds it again.

A spill is a directory of its own with segments `NNNNNNNNNN.spill` and `done`, which says up to
where all is with the broker. Records are appended and read once, in order; a segment goes when all
of it is done. What the kernel has been given survives a crash of the program, not one of the
machine: nothing is synced, and whatever is found after that is read as far as it makes sense. A
record that is cut, as by a crash in the middle of a write, or damaged ends its segment: the rest is
kept beside it in `NNNNNNNNNN-OFFSET.damaged`, and told of.

    record = size:u32 crc32:u32 flags:u8 props-size:u32 target-size:u16 props target body
    done   = segment:u64 offset:u64 crc32:u32

Threads: the owner's lock guards all of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import struct
import weakref
import zlib
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lavinmq.client.errors import ConfigError

if TYPE_CHECKING:
    from lavinmq.client._engine import Receipt

HEAD: Final = struct.Struct("<II")
FIELDS: Final = struct.Struct("<BIH")
DONE: Final = struct.Struct("<QQ")
CRC: Final = struct.Struct("<I")
SEGMENT_BYTES: Final = 8 << 20
FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

Record = tuple[int, bytes, bytes, bytes]
"""Flags, properties, target and body."""
Place = tuple[int, int]
"""Segment, and the offset behind a record."""


class Spill:
    """One producer's file of messages. Raises: OSError where the disk fails, ConfigError."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self.limit = directory, limit
        self._lock = self._done = self._file = -1
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", FLAGS, 0o600)
        except OSError as error:
            raise ConfigError(f"spill directory {directory} cannot be made: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"spill directory {directory} is in use") from None
        self.damaged: list[str] = []
        """What was found damaged, for people."""
        self.count = 0
        """Records that were not read yet."""
        self._sizes: dict[int, int] = {}
        self.places: deque[tuple[int, Place]] = deque()
        """Where what was read ends, by the number it has in the ring."""
        self.receipts: weakref.WeakValueDictionary[int, Receipt] = weakref.WeakValueDictionary()
        """Of what was not read yet, by its number here; those that nobody wants are not."""
        try:
            self._done = os.open(directory / "done", FLAGS, 0o600)
            self._done_at = self._what_is_done()
            self._load()
            self._begin()
        except BaseException:
            self.close()
            raise
        self.n_before = self.count
        """Records of programs before: those with numbers from 0 up to this."""
        self.n_taken = 0

    def _what_is_done(self) -> Place:
        """Read `done`; what makes no sense is as if nothing was."""
        raw = os.pread(self._done, DONE.size + CRC.size, 0)
        if len(raw) == DONE.size + CRC.size and raw[DONE.size :] == _sum_of(raw[: DONE.size]):
            segment, offset = DONE.unpack_from(raw)
            return int(segment), int(offset)
        if any(raw):
            self.damaged.append(f"{self._directory}/done is damaged: messages may come twice")
        return 0, 0

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:010}.spill"

    def _load(self) -> None:
        """Count what an earlier program has left."""
        for path in sorted(self._directory.glob("[0-9]" * 10 + ".spill")):
            segment, size = int(path.stem), path.stat().st_size
            start = self._done_at[1] if segment == self._done_at[0] else 0
            if segment < self._done_at[0] or size < start:
                path.unlink()  # all of it is done, or what followed has not survived
                continue
            good = self._scan(path, start, size)
            if good < size:
                self._set_aside(path, good)
                os.truncate(path, good)
            self._sizes[segment] = good

    def _scan(self, path: Path, at: int, end: int) -> int:
        """Count whole records of a segment up to its end; return where they end."""
        with path.open("rb") as file:
            while True:
                file.seek(at)
                head = file.read(HEAD.size)
                if len(head) < HEAD.size:
                    return at
                size, crc = HEAD.unpack(head)
                content = file.read(size) if size <= end - at - HEAD.size else b""
                if len(content) < max(size, FIELDS.size) or zlib.crc32(content) != crc:
                    return at
                at += HEAD.size + size
                self.count += 1

    def _set_aside(self, path: Path, start: int) -> None:
        """Keep what cannot be read, for people to look at."""
        aside = path.with_name(f"{path.stem}-{start}.damaged")
        data = path.read_bytes()[start:]
        aside.write_bytes(data)
        self.damaged.append(f"{path} is damaged: its last {len(data)} bytes are in {aside.name}")

    def _begin(self) -> None:
        """Go on behind what is there, and have room for `done` while the disk has some."""
        segment, offset = self._done_at
        # Its own segment may be gone, or shorter than it says: nothing may be read from there.
        is_there = segment in self._sizes
        self._last = max(self._sizes, default=segment if not offset else segment + 1)
        self._file = os.open(self._path(self._last), FLAGS, 0o600)
        self._sizes.setdefault(self._last, 0)
        self._read_at: Place = self._done_at if is_there else (min(self._sizes), 0)
        self._write_done()

    @property
    def n_bytes(self) -> int:
        """Bytes in files."""
        return sum(self._sizes.values())

    def append(self, flags: int, props: bytes, target: bytes, body: bytes) -> int | None:
        """Add a message; return its number, None when the spill is as large as it may be.

        Raises: OSError; then nothing was added.
        """
        content = FIELDS.pack(flags, len(props), len(target)) + props + target + body
        data = HEAD.pack(len(content), zlib.crc32(content)) + content
        if self.n_bytes + len(data) > self.limit:
            return None
        if self._sizes[self._last] >= SEGMENT_BYTES:
            self._roll()
        start = self._sizes[self._last]
        try:
            written = os.pwrite(self._file, data, start)
            while written < len(data):
                written += os.pwrite(self._file, data[written:], start + written)
        except OSError:
            with contextlib.suppress(OSError):  # the next record is written over it
                os.ftruncate(self._file, start)
            raise
        self._sizes[self._last] += len(data)
        self.count += 1
        return self.n_taken + self.count - 1

    def _roll(self) -> None:
        """Begin another segment. Raises: OSError; then this one goes on."""
        file = os.open(self._path(self._last + 1), FLAGS | os.O_TRUNC, 0o600)
        os.close(self._file)
        self._file = file
        self._last += 1
        self._sizes[self._last] = 0

    def read(self) -> tuple[Record, Place] | None:
        """The next message, and the place to say `done` of; None when there is none.

        Raises: OSError; it may be read later.
        """
        if not self.count:
            return None
        segment, at = self._read_at
        while segment not in self._sizes or at >= self._sizes[segment]:
            segment, at = segment + 1, 0
            if segment > self._last:
                return None
        with self._path(segment).open("rb") as file:
            file.seek(at)
            head = file.read(HEAD.size).ljust(HEAD.size, b"\0")
            size, crc = HEAD.unpack(head)
            content = file.read(min(size, self._sizes[segment]))
        if len(content) < FIELDS.size or zlib.crc32(content) != crc:
            raise OSError(errno.EIO, "it is not what was written", str(self._path(segment)))
        flags, n_props, n_target = FIELDS.unpack_from(content)
        cut = FIELDS.size + n_props
        record = (flags, content[FIELDS.size : cut], content[cut : cut + n_target],
                  content[cut + n_target :])  # fmt: skip
        return record, (segment, at + HEAD.size + size)

    def advance(self, place: Place) -> None:
        """What was read last is taken."""
        self._read_at = place
        self.receipts.pop(self.n_taken, None)
        self.count -= 1
        self.n_taken += 1

    def done(self, place: Place) -> None:
        """All up to a place is with the broker. Raises: OSError; then it may be sent again."""
        self._done_at = place
        self._write_done()
        for segment in [each for each in self._sizes if each < place[0]]:
            del self._sizes[segment]
            with contextlib.suppress(OSError):  # the next program tries again
                self._path(segment).unlink(missing_ok=True)
        segment, offset = place
        if segment == self._last and offset == self._sizes[segment] and offset > SEGMENT_BYTES // 8:
            self._roll()
            self._read_at = (self._last, 0)
            self.done((self._last, 0))

    def _write_done(self) -> None:
        data = DONE.pack(*self._done_at)
        os.pwrite(self._done, data + _sum_of(data), 0)

    def __del__(self) -> None:
        """Whoever had it has gone without a word, as with an event loop that was closed first."""
        self.close()

    def close(self) -> None:
        """Let go of the files; they stay."""
        for descriptor in (self._file, self._done, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._done = self._lock = -1


def name_for(exchange: str, routing_key: str) -> str:
    """A directory's name for a target: one that people can read, and no other target has."""
    digest = hashlib.sha256(f"{exchange}\0{routing_key}".encode()).hexdigest()[:16]
    return re.sub(r"[^\w.-]", "_", f"{exchange}-{routing_key}")[:60] + f"-{digest}"


def _sum_of(data: bytes) -> bytes:
    return CRC.pack(zlib.crc32(data))
