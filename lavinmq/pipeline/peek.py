"""A look into a classic queue: its first messages as rows, and all of them back in their places.

A stream is read, but a classic queue is emptied by reading; so nothing here is acknowledged, and
everything is given back, marked as redelivered; the broker does so itself when the connection
breaks. The rows are made on the driver, so bodies are cut to what a report shows. Called by `dlq`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lavinmq.pipeline.channel import Channel
from lavinmq.pipeline.errors import PipelineError
from lavinmq.spark.connection import ConnectionFailure, connect
from lavinmq.spark.options import ConnectionOptions

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("exchange", "routing_key", "body", "timestamp", "headers_json")
SIZE = "size"
QUIET_S = 5.0


def peek(
    options: ConnectionOptions,
    queue: str,
    *,
    limit: int,
    body_bytes: int,
    show: Callable[[int, int], None],
) -> pa.Table:
    """Return the first `limit` (1–65535) messages: COLUMNS and SIZE, the length of the whole body.

    Raises: PipelineError.
    """
    import pyarrow as pa

    from lavinmq.spark._arrow import Columns

    columns = Columns(COLUMNS, queue=queue)
    sizes: list[int] = []
    try:
        with connect(options, f"queue '{queue}'", name="lavinmq-pipeline peek") as connection:
            channel = Channel(connection)
            total = min(channel.count(queue), limit)
            if total:
                channel.consume(queue, total)
            while len(sizes) < total:
                message = channel.receive(QUIET_S)
                if message is None:
                    break  # others took some
                exchange, key = (
                    name.encode("utf-8", "surrogateescape")
                    for name in (message.exchange, message.routing_key)
                )
                body = bytes(message.body[:body_bytes])
                if not columns.add(exchange, key, message.properties, body):
                    raise PipelineError(
                        f"queue '{queue}': more than a look can hold; lower --limit"
                    )
                sizes.append(len(message.body))
                show(len(sizes), total)
            channel.give_back()
    except ConnectionFailure as failure:
        raise PipelineError(str(failure)) from None
    except ValueError as error:
        raise PipelineError(f"queue '{queue}': {error}") from None
    rows = pa.Table.from_batches([columns.take()])
    return rows.append_column(SIZE, pa.array(sizes, pa.int64()))
