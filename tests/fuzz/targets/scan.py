"""Any files as a queue for Spark's `lavinmq-segments`: valid rows, no more than there can be.

An input is the one of `segments`: the files msgs, acks and meta of two segments. What is read with
`onCorrupt=stop` must come first in what is read with `skip`, segment by segment.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lavinmq.spark.segment_options import SegmentOptions
from lavinmq.spark.segment_plan import plan
from lavinmq.spark.segment_scan import Report, read_task
from tests.fuzz.targets import Target
from tests.fuzz.targets.segments import SMALLEST_RECORD, unpack

Place = tuple[int, int]


def scan(directory: Path, **options: str) -> list[Place]:
    """Return segment and position of every row."""
    parsed = SegmentOptions.parse({"path": str(directory), **options})
    found: list[Place] = []
    for task in plan(parsed, parsed.columns):
        report = Report()
        for batch in read_task(task, report):
            batch.validate(full=True)
            found += _places(batch)
        assert report.records >= len(found)
    return found


def _places(batch: Any) -> list[Place]:
    columns = (batch.column(name).to_pylist() for name in ("segment", "position"))
    return list(zip(*columns, strict=True))


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    logger = logging.getLogger("lavinmq.spark")
    level = logger.level
    logger.setLevel(logging.ERROR)

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=directory) as name:
            own = Path(name)
            unpack(data, own)
            if not any(own.iterdir()):
                return
            (own / ".queue").write_text("q")
            stopped = scan(own, includeAcked="true", includeHeaders="json", batchRows="7")
            skipped = scan(own, includeAcked="true", onCorrupt="skip", includeHeaders="true")
            live = scan(own)
        assert len(skipped) <= len(data) // SMALLEST_RECORD
        assert len(set(skipped)) == len(skipped)
        assert set(stopped) <= set(skipped)
        assert set(live) <= set(stopped)

    try:
        yield read
    finally:
        logger.setLevel(level)
