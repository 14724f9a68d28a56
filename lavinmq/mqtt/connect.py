"""CONNECT: who a client says it is, and what it asks for; every version from one reader.

Its fields are found by compiled code, and judged here. What is wrong is said by a PacketError, and
by `Refused` where the client has to hear a CONNACK of its version. Sans I/O.
Source: MQTT 5.0 section 3.1, 3.1.1 section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple

from lavinmq import _core
from lavinmq.mqtt import filters, properties
from lavinmq.mqtt.codec import CONNECT, V5, V31, V311
from lavinmq.mqtt.properties import Properties
from lavinmq.mqtt.reasons import PacketError, Reason, malformed, protocol_error

MAX_CLIENT_ID: Final = 250
"""Bytes: with its prefix it is the name of a queue."""
NEVER: Final = 0xFFFFFFFF
"""The expiry of a session that has none."""

_NAMES: Final = {V31: b"MQIsdp", V311: b"MQTT", V5: b"MQTT"}
_RESERVED, _CLEAN, _WILL, _WILL_QOS, _WILL_RETAIN, _PASSWORD, _USER_NAME = (
    0x01, 0x02, 0x04, 0x18, 0x20, 0x40, 0x80,
)  # fmt: skip


class Refused(PacketError):
    """A client whose version is known, or told to take another, and who is told why by CONNACK.

    Args: version: that of the answer.
    """

    def __init__(self, version: int, reason: Reason, text: str = "") -> None:
        super().__init__(reason, text)
        self.version = version


@dataclass(frozen=True, slots=True)
class Will:
    """What is published for a client that goes without a word. `delay_s`: version 5 only;
    `expiry_s`: of the message, None: none; `properties`: without these two, as a block."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    delay_s: int = 0
    expiry_s: int | None = None
    properties: bytes = b""


def within(will: Will, most_s: int) -> Will:
    """The same, delayed for no longer than a session lives without its client."""
    return replace(will, delay_s=min(will.delay_s, most_s))


@dataclass(slots=True)  # frozen ones take thrice as long to make
class Connect:
    """What a client wants. `level`: 3, 4 or 5; `client_id`: may be empty; `user_name`, `password`:
    None when there is none."""

    level: int
    client_id: str
    clean: bool
    keep_alive_s: int
    user_name: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=dict)

    @property
    def session_expiry_s(self) -> int:
        """Seconds that its session lives without it. Before version 5 it is said by the flag: a
        clean session ends with the connection, any other is not limited by the client."""
        if self.level == V5:
            return int(self.properties.get(properties.SESSION_EXPIRY, 0))
        return 0 if self.clean else NEVER

    @property
    def receive_maximum(self) -> int:
        """Unacknowledged deliveries that it takes at a time."""
        return int(self.properties.get(properties.RECEIVE_MAXIMUM, 65535))

    @property
    def maximum_packet_size(self) -> int:
        """Bytes of the largest packet that it takes; 0: any."""
        return int(self.properties.get(properties.MAXIMUM_PACKET_SIZE, 0))

    @property
    def topic_alias_maximum(self) -> int:
        """How many topic aliases it takes."""
        return int(self.properties.get(properties.TOPIC_ALIAS_MAXIMUM, 0))

    @property
    def wants_reasons(self) -> bool:
        """Whether answers may have reason strings and user properties."""
        return bool(self.properties.get(properties.REQUEST_PROBLEM_INFORMATION, 1))


class Terms(NamedTuple):
    """What a connection goes by as long as it lives. Those of most clients are alike, and so the
    same: as attributes of each they would take 40 bytes more."""

    level: int
    keep_alive_s: int = 0
    expiry_s: int = 0
    """Seconds that the client wants its session to live without it."""
    receive_maximum: int = 0
    packet_maximum: int = 0
    """Bytes of the largest packet that the client takes; 0: any."""
    mechanism: str = ""
    """How it has logged in."""


FIRST: Final = Terms(V311)
"""Those before CONNECT."""


@lru_cache(maxsize=1024)
def alike(terms: Terms) -> Terms:
    """These terms, or those of before that are equal."""
    return terms


def terms(wanted: Connect, most_in_flight: int) -> Terms:
    """What a client has asked for, with so many unacknowledged deliveries at most."""
    return Terms(
        wanted.level, wanted.keep_alive_s, wanted.session_expiry_s,
        min(wanted.receive_maximum, most_in_flight), wanted.maximum_packet_size,
    )  # fmt: skip


def decode(flags: int, body: bytes) -> Connect:
    """Read a CONNECT. Raises: Refused, to be told; PacketError: the socket is closed silently."""
    if flags:
        raise malformed("the flags of CONNECT are reserved")
    (
        wrong, name, level, given, keep_alive_s, block, client_id, will_block, topic, payload,
        user_name, password,
    ) = _core.mqtt_connect(body)  # fmt: skip
    if name is not None and _NAMES.get(level) != name:
        raise _unknown(name, level)
    is_clean = bool(given & _CLEAN)
    try:
        if wrong is not None or client_id is None:
            raise malformed(wrong or "")
        _check_flags(given, level)
        asked = _asked(block) if block else properties.NONE
        will = None
        if topic is not None and payload is not None:
            will = _will(given, will_block, topic, payload)
        _check_client_id(client_id, level, is_clean=is_clean)
    except Refused:
        raise
    except PacketError as error:
        if level != V5:
            raise
        raise Refused(V5, error.reason, str(error)) from error
    return Connect(level, client_id, is_clean, keep_alive_s, user_name, password, will, asked)


def _unknown(name: bytes, level: int) -> Refused:
    """What to say to a version that is none of ours."""
    answer = V5 if name == b"MQTT" and level > V5 else V311
    return Refused(answer, Reason.UNSUPPORTED_VERSION, f"protocol {name[:20]!r}, level {level}")


def _asked(block: bytes) -> Properties:
    asked = properties.inside(block, CONNECT)
    if properties.AUTH_DATA in asked and properties.AUTH_METHOD not in asked:
        raise protocol_error("authentication data without a method")
    return asked


def _check_flags(flags: int, level: int) -> None:
    if flags & _RESERVED:
        raise malformed("the reserved flag of CONNECT is set")
    if not flags & _WILL and flags & (_WILL_QOS | _WILL_RETAIN):
        raise malformed("QoS or retain of a will that is not there")
    if flags & _WILL_QOS == _WILL_QOS:
        raise malformed("a will has QoS 0, 1 or 2")
    if level != V5 and flags & _PASSWORD and not flags & _USER_NAME:
        raise malformed("a password without a user name")


def _check_client_id(client_id: str, level: int, *, is_clean: bool) -> None:
    """Raises: Refused."""
    if len(client_id.encode()) > MAX_CLIENT_ID:
        raise Refused(
            level, Reason.CLIENT_ID_NOT_VALID,
            f"a client identifier has {MAX_CLIENT_ID} bytes at most",
        )  # fmt: skip
    if not client_id and (level == V31 or (level == V311 and not is_clean)):
        raise Refused(
            level, Reason.CLIENT_ID_NOT_VALID, "a session that is kept needs a client identifier"
        )


def _will(flags: int, block: bytes | None, topic: str, payload: bytes) -> Will:
    given = properties.inside(block, properties.WILL) if block else {}
    filters.check_topic(topic)
    delay_s = given.pop(properties.WILL_DELAY, 0)
    expiry_s = given.pop(properties.MESSAGE_EXPIRY, None)
    if properties.RESPONSE_TOPIC in given:
        filters.check_topic(given[properties.RESPONSE_TOPIC])
    kept = properties.block(given) if given else b""
    qos = (flags & _WILL_QOS) >> 3
    return Will(topic, payload, qos, bool(flags & _WILL_RETAIN), delay_s, expiry_s, kept)
