"""What does not fit into memory, in files, in order: a program that crashes finds it again.

A spill is a directory of its own with segments `NNNNNNNNNN.spill` and `done`, which says up to
where all is with the broker. Records are appended and read once, in order; a segment goes when all
of it is done. What the kernel has been given survives a crash of the program, not one of the
machine: nothing is synced. A record that is cut or damaged, as by a crash in the middle, ends its
segment.

    record = size:u32 crc32:u32 flags:u8 props-size:u32 target-size:u16 props target body
    done   = segment:u64 offset:u64
"""

from __future__ import annotations

import fcntl
import os
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
SEGMENT_BYTES: Final = 8 << 20
RECORD_MAX: Final = 1 << 31

Record = tuple[int, bytes, bytes, bytes]
"""Flags, properties, target and body."""
Place = tuple[int, int]
"""Segment, and the offset behind a record."""


class Spill:
    """One producer's file of messages. Raises: OSError where the disk fails, ConfigError."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._limit = directory, limit
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"spill directory {directory} is in use") from None
        self._done = os.open(directory / "done", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        raw = os.pread(self._done, DONE.size, 0)
        self._done_at: Place = DONE.unpack(raw) if len(raw) == DONE.size else (0, 0)
        self._sizes: dict[int, int] = {}
        self.count = 0
        """Records that were not read yet."""
        self._read_at: Place = self._done_at
        self._written: deque[int] = deque()
        self.places: deque[tuple[int, Place]] = deque()
        """Where what was read ends, by the number it has in the ring."""
        self.receipts: deque[weakref.ref[Receipt] | None] = deque()
        """Of what was not read yet; None = of a program before."""
        self._load()
        self._last = max(self._sizes, default=self._done_at[0])
        self._file = os.open(
            self._path(self._last), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._sizes.setdefault(self._last, 0)

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:010}.spill"

    def _load(self) -> None:
        """Count what an earlier program has left."""
        for path in sorted(self._directory.glob("*.spill")):
            segment = int(path.stem)
            if segment < self._done_at[0]:
                path.unlink()
                continue
            start = self._done_at[1] if segment == self._done_at[0] else 0
            good = self._scan(path, start)
            if good < path.stat().st_size:
                os.truncate(path, good)
            self._sizes[segment] = good

    def _scan(self, path: Path, at: int) -> int:
        """Count whole records of a segment; return where they end."""
        with path.open("rb") as file:
            while True:
                file.seek(at)
                head = file.read(HEAD.size)
                if len(head) < HEAD.size:
                    return at
                size, crc = HEAD.unpack(head)
                content = file.read(size) if size <= RECORD_MAX else b""
                if len(content) < max(size, FIELDS.size) or zlib.crc32(content) != crc:
                    return at
                at += HEAD.size + size
                self.count += 1

    @property
    def n_bytes(self) -> int:
        """Bytes in files."""
        return sum(self._sizes.values())

    def append(self, flags: int, props: bytes, target: bytes, body: bytes) -> bool:
        """Add a message; False when the spill is as large as it may be."""
        content = FIELDS.pack(flags, len(props), len(target)) + props + target + body
        data = HEAD.pack(len(content), zlib.crc32(content)) + content
        if self.n_bytes + len(data) > self._limit:
            return False
        if self._sizes[self._last] >= SEGMENT_BYTES:
            self._roll()
        start = self._sizes[self._last]
        try:
            written = os.write(self._file, data)
        except OSError:
            os.ftruncate(self._file, start)
            raise
        if written < len(data):
            os.ftruncate(self._file, start)
            return False
        self._sizes[self._last] += len(data)
        self.count += 1
        return True

    def _roll(self) -> None:
        os.close(self._file)
        self._last += 1
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path(self._last), flags, 0o600)
        self._sizes[self._last] = 0

    def read(self) -> tuple[Record, Place] | None:
        """The next message, and the place to say `done` of; None when there is none."""
        if not self.count:
            return None
        segment, at = self._read_at
        while segment not in self._sizes or at >= self._sizes[segment]:
            segment, at = segment + 1, 0
            if segment > self._last:
                return None
        with self._path(segment).open("rb") as file:
            file.seek(at)
            size, _ = HEAD.unpack(file.read(HEAD.size))
            content = file.read(size)
        flags, n_props, n_target = FIELDS.unpack_from(content)
        cut = FIELDS.size + n_props
        record = (flags, content[FIELDS.size : cut], content[cut : cut + n_target],
                  content[cut + n_target :])  # fmt: skip
        return record, (segment, at + HEAD.size + size)

    def advance(self, place: Place) -> None:
        """What was read last is taken."""
        self._read_at = place
        self.count -= 1

    def done(self, place: Place) -> None:
        """All up to a place is with the broker."""
        self._done_at = place
        os.pwrite(self._done, DONE.pack(*place), 0)
        for segment in [each for each in self._sizes if each < place[0]]:
            del self._sizes[segment]
            self._path(segment).unlink(missing_ok=True)
        segment, offset = place
        if segment == self._last and offset == self._sizes[segment] and offset > SEGMENT_BYTES // 8:
            self._roll()
            self.done((self._last, 0))
            self._read_at = (self._last, 0)

    def close(self) -> None:
        """Let go of the files; they stay."""
        os.close(self._file)
        os.close(self._done)
        os.close(self._lock)
