"""What a stream holds, found out by consuming a little: for brokers whose HTTP API does not tell.

Plain LavinMQ and RabbitMQ answer neither offsets nor identity. A short consume from the first
message, and one from the newest segment, show both ends; silence says that there is no more, so
this takes seconds where the HTTP API takes milliseconds.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lavinmq.spark.errors import SourceError
from lavinmq.spark.offsets import Bounds
from lavinmq.spark.options import ConnectionOptions

if TYPE_CHECKING:
    from lavinmq.client._engine import Message
    from lavinmq.spark.inbox import Inbox

FIRST_S = 10.0  # how long the first delivery may take, if there is a message
QUIET_S = 1.0  # silence after which there is nothing more
LONGEST_S = 60.0  # a newest segment that takes longer than this to read
PREFETCH = 1000


def bounds(options: ConnectionOptions, queue: str) -> Bounds:
    """Return what the stream holds. Raises SourceError, and what connecting raises."""
    from lavinmq.spark.connection import connect
    from lavinmq.spark.inbox import Inbox

    with connect(options, f"queue {queue!r}") as connection:
        inbox = Inbox(connection)
        if not inbox.count(queue):
            # The first message of LavinMQ has offset 1, that of RabbitMQ 0: 0 begins with either.
            return Bounds(0, 0)
        first = _first(inbox, queue, "first", FIRST_S)
        if first is None:
            raise SourceError(f"{options}: stream {queue!r} has messages and delivers none")
        return Bounds(first, _end(inbox, queue, first))


def offset_at(options: ConnectionOptions, queue: str, time_ms: int) -> int | None:
    """Return the first offset received at that time or later; None when there is none."""
    from lavinmq.spark.connection import connect
    from lavinmq.spark.inbox import Inbox

    # AMQP counts seconds: rather begin a moment too early than leave messages out.
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    with connect(options, f"queue {queue!r}") as connection:
        inbox = Inbox(connection)
        inbox.count(queue)  # refused when there is no such queue
        return _first(inbox, queue, moment, QUIET_S)


def _first(inbox: Inbox, queue: str, place: str | datetime, timeout_s: float) -> int | None:
    tag = _consume(inbox, queue, place, 1)
    message = _next(inbox, queue, timeout_s)
    inbox.cancel(tag)
    return None if message is None else _offset(message, queue)


def _end(inbox: Inbox, queue: str, first: int) -> int:
    tag = _consume(inbox, queue, "last", PREFETCH)
    end, deadline = first + 1, time.monotonic() + LONGEST_S
    unacked = 0
    while (message := _next(inbox, queue, QUIET_S)) is not None:
        end = max(end, _offset(message, queue) + 1)
        unacked += 1
        if unacked >= PREFETCH // 4:
            inbox.send("basic.ack", message.delivery_tag, True)
            unacked = 0
        if time.monotonic() > deadline:
            break  # an earlier end is a smaller batch, nothing worse
    inbox.cancel(tag)
    return end


def _consume(inbox: Inbox, queue: str, place: str | datetime, prefetch: int) -> str:
    # Of a tag that begins like this the broker keeps no position.
    tag = f"amq.ctag-spark-{time.monotonic_ns()}"
    return inbox.consume(queue, prefetch, tag, {"x-stream-offset": place})


def _next(inbox: Inbox, queue: str, quiet_s: float) -> Message | None:
    """Return the next message; None when nothing comes any more."""
    message = inbox.next(quiet_s)
    if message is None and inbox.event() is not None:
        raise SourceError(f"stream {queue!r} was deleted, or closed by the broker")
    return message


def _offset(message: Message, queue: str) -> int:
    offset = message.headers.get("x-stream-offset")
    if not isinstance(offset, int):
        raise SourceError(f"queue {queue!r} is no stream: its messages have no offset")
    return offset
