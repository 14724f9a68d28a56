"""Links of MQTT over socket pairs, without a broker: packets in, packets out."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, NamedTuple

from lavinmq import _core
from tests.support.core import FakeEvents, Session

PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 3, 4, 5, 6, 7
SUBSCRIBE, PINGRESP, DISCONNECT = 8, 13, 14


def varint(value: int) -> bytes:
    """A number of variable length."""
    out = bytearray()
    while True:
        out.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(out)


def packet(first: int, body: bytes) -> bytes:
    """Fixed header and what follows it."""
    return bytes([first]) + varint(len(body)) + body


def text(value: bytes) -> bytes:
    """A string behind its length."""
    return len(value).to_bytes(2, "big") + value


def publish(
    topic: bytes,
    body: bytes = b"",
    *,
    qos: int = 0,
    id: int = 1,
    retain: bool = False,
    dup: bool = False,
    properties: bytes | None = None,
) -> bytes:
    """A PUBLISH; with `properties`, also empty ones, of version 5."""
    content = text(topic) + (id.to_bytes(2, "big") if qos else b"")
    if properties is not None:
        content += varint(len(properties)) + properties
    return packet(PUBLISH << 4 | dup << 3 | qos << 1 | retain, content + body)


def ack(kind: int, id: int, reason: int | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    tail = b"" if reason is None else bytes([reason])
    return packet(kind << 4 | (2 if kind == PUBREL else 0), id.to_bytes(2, "big") + tail)


class Packet(NamedTuple):
    """What a client has got: fixed header, and what follows it."""

    first: int
    body: bytes

    @property
    def kind(self) -> int:
        """Its type."""
        return self.first >> 4


class Message(NamedTuple):
    """A PUBLISH as its client sees it."""

    topic: bytes
    body: bytes
    qos: int
    id: int
    dup: bool
    retain: bool
    properties: bytes


def parse(data: bytes) -> list[Packet]:
    """Whole packets."""
    found = []
    at = 0
    while at < len(data):
        first = data[at]
        at += 1
        length = shift = 0
        while True:
            length |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 128:
                break
        assert at + length <= len(data)
        found.append(Packet(first, data[at : at + length]))
        at += length
    return found


def message(got: Packet, version: int) -> Message:
    """What is in a PUBLISH."""
    assert got.kind == PUBLISH
    n = int.from_bytes(got.body[:2], "big")
    topic, rest = got.body[2 : 2 + n], got.body[2 + n :]
    qos, id, properties = got.first >> 1 & 3, 0, b""
    if qos:
        id, rest = int.from_bytes(rest[:2], "big"), rest[2:]
    if version == 5:
        length = shift = at = 0
        while True:
            length |= (rest[at] & 127) << shift
            shift += 7
            at += 1
            if not rest[at - 1] & 128:
                break
        properties, rest = rest[at : at + length], rest[at + length :]
    return Message(
        topic, rest, qos, id, bool(got.first & 8), bool(got.first & 1), properties
    )  # fmt: skip


class Client:
    """One connection, with its session open."""

    def __init__(self, bench: MqttBench, name: str, version: int, **options: Any) -> None:
        self.bench = bench
        self.name = name
        self.version = version
        self.session = Session()
        ours, self.socket = socket.socketpair()
        for end in (ours, self.socket):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self._server = ours
        self.link = _core.MqttLink(bench.loop, ours.fileno(), _core.MQTT)
        self.link.session = self.session
        self.link.set_vhost(bench.vhost)
        self.queue = bench.queue(f"mqtt.{name}")
        self.options = options

    def open(self) -> Client:
        """As Python does when it has answered CONNECT."""
        self.link.mqtt_open(self.version, self.queue, self.bench.exchange, **self.options)
        self.bench.events.run()
        return self

    def subscribe(self, filter_: bytes, qos: int = 2, **options: Any) -> Client:
        """Bind the session."""
        self.bench.exchange.bind(
            filter_, b"", _core.Subscription(self.queue, qos, **options)
        )  # fmt: skip
        return self

    def send(self, data: bytes) -> None:
        """Have the broker read and answer."""
        while data:
            data = data[self.socket.send(data[: 1 << 20]) :]
            self.link.on_readable()
            self.link.drain()
            self.bench.events.run()

    def publish(self, topic: bytes, body: bytes = b"", **options: Any) -> None:
        """Send a PUBLISH of the version."""
        if self.version == 5:
            options.setdefault("properties", b"")
        self.send(publish(topic, body, **options))

    def raw(self) -> bytes:
        """What has come."""
        data = b""
        is_told = False  # that there is room in its socket
        while True:
            try:
                data += self.socket.recv(1 << 20)
                is_told = False
            except BlockingIOError:
                if is_told and not self.link.unsent_bytes:
                    return data
                is_told = True
                self.link.on_writable()
                self.bench.events.run()

    def heard(self) -> list[Packet]:
        """Packets that have come."""
        return parse(self.raw())

    def got(self) -> list[Message]:
        """The same when all are PUBLISH."""
        return [message(each, self.version) for each in self.heard()]

    def bodies(self) -> list[bytes]:
        """Of these."""
        return [each.body for each in self.got()]

    def close(self) -> None:
        """End the connection."""
        self.link.close()
        self._server.close()
        self.socket.close()
        self.bench.events.run()


class MqttBench:
    """A loop, an exchange of filters, and clients."""

    def __init__(
        self, directory: Path, events: FakeEvents | None = None, *, sync: bool = False
    ) -> None:
        self.directory = directory
        self.events = events or FakeEvents()
        self.failures: list[tuple[str, int]] = []
        self.loop = _core.Loop(
            self.events,  # type: ignore[arg-type]
            str(directory),
            sync,
            lambda path, error: self.failures.append((path, error)),
            lambda: None,
        )
        self.vhost = _core.Vhost()
        self.exchange = _core.Exchange(_core.FILTERS, 1)
        self.vhost.add(b"mqtt.default", self.exchange)
        self.queues: dict[str, _core.Queue] = {}
        self.clients: list[Client] = []

    def queue(self, name: str, durable: bool = True) -> _core.Queue:
        """The queue of a session, loaded from its directory."""
        if name not in self.queues:
            queue = _core.Queue(
                self.loop,
                str(self.directory / name),
                1 << 20,
                durable,
                name=name.encode(),
                vhost=self.vhost,
            )
            queue.load()
            self.queues[name] = queue
        return self.queues[name]

    def unopened(self, name: str = "a", version: int = 4, **options: Any) -> Client:
        """A connection that has said nothing."""
        client = Client(self, name, version, **options)
        self.clients.append(client)
        return client

    def client(self, name: str = "a", version: int = 4, **options: Any) -> Client:
        """A connection whose session is open."""
        return self.unopened(name, version, **options).open()

    def close(self) -> None:
        """End all."""
        for client in self.clients:
            client.close()
        self.loop.stop()
