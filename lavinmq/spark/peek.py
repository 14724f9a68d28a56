"""A look into a classic queue: its first messages as one batch query, and all of them left there.

Nothing is acknowledged, so the broker puts everything back when the connection closes, marked as
redelivered. One task, because two would take turns; a retried task may see other messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lavinmq.spark.errors import SourceError
from lavinmq.spark.options import ConnectionOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from lavinmq.spark._arrow import Columns
    from lavinmq.spark.inbox import Inbox


@dataclass(frozen=True, slots=True)
class PeekTask:
    """All that the task needs. Picklable. `limit` is the number of messages to show, up to 65535,
    `quiet_s` how long the next one may take."""

    connection: ConnectionOptions
    queue: str
    columns: tuple[str, ...]
    limit: int
    batch_rows: int
    quiet_s: float


def peek(task: PeekTask) -> Iterator[pa.RecordBatch]:
    """Yield the first messages of a queue. Raises: ConnectionFailure, OptionError, SourceError."""
    from lavinmq.spark._arrow import Columns
    from lavinmq.spark.connection import connect
    from lavinmq.spark.inbox import Inbox

    columns = Columns(task.columns, queue=task.queue)
    name = f"{task.connection.client_name} peek"
    with connect(task.connection, f"queue '{task.queue}'", name=name) as connection:
        inbox = Inbox(connection)
        left = min(task.limit, inbox.count(task.queue))
        if left:
            inbox.consume(task.queue, left)
        while left and _add_next(inbox, columns, task.quiet_s):
            left -= 1
            if columns.n_rows >= task.batch_rows:
                yield columns.take()
    if columns.n_rows:
        yield columns.take()


def _add_next(inbox: Inbox, columns: Columns, quiet_s: float) -> bool:
    """Add the next message; False when none comes, since others have taken some."""
    message = inbox.next(quiet_s)
    if message is None:
        return False  # or the broker has ended the consumer
    exchange, key = (
        text.encode("utf-8", "surrogateescape") for text in (message.exchange, message.routing_key)
    )
    if not columns.add(exchange, key, message.raw_properties, message.body):
        raise SourceError("the messages are more than a batch can hold; lower batchRows")
    return True
