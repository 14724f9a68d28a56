"""Whole messages over a connection of Spark's tasks: consume, acknowledge, publish, be confirmed.

For the jobs that move messages one by one: `dlq --requeue`, `drain`. Names that are not UTF-8 pass
as they are (surrogateescape). One thread; every wait has an end. Source: AMQP 0-9-1 specification,
class basic; publisher confirms as RabbitMQ describes them.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pamqp import commands

from lavinmq.client import wire
from lavinmq.spark.connection import Connection

BASIC = 60
PUBLISH, RETURN, DELIVER, ACK, NACK, CANCEL, CANCEL_OK = 40, 50, 60, 80, 120, 30, 31
HANDLED = {RETURN, DELIVER, ACK, NACK, CANCEL, CANCEL_OK}
BODY_MAX = 512 * 1024 * 1024
CONFIRM_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Message:
    """A message that came: delivered with a tag, or returned (`tag` 0, `reply` says why)."""

    tag: int
    is_redelivered: bool
    exchange: str
    routing_key: str
    properties: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    reply: str = ""
    size: int = -1


class Channel:
    """The one channel of a connection. Methods raise ConnectionFailure.

    `unconfirmed`: numbers of publishes the broker has not answered, in order. What it answers goes
    to `answered` as (number, is_stored), and what it could not route first to `returned`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._deliveries: deque[Message] = deque()
        self._partial: Message | None = None
        self._published = 0
        self._tag = ""
        self._is_cancelled = False
        self.unconfirmed: dict[int, None] = {}
        self.answered: list[tuple[int, bool]] = []
        self.returned: list[Message] = []

    def count(self, queue: str) -> int:
        """Return how many messages are ready in a queue."""
        method = wire.build(commands.Queue.Declare, queue=queue, passive=True)
        return int(self._connection.call(method, commands.Queue.DeclareOk).message_count or 0)

    def confirm_select(self) -> None:
        """Let the broker confirm publishes."""
        method = wire.build(commands.Confirm.Select)
        self._connection.call(method, commands.Confirm.SelectOk)

    def consume(self, queue: str, prefetch: int, arguments: dict[str, Any] | None = None) -> None:
        """Begin to consume with at most `prefetch` (1–65535) messages unacknowledged."""
        qos = wire.build(commands.Basic.Qos, prefetch_count=prefetch)
        self._connection.call(qos, commands.Basic.QosOk)
        consume = wire.build(commands.Basic.Consume, queue=queue, arguments=arguments or {})
        self._tag = self._connection.call(consume, commands.Basic.ConsumeOk).consumer_tag or ""

    def give_back(self) -> None:
        """Stop consuming, and return to its place whatever is not acknowledged.

        When this returns, the broker has dealt with every ack sent before.
        """
        if self._tag:
            # What it had sent already is passed over: that may be a lot.
            self._is_cancelled = True
            self._deliveries.clear()
            self._connection.send(wire.build(commands.Basic.Cancel, consumer_tag=self._tag))
            deadline = time.monotonic() + CANCEL_TIMEOUT_S
            while self._tag:
                if not self._step(deadline):
                    text = f"no {commands.Basic.CancelOk.name} within {CANCEL_TIMEOUT_S:g} s"
                    raise self._connection.failure(text)
        method = wire.build(commands.Basic.Recover, requeue=True)
        self._connection.call(method, commands.Basic.RecoverOk)

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next delivery; None when none came in time."""
        deadline = time.monotonic() + timeout_s
        while not self._deliveries:
            if not self._step(deadline):
                return None
        return self._deliveries.popleft()

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery, or all up to it."""
        method = wire.build(commands.Basic.Ack, delivery_tag=tag, multiple=multiple)
        self._connection.send(method)

    def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> int:
        """Publish as mandatory; return the number that its confirm will have."""
        try:
            names = _short(exchange) + _short(routing_key)
        except ValueError as error:
            raise self._connection.failure(str(error)) from None
        method = struct.pack(">HHH", BASIC, PUBLISH, 0) + names + b"\x01"
        frames = [_frame(wire.FRAME_METHOD, method)]
        head = struct.pack(">HHQ", BASIC, 0, len(body)) + properties
        frames.append(_frame(wire.FRAME_HEADER, head))
        size = self._connection.frame_max - wire.FRAME_OVERHEAD
        frames += [
            _frame(wire.FRAME_BODY, body[at : at + size]) for at in range(0, len(body), size)
        ]
        self._published += 1
        self.unconfirmed[self._published] = None
        self._connection.write(b"".join(frames))
        return self._published

    def wait_until_confirmed(self, at_most: int, timeout_s: float = CONFIRM_TIMEOUT_S) -> None:
        """Wait until no more than `at_most` publishes are unconfirmed."""
        deadline = time.monotonic() + timeout_s
        while (waiting := len(self.unconfirmed)) > at_most:
            if not self._step(deadline):
                why = f" (blocked: {self._connection.blocked})" if self._connection.blocked else ""
                raise self._connection.failure(
                    f"no confirm for {waiting} messages within {timeout_s:g} s{why}"
                )
            if len(self.unconfirmed) < waiting:
                deadline = time.monotonic() + timeout_s

    def _step(self, deadline: float) -> bool:
        """Take one frame; False when none came in time."""
        remaining = deadline - time.monotonic()
        frame = self._connection.next_frame(remaining) if remaining > 0 else None
        if frame is None:
            return False
        try:
            self._take(frame)
        except (struct.error, IndexError):
            raise self._connection.failure("the broker sent a frame that is cut short") from None
        return True

    def _take(self, frame: wire.RawFrame) -> None:
        partial = self._partial
        if frame.kind == wire.FRAME_METHOD and partial is None:
            self._on_method(frame.payload)
        elif frame.kind == wire.FRAME_HEADER and partial is not None and partial.size < 0:
            (partial.size,) = struct.unpack_from(">Q", frame.payload, 4)
            if partial.size > BODY_MAX:
                raise self._connection.failure(f"a body of {partial.size} bytes is too large")
            partial.properties = frame.payload[12:]
            self._finish(partial)
        elif frame.kind == wire.FRAME_BODY and partial is not None and partial.size >= 0:
            partial.body += frame.payload
            self._finish(partial)
        else:
            raise self._connection.failure(f"a frame of type {frame.kind} came out of turn")

    def _on_method(self, payload: bytes) -> None:
        class_id, method_id = struct.unpack_from(">HH", payload)
        if class_id != BASIC or method_id not in HANDLED:
            raise self._connection.failure(f"method {class_id}.{method_id} came out of turn")
        if method_id in {ACK, NACK}:
            number, flags = struct.unpack_from(">QB", payload, 4)
            self._settle(number, is_multiple=bool(flags & 1), is_stored=method_id == ACK)
        elif method_id == CANCEL:
            raise self._connection.failure("the broker cancelled the consumer: queue deleted?")
        elif method_id == CANCEL_OK and self._is_cancelled:
            self._tag = ""
        elif method_id == CANCEL_OK:
            raise self._connection.failure("a consumer was cancelled that nobody cancelled")
        elif method_id == RETURN:
            (code,) = struct.unpack_from(">H", payload, 4)
            texts = _shorts(payload, 6, 3)
            self._partial = Message(0, False, texts[1], texts[2], reply=f"{code} {texts[0]}")
        else:
            _, at = _short_at(payload, 4)
            tag, flags = struct.unpack_from(">QB", payload, at)
            exchange, routing_key = _shorts(payload, at + 9, 2)
            self._partial = Message(tag, bool(flags & 1), exchange, routing_key)

    def _finish(self, message: Message) -> None:
        if len(message.body) < message.size:
            return
        if len(message.body) > message.size:
            raise self._connection.failure("a body is longer than announced")
        self._partial = None
        if not message.tag:
            self.returned.append(message)
        elif not self._is_cancelled:
            self._deliveries.append(message)

    def _settle(self, number: int, *, is_multiple: bool, is_stored: bool) -> None:
        numbers = [number]
        if is_multiple:
            # Number 0 means all of them.
            numbers = [each for each in self.unconfirmed if each <= number or not number]
        for each in numbers:
            if self.unconfirmed.pop(each, 0) is None:
                self.answered.append((each, is_stored))


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, Connection.channel, len(payload)) + payload + b"\xce"


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > 255:
        raise ValueError(f"a name of {len(data)} bytes, 255 is the most: {text[:40]}…")
    return bytes([len(data)]) + data


def _short_at(payload: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + payload[at]
    if end > len(payload):
        raise IndexError(end)
    return payload[at + 1 : end].decode("utf-8", "surrogateescape"), end


def _shorts(payload: bytes, at: int, n: int) -> list[str]:
    texts = []
    for _ in range(n):
        text, at = _short_at(payload, at)
        texts.append(text)
    return texts
