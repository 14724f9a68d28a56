"""The message path without a broker: a loop that runs when told, and a link over a socket pair.

For unit tests of `lavinmq._core`: thousands of operations a second, no process, no timing. The
event loop is a list of callbacks; the session notes what it is told.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lavinmq import _core

FRAME_MAX = 131072
LONG_S = 10.0
"""A timer that runs longer does not go off in a test."""


class FakeEvents:
    """Just enough of an event loop: callbacks gather until `run`.

    Args: long_s: a timer that runs so long does not go off. One that goes off before its time, such
    as that of messages which expire, is set again, and again, until the time has come.
    """

    def __init__(self, long_s: float = LONG_S) -> None:
        self.ready: list[Callable[[], Any]] = []
        self._long_s = long_s
        self.readers: dict[str, int] = {}

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run it with the next `run`."""
        self.ready.append(partial(callback, *args))

    def call_later(self, delay_s: float, callback: Callable[[], Any]) -> FakeEvents:
        """Time does not pass here: the callback is called with the next `run`, or never."""
        if delay_s < self._long_s:
            self.ready.append(callback)
        return self

    def cancel(self) -> None:
        """Cancelled callbacks are harmless when called."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a session has raised fails the test."""
        raise context["exception"]

    def add_reader(self, fd: int, callback: Callable[[], Any]) -> None:
        """The test says when there is something to read."""
        self.readers[callback.__name__] = fd

    def remove_reader(self, _fd: int) -> bool:
        """See add_reader."""
        return True

    def run(self) -> None:
        """Run all callbacks, and those that they add."""
        while self.ready:
            self.ready.pop(0)()


class Timer:
    """A callback for later; `cancel` forgets it."""

    def __init__(self, at_s: float, callback: Callable[[], Any]) -> None:
        self.at_s = at_s
        self.callback: Callable[[], Any] | None = callback

    def cancel(self) -> None:
        """It is not called any more."""
        self.callback = None


class TimedEvents(FakeEvents):
    """Time passes when `advance` says so."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._timers: list[Timer] = []

    def call_later(self, delay_s: float, callback: Callable[[], Any]) -> Timer:  # type: ignore[override]
        """Call it when so much time has passed."""
        timer = Timer(self._now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    @property
    def pending(self) -> bool:
        """Whether anything is to be called later."""
        return any(timer.callback is not None for timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass, and call what is due meanwhile."""
        until_s = self._now_s + seconds
        while due := [timer for timer in self._timers if timer.at_s <= until_s]:
            timer = min(due, key=lambda each: each.at_s)
            self._timers.remove(timer)
            self._now_s = timer.at_s
            if timer.callback is not None:
                timer.callback()
            self.run()
        self._now_s = until_s


class Session:
    """Notes what the link tells it."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args: self.events.append((name, *args))


class Got(NamedTuple):
    """One delivery as the client sees it."""

    tag: int
    redelivered: bool
    routing_key: bytes
    properties: bytes
    body: bytes
    channel: int
    consumer: bytes
    """Its tag; empty for basic.get-ok."""


class Bench:
    """A loop, a vhost with a default exchange, and a client on channel 1."""

    def __init__(
        self, directory: Path, events: FakeEvents | None = None, *, sync: bool = False
    ) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.events = events or FakeEvents()
        self.failures: list[tuple[str, int]] = []
        self.loop = _core.Loop(
            self.events,
            str(directory),
            sync,
            lambda path, error: self.failures.append((path, error)),
            lambda: None,
        )
        self.vhost = _core.Vhost()
        self.exchange = _core.Exchange(_core.DIRECT, 1)
        self.vhost.add(b"", self.exchange)
        self.session = Session()
        ours, self.client = socket.socketpair()
        for end in (ours, self.client):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        self._server = ours
        self._queues: list[_core.Queue] = []  # what exchanges point at must live
        self.link = _core.Link(self.loop, ours.fileno(), _core.AMQP)
        self.link.session = self.session
        self.link.set_vhost(self.vhost)
        self.link.set_user(b"guest", False)
        self.link.set_limits(FRAME_MAX, 1 << 30, 0)
        self.link.state = _core.STATE_OPEN
        self.link.learn(b"", self.exchange)
        self.link.open_channel(1, 0)
        self._received = b""

    def close(self) -> None:
        """Close both ends."""
        self.link.close()
        self._server.close()
        self.client.close()

    @property
    def watched(self) -> int:
        """What the kernel looks for at the link's socket: EPOLLIN, EPOLLOUT, or 0."""
        info = Path(f"/proc/self/fdinfo/{self.events.readers['on_found']}").read_text()
        words = [line.split() for line in info.splitlines() if line.startswith("tfd:")]
        found = {int(each[1]): int(each[3], 16) for each in words}
        return found.get(self._server.fileno(), 0) & (select.EPOLLIN | select.EPOLLOUT)

    def narrow(self) -> None:
        """From now on the kernel takes little at once for the client."""
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)

    def queue(
        self,
        name: str,
        segment_size: int = 4096,
        durable: bool = True,
        *,
        max_priority: int = -1,
        **rules: Any,
    ) -> _core.Queue:
        """A queue bound to the default exchange by its name, loaded from its directory."""
        queue = _core.Queue(
            self.loop,
            str(self.directory / name),
            segment_size,
            durable,
            name=name.encode(),
            vhost=self.vhost,
            max_priority=max_priority,
        )
        if rules:
            queue.set_features(**rules)
        queue.load()
        self.exchange.bind(name.encode(), b"", queue)
        self._queues.append(queue)
        return queue

    def get(self, queue: _core.Queue, no_ack: bool = True) -> Got | None:
        """basic.get on channel 1."""
        if not self.link.get(1, queue, no_ack):
            return None
        self.link.flush()
        (got,) = self.receive()
        return got

    def advance(self, milliseconds: int) -> None:
        """Let time pass; needs TimedEvents."""
        assert isinstance(self.events, TimedEvents)
        self.loop.clock_offset_ms += milliseconds
        self.events.advance(milliseconds / 1000)
        self.run()

    def send(self, data: bytes) -> None:
        """Bytes from the client, walked at once; the tick waits for `run`."""
        while data:
            sent = self.client.send(data)
            data = data[sent:]
            self.link.drain()

    def run(self) -> None:
        """End the loop's iteration."""
        self.events.run()

    def receive(self) -> list[Got]:
        """All deliveries (basic.deliver and basic.get-ok) sent to the client so far."""
        while True:
            try:
                piece = self.client.recv(1 << 20)
            except BlockingIOError:
                if not self.link.unsent_bytes:
                    break
                self.link.on_writable()
                self.run()  # the body of a large message is sent in turns
                continue
            if not piece:
                break
            self._received += piece
        return list(self._deliveries())

    def _deliveries(self) -> Any:
        data, at, part = self._received, 0, None
        done = 0
        while at + 7 <= len(data):
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            assert data[at + 7 + size] == 0xCE, "frame end is missing"
            at += size + 8
            if kind == 1 and payload[:4] in (b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x47"):
                part = [_method(payload), None, 0, b""]
            elif kind == 2:
                part[2] = struct.unpack_from(">Q", payload, 4)[0]
                part[1] = payload[12:]
            elif kind == 3:
                part[3] += payload
            if part is not None and part[1] is not None and len(part[3]) == part[2]:
                tag, redelivered, key, consumer = part[0]
                yield Got(tag, redelivered, key, part[1], part[3], channel, consumer)
                part = None
            done = at
        self._received = data[done:]


def publish(key: bytes, body: bytes, properties: bytes = b"\0\0") -> bytes:
    """basic.publish to the default exchange with its content."""
    method = b"\0\x3c\0\x28\0\0\0" + bytes([len(key)]) + key + b"\0"
    header = b"\0\x3c\0\0" + struct.pack(">Q", len(body)) + properties
    step = FRAME_MAX - 8
    frames = [(1, method), (2, header)]
    frames += [(3, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join(frame(kind, payload) for kind, payload in frames)


def properties(
    *, priority: int | None = None, expiration: str | None = None, headers: bytes | None = None
) -> bytes:
    """Properties as they stand on the wire; `headers` is the content of a field table."""
    flags, values = 0, b""
    if headers is not None:
        flags, values = flags | 0x2000, values + struct.pack(">I", len(headers)) + headers
    if priority is not None:
        flags, values = flags | 0x0800, values + bytes([priority])
    if expiration is not None:
        flags, values = flags | 0x0100, values + bytes([len(expiration)]) + expiration.encode()
    return struct.pack(">H", flags) + values


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def settle(method: int, tag: int, flags: int, channel: int = 1) -> bytes:
    """basic.ack (80), basic.reject (90) or basic.nack (120)."""
    return frame(1, struct.pack(">HHQB", 60, method, tag, flags), channel)


def _method(payload: bytes) -> tuple[int, bool, bytes, bytes]:
    """Tag, redelivered, routing key and consumer of basic.deliver or basic.get-ok."""
    at, consumer = 4, b""
    if payload[3] == 0x3C:
        consumer = payload[5 : 5 + payload[4]]
        at += 1 + payload[at]
    tag, redelivered = struct.unpack_from(">QB", payload, at)
    at += 9
    at += 1 + payload[at]
    return tag, bool(redelivered), payload[at + 1 : at + 1 + payload[at]], consumer
