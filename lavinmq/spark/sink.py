"""The sink of the format `lavinmq`: writers of a batch and of a stream, one task each partition.

At least once: a task that fails after some confirms is run again, and publishes its rows again.
`writer` and `stream_writer` run where Spark plans, check everything that can be checked before the
first message, and make a picklable writer; its `write` runs in the tasks. Nothing is published in
`commit`, and `abort` cannot take anything back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from lavinmq.spark import sink_columns
from lavinmq.spark.connection import ConnectionFailure, connect
from lavinmq.spark.options import OptionError, SinkOptions
from lavinmq.spark.publishing import Publisher, PublishError
from lavinmq.spark.speculation import refuse_speculation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_LOG = logging.getLogger(__name__)

# What Spark tells a task of a streaming query.
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
ID_MAX = 200


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """What one task has published: rows, and how many of them the broker has confirmed."""

    rows: int
    confirmed: int


class BatchWriter(DataSourceArrowWriter):
    """Publishes the rows of a DataFrame. `run_id` is the same for all attempts of one write."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.run_id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task. Raises: PublishError, OptionError."""
        return publish_rows(self.options, iterator, self._prefix)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say that what was published stays."""
        _warn(self.options, messages)

    def _prefix(self, context: TaskContext | None) -> str:
        """What the ids of the rows of a task begin with."""
        options = self.options
        query = options.query_id or _property(context, QUERY_ID_PROPERTY)
        batch = options.batch_id or _property(context, BATCH_ID_PROPERTY)
        if batch is not None and query is None:
            raise OptionError("dedup=row with batchId needs queryId: batches of others count, too")
        # Without a batch there is no later write of the same rows: the write names itself.
        return f"{query or self.run_id}/{batch or 0}/{_partition(context)}"


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch of a query."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task. Raises: PublishError, OptionError."""
        return publish_rows(self.options, iterator, self._prefix)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Say that what was published stays."""
        _warn(self.options, messages, f" of batch {batchId}")

    def _prefix(self, context: TaskContext | None) -> str:
        """What the ids of the rows of a task begin with."""
        query = self.options.query_id or _property(context, QUERY_ID_PROPERTY)
        batch = _property(context, BATCH_ID_PROPERTY)
        if query is None or batch is None:
            raise OptionError(
                "dedup=row is not told the batch by this Spark: use foreachBatch, and give the"
                " batch writer queryId and batchId"
            )
        return f"{query}/{batch}/{_partition(context)}"


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch. Raises: OptionError, one line."""
    if overwrite:
        raise OptionError(
            'mode("overwrite") is refused: the sink never empties a queue; use mode("append")'
        )
    return BatchWriter(_checked(options, schema))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query. Raises: OptionError, one line."""
    if overwrite:
        raise OptionError(
            'outputMode("complete") is refused: the sink never empties a queue; use "append"'
        )
    parsed = _checked(options, schema)
    if parsed.batch_id is not None:
        raise OptionError("option batchId is for a batch write in foreachBatch, this is a stream")
    return StreamWriter(parsed)


def publish_rows(options: SinkOptions, batches: Iterator[pa.RecordBatch], prefix: Any) -> Published:
    """Publish batches over a connection of their own, which is made for the first row.

    Args: prefix: called with the task's context for what the ids of its rows begin with.
    Raises: PublishError, one line that ends with what became of the rows; OptionError.
    """
    context = TaskContext.get()
    row_prefix = prefix(context) if options.dedup == "row" else ""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None and options.declare == "none":
        return Published(0, 0)
    publisher = None
    try:
        connection = connect(options.connection, _subject(options))
        try:
            publisher = Publisher(options, connection, row_prefix)
            if first is not None:
                publisher.publish(first)
                del first
            for batch in filled:
                publisher.publish(batch)
            publisher.finish()
        except BaseException:
            connection.abort()
            raise
        connection.close()
    except ConnectionFailure as failure:
        account = f"; {publisher.account()}" if publisher is not None else ""
        raise PublishError(f"{failure}{account}") from None
    return Published(publisher.sent, publisher.confirmed)


def _checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Check all that can be checked before the first message."""
    parsed = SinkOptions.parse(options)
    for name, value in (("exchange", parsed.exchange), ("routingKey", parsed.routing_key)):
        if value is not None and len(value.encode()) > 255:
            raise OptionError(f"option {name} has more than 255 bytes")
    for name, value in (("queryId", parsed.query_id), ("batchId", parsed.batch_id)):
        if value is not None and len(value.encode()) > ID_MAX // 2:
            raise OptionError(f"option {name} has more than {ID_MAX // 2} bytes")
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    sink_columns.check(fields, parsed)
    refuse_speculation()
    return parsed


def _subject(options: SinkOptions) -> str:
    if options.exchange:
        return f"exchange '{options.exchange}'"
    return f"queue '{options.routing_key}'" if options.routing_key else "sink"


def _property(context: TaskContext | None, name: str) -> str | None:
    return context.getLocalProperty(name) if context is not None else None


def _partition(context: TaskContext | None) -> int:
    return context.partitionId() if context is not None else 0


def _warn(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], what: str = ""
) -> None:
    done = [message for message in messages if isinstance(message, Published)]
    _LOG.warning(
        "writing%s to %s failed: at least %d messages of %d finished tasks are published and stay",
        *(what, options.connection, sum(message.rows for message in done), len(done)),
    )
