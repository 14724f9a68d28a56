"""SUBSCRIBE, UNSUBSCRIBE, DISCONNECT and AUTH: what a client that is connected asks for.

Each reader gets the whole packet without its fixed header, and raises PacketError for all that the
standards forbid. Sans I/O. Source: MQTT 5.0 sections 3.8, 3.10, 3.14, 3.15; 3.1.1 likewise.
"""

from __future__ import annotations

from collections.abc import Generator, Sized
from dataclasses import dataclass
from typing import Final, NamedTuple

from lavinmq.mqtt import filters, properties
from lavinmq.mqtt.codec import AUTH, DISCONNECT, SUBSCRIBE, UNSUBSCRIBE, V5, Reader
from lavinmq.mqtt.filters import Shared
from lavinmq.mqtt.properties import Properties
from lavinmq.mqtt.reasons import (
    SAID_BY_CLIENTS,
    PacketError,
    Reason,
    malformed,
    protocol_error,
    reason_of,
)

MOST_FILTERS: Final = 65_536
"""Of one packet: each is some hundred bytes while it is answered."""
_REQUEST_FLAGS: Final = 2
"""Of SUBSCRIBE and UNSUBSCRIBE."""
_QOS, _NO_LOCAL, _RETAIN_AS_PUBLISHED, _RETAIN_HANDLING, _RESERVED = 0x03, 0x04, 0x08, 0x30, 0xC0


class Wish(NamedTuple):
    """One subscription that a client wants. `filter`: as it came; `shared`: its parts, if it is
    a shared one; `retain_handling`: 0, retained messages come; 1, with a new subscription; 2, they
    do not."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    shared: Shared | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A SUBSCRIBE. `subscription_id`: 0 when there is none."""

    packet_id: int
    wishes: tuple[Wish, ...]
    subscription_id: int = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """An UNSUBSCRIBE."""

    packet_id: int
    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disconnect:
    """A DISCONNECT. `session_expiry_s`: None leaves that of CONNECT in force."""

    reason: Reason = Reason.SUCCESS
    session_expiry_s: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Auth:
    """An AUTH."""

    reason: Reason
    method: str
    data: bytes = b""


def subscribe(level: int, flags: int, body: bytes) -> Generator[None, None, Subscribe]:
    """Read a SUBSCRIBE, a topic filter in each step. Raises: PacketError."""
    reader, packet_id, asked = _begin(level, flags, body, SUBSCRIBE)
    wishes: list[Wish] = []
    while reader.left:
        _check_room(wishes)
        wishes.append(_wish(level, reader.text(), reader.byte()))
        yield
    if not wishes:
        raise protocol_error("SUBSCRIBE without a topic filter")
    return Subscribe(packet_id, tuple(wishes), asked.get(properties.SUBSCRIPTION_ID, 0))


def unsubscribe(level: int, flags: int, body: bytes) -> Generator[None, None, Unsubscribe]:
    """Read an UNSUBSCRIBE, a topic filter in each step. Raises: PacketError."""
    reader, packet_id, _ = _begin(level, flags, body, UNSUBSCRIBE)
    found: list[str] = []
    while reader.left:
        _check_room(found)
        found.append(reader.text())
        if not found[-1]:
            raise PacketError(
                Reason.TOPIC_FILTER_INVALID, "a topic filter has one character at least"
            )
        yield
    if not found:
        raise protocol_error("UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_id, tuple(found))


def disconnect(level: int, flags: int, body: bytes) -> Disconnect:
    """Read a DISCONNECT. Raises: PacketError."""
    _check_reserved(flags, "DISCONNECT")
    if level != V5:
        if body:
            raise malformed("DISCONNECT has no content")
        return Disconnect()
    reader = Reader(body)
    code = reader.byte() if reader.left else 0
    if code not in SAID_BY_CLIENTS:
        raise protocol_error(f"a client does not disconnect with reason {code}")
    given = _rest(reader, DISCONNECT)
    if properties.SERVER_REFERENCE in given:
        raise protocol_error("a client does not name another server")
    return Disconnect(
        reason_of(code),
        given.get(properties.SESSION_EXPIRY),
        given.get(properties.REASON_STRING, ""),
    )


def auth(level: int, flags: int, body: bytes) -> Auth:
    """Read an AUTH. Raises: PacketError."""
    if level != V5:
        raise malformed("AUTH came with version 5")
    _check_reserved(flags, "AUTH")
    reader = Reader(body)
    code = reader.byte() if reader.left else 0
    if code not in (Reason.CONTINUE_AUTHENTICATION, Reason.RE_AUTHENTICATE):
        raise protocol_error(f"a client does not send AUTH with reason {code}")
    given = _rest(reader, AUTH)
    if properties.AUTH_METHOD not in given:
        raise protocol_error("AUTH without an authentication method")
    return Auth(
        reason_of(code),
        given[properties.AUTH_METHOD],
        given.get(properties.AUTH_DATA, b""),
    )


def _begin(level: int, flags: int, body: bytes, kind: int) -> tuple[Reader, int, Properties]:
    """What SUBSCRIBE and UNSUBSCRIBE have in common: packet identifier and properties."""
    if flags != _REQUEST_FLAGS:
        raise malformed("wrong flags of SUBSCRIBE or UNSUBSCRIBE")
    reader = Reader(body)
    packet_id = reader.u16()
    if not packet_id:
        raise protocol_error("a packet identifier must not be 0")
    return reader, packet_id, properties.read(reader, kind) if level == V5 else properties.NONE


def _rest(reader: Reader, kind: int) -> Properties:
    """The properties at the end of a packet, which need not be there."""
    given = properties.read(reader, kind) if reader.left else properties.NONE
    if reader.left:
        raise malformed("there is more behind the end of a packet")
    return given


def _check_room(found: Sized) -> None:
    """Raises: PacketError 0x97."""
    if len(found) >= MOST_FILTERS:
        raise PacketError(
            Reason.QUOTA_EXCEEDED, f"a packet has {MOST_FILTERS} topic filters at most"
        )


def _check_reserved(flags: int, what: str) -> None:
    if flags:
        raise malformed(f"the flags of {what} are reserved")


def _wish(level: int, text: str, options: int) -> Wish:
    filters.check_filter(text)
    qos = options & _QOS
    if qos == _QOS:
        raise malformed("QoS 3 is wanted")
    parts = filters.shared(text)
    if level != V5:
        if options > _QOS:
            raise malformed("reserved bits beside a QoS are set")
        return Wish(text, qos, shared=parts)
    if options & _RESERVED:
        raise malformed("reserved options of a subscription are set")
    handling = (options & _RETAIN_HANDLING) >> 4
    if handling > 2:
        raise protocol_error("retain handling is 0, 1 or 2")
    if parts is not None and options & _NO_LOCAL:
        raise protocol_error("a shared subscription cannot leave out local messages")
    return Wish(
        text, qos, bool(options & _NO_LOCAL), bool(options & _RETAIN_AS_PUBLISHED), handling, parts
    )
