"""Whole messages over a task's connection, and the answers to what is asked there.

For what looks at messages one by one: a look into a queue, the ends of a stream, the jobs `dlq` and
`drain`. The client's engine cuts what comes into messages. They are pulled: the socket is read when
somebody wants one, so what nobody has asked for waits at the broker, however large it is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from lavinmq.client import frames, methods
from lavinmq.client._engine import Input, Message, Port, ProtocolViolation
from lavinmq.spark.connection import CHANNEL, TIMEOUT_S, Connection

READ_BYTES = 65536
BODY_MAX = 512 * 1024 * 1024
CLEAR = (False, False, False, False)
"""The flags of basic.consume: no-local, no-ack, exclusive, no-wait."""

Event = tuple[str, bytes, Message | None]
"""A method by name, with its payload, or a message that was returned."""


class Inbox:
    """What comes on the channel of a connection, all of it from the first use on.

    Methods raise ConnectionFailure.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._input = Input(frames.FRAME_MAX, BODY_MAX)
        self._port = Port(CHANNEL)
        self._input.open(self._port)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._events: deque[Event] = deque()
        self._passes_over = False
        self.messages: deque[Message] = deque()

    def ask(self, name: str, *values: Any, timeout_s: float = TIMEOUT_S) -> tuple[Any, ...]:
        """Send a method and return the arguments of its answer; what else comes is kept."""
        self._connection.send(name, *values)
        deadline = time.monotonic() + timeout_s
        while True:
            for event in self._events:
                if event[0] == f"{name}-ok":
                    self._events.remove(event)
                    return self._connection.arguments(event[1])
            if not self.read(deadline - time.monotonic()):
                text = f"no {name}-ok within {timeout_s:g} s"
                raise self._connection.failure(text, is_transient=True)

    def send(self, name: str, *values: Any) -> None:
        """Send a method that is not answered."""
        self._connection.send(name, *values)

    def count(self, queue: str) -> int:
        """Return how many messages are ready in a queue."""
        flags = (True, False, False, False, False)
        return int(self.ask("queue.declare", 0, queue, *flags, {})[1])

    def consume(
        self, queue: str, prefetch: int, tag: str = "", arguments: Mapping[str, Any] | None = None
    ) -> str:
        """Begin to consume with at most `prefetch` messages unsettled; return the consumer's tag.

        Once the broker has answered, messages of consumers before are in `messages`.
        """
        self.ask("basic.qos", 0, prefetch, False)
        return str(self.ask("basic.consume", 0, queue, tag, *CLEAR, arguments or {})[0])

    def cancel(self, tag: str, timeout_s: float = TIMEOUT_S) -> None:
        """End a consumer, and forget what was under way to it, which may be a lot."""
        self.messages.clear()
        self._passes_over = True
        try:
            self.ask("basic.cancel", tag, False, timeout_s=timeout_s)
        finally:
            self._passes_over = False

    def next(self, quiet_s: float) -> Message | None:
        """Return the next message; None when nothing came for so long, or something else did."""
        while not self.messages and not self._events:
            if not self.read(quiet_s):
                return None
        return self.messages.popleft() if self.messages else None

    def event(self) -> Event | None:
        """Return the next of what came besides messages, if there is something."""
        return self._events.popleft() if self._events else None

    def read(self, timeout_s: float) -> bool:
        """Read once; False when nothing came in time."""
        connection = self._connection
        n = connection.read_into(self._buffer, timeout_s) if timeout_s > 0 else 0
        if not n:
            return False
        try:
            events = self._input.feed(self._buffer[:n])
        except ProtocolViolation as error:
            raise connection.failure(f"received {error}") from None
        messages = self._port.take()
        if not self._passes_over:
            self.messages += messages
        for channel, method, payload, message in events:
            if not connection.take(frames.METHOD, channel, payload):
                self._events.append((methods.name_of(method), payload, message))
        return True
