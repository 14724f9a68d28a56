"""What a task does: read a range of a stream as Arrow batches, over one AMQP connection.

The bytes of deliveries go from the socket into the decoder's buffer and from there into columns
(`Decoder`); Python sees batches, and frames that are no deliveries. A lost connection is
made again, and reading goes on behind the last row that is in a batch: no row comes twice, none is
left out. A range ends with its last offset; with `x-stream-end-offset` the broker also says so
when a filter leaves out the last ones. Errors are one line that names node, vhost and queue.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lavinmq.client import frames
from lavinmq.spark._arrow import Columns, Decoder
from lavinmq.spark.connection import BACK_OFF_S, Connection, ConnectionFailure, connect
from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.planner import RangeTask

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 16 * 1024 * 1024
LAST_OFFSET = (1 << 63) - 1
ACK = struct.Struct(">BHIIQBB")  # a whole frame of basic.ack
ACK_ID, ACK_SIZE, ALL_UP_TO = 0x003C0050, 13, 1
CANCEL_ID = frames.id_of("basic.cancel")
PROBE_S = 5.0  # how long a message that is there may take to come
LOOK_S = 5.0  # between two looks into what a filter has left out
NUMBERED_WITHOUT_HOLES = "LavinMQ"  # the product whose offsets are those of messages alone

log = logging.getLogger(__name__)


def read_range(task: RangeTask) -> Iterator[pa.RecordBatch]:
    """Yield the messages with offsets [start, end) of a stream, in their order.

    Batches have the columns of the task, up to `batch_rows` rows, and are ended by 16 MiB too; none
    is empty. With a filter, or on a broker whose offsets have holes, rows are fewer than offsets.
    Closes its connection when it is closed, or ends in any way.
    Raises: ConnectionFailure, OptionError, SourceError, DataLossError.
    """
    if task.start < task.end:
        yield from _Reading(task).batches()


class _Reading:
    """One range being read."""

    def __init__(self, task: RangeTask) -> None:
        self._task = task
        self._subject = f"queue '{task.queue}'"
        self._columns = Columns(task.columns, queue=task.queue)
        self._decoder = Decoder(
            self._columns,
            task.start,
            task.end,
            batch_rows=task.batch_rows,
            batch_bytes=BATCH_BYTES,
            frame_max=frames.FRAME_MAX,
        )
        self._conditions = _conditions(task)
        self._has_holes = False
        self._gap: tuple[int, int] | None = None  # of offsets that did not come, not looked into
        self._look_at = 0.0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read until the range is finished, over as many connections as it takes."""
        failures = 0
        deadline = 0.0
        while True:
            before = self._decoder.next_offset
            try:
                yield from self._attempt()
                break
            except ConnectionFailure as failure:
                if failures == 0 or self._decoder.next_offset > before:
                    failures, deadline = 0, time.monotonic() + self._task.read_timeout_s
                if not failure.is_transient or time.monotonic() > deadline:
                    raise
                if failures == 0:
                    log.warning("%s; going on at offset %d", failure, self._decoder.next_offset)
                time.sleep(BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)])
                failures += 1
                self._decoder.reset()
        if self._columns.n_rows:
            yield self._columns.take()
        if self._columns.n_repaired:
            log.warning("%s: %d strings were not UTF-8", self._subject, self._columns.n_repaired)

    def _attempt(self) -> Iterator[pa.RecordBatch]:
        """Read until the range is finished. Raises: ConnectionFailure when that ends before."""
        task = self._task
        with self._connect() as connection:
            self._has_holes = connection.product != NUMBERED_WITHOUT_HOLES
            self._look()  # what the connection before had no time for
            arguments: dict[str, Any] = {
                "x-stream-offset": self._decoder.next_offset,
                "x-stream-end-offset": task.end,
                "x-stream-timestamp": True,
                **self._conditions,
            }
            _consume(connection, task.queue, task.prefetch, arguments)
            yield from self._receive(connection)

    def _receive(self, connection: Connection) -> Iterator[pa.RecordBatch]:
        decoder, timeout_s = self._decoder, self._task.read_timeout_s
        seen = acked = 0
        ack_every = max(1, self._task.prefetch // 4)
        quiet_since = time.monotonic()
        while True:
            result = _run(decoder, connection)
            if decoder.gap is not None:
                self._look(*decoder.gap)
            if decoder.tag != seen:
                seen, quiet_since = decoder.tag, time.monotonic()
            if seen - acked >= ack_every:
                acked = seen
                connection.write(_ack(acked))
            if result == Decoder.END:
                self._account(decoder.next_offset, self._task.end)
                return
            if result == Decoder.FULL:
                yield self._columns.take()
                quiet_since = time.monotonic()
            elif result == Decoder.FRAME:
                if self._is_end(connection, decoder.frame):
                    return
            else:
                left_s = quiet_since + timeout_s - time.monotonic()
                n = connection.read_into(decoder.room(), left_s) if left_s > 0 else 0
                if n == 0:
                    self._on_silence(connection)
                    return
                decoder.received(n)

    def _is_end(self, connection: Connection, frame: tuple[int, int, bytes]) -> bool:
        """Deal with a frame that is no delivery; say whether it ends the range."""
        if connection.take(*frame):
            return False
        if frame[0] != frames.METHOD or not frame[2].startswith(CANCEL_ID):
            raise connection.failure(f"an unexpected frame of type {frame[0]}")
        # The broker does this at x-stream-end-offset, but also when it stops or the queue goes.
        task, at = self._task, self._decoder.next_offset
        if self._conditions:
            connection.count(task.queue)
            if self._is_reached():
                self._account(at, task.end)
                return True
        elif self._account(at, task.end) == task.end:
            return True
        text = f"the broker ended the consumer at offset {at}"
        raise connection.failure(text, is_transient=True)

    def _on_silence(self, connection: Connection) -> None:
        """Nothing came for too long: fine if a filter has left out all the rest."""
        task, at = self._task, self._decoder.next_offset
        if self._conditions and self._is_reached():
            self._account(at, task.end)
            return
        raise connection.failure(
            f"no message for {task.read_timeout_s:g} s at offset {at} of [{task.start}, {task.end})"
        )

    # ---- what the stream holds -------------------------------------------------------------------

    def _is_reached(self) -> bool:
        """Whether the stream has messages up to the end of the range, or had them."""
        return self._first_from(self._task.end - 1) is not None

    def _look(self, start: int = 0, end: int = 0) -> None:
        """No message of these offsets came: look into it. With a filter that is so all the time,
        and now and then is enough: retention takes from the front, the gaps are kept as one."""
        self._note(start, end)
        if not self._conditions or time.monotonic() >= self._look_at:
            self._account()

    def _note(self, start: int, end: int) -> None:
        if start < end:
            self._gap = (start if self._gap is None else self._gap[0], end)

    def _account(self, start: int = 0, end: int = 0) -> int:
        """No message of these offsets came, nor of those noted before; return behind which of them
        none is gone.

        Where offsets have holes, only what is before the first message counts as gone.
        Raises: DataLossError when they were removed and that matters, SourceError.
        """
        self._note(start, end)
        if self._gap is None:
            return start
        start, end = self._gap
        first = self._first_from("first" if self._has_holes else start)
        gone = f"{self._subject}: offsets {max(start, 1)} to"
        if first is None:
            text = f"{gone} {end - 1} did not come, and the stream gives no other"
            raise SourceError(f"{self._task.connection} {text}")
        self._gap = None
        self._look_at = time.monotonic() + LOOK_S
        last = min(first, end)
        start = max(start, 1)  # LavinMQ has no offset 0: whoever begins there loses nothing
        if last > start:
            text = f"{gone} {last - 1} are gone"
            if self._task.fail_on_data_loss:
                hint = "set failOnDataLoss=false to go on without them"
                raise DataLossError(f"{self._task.connection} {text}; {hint}")
            log.warning("%s %s: %d messages", self._task.connection, text, last - start)
        return last

    def _first_from(self, place: int | str) -> int | None:
        """The offset of the first message from there on; None when there is none."""
        columns = Columns(("offset",))
        decoder = Decoder(columns, 0, LAST_OFFSET, batch_rows=1, frame_max=frames.FRAME_MAX)
        deadline = time.monotonic() + min(PROBE_S, self._task.read_timeout_s)
        with self._connect() as connection:
            _consume(connection, self._task.queue, 1, {"x-stream-offset": place})
            while (result := _run(decoder, connection)) != Decoder.FULL:
                if result == Decoder.FRAME:
                    connection.take(*decoder.frame)
                    continue
                left_s = deadline - time.monotonic()
                n = connection.read_into(decoder.room(), left_s) if left_s > 0 else 0
                if n == 0:
                    return None
                decoder.received(n)
                deadline = time.monotonic() + PROBE_S  # it comes, and may be large
        return int(columns.take().column(0)[0].as_py())

    def _connect(self) -> Connection:
        """Try all nodes once; how long to go on trying is `batches`' business."""
        task = self._task
        return connect(task.connection, self._subject, name=task.client_name, patience_s=0)


def _consume(
    connection: Connection, queue: str, prefetch: int, arguments: Mapping[str, Any]
) -> None:
    """Start to consume a stream, without leaving a position on the broker."""
    # Of a tag that begins like this the broker keeps no position.
    tag = f"amq.ctag-spark-{os.urandom(8).hex()}"
    connection.consume(queue, prefetch, tag, arguments)


def _run(decoder: Decoder, connection: Connection) -> int:
    """Decode what was received. Raises: ConnectionFailure for what cannot be."""
    try:
        return decoder.run()
    except ValueError as error:
        raise connection.failure(f"received {error}") from None


def _ack(tag: int) -> bytes:
    return ACK.pack(frames.METHOD, 1, ACK_SIZE, ACK_ID, tag, ALL_UP_TO, frames.END)


def _conditions(task: RangeTask) -> dict[str, Any]:
    """The arguments of the task's filter. Raises: SourceError when it is not JSON."""
    if task.filter is None:
        return {}
    try:
        conditions: dict[str, Any] = {"x-stream-filter": json.loads(task.filter)}
    except ValueError as error:
        raise SourceError(f"filter is not JSON: {error}") from None
    if task.filter_match is not None:
        conditions["x-filter-match-type"] = task.filter_match
    return conditions
