"""Exchanges, queues and bindings the rows need, declared over a tiny AMQP client.

Owns the names and keys that `scenarios/rows.toml` and `topicflood.c` rely on. Called by
`procedure.py` before a measurement, and by `brokers.py` to see who answers. Blocking, one
channel, never publishes or consumes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from pamqp import base, commands, exceptions, frame

from perf.measure import BenchError

HOST = "127.0.0.1"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
REPLY_TIMEOUT_S = 60.0
SETTLED_S = 1.0
QUEUE = "flood"  # the generators' default
FANOUT = "bench.fanout"
TOPIC = "bench.topic"
HEADERS = "bench.headers"
DEAD = "bench.dead"
DELAYED = "bench.delayed"
DISTINCT_KEYS = 100_000

Reply = TypeVar("Reply", bound=base.Frame)


def fanout_queues() -> list[str]:
    """Return the names of the ten queues behind the fanout exchange."""
    return [f"{QUEUE}.{number}" for number in range(10)]


def topic_patterns_100() -> list[str]:
    """Return 100 patterns; `sensor.42.temperature` matches exactly one (`sensor.42.*`)."""
    tails = ("humidity", "*", "#")
    return [
        f"sensor.{number}.{'*' if number == 42 else tails[number % 3]}" for number in range(100)
    ]


def topic_patterns_1000() -> list[str]:
    """Return 1 000 patterns, half `*` and half `#`; every `topic_key` matches exactly one."""
    return [
        f"order{number % 25}.{'*' if number % 2 else '#'}.paid{number // 25 % 40}"
        for number in range(1000)
    ]


def topic_patterns_100k() -> list[str]:
    """Return 100 000 patterns, half `*` and half `#`; every `topic_key` matches exactly one."""
    return [
        f"order{number % 25}.{number:05d}.{'*' if number % 2 else '#'}"
        for number in range(DISTINCT_KEYS)
    ]


def topic_key(number: int) -> str:
    """Return key `number` of `topicflood.c` (0 to 99 999)."""
    return f"order{number % 25}.{number:05d}.paid{number // 25 % 40}"


class Client:
    """One connection and channel as guest on `/`, for declaring things.

    Raises `BenchError` when the broker closes the connection or channel, or does not reply.
    """

    def __init__(self, port: int) -> None:
        self._data = b""
        self._socket = socket.create_connection((HOST, port), timeout=REPLY_TIMEOUT_S)
        self._socket.sendall(PROTOCOL_HEADER)
        self.server_properties = self._expect(commands.Connection.Start).server_properties or {}

    def open(self) -> Self:
        """Log in and open channel 1."""
        self._send(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        tune = self._expect(commands.Connection.Tune)
        self._send(commands.Connection.TuneOk(tune.channel_max or 2047, tune.frame_max, 0), 0)
        self._send(commands.Connection.Open("/"), 0)
        self._expect(commands.Connection.OpenOk)
        self._send(commands.Channel.Open())
        self._expect(commands.Channel.OpenOk)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._socket.close()

    def declare_exchange(self, name: str, kind: str) -> None:
        """Declare a transient exchange."""
        self._send(commands.Exchange.Declare(exchange=name, exchange_type=kind))
        self._expect(commands.Exchange.DeclareOk)

    def declare_delayed(self, name: str) -> None:
        """Declare a durable exchange whose messages wait."""
        self._send(
            commands.Exchange.Declare(
                exchange=name,
                exchange_type="x-delayed-message",
                durable=True,
                arguments={"x-delayed-type": "direct"},
            )
        )
        self._expect(commands.Exchange.DeclareOk)

    def declare_queue(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Declare a transient queue that any connection may use."""
        self._send(commands.Queue.Declare(queue=name, arguments=arguments or {}))
        self._expect(commands.Queue.DeclareOk)

    def bind(
        self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        """Bind a queue to an exchange."""
        self._send(
            commands.Queue.Bind(
                queue=queue, exchange=exchange, routing_key=key, arguments=arguments or {}
            )
        )
        self._expect(commands.Queue.BindOk)

    def bind_exchange(self, destination: str, source: str, key: str = "") -> None:
        """Bind an exchange to another one."""
        self._send(commands.Exchange.Bind(destination=destination, source=source, routing_key=key))
        self._expect(commands.Exchange.BindOk)

    def message_count(self, queue: str) -> int:
        """Return how many messages are ready in a queue."""
        self._send(commands.Queue.Declare(queue=queue, passive=True))
        return self._expect(commands.Queue.DeclareOk).message_count or 0

    def wait_for_messages(self, queue: str, count: int, timeout_s: float) -> None:
        """Wait until a queue holds exactly `count` messages."""
        deadline = time.monotonic() + timeout_s
        while (ready := self.message_count(queue)) != count:
            if ready > count or time.monotonic() > deadline:
                raise BenchError(f"queue {queue} holds {ready} messages, not {count}")
            time.sleep(0.05)

    def wait_until_empty(self, queue: str, timeout_s: float) -> None:
        """Wait until a queue has no ready messages; asks four times a second."""
        deadline = time.monotonic() + timeout_s
        while ready := self.message_count(queue):
            if time.monotonic() > deadline:
                raise BenchError(f"queue {queue} still holds {ready} messages")
            time.sleep(0.25)

    def settled_count(self, queue: str, timeout_s: float) -> int:
        """Return how many messages a queue holds once that has not changed for a second."""
        deadline = time.monotonic() + timeout_s
        ready, since = self.message_count(queue), time.monotonic()
        while time.monotonic() - since < SETTLED_S:
            if time.monotonic() > deadline:
                raise BenchError(f"queue {queue} still grows after {timeout_s:.0f} s")
            time.sleep(0.05)
            if (now := self.message_count(queue)) != ready:
                ready, since = now, time.monotonic()
        return ready

    def _send(self, method: base.Frame, channel: int = 1) -> None:
        self._socket.sendall(frame.marshal(method, channel))

    def _expect(self, wanted: type[Reply]) -> Reply:
        method = next(self._frames())
        if isinstance(method, wanted):
            return method
        if isinstance(method, commands.Connection.Close | commands.Channel.Close):
            raise BenchError(f"the broker said {method.reply_code} {method.reply_text}")
        raise BenchError(f"the broker sent {method!r}, not {wanted.name}")

    def _frames(self) -> Iterator[frame.FrameTypes]:
        while True:
            try:
                used, _channel, method = frame.unmarshal(self._data)
            except exceptions.UnmarshalingException:
                self._receive()  # not all there yet
                continue
            self._data = self._data[used:]
            yield method

    def _receive(self) -> None:
        try:
            data = self._socket.recv(65536)
        except OSError as error:
            raise BenchError(f"no reply from the broker: {error}") from error
        if not data:
            raise BenchError("the broker closed the connection")
        self._data += data


def declare(name: str, port: int) -> None:
    """Declare the topology a row asks for by name; "" declares nothing."""
    if not name:
        return
    with Client(port).open() as client:
        if name == "fanout10":
            client.declare_exchange(FANOUT, "fanout")
            for queue in fanout_queues():
                client.declare_queue(queue)
                client.bind(queue, FANOUT)
            return
        if name == "headers1000":
            client.declare_exchange(HEADERS, "headers")
            client.declare_queue(QUEUE)
            for number in range(1000):
                client.bind(QUEUE, HEADERS, "", {"x-match": "all", "sensor": f"s{number}"})
            return
        if name == "deadletters":
            client.declare_exchange(DEAD, "fanout")
            client.declare_queue(DEAD)
            client.bind(DEAD, DEAD)
            client.declare_queue(QUEUE, {"x-max-length": 0, "x-dead-letter-exchange": DEAD})
            return
        if name == "delayed":
            client.declare_delayed(DELAYED)
            return
        patterns = {
            "topic100": topic_patterns_100,
            "topic1000": topic_patterns_1000,
            "topic100k": topic_patterns_100k,
        }[name]()
        client.declare_exchange(TOPIC, "topic")
        client.declare_queue(QUEUE)
        for pattern in patterns:
            client.bind(QUEUE, TOPIC, pattern)
