"""What a stream holds, found out by consuming a little: for brokers whose HTTP API does not tell.

Plain LavinMQ and RabbitMQ answer neither offsets nor identity. A short consume from the first
message, and one from the newest segment, show both ends; silence says that there is no more, so
this takes seconds where the HTTP API takes milliseconds.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pamqp import commands, header

from lavinmq.client import wire
from lavinmq.spark.errors import SourceError
from lavinmq.spark.offsets import Bounds
from lavinmq.spark.options import ConnectionOptions

if TYPE_CHECKING:
    from lavinmq.spark.connection import Connection

FIRST_S = 10.0  # how long the first delivery may take, if there is a message
QUIET_S = 1.0  # silence after which there is nothing more
LONGEST_S = 60.0  # a newest segment that takes longer than this to read
PREFETCH = 1000


def bounds(options: ConnectionOptions, queue: str) -> Bounds:
    """Return what the stream holds. Raises SourceError, and what connecting raises."""
    from lavinmq.spark.connection import connect

    with connect(options, f"queue {queue!r}") as connection:
        if not _count(connection, queue):
            # The first message of LavinMQ has offset 1, that of RabbitMQ 0: 0 begins with either.
            return Bounds(0, 0)
        first = _first(connection, queue, "first", FIRST_S)
        if first is None:
            raise SourceError(f"{options}: stream {queue!r} has messages and delivers none")
        return Bounds(first, _end(connection, queue, first))


def offset_at(options: ConnectionOptions, queue: str, time_ms: int) -> int | None:
    """Return the first offset received at that time or later; None when there is none."""
    from lavinmq.spark.connection import connect

    # AMQP counts seconds: rather begin a moment too early than leave messages out.
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    with connect(options, f"queue {queue!r}") as connection:
        _count(connection, queue)
        return _first(connection, queue, moment, QUIET_S)


def _count(connection: Connection, queue: str) -> int:
    """Return the number of messages; fails when the queue is not there."""
    declare = wire.build(commands.Queue.Declare, queue=queue, passive=True)
    return connection.call(declare, commands.Queue.DeclareOk).message_count or 0


def _first(
    connection: Connection, queue: str, place: str | datetime, timeout_s: float
) -> int | None:
    tag = _consume(connection, queue, place, 1)
    offset = _next_offset(connection, queue, timeout_s)
    _cancel(connection, tag)
    return None if offset is None else offset[0]


def _end(connection: Connection, queue: str, first: int) -> int:
    tag = _consume(connection, queue, "last", PREFETCH)
    end, deadline = first + 1, time.monotonic() + LONGEST_S
    unacked = 0
    while (offset := _next_offset(connection, queue, QUIET_S)) is not None:
        end = max(end, offset[0] + 1)
        unacked += 1
        if unacked >= PREFETCH // 4:
            ack = wire.build(commands.Basic.Ack, delivery_tag=offset[1], multiple=True)
            connection.send(ack)
            unacked = 0
        if time.monotonic() > deadline:
            break  # an earlier end is a smaller batch, nothing worse
    _cancel(connection, tag)
    return end


def _consume(connection: Connection, queue: str, place: str | datetime, prefetch: int) -> str:
    qos = wire.build(commands.Basic.Qos, prefetch_count=prefetch)
    connection.call(qos, commands.Basic.QosOk)
    # Of a tag that begins like this the broker keeps no position.
    tag = f"amq.ctag-spark-{time.monotonic_ns()}"
    arguments = {"x-stream-offset": place}
    consume = wire.build(commands.Basic.Consume, queue=queue, consumer_tag=tag, arguments=arguments)
    connection.call(consume, commands.Basic.ConsumeOk)
    return tag


def _cancel(connection: Connection, tag: str) -> None:
    cancel = wire.build(commands.Basic.Cancel, consumer_tag=tag)
    connection.call(cancel, commands.Basic.CancelOk)
    # What was under way comes before the reply and is of no use to anybody.
    while connection.next_frame(0) is not None:
        pass


def _next_offset(connection: Connection, queue: str, timeout_s: float) -> tuple[int, int] | None:
    """Return offset and delivery tag of the next message; None when none begins in time."""
    deadline = time.monotonic() + timeout_s
    tag = 0
    while (frame := connection.next_frame(max(0.0, deadline - time.monotonic()))) is not None:
        if frame.kind == wire.FRAME_METHOD:
            method = wire.decode_method(frame.payload)
            if isinstance(method, commands.Basic.Cancel):
                raise SourceError(f"stream {queue!r} was deleted, or closed by the broker")
            tag = getattr(method, "delivery_tag", 0)
        elif frame.kind == wire.FRAME_HEADER:
            head = header.ContentHeader()
            head.unmarshal(frame.payload)
            offset = (head.properties.headers or {}).get("x-stream-offset")
            if not isinstance(offset, int):
                raise SourceError(f"queue {queue!r} is no stream: its messages have no offset")
            return offset, tag
    return None
