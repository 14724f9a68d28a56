"""Full segments of a stream with three headers per message, to be scanned by benchmarks."""

from __future__ import annotations

import struct
from pathlib import Path

from lavinmq import fieldtable

SEGMENT_BYTES = 8 << 20
FIRST_MS = 1_735_689_600_000
HEADERS: dict[str, fieldtable.Value] = {"tenant": "acme", "attempt": 1, "trace": "0af7651916cd43dd"}


def write(directory: Path, messages: int, body: bytes) -> None:
    """Write a stream of so many messages, all received within the same second."""
    directory.mkdir()
    table = fieldtable.encode(HEADERS)
    properties = struct.pack("<HI", 0x3000, len(table)) + table + b"\x02"
    record = struct.pack("<q", FIRST_MS) + b"\x06orders\x0aeu.created" + properties
    record += struct.pack("<Q", len(body)) + body
    most = (SEGMENT_BYTES - 4) // len(record)
    for number, first in enumerate(range(1, messages + 1, most), 1):
        count = min(most, messages + 1 - first)
        (directory / f"msgs.{number:010}").write_bytes(b"\x04\0\0\0" + record * count)
        meta = struct.pack("<Iqqq", count, first, FIRST_MS, FIRST_MS)
        (directory / f"meta.{number:010}").write_bytes(meta)
    (directory / "consumer_offsets").touch()
