"""Reading a directory with the scanner of `lavinmq-segments`, and making segments to read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from lavinmq.spark.segment_options import SegmentOptions
from lavinmq.spark.segment_plan import plan
from lavinmq.spark.segment_scan import Report, read_task
from tests.support.segments import encode_record

Row = dict[str, Any]
FIRST_MS = 1_735_689_600_000
VERSION = b"\x04\0\0\0"


def rows(path: Path | str, report: Report | None = None, **options: object) -> list[Row]:
    """Return what the format reads, task by task; every batch is valid Arrow."""
    parsed = SegmentOptions.parse({"path": str(path)} | {k: str(v) for k, v in options.items()})
    found: list[Row] = []
    for task in plan(parsed, parsed.columns):
        for batch in read_task(task, report):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def bodies(path: Path | str, report: Report | None = None, **options: object) -> list[bytes]:
    """Return the bodies alone."""
    return [row["body"] for row in rows(path, report, **options)]


def record(body: bytes, ms: int = FIRST_MS, **properties: Any) -> bytes:
    """Return a record of the default exchange and key `q`."""
    return struct.pack("<q", ms) + encode_record(b"", b"q", properties, body)


def write_segment(directory: Path, number: int, records: list[bytes], tail: bytes = b"") -> Path:
    """Write a segment of these records; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"msgs.{number:010}"
    path.write_bytes(VERSION + b"".join(records) + tail)
    return path


def write_meta(directory: Path, number: int, count: int, first: int, ms: tuple[int, int]) -> None:
    """Write the meta file of a finished segment of a stream."""
    path = directory / f"meta.{number:010}"
    path.write_bytes(struct.pack("<Iqqq", count, first, *ms))


def write_stream(directory: Path, sizes: list[int]) -> None:
    """Write a stream with so many messages in each segment; one a second, bodies are offsets."""
    offset = 1
    for number, size in enumerate(sizes, 1):
        last = offset + size
        times = [FIRST_MS + 1000 * each for each in range(offset, last)]
        write_segment(
            directory,
            number,
            [record(b"%d" % each, ms) for each, ms in zip(range(offset, last), times, strict=True)],
        )
        if number < len(sizes):
            write_meta(directory, number, size, offset, (times[0], times[-1]))
        offset = last
    (directory / "consumer_offsets").touch()
