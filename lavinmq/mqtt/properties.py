"""The properties of MQTT 5, in one table: where each may stand, how often, and what it may be.

Read into a dictionary by number; what may come several times is a list. A block is read in one
step, so it is bounded, to what takes a millisecond. Blocks are only there in version 5.
Source: MQTT 5.0 section 2.2.2, table 2-4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lavinmq.mqtt import codec
from lavinmq.mqtt.codec import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Reader,
)
from lavinmq.mqtt.reasons import PacketError, Reason, malformed, protocol_error

WILL: Final = 0
"""In the place of a packet's type: the properties of a will."""

PAYLOAD_FORMAT: Final = 1
MESSAGE_EXPIRY: Final = 2
CONTENT_TYPE: Final = 3
RESPONSE_TOPIC: Final = 8
CORRELATION_DATA: Final = 9
SUBSCRIPTION_ID: Final = 11
SESSION_EXPIRY: Final = 17
ASSIGNED_CLIENT_ID: Final = 18
SERVER_KEEP_ALIVE: Final = 19
AUTH_METHOD: Final = 21
AUTH_DATA: Final = 22
REQUEST_PROBLEM_INFORMATION: Final = 23
WILL_DELAY: Final = 24
REQUEST_RESPONSE_INFORMATION: Final = 25
RESPONSE_INFORMATION: Final = 26
SERVER_REFERENCE: Final = 28
REASON_STRING: Final = 31
RECEIVE_MAXIMUM: Final = 33
TOPIC_ALIAS_MAXIMUM: Final = 34
TOPIC_ALIAS: Final = 35
MAXIMUM_QOS: Final = 36
RETAIN_AVAILABLE: Final = 37
USER_PROPERTY: Final = 38
MAXIMUM_PACKET_SIZE: Final = 39
WILDCARDS_AVAILABLE: Final = 40
SUBSCRIPTION_IDS_AVAILABLE: Final = 41
SHARED_AVAILABLE: Final = 42

Properties = Mapping[int, Any]
"""By number. A user property is a pair of texts; those that may come again are lists."""

NONE: Final[Properties] = MappingProxyType({})

MOST_USER_PROPERTIES: Final = 512
"""Of one block: each takes up to two microseconds."""
MOST_BYTES: Final = 262_144
"""Of a block in a packet that may be longer than CONNECT. What comes once has less together."""


class Form(NamedTuple):
    """How a value stands on the wire."""

    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]


def _number(size: int) -> Callable[[int], bytes]:
    return lambda value: value.to_bytes(size, "big")


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.text(), reader.text()


def _write_pair(pair: tuple[str, str]) -> bytes:
    return codec.text(pair[0]) + codec.text(pair[1])


BYTE: Final = Form(Reader.byte, _number(1))
U16: Final = Form(Reader.u16, _number(2))
U32: Final = Form(Reader.u32, _number(4))
VARINT: Final = Form(Reader.varint, codec.varint)
TEXT: Final = Form(Reader.text, codec.text)
BINARY: Final = Form(Reader.binary, codec.binary)
PAIR: Final = Form(_read_pair, _write_pair)


class Property(NamedTuple):
    """One row: `least` and `most` bound a number, `again` are places where it may be repeated."""

    name: str
    form: Form
    places: frozenset[int]
    again: frozenset[int] = frozenset()
    least: int = 0
    most: int | None = None


def _at(*places: int) -> frozenset[int]:
    return frozenset(places)


_ANSWERED: Final = (codec.PUBACK, codec.PUBREC, codec.PUBREL, codec.PUBCOMP)
_EXPLAINED: Final = _at(CONNACK, *_ANSWERED, SUBACK, UNSUBACK, DISCONNECT, AUTH)
_ANYWHERE: Final = _EXPLAINED | _at(CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE)
_UNUSED: Final = _at(SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH)
"""Where user properties are looked at and forgotten: nobody wants to know them."""

PROPERTIES: Final[Mapping[int, Property]] = {
    PAYLOAD_FORMAT: Property("payload format indicator", BYTE, _at(PUBLISH, WILL), most=1),
    MESSAGE_EXPIRY: Property("message expiry interval", U32, _at(PUBLISH, WILL)),
    CONTENT_TYPE: Property("content type", TEXT, _at(PUBLISH, WILL)),
    RESPONSE_TOPIC: Property("response topic", TEXT, _at(PUBLISH, WILL)),
    CORRELATION_DATA: Property("correlation data", BINARY, _at(PUBLISH, WILL)),
    SUBSCRIPTION_ID: Property(
        "subscription identifier", VARINT, _at(PUBLISH, SUBSCRIBE), _at(PUBLISH), least=1
    ),
    SESSION_EXPIRY: Property("session expiry interval", U32, _at(CONNECT, CONNACK, DISCONNECT)),
    ASSIGNED_CLIENT_ID: Property("assigned client identifier", TEXT, _at(CONNACK)),
    SERVER_KEEP_ALIVE: Property("server keep alive", U16, _at(CONNACK)),
    AUTH_METHOD: Property("authentication method", TEXT, _at(CONNECT, CONNACK, AUTH)),
    AUTH_DATA: Property("authentication data", BINARY, _at(CONNECT, CONNACK, AUTH)),
    REQUEST_PROBLEM_INFORMATION: Property(
        "request problem information", BYTE, _at(CONNECT), most=1
    ),
    WILL_DELAY: Property("will delay interval", U32, _at(WILL)),
    REQUEST_RESPONSE_INFORMATION: Property(
        "request response information", BYTE, _at(CONNECT), most=1
    ),
    RESPONSE_INFORMATION: Property("response information", TEXT, _at(CONNACK)),
    SERVER_REFERENCE: Property("server reference", TEXT, _at(CONNACK, DISCONNECT)),
    REASON_STRING: Property("reason string", TEXT, _EXPLAINED),
    RECEIVE_MAXIMUM: Property("receive maximum", U16, _at(CONNECT, CONNACK), least=1),
    TOPIC_ALIAS_MAXIMUM: Property("topic alias maximum", U16, _at(CONNECT, CONNACK)),
    TOPIC_ALIAS: Property("topic alias", U16, _at(PUBLISH)),
    MAXIMUM_QOS: Property("maximum QoS", BYTE, _at(CONNACK), most=1),
    RETAIN_AVAILABLE: Property("retain available", BYTE, _at(CONNACK), most=1),
    USER_PROPERTY: Property("user property", PAIR, _ANYWHERE, _ANYWHERE),
    MAXIMUM_PACKET_SIZE: Property("maximum packet size", U32, _at(CONNECT, CONNACK), least=1),
    WILDCARDS_AVAILABLE: Property("wildcard subscription available", BYTE, _at(CONNACK), most=1),
    SUBSCRIPTION_IDS_AVAILABLE: Property(
        "subscription identifier available", BYTE, _at(CONNACK), most=1
    ),
    SHARED_AVAILABLE: Property("shared subscription available", BYTE, _at(CONNACK), most=1),
}
"""By number."""


def read(reader: Reader, place: int) -> dict[int, Any]:
    """Read a block with its length. Raises: PacketError; 0x97: there is too much in it.

    Args: place: the type of the packet, or WILL.
    """
    block = reader.part(reader.varint())
    if block.left > MOST_BYTES:
        raise _quota(f"the properties of a packet have {MOST_BYTES} bytes at most")
    return _found(block, place)


def inside(block: bytes, place: int) -> dict[int, Any]:
    """Read a block without its length. The rest as `read`."""
    return _found(Reader(block), place)


def _found(block: Reader, place: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    n_user = 0
    while block.left:
        number = block.varint()
        row = PROPERTIES.get(number)
        if row is None:
            raise malformed(f"there is no property {number}")
        if place not in row.places:
            raise protocol_error(f"{row.name} has no place in this packet")
        value = row.form.read(block)
        if isinstance(value, int):
            _check(row, value)
        if number == USER_PROPERTY:
            n_user += 1
            if n_user > MOST_USER_PROPERTIES:
                raise _quota(f"a packet has {MOST_USER_PROPERTIES} user properties at most")
            if place in _UNUSED:
                continue
        if place in row.again:
            found.setdefault(number, []).append(value)
        elif number in found:
            raise protocol_error(f"{row.name} comes twice")
        else:
            found[number] = value
    return found


def _quota(text: str) -> PacketError:
    return PacketError(Reason.QUOTA_EXCEEDED, text)


def _check(row: Property, value: int) -> None:
    if value < row.least or (row.most is not None and value > row.most):
        raise protocol_error(f"{row.name} must not be {value}")


def block(properties: Properties) -> bytes:
    """Properties without the length of all. Raises: OverflowError, where a value does not fit."""
    out = bytearray()
    for number, value in properties.items():
        row = PROPERTIES[number]
        for each in value if isinstance(value, list) else (value,):
            out += codec.varint(number) + row.form.write(each)
    return bytes(out)


def write(properties: Properties) -> bytes:
    """A block with its length. Raises: OverflowError, where a value does not fit."""
    return codec.binary_varint(block(properties))
