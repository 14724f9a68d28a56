"""The parts that MQTT packets are made of: numbers, texts and lengths, read and written.

A `Reader` is a cursor over the body of one packet; every read looks at what is left first. Sans
I/O; no packet is known here. Source: MQTT 5.0 section 1.5, 3.1.1 section 1.5.
"""

from __future__ import annotations

from typing import Final

from lavinmq.mqtt.reasons import malformed

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)
"""Types of packets."""

V31: Final = 3
V311: Final = 4
V5: Final = 5
"""Protocol levels."""

VERSIONS: Final = {V31: "MQTT 3.1", V311: "MQTT 3.1.1", V5: "MQTT 5.0"}
"""What people call them."""

MAX_VARINT: Final = 268_435_455
"""Largest number of four bytes with seven bits each."""


class Reader:
    """What is left of a packet's body. Every read raises PacketError 0x81 when there is less."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, start: int = 0, end: int | None = None) -> None:
        self._data = data
        self._at = start
        self._end = len(data) if end is None else end

    @property
    def left(self) -> int:
        """Bytes that were not read."""
        return self._end - self._at

    def raw(self, n: int) -> bytes:
        """The next n bytes."""
        if n > self._end - self._at:
            raise malformed("the packet ends in the middle of a field")
        self._at += n
        return self._data[self._at - n : self._at]

    def byte(self) -> int:
        """One byte."""
        return self.raw(1)[0]

    def u16(self) -> int:
        """A number of two bytes."""
        return int.from_bytes(self.raw(2), "big")

    def u32(self) -> int:
        """A number of four bytes."""
        return int.from_bytes(self.raw(4), "big")

    def varint(self) -> int:
        """A number of one to four bytes, written as short as can be."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and byte == 0:
                    raise malformed("a variable byte integer is longer than it has to be")
                return value
        raise malformed("a variable byte integer has more than four bytes")

    def binary(self) -> bytes:
        """Bytes behind their length."""
        return self.raw(self.u16())

    def text(self) -> str:
        """UTF-8 behind its length, without U+0000."""
        return text_of(self.binary())

    def part(self, n: int) -> Reader:
        """A reader of the next n bytes, which are read here."""
        if n > self.left:
            raise malformed("a block is longer than the packet")
        self._at += n
        return Reader(self._data, self._at - n, self._at)


def text_of(raw: bytes) -> str:
    """A text as MQTT allows it. Raises: PacketError 0x81."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise malformed("a text is not UTF-8") from None
    if "\0" in text:
        raise malformed("a text has U+0000 in it")
    return text


_SHORT: Final = [bytes([value]) for value in range(0x80)]


def varint(value: int) -> bytes:
    """A number of one to four bytes. Raises: ValueError."""
    if not 0 <= value <= MAX_VARINT:
        raise ValueError(f"{value} does not fit a variable byte integer")
    if value <= 0x7F:
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def binary(data: bytes) -> bytes:
    """Bytes behind their length. Raises: OverflowError above 65 535."""
    return len(data).to_bytes(2, "big") + data


def binary_varint(data: bytes) -> bytes:
    """Bytes behind a length that is a variable byte integer."""
    return varint(len(data)) + data


def text(value: str) -> bytes:
    """UTF-8 behind its length. Raises: OverflowError above 65 535 bytes."""
    return binary(value.encode())


def packet(kind: int, body: bytes, flags: int = 0) -> bytes:
    """A whole packet."""
    return bytes([kind << 4 | flags]) + binary_varint(body)
