"""AMQP 0-9-1 frames by pamqp: encoders, a frame reader, and the errors of a peer.

For tests and perf/, below `tests.support.raw_connection` and in peers that play a broker: another
opinion than that of our own codecs. Bytes in, values out: nothing here touches a socket.

Source: AMQP 0-9-1 specification, section 4.2; field types by pamqp.
"""

import struct
from typing import Any, NamedTuple, TypeVar

from pamqp import base, commands, encode, frame, header
from pamqp.exceptions import PAMQPException

FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT, FRAME_END = 1, 2, 3, 8, 0xCE
FRAME_OVERHEAD = 8  # type, channel, size and end byte
FRAME_MAX = 131072
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = (
    *("publisher_confirms", "basic.nack", "consumer_cancel_notify"),
    "authentication_failure_close",
)
DECODE_ERRORS = (PAMQPException, ValueError, struct.error, IndexError, KeyError)

Properties = commands.Basic.Properties
M = TypeVar("M", bound=base.Frame)


class ClientError(Exception):
    """Anything that ends an operation, a channel or a connection."""


class ConnectionLost(ClientError):
    """The peer went away, or did not answer in time."""


class NoAnswer(ConnectionLost):
    """The peer is there, as far as we know, but said nothing in time."""


class ProtocolViolation(ClientError):
    """The peer sent what AMQP does not allow."""


class Closed(ClientError):
    """The peer closed with a reply: `code`, `text` and the offending `class_id`, `method_id`."""

    def __init__(self, code: int, text: str, class_id: int, method_id: int) -> None:
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text
        self.class_id, self.method_id = class_id, method_id


class ConnectionClosed(Closed):
    """The peer sent connection.close."""


class ChannelClosed(Closed):
    """The peer sent channel.close; the connection is still open."""


class ConsumerCancelled(ClientError):
    """The peer sent basic.cancel, as it does when the queue is deleted."""


class RawFrame(NamedTuple):
    """One frame as read: kind, channel and payload without the end byte."""

    kind: int
    channel: int
    payload: bytes


def build(cls: type[M], **fields: Any) -> M:
    """Make a method of `cls` without the codec's name checks: the broker judges names."""
    method = cls()
    for name, value in fields.items():
        setattr(method, name, value)
    return method


def start_ok(user: str, password: str, name: str = "") -> commands.Connection.StartOk:
    """Make the method that says who the client is; `name` is shown by the broker."""
    properties: dict[str, Any] = {
        "product": "lavinmq client",
        "capabilities": dict.fromkeys(CAPABILITIES, True),
    }
    if name:
        properties["connection_name"] = name
    response = f"\0{user}\0{password}"
    return build(commands.Connection.StartOk, client_properties=properties, response=response)


def encode_method(channel: int, method: base.Frame) -> bytes:
    """Encode one method frame. Raises: ValueError when a field does not fit its type."""
    payload = bytearray(method.index.to_bytes(4, "big"))
    bits: list[bool] = []
    try:
        for name in method.attributes():
            value, kind = getattr(method, name), method.amqp_type(name)
            if kind == "bit":
                bits.append(bool(value))
                continue
            payload += _pack_bits(bits)
            payload += encode.by_type(value, kind)
    except (TypeError, struct.error) as error:
        raise ValueError(f"cannot encode {name} of {method.name}: {error}") from error
    payload += _pack_bits(bits)
    return _encode_frame(FRAME_METHOD, channel, bytes(payload))


def encode_content(channel: int, properties: Properties, body: bytes, frame_max: int) -> bytes:
    """Encode a content header and as many body frames as `frame_max` asks for.

    Raises: ValueError when a property does not fit its type.
    """
    try:
        head = header.ContentHeader(body_size=len(body), properties=properties).marshal()
    except (TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"cannot encode properties: {error}") from error
    frames = [_encode_frame(FRAME_HEADER, channel, head)]
    chunk = frame_max - FRAME_OVERHEAD
    for at in range(0, len(body), chunk):
        frames.append(_encode_frame(FRAME_BODY, channel, body[at : at + chunk]))
    return b"".join(frames)


def decode_close(payload: bytes) -> Closed:
    """Turn the payload of connection.close or channel.close into the exception to raise."""
    try:
        code, length = struct.unpack_from(">HB", payload, 4)
        text = payload[7 : 7 + length].decode("utf-8", "replace")
        class_id, method_id = struct.unpack_from(">HH", payload, 7 + length)
    except struct.error as error:
        raise ProtocolViolation("truncated close method") from error
    is_channel = payload[:4] == commands.Channel.Close.index.to_bytes(4, "big")
    return (ChannelClosed if is_channel else ConnectionClosed)(code, text, class_id, method_id)


def _encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _pack_bits(bits: list[bool]) -> bytes:
    """Pack and forget the bit fields met so far, first field in the lowest bit."""
    packed = sum(bit << at for at, bit in enumerate(bits)).to_bytes((len(bits) + 7) // 8, "little")
    bits.clear()
    return packed


def decode_method(payload: bytes) -> base.Frame:
    """Decode a method payload. Raises: ProtocolViolation."""
    try:
        method = frame.unmarshal(_encode_frame(FRAME_METHOD, 0, payload))[2]
    except DECODE_ERRORS as error:
        raise ProtocolViolation(f"undecodable method {payload[:4].hex()}: {error}") from error
    assert isinstance(method, base.Frame)
    return method


class FrameReader:
    """Cuts a byte stream into frames, however it was split; holds at most what was fed."""

    def __init__(self, frame_max: int = FRAME_MAX) -> None:
        self._buffer = bytearray()
        self._at = 0
        self.frame_max = frame_max

    def feed(self, data: bytes) -> None:
        """Append bytes of the stream."""
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def next(self) -> RawFrame | None:
        """Return the next whole frame or None. Raises: ProtocolViolation."""
        if len(self._buffer) - self._at < FRAME_OVERHEAD:
            return None
        kind, channel, size = struct.unpack_from(">BHI", self._buffer, self._at)
        if size > self.frame_max:
            raise ProtocolViolation(f"frame size {size} exceeds {self.frame_max}")
        start = self._at + 7
        if len(self._buffer) <= start + size:
            return None
        if self._buffer[start + size] != FRAME_END:
            raise ProtocolViolation(f"frame end was {self._buffer[start + size]}, expected 206")
        self._at = start + size + 1
        return RawFrame(kind, channel, bytes(self._buffer[start : start + size]))

    def take(self) -> bytes:
        """Return, and forget, the bytes that are not cut into frames yet."""
        rest = bytes(self._buffer[self._at :])
        self._buffer.clear()
        self._at = 0
        return rest
