"""Rows of one task to the broker: publish, hear what it says, and wait until it has answered.

A `Publisher` owns the numbers of one connection's channel: what may be sent now (window of
unconfirmed messages, rate, connection.blocked) and what became of it (confirms, nacks, returns).
It reads what the broker says between blocks, and the connection reads while a block does not go
out, so two full socket buffers never wait for each other. Knows Arrow, not Spark.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lavinmq.client import frames
from lavinmq.spark import sink_columns
from lavinmq.spark._arrow import Confirms, Encoder
from lavinmq.spark.connection import CHANNEL, Connection
from lavinmq.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

UNLIMITED = 1 << 40
READ_BYTES = 65536
TURN_S = 1.0  # the longest wait before time-outs are looked at
PORTION_S = 0.01
BURST_S = 0.1  # a paced publisher that fell behind catches up no more than this
RETURNS_SHOWN = 3
RETURN = frames.id_of("basic.return")


class PublishError(Exception):
    """The rows of a task were not all taken over; the text is one line."""


@dataclass(slots=True)
class Returns:
    """Messages that came back because no queue wanted them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, exchange: str, routing_key: str) -> None:
        """Count one, and remember the first few."""
        self.count += 1
        if len(self.first) < RETURNS_SHOWN:
            self.first.append(f"{exchange or '(default exchange)'} / {routing_key!r}")


class Pace:
    """How many messages may be sent by now; a pause is not made up for beyond BURST_S.

    At a high rate it lets through what is due in PORTION_S at once: less would be a system call
    for each message.
    """

    def __init__(self, per_second: int | None) -> None:
        self._rate = per_second
        self._portion = max(1.0, (per_second or 0) * PORTION_S)
        self._due = 1.0
        self._at = time.monotonic()

    def allowed(self) -> int:
        """Return how many messages may be sent now."""
        if self._rate is None:
            return UNLIMITED
        now = time.monotonic()
        most = max(1.0, self._rate * BURST_S)
        self._due = min(most, self._due + (now - self._at) * self._rate)
        self._at = now
        return int(self._due) if self._due >= self._portion else 0

    def sent(self, messages: int) -> None:
        """Note that so many were sent."""
        self._due -= messages

    def wait_s(self) -> float:
        """Return the time until the next messages may be sent."""
        return 0.0 if self._rate is None else max(0.0, (self._portion - self._due) / self._rate)


class Publisher:
    """Publishes batches on one connection; `finish` returns when the broker has answered for all.

    Args: row_prefix: what the ids of rows begin with, for `dedup=row`. Every method raises
    ConnectionFailure when the connection or the channel ends, PublishError when the broker refuses
    messages or falls silent, RowError for a row that is no message.
    """

    def __init__(self, options: SinkOptions, connection: Connection, row_prefix: str = "") -> None:
        self._options = options
        self._connection = connection
        window = options.max_in_flight if options.confirm else 1
        self._confirms = Confirms(window=window, frame_max=connection.frame_max)
        self._encoder = Encoder(
            channel=CHANNEL,
            frame_max=connection.frame_max,
            exchange=options.exchange,
            routing_key=options.routing_key,
            mandatory=options.mandatory,
            delivery_mode=2 if options.persistent else 1,
            dedup=options.dedup,
            row_prefix=row_prefix,
        )
        self._pace = Pace(options.rate_per_second)
        self._input = memoryview(bytearray(READ_BYTES))
        self._heard: set[bytes] = set()
        self._progress = time.monotonic()
        self.sent = 0
        self.returns = Returns()
        self._select()

    @property
    def confirmed(self) -> int:
        """Messages that the broker has taken over."""
        return self._confirms.confirmed

    def account(self) -> str:
        """Return what became of the rows, for errors."""
        if self._options.transactional:
            return f"{self.sent} rows were sent in a transaction that was not committed"
        if not self._options.confirm:
            return f"{self.sent} rows were sent, without confirms"
        return f"{self.sent} rows were sent, {self.confirmed} of them are confirmed"

    def publish(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; the last ones may be unconfirmed."""
        self._encoder.load(sink_columns.prepare(batch, self._options), batch.num_rows)
        self._progress = time.monotonic()
        # Spark may have taken long for the batch: heartbeats have come meanwhile.
        self._hear(0)
        while self._encoder.rows_left:
            if self._room() == 0:
                self._wait()
            elif most := min(self._room(), self._pace.allowed()):
                self._send(most)
                self._hear(0)
            else:
                self._hear(min(self._pace.wait_s(), TURN_S))
            if self.returns.count or self._confirms.nacked:
                self._settle()
                self._check()

    def finish(self) -> None:
        """Wait until the broker has answered for every row; raise when one was refused."""
        if self._options.transactional:
            self._ask("tx.commit")
        elif not self._options.confirm:
            # The broker has looked at all frames before this one when it answers.
            self._ask("channel.close", *frames.GOODBYE)
        self._settle()
        self._check()

    def _select(self) -> None:
        """Bring the channel into its mode, and make the queue if that is wanted."""
        options, call = self._options, self._connection.call
        if options.declare != "none":
            arguments = {"x-queue-type": "stream"} if options.declare == "stream" else {}
            flags = (False, True, False, False, False)
            call("queue.declare", 0, options.routing_key, *flags, arguments)
        if options.transactional:
            call("tx.select")
        elif options.confirm:
            call("confirm.select", False)

    def _room(self) -> int:
        """Return how many messages the broker would have now."""
        if self._connection.blocked is not None:
            return 0
        return self._confirms.room if self._options.confirm else UNLIMITED

    def _send(self, most: int) -> None:
        rows = self._encoder.encode(most)
        if self._options.confirm:
            self._confirms.sent(rows)
        self._pace.sent(rows)
        self.sent += rows
        with memoryview(self._encoder) as block:
            self._connection.write(block)
        self._progress = time.monotonic()

    def _ask(self, name: str, *values: Any) -> None:
        """Send a method behind the messages, and wait for its reply however long it is blocked."""
        self._connection.send(name, *values)
        self._progress = time.monotonic()
        ids = frames.id_of(f"{name}-ok")
        while ids not in self._heard:
            self._wait()

    def _settle(self) -> None:
        """Wait until no message is unconfirmed."""
        self._progress = time.monotonic()
        while self._confirms.unconfirmed:
            self._wait()

    def _wait(self) -> None:
        """Hear the broker for a while. Raises: PublishError when it does not get on."""
        before = self._confirms.unconfirmed
        self._hear(TURN_S)
        now = time.monotonic()
        if self._connection.blocked is not None or self._confirms.unconfirmed < before:
            self._progress = now
        elif now - self._progress > self._options.confirm_timeout_s:
            seconds = self._options.confirm_timeout_s
            text = f"no answer to messages for {seconds:g} s (confirmTimeout)"
            raise PublishError(str(self._connection.failure(f"{text}; {self.account()}")))

    def _hear(self, timeout_s: float) -> None:
        """Take in what the broker says."""
        n = self._connection.read_into(self._input, timeout_s)
        if not n:
            return
        try:
            methods = self._confirms.feed(self._input[:n])
        except ValueError as error:
            raise self._connection.failure(str(error)) from None
        for channel, payload in methods:
            if not self._connection.take(frames.METHOD, channel, payload):
                self._note(payload)

    def _note(self, payload: bytes) -> None:
        values = self._connection.arguments(payload)
        if payload.startswith(RETURN):
            self.returns.add(values[2], values[3])
        else:
            self._heard.add(payload[:4])

    def _check(self) -> None:
        """Raise PublishError when messages were refused or came back."""
        confirms, problems = self._confirms, []
        if confirms.nacked:
            first = confirms.first_nacked
            problems.append(f"the broker refused {confirms.nacked} (nack), first row {first}")
        if self.returns.count:
            keys = ", ".join(self.returns.first)
            problems.append(f"no queue wanted {self.returns.count} (mandatory): {keys}")
        if problems:
            text = f"of {self.sent} messages {' and '.join(problems)}"
            if self._options.confirm:
                text += f"; {confirms.confirmed} are confirmed"
            raise PublishError(str(self._connection.failure(text)))
