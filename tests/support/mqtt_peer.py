"""A client of MQTT made of a socket: it sends what it is told, and reads packets as they come."""

from __future__ import annotations

import socket
from collections import deque
from types import TracebackType
from typing import NamedTuple, Self

from tests.support import mqtt_bytes
from tests.support.mqtt_bytes import V5, V311
from tests.support.patience import PATIENCE

TIMEOUT_S = 10.0 * PATIENCE
PUBLISH = 3
PUBREL = 6
PUBCOMP = 7


class Packet(NamedTuple):
    """One packet: its type, its flags, what follows the fixed header."""

    kind: int
    flags: int
    body: bytes


class Message(NamedTuple):
    """A PUBLISH that came."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: bytes = b""


class Peer:
    """One connection.

    Args: level: the version that it speaks. completes: whether it answers a PUBREL for a message
        that an earlier connection of the client had; to another peer that is an error.
    """

    def __init__(
        self, port: int, level: int = V311, sock: socket.socket | None = None,
        *, completes: bool = False,
    ) -> None:  # fmt: skip
        self.level = level
        self._completes = completes
        self.socket = sock or socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.settimeout(TIMEOUT_S)
        self._left = b""
        self._early: deque[Packet] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def read(self) -> Packet | None:
        """The next packet; None: the broker has closed. Raises: TimeoutError."""
        while (whole := self._whole()) is None:
            data = self._receive()
            if not data:
                return None
            self._left += data
        packet, self._left = whole
        return packet

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""

    def _whole(self) -> tuple[Packet, bytes] | None:
        length, shift, at = 0, 0, 1
        while True:
            if at >= len(self._left):
                return None
            byte = self._left[at]
            length |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        if len(self._left) < at + length:
            return None
        first = self._left[0]
        packet = Packet(first >> 4, first & 15, self._left[at : at + length])
        return packet, self._left[at + length :]

    def has_silence(self, seconds: float = 0.3) -> bool:
        """Whether nothing comes for so long."""
        self.socket.settimeout(seconds)
        try:
            return self.read() is None and False
        except TimeoutError:
            return not self._left
        finally:
            self.socket.settimeout(TIMEOUT_S)

    def connect(self, client_id: str = "c", **more: object) -> bytes:
        """Send CONNECT. Returns: the body of CONNACK."""
        self.send(mqtt_bytes.connect(self.level, client_id, **more))  # type: ignore[arg-type]
        packet = self.read()
        assert packet is not None, "closed without CONNACK"
        assert (packet.kind, packet.flags) == (2, 0)
        return packet.body

    def subscribe(self, *wishes: tuple[str, int], packet_id: int = 1, **more: object) -> list[int]:
        """Send SUBSCRIBE. Returns: the codes of SUBACK."""
        self.send(mqtt_bytes.subscribe(self.level, packet_id, *wishes, **more))  # type: ignore[arg-type]
        packet = self.expect(9)
        assert packet.body[:2] == packet_id.to_bytes(2, "big")
        return list(packet.body[3 if self.level == V5 else 2 :])

    def unsubscribe(self, *filters: str, packet_id: int = 1) -> list[int]:
        """Send UNSUBSCRIBE. Returns: the reasons of UNSUBACK, which has none before version 5."""
        self.send(mqtt_bytes.unsubscribe(self.level, packet_id, *filters))
        packet = self.expect(11)
        assert packet.body[:2] == packet_id.to_bytes(2, "big")
        return list(packet.body[3 if self.level == V5 else 2 :])

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **more: object) -> None:
        """Publish and wait for what has to be waited for. QoS 0, 1 or 2, packet identifier 7."""
        packet_id = 7 if qos else 0
        self.send(
            mqtt_bytes.publish(self.level, topic, payload, qos=qos, packet_id=packet_id, **more)  # type: ignore[arg-type]
        )
        if qos == 1:
            assert self.expect(4).body[:2] == b"\0\7"
        if qos == 2:
            assert self.expect(5).body[:2] == b"\0\7"
            self.send(mqtt_bytes.packet(6, b"\0\7", 2))
            assert self.expect(7).body[:2] == b"\0\7"

    def expect(self, kind: int) -> Packet:
        """The next packet of a type. Messages that come before it are for later, all else fails."""
        if kind == PUBLISH and self._early:
            return self._early.popleft()
        while True:
            packet = self.read()
            assert packet is not None, f"closed where a packet of type {kind} was expected"
            if packet.kind == kind:
                return packet
            if packet.kind == PUBREL and self._completes:
                self.send(mqtt_bytes.packet(PUBCOMP, packet.body[:2]))
                continue
            assert packet.kind == PUBLISH, packet
            self._early.append(packet)

    def message(self, *, is_acked: bool = True) -> Message:
        """The next message, which is acknowledged unless said otherwise."""
        packet = self.expect(PUBLISH)
        qos = packet.flags >> 1 & 3
        n = int.from_bytes(packet.body[:2], "big")
        topic, at, packet_id = packet.body[2 : 2 + n].decode(), 2 + n, 0
        if qos:
            packet_id = int.from_bytes(packet.body[at : at + 2], "big")
            at += 2
        properties = b""
        if self.level == V5:
            length = packet.body[at]  # short ones only
            properties = packet.body[at + 1 : at + 1 + length]
            at += 1 + length
        found = Message(
            topic, packet.body[at:], qos, bool(packet.flags & 1), bool(packet.flags & 8),
            packet_id, properties,
        )  # fmt: skip
        if qos == 1 and is_acked:
            self.send(mqtt_bytes.packet(4, packet_id.to_bytes(2, "big")))
        if qos == 2 and is_acked:
            self.send(mqtt_bytes.packet(5, packet_id.to_bytes(2, "big")))
            assert self.expect(6).body[:2] == packet_id.to_bytes(2, "big")
            self.send(mqtt_bytes.packet(7, packet_id.to_bytes(2, "big")))
        return found

    def early_messages(self) -> list[Message]:
        """Those that have come before what was expected; they are acknowledged."""
        return [self.message() for _ in range(len(self._early))]

    def ping(self) -> None:
        """PINGREQ and its answer: all that was sent before is done."""
        self.send(b"\xc0\0")
        self.expect(13)

    def disconnect(self, body: bytes = b"") -> None:
        """Send DISCONNECT, and wait for the end."""
        self.send(mqtt_bytes.packet(14, body))
        assert self.read() is None

    def reason_of_end(self) -> int | None:
        """The reason of the DISCONNECT that comes; None: the socket is closed without."""
        packet = self.read()
        if packet is None:
            return None
        assert packet.kind == 14, packet
        assert self.read() is None
        return packet.body[0] if packet.body else 0
