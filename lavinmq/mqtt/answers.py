"""What the broker says that is no message: CONNACK, SUBACK, UNSUBACK, DISCONNECT and AUTH as bytes.

Each in the form of its version; earlier ones have neither reasons nor properties, and no DISCONNECT
from here. Sans I/O. Source: MQTT 5.0 sections 3.2, 3.9, 3.11, 3.14, 3.15; 3.1.1 likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lavinmq.mqtt import codec, properties
from lavinmq.mqtt.codec import V5
from lavinmq.mqtt.properties import Properties
from lavinmq.mqtt.reasons import Reason, return_code

_FRESH: Final = codec.packet(codec.CONNACK, bytes([0, 0]))
_PRESENT: Final = codec.packet(codec.CONNACK, bytes([1, 0]))


def connack(
    level: int, *, session_present: bool = False, given: Properties = properties.NONE
) -> bytes:
    """The client may go on."""
    if level != V5:
        return _PRESENT if session_present else _FRESH
    return codec.packet(codec.CONNACK, bytes([session_present, 0]) + properties.write(given))


def connack_refused(level: int, reason: Reason, text: str = "", most: int = 0) -> bytes:
    """The client may not; empty where its version has no way to say so, or it takes too little.

    Args: text: for version 5, empty: none. most: bytes that the client takes, 0: any.
    """
    if level == V5:
        return _explained(codec.CONNACK, bytes([0, reason]), text, most)
    code = return_code(reason)
    return b"" if code is None else codec.packet(codec.CONNACK, bytes([0, code]))


def suback(level: int, packet_id: int, granted: Sequence[int]) -> bytes:
    """One code for each topic filter: the granted QoS, or why there is none. Before version 5 that
    is always 0x80."""
    head = packet_id.to_bytes(2, "big")
    if level == V5:
        return codec.packet(codec.SUBACK, head + properties.write(properties.NONE) + bytes(granted))
    return codec.packet(codec.SUBACK, head + bytes(min(code, 0x80) for code in granted))


def unsuback(level: int, packet_id: int, reasons: Sequence[int]) -> bytes:
    """One reason for each topic filter; before version 5 there are none."""
    head = packet_id.to_bytes(2, "big")
    if level == V5:
        head += properties.write(properties.NONE) + bytes(reasons)
    return codec.packet(codec.UNSUBACK, head)


def disconnect(level: int, reason: Reason, text: str = "", most: int = 0) -> bytes:
    """The broker is going to close; empty before version 5, and for who takes too little.

    Args: most: as of a refusal.
    """
    if level != V5:
        return b""
    return _explained(codec.DISCONNECT, bytes([reason]), text, most)


def auth(reason: Reason, method: str, data: bytes = b"") -> bytes:
    """The next step of an authentication, or its end."""
    given = {properties.AUTH_METHOD: method}
    if data:
        given |= {properties.AUTH_DATA: data}  # type: ignore[dict-item]
    return codec.packet(codec.AUTH, bytes([reason]) + properties.write(given))


def _explained(kind: int, head: bytes, text: str, most: int) -> bytes:
    """A packet that says why, without the words where it would be too large for the client; empty
    where it is too large without them."""
    given: Properties = {properties.REASON_STRING: text} if text else properties.NONE
    for each in (given, properties.NONE):
        packet = codec.packet(kind, head + properties.write(each))
        if not most or len(packet) <= most:
            return packet
    return b""
