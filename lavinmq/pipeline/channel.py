"""One channel of a job that moves messages one by one: consume, acknowledge, publish, be confirmed.

For `dlq --requeue` and `drain`. Names that are not UTF-8 pass as they are (surrogateescape), and
properties byte by byte. One thread; every wait has an end. Source: AMQP 0-9-1 specification, class
basic; publisher confirms as RabbitMQ describes them.
"""

from __future__ import annotations

import time
from typing import Any

from lavinmq.client import frames
from lavinmq.client._engine import Message
from lavinmq.spark.connection import Connection
from lavinmq.spark.inbox import Inbox

__all__ = ["Channel", "Message"]

CONFIRM_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 60.0


class Channel:
    """The one channel of a connection. Methods raise ConnectionFailure.

    `unconfirmed`: numbers of publishes the broker has not answered, in order. What it answers goes
    to `answered` as (number, is_stored), and what it could not route first to `returned`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox = Inbox(connection)
        self._published = 0
        self._tag = ""
        self.unconfirmed: dict[int, None] = {}
        self.answered: list[tuple[int, bool]] = []
        self.returned: list[Message] = []

    def count(self, queue: str) -> int:
        """Return how many messages are ready in a queue."""
        return self._inbox.count(queue)

    def confirm_select(self) -> None:
        """Let the broker confirm publishes."""
        self._inbox.ask("confirm.select", False)

    def consume(self, queue: str, prefetch: int, arguments: dict[str, Any] | None = None) -> None:
        """Begin to consume with at most `prefetch` (1–65535) messages unacknowledged."""
        self._tag = self._inbox.consume(queue, prefetch, arguments=arguments)

    def give_back(self) -> None:
        """Stop consuming, and return to its place whatever is not acknowledged.

        When this returns, the broker has dealt with every ack sent before.
        """
        if self._tag:
            # What it had sent already is passed over: that may be a lot.
            self._inbox.cancel(self._tag, CANCEL_TIMEOUT_S)
            self._tag = ""
        self._inbox.ask("basic.recover", True)

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next delivery; None when none came in time."""
        deadline = time.monotonic() + timeout_s
        while not self._inbox.messages:
            if not self._step(deadline):
                return None
        return self._inbox.messages.popleft()

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery, or all up to it."""
        self._inbox.send("basic.ack", tag, multiple)

    def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> int:
        """Publish as mandatory; return the number that its confirm will have."""
        connection = self._connection
        try:
            number = connection.channel
            method = frames.method(number, "basic.publish", 0, exchange, routing_key, True, False)
        except ValueError as error:
            raise connection.failure(str(error)) from None
        self._published += 1
        self.unconfirmed[self._published] = None
        content = frames.content(number, properties, body, connection.frame_max)
        connection.write(method + content)
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
        """Take in what comes; False when nothing came in time."""
        if not self._inbox.read(deadline - time.monotonic()):
            return False
        while (event := self._inbox.event()) is not None:
            self._note(*event)
        return True

    def _note(self, name: str, payload: bytes, message: Message | None) -> None:
        if message is not None:
            self.returned.append(message)
        elif name in ("basic.ack", "basic.nack"):
            number, is_multiple = self._connection.arguments(payload)[:2]
            self._settle(number, is_multiple=is_multiple, is_stored=name == "basic.ack")
        elif name == "basic.cancel":
            raise self._connection.failure("the broker cancelled the consumer: queue deleted?")
        else:
            raise self._connection.failure(f"{name} came out of turn")

    def _settle(self, number: int, *, is_multiple: bool, is_stored: bool) -> None:
        numbers = [number]
        if is_multiple:
            # Number 0 means all of them.
            numbers = [each for each in self.unconfirmed if each <= number or not number]
        for each in numbers:
            if self.unconfirmed.pop(each, 0) is None:
                self.answered.append((each, is_stored))
