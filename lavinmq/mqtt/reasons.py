"""The reason codes of MQTT, in one table, and the return codes of earlier versions.

A reason says why: in acknowledgements, in CONNACK, and in the DISCONNECT that comes before a socket
is closed. What is raised for a client's packets carries one. Source: MQTT 5.0 section 2.4, 3.1.1
table 3.1; docs/mqtt.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Reason(IntEnum):
    """A reason code; `text` is what people read."""

    text: str

    def __new__(cls, code: int, text: str) -> Reason:
        """Make a member from its line of the table; `reason_of` looks one up by its code."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.text = text
        return member

    SUCCESS = 0x00, "success"
    GRANTED_QOS_1 = 0x01, "granted QoS 1"
    GRANTED_QOS_2 = 0x02, "granted QoS 2"
    DISCONNECT_WITH_WILL = 0x04, "disconnect with will message"
    NO_MATCHING_SUBSCRIBERS = 0x10, "no matching subscribers"
    NO_SUBSCRIPTION_EXISTED = 0x11, "no subscription existed"
    CONTINUE_AUTHENTICATION = 0x18, "continue authentication"
    RE_AUTHENTICATE = 0x19, "re-authenticate"
    UNSPECIFIED = 0x80, "unspecified error"
    MALFORMED_PACKET = 0x81, "malformed packet"
    PROTOCOL_ERROR = 0x82, "protocol error"
    IMPLEMENTATION_SPECIFIC = 0x83, "implementation specific error"
    UNSUPPORTED_VERSION = 0x84, "unsupported protocol version"
    CLIENT_ID_NOT_VALID = 0x85, "client identifier not valid"
    BAD_USER_NAME_OR_PASSWORD = 0x86, "bad user name or password"
    NOT_AUTHORIZED = 0x87, "not authorized"
    SERVER_UNAVAILABLE = 0x88, "server unavailable"
    SERVER_BUSY = 0x89, "server busy"
    BANNED = 0x8A, "banned"
    SERVER_SHUTTING_DOWN = 0x8B, "server shutting down"
    BAD_AUTHENTICATION_METHOD = 0x8C, "bad authentication method"
    KEEP_ALIVE_TIMEOUT = 0x8D, "keep alive timeout"
    SESSION_TAKEN_OVER = 0x8E, "session taken over"
    TOPIC_FILTER_INVALID = 0x8F, "topic filter invalid"
    TOPIC_NAME_INVALID = 0x90, "topic name invalid"
    PACKET_ID_IN_USE = 0x91, "packet identifier in use"
    PACKET_ID_NOT_FOUND = 0x92, "packet identifier not found"
    RECEIVE_MAXIMUM_EXCEEDED = 0x93, "receive maximum exceeded"
    TOPIC_ALIAS_INVALID = 0x94, "topic alias invalid"
    PACKET_TOO_LARGE = 0x95, "packet too large"
    MESSAGE_RATE_TOO_HIGH = 0x96, "message rate too high"
    QUOTA_EXCEEDED = 0x97, "quota exceeded"
    ADMINISTRATIVE_ACTION = 0x98, "administrative action"
    PAYLOAD_FORMAT_INVALID = 0x99, "payload format invalid"
    RETAIN_NOT_SUPPORTED = 0x9A, "retain not supported"
    QOS_NOT_SUPPORTED = 0x9B, "QoS not supported"
    USE_ANOTHER_SERVER = 0x9C, "use another server"
    SERVER_MOVED = 0x9D, "server moved"
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E, "shared subscriptions not supported"
    CONNECTION_RATE_EXCEEDED = 0x9F, "connection rate exceeded"
    MAXIMUM_CONNECT_TIME = 0xA0, "maximum connect time"
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1, "subscription identifiers not supported"
    WILDCARDS_NOT_SUPPORTED = 0xA2, "wildcard subscriptions not supported"


SAID_BY_CLIENTS: Final = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
)
"""What a client may give as its reason in DISCONNECT. Source: 5.0 table 3-10."""

ACCEPTED: Final = 0
BAD_VERSION: Final = 1
ID_REJECTED: Final = 2
UNAVAILABLE: Final = 3
NOT_AUTHORIZED: Final = 5
"""Return codes of CONNACK before version 5. 4 (bad user name or password) is never sent: like the
original, we tell nobody whether it was the password or the rights."""

_RETURN_CODES: Final = {
    Reason.SUCCESS: ACCEPTED,
    Reason.UNSUPPORTED_VERSION: BAD_VERSION,
    Reason.CLIENT_ID_NOT_VALID: ID_REJECTED,
    Reason.SERVER_UNAVAILABLE: UNAVAILABLE,
    Reason.SERVER_BUSY: UNAVAILABLE,
    Reason.SERVER_SHUTTING_DOWN: UNAVAILABLE,
    Reason.QUOTA_EXCEEDED: UNAVAILABLE,
    Reason.BAD_USER_NAME_OR_PASSWORD: NOT_AUTHORIZED,
    Reason.NOT_AUTHORIZED: NOT_AUTHORIZED,
}


def return_code(reason: Reason) -> int | None:
    """The return code of CONNACK by which 3.1 and 3.1.1 say it; None: the socket is closed without
    a word."""
    return _RETURN_CODES.get(reason)


def reason_of(code: int) -> Reason:
    """The member of a code. Raises: ValueError."""
    return Reason(code)  # type: ignore[call-arg]  # a look-up, not __new__


class PacketError(Exception):
    """A packet cannot be carried out: it ends the connection.

    Args: reason: what version 5 is told; text: what people are told.
    """

    def __init__(self, reason: Reason, text: str = "") -> None:
        super().__init__(text or reason.text)
        self.reason = reason


def malformed(text: str) -> PacketError:
    """What cannot be read as the standard wants it."""
    return PacketError(Reason.MALFORMED_PACKET, text)


def protocol_error(text: str) -> PacketError:
    """What can be read, and is not allowed there."""
    return PacketError(Reason.PROTOCOL_ERROR, text)
