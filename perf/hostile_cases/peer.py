"""The hostile client of `perf/hostile.py`: connections, requests, and bytes that no library sends.

What the cases share. Everything is sent in large writes, so that the broker finds it all at once;
`settle` waits until it is dealt with.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

from pamqp import commands

from tests.support import raw_wire as wire
from tests.support.raw_connection import Address, Channel, Connection
from tests.support.raw_wire import Properties, build

HOST = "127.0.0.1"
TIMEOUT_S = 600.0
MANY = 500_000
BODY_BYTES = 400
BINDINGS = 50_000
CONSUMERS = 300_000
ALLOWED_CONSUMERS = 60_000
CHANNELS = 2_000
CHUNK = 1 << 20
BACKTRACKING = "^(a+)+$"
STUMBLE = "a" * 27 + "!"
DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
FROM_FIRST = {"x-filter-match-type": "any", "x-stream-offset": "first"}
JSON = {"Content-Type": "application/json"}


class Broker:
    """The broker that is attacked. `watched` is for the runner to fill in."""

    def __init__(self, port: int, http_port: int, tls_port: int, pid: int, mqtt_port: int) -> None:
        self.port, self.http_port, self.tls_port, self.pid = port, http_port, tls_port, pid
        self.mqtt_port = mqtt_port
        self.refusals: list[str] = []

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """The time of the attack."""
        raise NotImplementedError

    def connect(self, user: str = "guest", vhost: str = "/") -> Connection:
        """Another connection of the hostile client."""
        address = Address(HOST, self.port, user, user, vhost)
        return Connection.open(address, name="hostile", timeout=TIMEOUT_S)

    def ask(self, method: str, path: str, body: object = None, user: str = "guest") -> bytes:
        """One request; an answer that is no success is noted as a refusal."""
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=TIMEOUT_S)
        login = base64.b64encode(f"{user}:{user}".encode()).decode()
        sent = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
        try:
            headers = {**JSON, "Authorization": f"Basic {login}"}
            connection.request(method, f"/api/{path}", sent, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            self.refusals.append(f"{answer.status} {content[:100].decode(errors='replace')}")
        return content

    def fill(
        self, queue: str, count: int = MANY, properties: Properties | None = None, body: bytes = b""
    ) -> None:
        """Have so many small messages in a queue that there is."""
        with self.connect() as connection:
            channel = connection.channel()
            send_many(connection, published("", queue, properties, body), count)
            while channel.declare_queue(queue, passive=True).message_count != count:
                time.sleep(0.02)


# ---- bytes and their barrier ---------------------------------------------------------------------


def publish(
    connection: Connection, exchange: str, key: str, count: int,
    properties: Properties | None = None,
) -> None:  # fmt: skip
    """Publish the same small message many times on channel 1."""
    send_many(connection, published(exchange, key, properties), count)


def published(
    exchange: str, key: str, properties: Properties | None = None, body: bytes = b""
) -> bytes:
    """The bytes of one publish on channel 1."""
    method = build(commands.Basic.Publish, exchange=exchange, routing_key=key)
    content = wire.encode_content(1, properties or Properties(), body, wire.FRAME_MAX)
    return wire.encode_method(1, method) + content


def send_many(connection: Connection, one: bytes, count: int) -> None:
    """Send the same bytes many times, in large writes."""
    step = max(1, CHUNK // len(one))
    for at in range(0, count, step):
        connection.write(one * min(step, count - at))


def send_all(connection: Connection, methods: Iterable[bytes]) -> None:
    """Send many methods in large writes."""
    left = iter(methods)
    while chunk := b"".join(itertools.islice(left, 5000)):
        connection.write(chunk)


def settle(channel: Channel) -> None:
    """Wait until all that was sent before on this connection is dealt with."""
    channel.qos(0)


def raw_content(table: bytes) -> bytes:
    """Header frame of an empty message on channel 1 with these bytes as its headers."""
    head = struct.pack(">HHQHI", 60, 0, 0, 0x2000, len(table)) + table
    return struct.pack(">BHI", 2, 1, len(head)) + head + b"\xce"


def raw_publish(exchange: str, key: str, table: bytes) -> bytes:
    """A publish of an empty message with these bytes as its headers, in one header frame."""
    method = build(commands.Basic.Publish, exchange=exchange, routing_key=key)
    return wire.encode_method(1, method) + raw_content(table)


def texts(name: bytes, each: Iterable[bytes]) -> bytes:
    """A field of a table: an array of texts."""
    array = b"".join(b"S" + struct.pack(">I", len(one)) + one for one in each)
    return bytes([len(name)]) + name + b"A" + struct.pack(">I", len(array)) + array


def bind(queue: str, exchange: str, key: str, **arguments: Any) -> bytes:
    """A bind on channel 1 that is not answered."""
    method = build(
        commands.Queue.Bind, queue=queue, exchange=exchange, routing_key=key,
        nowait=True, arguments=arguments,
    )  # fmt: skip
    return wire.encode_method(1, method)


def unbind(queue: str, exchange: str, key: str, **arguments: Any) -> bytes:
    """An unbind on channel 1; each is answered."""
    method = build(
        commands.Queue.Unbind, queue=queue, exchange=exchange, routing_key=key, arguments=arguments
    )
    return wire.encode_method(1, method)


def bound_by_headers(channel: Channel, connection: Connection) -> None:
    """One pair of a queue and a headers exchange, bound very often."""
    channel.declare_exchange("h", "headers")
    channel.declare_queue("q")
    send_all(connection, (bind("q", "h", "", n=str(n)) for n in range(BINDINGS)))
    settle(channel)


@contextlib.contextmanager
def client(broker: Broker) -> Iterator[tuple[Connection, Channel]]:
    """A connection with channel 1."""
    connection = broker.connect()
    try:
        yield connection, connection.channel()
    finally:
        connection.abort()


def unacknowledged(connection: Connection, channel: Channel, queue: str, count: int = MANY) -> int:
    """Have all messages of a queue delivered to one consumer. Returns: the last delivery tag."""
    channel.qos(0)
    channel.consume(queue, "greedy")
    # The client of the broker would take minutes to read them.
    reader = wire.FrameReader()
    reader.feed(connection.detach()[1])
    deliver = commands.Basic.Deliver.index.to_bytes(4, "big")
    seen, left = len(channel.deliveries), 1
    while seen < count or left:
        raw = reader.next()
        if raw is None:
            reader.feed(connection._socket.recv(1 << 20))
        elif raw.kind == wire.FRAME_METHOD:
            seen, left = seen + (raw.payload[:4] == deliver), 1
        elif raw.kind == wire.FRAME_HEADER:
            (left,) = struct.unpack_from(">Q", raw.payload, 4)
        else:
            left -= len(raw.payload)
    connection.resume(reader.take())
    return count


def full_queue(broker: Broker, channel: Channel, **arguments: Any) -> None:
    """A durable queue `q` with 500 000 messages."""
    channel.declare_queue("q", durable=True, arguments=arguments)
    broker.fill("q", body=bytes(BODY_BYTES))


def wait_for_messages(broker: Broker, queue: str, count: int, timeout_s: float = 60.0) -> None:
    """Wait until a queue has exactly so many ready messages, or for a while."""
    deadline = time.monotonic() + timeout_s
    with broker.connect() as connection:
        channel = connection.channel()
        while channel.declare_queue(queue, passive=True).message_count != count:
            if time.monotonic() > deadline:
                broker.refusals.append(f"{queue} does not come to {count}")
                return
            time.sleep(0.05)


def put_policy(broker: Broker, pattern: str = "^q$", **definition: Any) -> None:
    """Have a policy for the queues of a pattern, `q` by default."""
    settings = {name.replace("_", "-"): value for name, value in definition.items()}
    rule = {"pattern": pattern, "definition": settings}
    broker.ask("PUT", "policies/%2F/hostile", {**rule, "apply-to": "queues"})


def add_nobody(broker: Broker) -> None:
    """A user who may log in to management, and do nothing else."""
    broker.ask("PUT", "users/nobody", {"password": "nobody", "tags": "management"})
