"""Rows per second of the segment scanner: a directory of full segments, one core, no Spark.

    python perf/micro/spark_segments.py [--segments 16] [--body 60] [--headers]

Prints a line for each choice of columns: the best of five rounds, in processor time of this thread,
so that other programs on the machine count little. Source of the target, 3 million records a second
and core: docs/spark-segments.md.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from pathlib import Path

from lavinmq import fieldtable
from lavinmq.spark.schema import SEGMENT_COLUMNS, default_columns
from lavinmq.spark.segment_options import SegmentOptions
from lavinmq.spark.segment_plan import plan
from lavinmq.spark.segment_scan import Report, read_task

SEGMENT_BYTES = 8 << 20
ROUNDS = 5
FIRST_MS = 1_735_689_600_000


def write(directory: Path, n_segments: int, body: int, headers: bool) -> int:
    """Write full segments of a stream; return how many records there are."""
    properties = b"\x00\x10\x02"
    if headers:
        table = fieldtable.encode({"tenant": "acme", "attempt": 1, "trace": "0af7651916cd43dd"})
        properties = struct.pack("<HI", 0x3000, len(table)) + table + b"\x02"
    record = b"\x06orders\x0aeu.created" + properties + struct.pack("<Q", body) + bytes(body)
    n_each = (SEGMENT_BYTES - 4) // (8 + len(record))
    for number in range(1, n_segments + 1):
        first = (number - 1) * n_each
        stamps = (FIRST_MS + (first + i) // 100 * 100 for i in range(n_each))
        data = b"\x04\0\0\0" + b"".join(struct.pack("<Q", ms) + record for ms in stamps)
        (directory / f"msgs.{number:010}").write_bytes(data)
        meta = struct.pack("<Iqqq", n_each, first + 1, FIRST_MS, FIRST_MS + n_each)
        (directory / f"meta.{number:010}").write_bytes(meta)
    return n_each * n_segments


def rate(directory: Path, columns: tuple[str, ...], n_records: int) -> float:
    """Return records per second of processor time, the best round."""
    options = SegmentOptions.parse({"path": str(directory), "columns": ",".join(columns)})
    best = 0.0
    for _ in range(ROUNDS):
        report, rows = Report(), 0
        began = time.thread_time()
        for task in plan(options, columns):
            rows += sum(batch.num_rows for batch in read_task(task, report))
        best = max(best, rows / (time.thread_time() - began))
        if rows != n_records:
            raise SystemExit(f"{rows} rows of {n_records} records")
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=16)
    parser.add_argument("--body", type=int, default=60)
    parser.add_argument("--headers", action="store_true", help="give each message three headers")
    arguments = parser.parse_args()
    choices = {
        "offset, body": ("offset", "body"),
        "all but headers": default_columns("false", SEGMENT_COLUMNS),
    }
    if arguments.headers:
        choices["with the map"] = default_columns("true", SEGMENT_COLUMNS)
        choices["with headers_json"] = default_columns("json", SEGMENT_COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        n_records = write(directory, arguments.segments, arguments.body, arguments.headers)
        print(f"{n_records} records of {arguments.body} bytes in {arguments.segments} segments")
        for label, columns in choices.items():
            print(f"{label:20} {rate(directory, columns, n_records) / 1e6:6.2f} million records/s")


if __name__ == "__main__":
    main()
