"""`drain`: a classic queue into Parquet files; a message leaves the queue once its file is safe.

No Spark: consuming takes messages away, and Spark reads batches again. At least once: a file is
written, synced and renamed, its directory synced, and only then its messages are acknowledged;
whatever breaks before that leaves them in the queue, and a crash in between has them twice. The
directory is an archive that `replay`, `restore` and `flow` read; `offset` numbers the messages in
the order in which they left the queue.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.arguments import (
    Parser,
    add_broker,
    check,
    connection_of,
    duration,
    positive,
    size,
)
from lavinmq.pipeline.errors import PipelineError
from lavinmq.pipeline.job import Job, Result, Run

if TYPE_CHECKING:
    import pyarrow as pa

    from lavinmq.pipeline.channel import Channel, Message

# A prefetch is a short, and everything that is not in a file yet is unacknowledged.
ROWS_MAX = 65535
ROWS_PER_FILE = 50_000
BYTES_PER_FILE = 128 * 1024 * 1024
IDLE_S = 2.0
POLL_S = 0.5
NAME = re.compile(r"drained-\d{19}-(\d{19})\.parquet")


def configure(parser: Parser) -> None:
    """Add the options of this job."""
    add_broker(parser)
    add = parser.add_argument
    add("queue", metavar="QUEUE", help="classic queue to empty")
    add("target", metavar="DIR", type=Path, help="directory of the files, on a local file system")
    add("--once", action="store_true", help="end when the queue is empty, else when told to")
    add("--limit", type=positive, metavar="N", help="take no more messages")
    add(
        "--rows-per-file",
        type=positive,
        metavar="N",
        default=ROWS_PER_FILE,
        help=f"at most, default {ROWS_PER_FILE:,}, the most {ROWS_MAX:,}",
    )
    add(
        "--bytes-per-file",
        type=size,
        metavar="SIZE",
        default=BYTES_PER_FILE,
        help="of bodies and texts, before compression, default 128m",
    )
    add(
        "--flush",
        type=duration,
        metavar="DURATION",
        default=10.0,
        help="write a file this long after its first message, default 10s",
    )
    add("--compression", choices=("zstd", "snappy", "gzip", "none"), default="zstd",
        help="of Parquet, default zstd")  # fmt: skip


def run(run: Run) -> Result:
    """Drain until there is nothing more (--once) or a signal comes."""
    from lavinmq.pipeline.channel import Channel
    from lavinmq.pipeline.streaming import stop_signals
    from lavinmq.spark.connection import ConnectionFailure, connect

    options = run.options
    check(
        {
            f"--rows-per-file must be at most {ROWS_MAX}": options.rows_per_file > ROWS_MAX,
            "DIR must be a local directory": "://" in str(options.target),
        }
    )
    where = f"queue '{options.queue}'"
    how = Cut(options.rows_per_file, options.bytes_per_file, options.flush)
    archive = Archive(options.target, options.queue, options.compression)
    try:
        with (
            closing(archive),
            stop_signals() as is_told_to_stop,
            connect(connection_of(options), where, name="lavinmq-pipeline drain") as connection,
        ):
            drain = Drain(Channel(connection), archive, how)
            drain.run(
                options.queue,
                is_once=options.once,
                limit=options.limit,
                is_told_to_stop=is_told_to_stop,
                show=lambda done: run.progress.show("messages", done),
            )
    except ConnectionFailure as failure:
        raise PipelineError(str(failure)) from None
    return Result(
        values={"target": str(options.target), "messages": drain.total, "files": archive.n_files},
        text=f"{drain.total:,} messages drained into {archive.n_files:,} files",
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """When a file is complete: rows, bytes, seconds after its first message."""

    rows: int
    size_bytes: int
    age_s: float


class Archive:
    """A directory of files whose names tell the numbers of their messages."""

    def __init__(self, directory: Path, queue: str, compression: str) -> None:
        self._directory = directory
        self._queue = queue
        self._compression = compression
        self._next = 0
        self._lock = -1
        self.n_files = 0

    def open(self) -> None:
        """Make the directory, remove drafts of a run that broke, find where numbers go on.

        Raises: OSError, PipelineError when another run writes there: the files of both would have
        the same names, and what the first one has taken from its queue would be gone.
        """
        new = [each for each in (self._directory, *self._directory.parents) if not each.exists()]
        self._directory.mkdir(parents=True, exist_ok=True)
        for each in new:
            _sync(each.parent)
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"{self._directory}: another drain writes there") from None
        for draft in self._directory.glob(".drained-*.draft"):
            draft.unlink()
        names = (NAME.fullmatch(each.name) for each in self._directory.iterdir())
        self._next = max((int(match[1]) for match in names if match), default=0) + 1

    def write(self, rows: pa.RecordBatch) -> None:
        """Write a file; when this returns it survives a loss of power. Raises: OSError."""
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.Table.from_batches([rows])
        first, last = self._next, self._next + table.num_rows - 1
        numbers = pa.array(range(first, last + 1), pa.int64())
        table = _with(table, "offset", numbers)
        # The broker tells no time of a classic queue: the publisher's is the best there is.
        table = _with(table, "timestamp", table["message_timestamp"])
        name = f"drained-{first:019}-{last:019}.parquet"
        draft = self._directory / f".{name}.draft"
        with draft.open("wb") as file:
            parquet.write_table(table, file, compression=self._compression)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._directory / name)
        _sync(self._directory)
        self._next = last + 1
        self.n_files += 1

    def close(self) -> None:
        """Another run may write there. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class Drain:
    """Takes messages from a channel into files."""

    def __init__(self, channel: Channel, archive: Archive, cut: Cut) -> None:
        from lavinmq.pipeline.sources import CONTENT, PLACE
        from lavinmq.spark._arrow import Columns

        self._channel = channel
        self._archive = archive
        self._cut = cut
        self._new: Callable[[str], Columns] = lambda queue: Columns((*PLACE, *CONTENT), queue=queue)
        self._tag = 0
        self.total = 0

    def run(
        self,
        queue: str,
        *,
        is_once: bool,
        limit: int | None,
        is_told_to_stop: Callable[[], bool],
        show: Callable[[int], None],
    ) -> None:
        """Drain a queue. Raises: ConnectionFailure, OSError, PipelineError."""
        self._archive.open()
        columns = self._new(queue)
        prefetch = min(2 * self._cut.rows, ROWS_MAX)
        self._channel.consume(queue, min(prefetch, limit) if limit else prefetch)
        taken, oldest, latest = 0, 0.0, time.monotonic()
        while not is_told_to_stop() and (limit is None or taken < limit):
            message = self._channel.receive(POLL_S)
            now = time.monotonic()
            if message is not None:
                oldest = oldest if columns.n_rows else now
                latest = now
                self._add(columns, message, queue)
                taken += 1
            elif is_once and now - latest >= IDLE_S:
                break
            if columns.n_rows and self._is_complete(columns, now - oldest):
                self._flush(columns)
                show(self.total)
        if columns.n_rows:
            self._flush(columns)
        self._channel.give_back()

    def _is_complete(self, columns: Any, age_s: float) -> bool:
        cut = self._cut
        is_large = columns.n_rows >= cut.rows or columns.n_bytes >= cut.size_bytes
        return is_large or age_s >= cut.age_s

    def _add(self, columns: Any, message: Message, queue: str) -> None:
        exchange, key = (
            name.encode("utf-8", "surrogateescape")
            for name in (message.exchange, message.routing_key)
        )
        try:
            body = message.body
            if not columns.add(exchange, key, message.raw_properties, body):
                self._flush(columns)
                columns.add(exchange, key, message.raw_properties, body)
        except ValueError as error:
            raise PipelineError(
                f"queue '{queue}': a message that is no archive's: {error}"
            ) from None
        self._tag = message.delivery_tag

    def _flush(self, columns: Any) -> None:
        """Make a file of all rows, and acknowledge them when it is safe."""
        rows = columns.take()
        self._archive.write(rows)
        self._channel.ack(self._tag, multiple=True)
        self.total += rows.num_rows


def _sync(directory: Path) -> None:
    """Have the names in a directory survive a loss of power. Raises: OSError."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    """Return a table with a column replaced."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(name), column)


JOB = Job(
    name="drain",
    help="A classic queue into Parquet files, emptied as they are safe",
    configure=configure,
    run=run,
    needs_spark=False,
)
