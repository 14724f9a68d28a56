"""Running a streaming query to its end: trigger, progress, an orderly stop by a signal.

With --once the query ends by itself. Else SIGTERM and SIGINT are its normal end: the batch at work
is given up and done again by the next run, which the checkpoint makes exact.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from lavinmq.pipeline.job import Run

POLL_S = 0.5
STARTS_MAX = 3
SLOW_START = "Python worker failed to connect back"
"""What Spark says when the Python process of a source did not start within its fixed 10 s."""


@dataclass(slots=True)
class Counts:
    """What a query has read so far: rows, batches that had rows, seconds."""

    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    last_batch: int = -1
    behind: int | None = None
    """How many rows were there that had not been read; None while the source has not told."""

    def add(self, progress: dict[str, Any]) -> None:
        """Count one progress report of Spark, once."""
        batch = int(progress["batchId"])
        if batch <= self.last_batch:
            return
        self.last_batch = batch
        rows = int(progress["numInputRows"])
        self.rows += rows
        self.batches += rows > 0
        self.behind = backlog(progress["sources"])

    @property
    def total(self) -> int | None:
        """How many rows there will be, as far as is known."""
        return None if self.behind is None else self.rows + self.behind

    def values(self) -> dict[str, Any]:
        """The counts by name, for a result."""
        return {"rows": self.rows, "batches": self.batches, "seconds": round(self.seconds, 3)}


def backlog(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how far a query is behind the ends of its streams; None when a source does not say.

    Source: offsets of the format lavinmq, docs/spark.md.
    """
    rows = 0
    for source in sources:
        try:
            ends = json.loads(source["latestOffset"])["offsets"]
            read = json.loads(source["endOffset"])["offsets"]
        except (ValueError, TypeError, KeyError):
            return None
        rows += sum(max(0, end - read.get(queue, end)) for queue, end in ends.items())
    return rows


def run_stream(run: Run, writer: DataStreamWriter, label: str = "rows") -> Counts:
    """Start the query with the job's --checkpoint, --once and --trigger; return when it has ended.

    A query whose Python worker started too slowly for Spark is started again, up to twice.
    Raises: what the query failed with, see ``failures.py``.
    """
    from pyspark.errors import StreamingQueryException

    options = run.options
    writer = writer.option("checkpointLocation", options.checkpoint)
    if options.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(options.trigger * 1000)} milliseconds")
    counts = Counts()
    begin = time.monotonic()
    with stop_signals() as is_told_to_stop:
        for starts_left in reversed(range(STARTS_MAX)):
            try:
                _until_it_ends(run, writer.start(), counts, label, is_told_to_stop)
                break
            except StreamingQueryException as error:
                # A machine that is busy for a moment is no reason to fail: the checkpoint makes a
                # second start exact.
                if not starts_left or is_told_to_stop() or SLOW_START not in str(error):
                    raise
                run.progress.note("a Python worker did not start in time: starting the query again")
    counts.seconds = time.monotonic() - begin
    return counts


def _until_it_ends(
    run: Run,
    query: StreamingQuery,
    counts: Counts,
    label: str,
    is_told_to_stop: Callable[[], bool],
) -> None:
    try:
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
            _look(run, query, counts, label)
            if is_told_to_stop():
                break
    finally:
        query.stop()
    _look(run, query, counts, label)


def _look(run: Run, query: StreamingQuery, counts: Counts, label: str) -> None:
    for progress in query.recentProgress:
        counts.add(progress)
    run.progress.show(label, counts.rows, counts.total)


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Within it SIGTERM and SIGINT only make the yielded function return true."""
    told: list[int] = []

    def tell(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    before = {each: signal.signal(each, tell) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(told)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
