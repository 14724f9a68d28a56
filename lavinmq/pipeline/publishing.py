"""Publishing stored messages in their order: round by round, so that a stopped job can go on.

In a round each task publishes a window of one queue's messages, sorted by their place. What is done
is written to the checkpoint after each round: after a stop only those of one round come again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.errors import UsageError
from lavinmq.pipeline.files import Files
from lavinmq.pipeline.sources import CONTENT, ORDER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lavinmq.pipeline.job import Run

ROUND_ROWS = 50_000
ROUND_S = 10
"""A round of a slow job has as many messages as its rate allows in this time."""
WINDOWS_MAX = 2000
STATE = "published.json"


@dataclass(frozen=True, slots=True)
class Window:
    """Messages of one queue whose ORDER is in [start, end)."""

    queue: str
    start: int
    end: int


@dataclass(slots=True)
class Published:
    """Where a job is: the ORDER to go on with for each queue, how many messages it has published.

    `identity` says what the job does; a checkpoint of another one is refused. `has_begun`: there is
    a checkpoint, though it may be that nothing is published.
    """

    identity: Mapping[str, Any]
    next: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    has_begun: bool = False

    @classmethod
    def load(cls, files: Files | None, identity: Mapping[str, Any]) -> Published:
        """Read the state from a checkpoint, if there is one. Raises: UsageError."""
        text = files.read(STATE) if files else None
        if text is None:
            return cls(identity)
        found = json.loads(text)
        for key, value in identity.items():
            if found["identity"].get(key) != value:
                raise UsageError(
                    f"--checkpoint is of another job: its {key} is {found['identity'].get(key)}"
                )
        return cls(identity, found["next"], found["rows"], has_begun=True)

    def save(self, files: Files | None) -> None:
        """Write the state to the checkpoint."""
        if files:
            state = {"identity": self.identity, "next": self.next, "rows": self.rows}
            files.write(STATE, json.dumps(state))


def round_rows(rate: int | None) -> int:
    """Return how many messages of one queue a round has, at most; `rate` is messages/s of all."""
    return ROUND_ROWS if rate is None else min(ROUND_ROWS, rate * ROUND_S)


def remaining(frame: DataFrame, state: Published) -> DataFrame:
    """Return the messages, with ORDER, that are not published yet."""
    from pyspark.sql import functions as F

    for queue, start in state.next.items():
        frame = frame.where((F.col("queue") != queue) | (F.col(ORDER) >= start))
    return frame


def windows(frame: DataFrame, rows: int) -> tuple[dict[str, int], list[list[Window]]]:
    """Return how many messages each queue has, and its windows of about `rows` messages."""
    from pyspark.sql import functions as F

    order = F.col(ORDER)
    found = frame.groupBy("queue").agg(F.count("*"), F.min(order), F.max(order) + 1)
    facts = {queue: (n, start, end) for queue, n, start, end in found.collect()}
    counts = {queue: n for queue, (n, _, _) in facts.items()}
    n_most = min(WINDOWS_MAX, -(-max(counts.values(), default=0) // rows))
    cuts: dict[str, list[int]] = {}
    if n_most > 1:
        parts = [i / n_most for i in range(1, n_most)]
        quantiles = F.percentile_approx(ORDER, parts, 100_000).alias("cuts")
        cuts = {r["queue"]: r["cuts"] for r in frame.groupBy("queue").agg(quantiles).collect()}
    return counts, [
        cut(queue, start, end, _every(cuts.get(queue, []), -(-n // rows)))
        for queue, (n, start, end) in sorted(facts.items())
    ]


def _every(cuts: Sequence[int], wanted: int) -> list[int]:
    """Choose wanted - 1 of the cuts, evenly; all of them differ."""
    step = max(1, (len(cuts) + 1) // max(1, wanted))
    return sorted(set(islice(cuts, step - 1, None, step)))


def cut(queue: str, start: int, end: int, cuts: Sequence[int]) -> list[Window]:
    """Return windows that together are [start, end), cut at rising places."""
    edges = [start, *(place for place in cuts if start < place < end), end]
    return [Window(queue, *edge) for edge in pairwise(edges)]


def rounds(queues: Sequence[Sequence[Window]], width: int) -> Iterator[list[Window]]:
    """Yield lists of at most `width` windows, all of different queues, each queue's in order."""
    pending = [iter(each) for each in queues]
    active = pending[:width]
    waiting = iter(pending[width:])
    while active:
        chosen = []
        still = []
        for each in active:
            window = next(each, None)
            while window is None and (following := next(waiting, None)) is not None:
                each = following
                window = next(each, None)
            if window is not None:
                chosen.append(window)
                still.append(each)
        active = still
        if chosen:
            yield chosen


def publish(
    run: Run,
    frame: DataFrame,
    sink: Mapping[str, str],
    state: Published,
    checkpoint: Files | None,
    rate: int | None = None,
) -> int:
    """Publish all messages of a frame that has ORDER, each queue's in order. Returns: how many.

    `sink` are options of the format lavinmq; `rate` is messages/s for all queues together. Raises:
    what Spark raises; then `state` and checkpoint say what is done.
    """
    width = run.spark.sparkContext.defaultParallelism
    if rate is not None:
        width = min(width, rate)
    counts, queues = windows(remaining(frame, state), round_rows(rate))
    total = sum(counts.values())
    done = 0
    for chosen in rounds(queues, width):
        run.progress.show("messages", done, total)
        n = _publish_round(frame, chosen, sink, rate)
        done += n
        state.rows += n
        state.next |= {window.queue: window.end for window in chosen}
        state.save(checkpoint)
    run.progress.show("messages", done, total)
    return done


def _publish_round(
    frame: DataFrame, chosen: Sequence[Window], sink: Mapping[str, str], rate: int | None
) -> int:
    """Publish some windows at once, one task for each. Returns: how many messages."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    index: Column = F.lit(0)
    condition: Column = F.lit(False)
    for number, window in enumerate(chosen):
        is_queue = F.col("queue") == window.queue
        condition |= is_queue & (F.col(ORDER) >= window.start) & (F.col(ORDER) < window.end)
        index = F.when(is_queue, number).otherwise(index)
    seen = Observation()
    part = frame.where(condition).repartitionById(len(chosen), index)
    part = part.sortWithinPartitions(ORDER).select("queue", "offset", *CONTENT)
    part = part.observe(seen, F.count("*").alias("rows"))
    writer = part.write.format("lavinmq").mode("append").options(**sink)
    if rate is not None:
        writer = writer.option("ratePerSecond", max(1, rate // len(chosen)))
    writer.save()
    return int(seen.get["rows"])
