"""A blocking AMQP socket for protocol tests: exact frames and raw bytes out, decoded units in.

Owns one TCP connection. Frames are pamqp objects or plain bytes, so a test can send what no
client library would. Never answers by itself (the `expect_…_close` methods say that they do), never
retries, and never hides what the broker sent.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from pamqp import base, body, commands, frame, header, heartbeat

from tests.support.patience import PATIENCE

HOST = "127.0.0.1"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_OVERHEAD = 8
FRAME_HEADER_SIZE = 7
TIMEOUT_S = 10.0 * PATIENCE
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}
CONTENT_METHODS = (
    commands.Basic.Deliver,
    commands.Basic.GetOk,
    commands.Basic.Return,
)

Method = TypeVar("Method", bound=base.Frame)
Decoded = base.Frame | header.ProtocolHeader | heartbeat.Heartbeat


class WireClosed(Exception):
    """The broker closed the socket while a unit was expected."""


class WireTimeout(Exception):
    """The expected unit did not arrive in time."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A method with its content, if it has one, as it came in on `channel`."""

    channel: int
    method: Decoded
    properties: commands.Basic.Properties | None = None
    body: bytes = b""


def encode(channel: int, *frames: frame.FrameTypes) -> bytes:
    """Return the frames as bytes, back to back."""
    return b"".join(frame.marshal(each, channel) for each in frames)


def raw_frame(frame_type: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """Return a frame with any content, right or wrong; the size field is that of `payload`."""
    return struct.pack(">BHI", frame_type, channel, len(payload)) + payload + end


def encode_publish(
    channel: int,
    exchange: str,
    routing_key: str,
    content: bytes,
    properties: commands.Basic.Properties | None = None,
    *,
    mandatory: bool = False,
    immediate: bool = False,
    frame_max: int = 131072,
) -> bytes:
    """Return basic.publish with its header and body frames as bytes."""
    publish = commands.Basic.Publish(
        exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate
    )
    step = frame_max - FRAME_OVERHEAD
    pieces = [content[start : start + step] for start in range(0, len(content), step)]
    return encode(
        channel,
        publish,
        header.ContentHeader(body_size=len(content), properties=properties),
        *(body.ContentBody(piece) for piece in pieces),
    )


class Wire:
    """One connection. `Wire(port)` only opens the socket; `Wire.open(port)` logs in as well."""

    def __init__(
        self, port: int, host: str = HOST, sock: socket.socket | None = None
    ) -> None:  # fmt: skip
        self._socket = sock or socket.create_connection((host, port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._contents: dict[int, _Content] = {}
        self._closed_by_broker = False
        self.frame_max = 131072

    @classmethod
    def open(
        cls,
        port: int,
        *,
        host: str = HOST,
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        channels: Iterable[int] = (1,),
        frame_max: int = 0,
        heartbeat_s: int = 0,
    ) -> Wire:
        """Return a connection that has finished the handshake and opened `channels`.

        `frame_max` 0 takes what the broker proposes.
        """
        wire = cls(port, host)
        try:
            wire.login(user, password, vhost, frame_max=frame_max, heartbeat_s=heartbeat_s)
            for channel in channels:
                wire.open_channel(channel)
        except BaseException:
            wire.close()
            raise
        return wire

    def login(
        self, user: str, password: str, vhost: str, *, frame_max: int = 0, heartbeat_s: int = 0
    ) -> commands.Connection.Tune:
        """Do the ordinary PLAIN handshake into `vhost`; return what the broker proposed."""
        self.send_bytes(PROTOCOL_HEADER)
        self.expect(commands.Connection.Start)
        start_ok = commands.Connection.StartOk(
            client_properties={"capabilities": dict(CAPABILITIES), "product": "wire"},
            mechanism="PLAIN",
            response=f"\0{user}\0{password}",
            locale="en_US",
        )
        tune = self.call(0, start_ok, commands.Connection.Tune)
        self.frame_max = frame_max or tune.frame_max
        tune_ok = commands.Connection.TuneOk(tune.channel_max, self.frame_max, heartbeat_s)
        self.send(0, tune_ok)
        self.call(0, commands.Connection.Open(virtual_host=vhost), commands.Connection.OpenOk)
        return tune

    def open_channel(self, channel: int) -> None:
        """Open a channel and wait for the answer."""
        self.call(channel, commands.Channel.Open(), commands.Channel.OpenOk)

    def send(self, channel: int, *frames: frame.FrameTypes) -> None:
        """Send frames in one write."""
        self.send_bytes(encode(channel, *frames))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are. A broker that has closed meanwhile shows when receiving."""
        try:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def publish(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        content: bytes,
        properties: commands.Basic.Properties | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        """Publish one message without waiting for anything."""
        self.send_bytes(
            encode_publish(
                channel,
                exchange,
                routing_key,
                content,
                properties,
                mandatory=mandatory,
                frame_max=self.frame_max,
            )
        )

    def call(self, channel: int, request: base.Frame, reply: type[Method]) -> Method:
        """Send a method and return its reply, which must be the next unit and of that type."""
        self.send(channel, request)
        unit = self.expect_unit(reply, channel)
        assert isinstance(unit.method, reply)
        return unit.method

    def expect(self, kind: type[Method], channel: int | None = None) -> Method:
        """Return the next unit's method, which must be of this type."""
        method = self.expect_unit(kind, channel).method
        assert isinstance(method, kind)
        return method

    def expect_unit(
        self, kind: type[Method], channel: int | None = None, timeout_s: float = TIMEOUT_S
    ) -> Unit:
        """Return the next unit, which must be of this type (and on this channel, if given)."""
        unit = self.receive(timeout_s)
        assert isinstance(unit.method, kind), f"wanted {kind.__name__}, got {_describe(unit)}"
        assert channel in (None, unit.channel), f"wanted channel {channel}, got {_describe(unit)}"
        return unit

    def receive(self, timeout_s: float = TIMEOUT_S) -> Unit:
        """Return the next unit. Raises WireTimeout, WireClosed."""
        deadline = time.monotonic() + timeout_s
        while True:
            unit = self._take_unit()
            if unit is not None:
                return unit
            if self._closed_by_broker:
                raise WireClosed
            if not self._fill(deadline - time.monotonic()) and not self._closed_by_broker:
                raise WireTimeout(f"nothing arrived within {timeout_s} s")

    def receive_all(self, quiet_s: float) -> list[Unit]:
        """Return what arrives until nothing does for `quiet_s` or the broker closes."""
        units = []
        while True:
            try:
                units.append(self.receive(quiet_s))
            except (WireTimeout, WireClosed):
                return units

    def expect_closed(self, timeout_s: float = TIMEOUT_S) -> list[Unit]:
        """Return the units that come before the broker closes the socket. Raises WireTimeout."""
        units = []
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                units.append(self.receive(deadline - time.monotonic()))
            except WireClosed:
                return units

    def expect_channel_close(self, channel: int, code: int) -> commands.Channel.Close:
        """Return the next unit, a channel.close with this code, after answering it."""
        close = self.expect(commands.Channel.Close, channel)
        assert close.reply_code == code, f"wanted {code}, got {close.reply_code} {close.reply_text}"
        self.send(channel, commands.Channel.CloseOk())
        return close

    def expect_connection_close(self, code: int) -> commands.Connection.Close:
        """Return the next unit, a connection.close with this code; the socket ends after it."""
        close = self.expect(commands.Connection.Close, 0)
        assert close.reply_code == code, f"wanted {code}, got {close.reply_code} {close.reply_text}"
        self.send(0, commands.Connection.CloseOk())
        left = self.expect_closed()
        assert not left, f"after connection.close: {[_describe(unit) for unit in left]}"
        return close

    def close(self) -> None:
        """Drop the socket without a word."""
        self._socket.close()

    def reset(self) -> None:
        """End with a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def _fill(self, timeout_s: float) -> bool:
        """Read once; tell whether bytes came."""
        poller = select.poll()  # not select(): the descriptor may be a large number
        poller.register(self._socket, select.POLLIN)
        if not poller.poll(max(0.0, timeout_s) * 1000):
            return False
        try:
            data = self._socket.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        self._closed_by_broker = not data
        self._buffer += data
        return bool(data)

    def _take_unit(self) -> Unit | None:
        while True:
            taken = self._take_frame()
            if taken is None:
                return None
            unit = self._assemble(*taken)
            if unit is not None:
                return unit

    def _take_frame(self) -> tuple[int, frame.FrameTypes] | None:
        if len(self._buffer) < FRAME_OVERHEAD:
            return None
        size = FRAME_OVERHEAD
        if self._buffer[:4] != b"AMQP":
            size += int.from_bytes(self._buffer[3:FRAME_HEADER_SIZE], "big")
        if len(self._buffer) < size:
            return None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        _, channel, decoded = frame.unmarshal(data)
        return channel, decoded

    def _assemble(self, channel: int, decoded: frame.FrameTypes) -> Unit | None:
        if isinstance(decoded, header.ContentHeader):
            self._contents[channel].start(decoded)
        elif isinstance(decoded, body.ContentBody):
            self._contents[channel].pieces.append(decoded.value or b"")
        elif isinstance(decoded, CONTENT_METHODS):
            self._contents[channel] = _Content(decoded)
            return None
        else:
            return Unit(channel, decoded)
        if not self._contents[channel].is_complete():
            return None
        return self._contents.pop(channel).unit(channel)


class _Content:
    """A content in the course of arriving on one channel."""

    def __init__(self, method: base.Frame) -> None:
        self._method = method
        self._properties: commands.Basic.Properties | None = None
        self._size = 0
        self.pieces: list[bytes] = []

    def start(self, content_header: header.ContentHeader) -> None:
        self._properties = content_header.properties
        self._size = content_header.body_size

    def is_complete(self) -> bool:
        return sum(map(len, self.pieces)) >= self._size

    def unit(self, channel: int) -> Unit:
        return Unit(channel, self._method, self._properties, b"".join(self.pieces))


def _describe(unit: Unit) -> str:
    method = unit.method
    fields = dict(method) if isinstance(method, base.Frame) else {}
    return f"{method.name} {fields} on channel {unit.channel}"
