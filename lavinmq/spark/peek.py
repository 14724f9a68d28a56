"""A look into a classic queue: its first messages as one batch query, and all of them left there.

Nothing is acknowledged, so the broker puts everything back when the connection closes, marked as
redelivered. One task, because two would take turns; a retried task may see other messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pamqp import commands

from lavinmq.client import wire
from lavinmq.spark.errors import SourceError
from lavinmq.spark.options import ConnectionOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from lavinmq.spark._arrow import Columns
    from lavinmq.spark.connection import Connection

PROPERTIES_AT = 12  # bytes of class, weight and size before the properties of a content header
SIZE_AT = 4


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

    columns = Columns(task.columns, queue=task.queue)
    name = f"{task.connection.client_name} peek"
    with connect(task.connection, f"queue '{task.queue}'", name=name) as connection:
        declare = wire.build(commands.Queue.Declare, queue=task.queue, passive=True)
        found = connection.call(declare, commands.Queue.DeclareOk)
        left = min(task.limit, found.message_count or 0)
        if left:
            _consume(connection, task.queue, left)
        while left and _add_next(connection, columns, task.quiet_s):
            left -= 1
            if columns.n_rows >= task.batch_rows:
                yield columns.take()
    if columns.n_rows:
        yield columns.take()


def _consume(connection: Connection, queue: str, prefetch: int) -> None:
    qos = wire.build(commands.Basic.Qos, prefetch_count=prefetch)
    connection.call(qos, commands.Basic.QosOk)
    consume = wire.build(commands.Basic.Consume, queue=queue)
    connection.call(consume, commands.Basic.ConsumeOk)


def _add_next(connection: Connection, columns: Columns, quiet_s: float) -> bool:
    """Add the next message; False when none comes, since others have taken some."""
    frame = connection.next_frame(quiet_s)
    if frame is None:
        return False
    deliver = wire.decode_method(frame.payload) if frame.kind == wire.FRAME_METHOD else None
    if isinstance(deliver, commands.Basic.Cancel):
        return False
    if not isinstance(deliver, commands.Basic.Deliver):
        raise connection.failure(f"an unexpected frame of type {frame.kind}")
    head = _content(connection, wire.FRAME_HEADER, quiet_s)
    size = int.from_bytes(head[SIZE_AT:PROPERTIES_AT], "big")
    body = bytearray()
    while len(body) < size:
        body += _content(connection, wire.FRAME_BODY, quiet_s)
    exchange, key = (
        str(text or "").encode("utf-8", "surrogateescape")
        for text in (deliver.exchange, deliver.routing_key)
    )
    if not columns.add(exchange, key, head[PROPERTIES_AT:], bytes(body)):
        raise SourceError("the messages are more than a batch can hold; lower batchRows")
    return True


def _content(connection: Connection, kind: int, quiet_s: float) -> bytes:
    frame = connection.next_frame(quiet_s)
    if frame is None or frame.kind != kind:
        raise connection.failure("a message broke off")
    return frame.payload
