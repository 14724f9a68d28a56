"""A hostile peer: sends any bytes, then reads frame by frame what the broker says to them.

Takes only the envelope of the answers apart, because their content may be echoed nonsense.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

HOST = "127.0.0.1"
ANSWER_TIMEOUT_S = 30.0
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_HEADER_SIZE = 7
FRAME_TYPES = (1, 2, 3, 8)
METHOD_FRAME = 1
CONNECTION_CLOSE = (10, 50)
CONNECTION_CLOSE_OK = (10, 51)
CHANNEL_CLOSE = (20, 40)
PROPER_CODES = {
    *(320, 402, 403, 404, 405, 406),
    *(501, 502, 503, 504, 505, 506, 530, 540),
}
"""What a broker may answer nonsense with; 541, an internal error, is a bug of the broker."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An answer of the broker."""

    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> tuple[int, int] | None:
        """Class and method id of a method frame."""
        return struct.unpack(">HH", self.payload[:4]) if self.kind == METHOD_FRAME else None

    @property
    def reply_code(self) -> int | None:
        """The code of a connection.close or channel.close."""
        if self.method not in (CONNECTION_CLOSE, CHANNEL_CLOSE):
            return None
        return int.from_bytes(self.payload[4:6], "big")

    @property
    def reply_text(self) -> str:
        """The text of a connection.close or channel.close."""
        return self.payload[7 : 7 + self.payload[6]].decode()


def converse(port: int, *writes: bytes) -> list[Frame]:
    """Send the bytes, end the sending side, and return all frames until the broker closes."""
    with socket.create_connection((HOST, port), ANSWER_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for data in writes:
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the broker was faster with its close; what it said is still to be read
        return list(_frames(_read_all(connection)))


def assert_proper(frames: list[Frame]) -> None:
    """Fail when a close carries no code for what the peer did, or when more follows."""
    for frame in frames:
        assert frame.reply_code in (None, *PROPER_CODES), f"{frame.reply_code} {frame.reply_text}"
    methods = [frame.method for frame in frames]
    if CONNECTION_CLOSE in methods:
        after = methods[methods.index(CONNECTION_CLOSE) + 1 :]
        # Closes that cross are answered; nothing else is.
        assert set(after) <= {CONNECTION_CLOSE_OK}, f"after connection.close came {after}"


def _read_all(connection: socket.socket) -> bytes:
    pieces = []
    try:
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    except ConnectionResetError:
        pass  # closed with some of our bytes unread
    return b"".join(pieces)


def _frames(data: bytes) -> Iterator[Frame]:
    if data[:4] == b"AMQP":
        assert data == PROTOCOL_HEADER
        return
    at = 0
    while at < len(data):
        kind, channel, size = struct.unpack(">BHI", data[at : at + FRAME_HEADER_SIZE])
        start, end = at + FRAME_HEADER_SIZE, at + FRAME_HEADER_SIZE + size
        assert kind in FRAME_TYPES, f"no frame at {at}: {data[at : at + 20].hex()}"
        assert data[end : end + 1] == b"\xce", f"frame at {at} is cut or does not end with 206"
        yield Frame(kind, channel, data[start:end])
        at = end + 1
