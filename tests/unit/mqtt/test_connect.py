"""CONNECT: what is read, and what is refused in which way, for each version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.mqtt import connect, properties
from lavinmq.mqtt.connect import NEVER, Connect, Refused, Will
from lavinmq.mqtt.reasons import PacketError, Reason
from tests.support.mqtt_bytes import V5, V31, V311, block, connect_body, text

VERSIONS = (V31, V311, V5)


def refused(body: bytes, flags: int = 0) -> tuple[int, Reason]:
    """Version and reason of the CONNACK that is due."""
    with pytest.raises(Refused) as caught:
        connect.decode(flags, body)
    return caught.value.version, caught.value.reason


def is_silent(body: bytes, flags: int = 0) -> bool:
    """Whether the socket is closed without a CONNACK."""
    with pytest.raises(PacketError) as caught:
        connect.decode(flags, body)
    return not isinstance(caught.value, Refused)


def fails(level: int, body: bytes, reason: Reason = Reason.MALFORMED_PACKET) -> None:
    """A mistake: version 5 is told which, earlier ones are not."""
    if level == V5:
        assert refused(body) == (V5, reason)
    else:
        assert is_silent(body)


@pytest.mark.parametrize("level", VERSIONS)
def test_all_fields_are_read(level: int) -> None:
    """3.1.1 [MQTT-3.1.2-9], [MQTT-3.1.2-19], [MQTT-3.1.2-21], [MQTT-3.1.3-1], [MQTT-3.1.3-3], 5.0
    [MQTT-3.1.2-9], [MQTT-3.1.3-1], [MQTT-3.1.3-3]: the payload has client identifier, will, user
    name and password in this order."""
    will = (block() if level == V5 else b"") + text("w/t") + text(b"\0gone")
    body = connect_body(
        level, "å", flags=0x04 | 1 << 3 | 0x20 | 0x80 | 0x40, keep_alive=300,
        rest=will + text("user") + text(b"\xffpw"),
    )  # fmt: skip
    found = connect.decode(0, body)
    assert found == Connect(
        level, "å", False, 300, "user", b"\xffpw", Will("w/t", b"\0gone", 1, True), {}
    )


def test_properties_of_connect_and_will_are_read() -> None:
    """5.0 sections 3.1.2.11 and 3.1.3.2: all properties of CONNECT and of its will.
    [MQTT-3.1.3-10]: user properties of a will are kept as they came."""
    asked = block(
        b"\x11\0\0\0\x0a", b"\x21\0\x14", b"\x27\0\0\x10\0", b"\x22\0\x07", b"\x19\1", b"\x17\0",
        b"\x26" + text("k") + text("v"), b"\x26" + text("k") + text("w"),
        b"\x15" + text("SCRAM"), b"\x16" + text(b"\1"),
    )  # fmt: skip
    will = block(
        b"\x18\0\0\0\x05", b"\x01\x01", b"\x02\0\0\0\x63", b"\x03" + text("text/plain"),
        b"\x08" + text("r/t"), b"\x09" + text(b"\2"), b"\x26" + text("a") + text("b"),
    )  # fmt: skip
    body = connect_body(
        V5, "c", flags=0x04, properties=asked, rest=will + text("w") + text(b"gone")
    )
    found = connect.decode(0, body)
    assert found.session_expiry_s == 10
    assert found.receive_maximum == 20
    assert found.maximum_packet_size == 4096
    assert found.topic_alias_maximum == 7
    assert not found.wants_reasons
    assert found.properties[properties.USER_PROPERTY] == [("k", "v"), ("k", "w")]
    assert found.will is not None
    assert (found.will.delay_s, found.will.expiry_s) == (5, 99)
    kept = b"\x01\x01" + b"\x03" + text("text/plain") + b"\x08" + text("r/t")
    assert found.will.properties == kept + b"\x09" + text(b"\2") + b"\x26" + text("a") + text("b")


def test_defaults_of_version_5() -> None:
    """5.0 section 3.1.2.11: what a client does not say has the defaults of the standard."""
    found = connect.decode(0, connect_body(V5))
    assert (found.session_expiry_s, found.receive_maximum) == (0, 65535)
    assert (found.maximum_packet_size, found.topic_alias_maximum) == (0, 0)
    assert found.wants_reasons


@pytest.mark.parametrize("level", [V31, V311])
def test_a_session_that_is_not_clean_is_kept(level: int) -> None:
    """3.1.1 [MQTT-3.1.2-4]: the flag says whether state is kept."""
    assert connect.decode(0, connect_body(level, flags=0)).session_expiry_s == NEVER
    assert connect.decode(0, connect_body(level, flags=2)).session_expiry_s == 0


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [("MQTT", 0, V311), ("MQTT", 3, V311), ("MQIsdp", 4, V311), ("MQIsdp", 5, V311),
     ("mqtt", 4, V311), ("HTTP", 4, V311), ("MQTT", 6, V5), ("MQTT", 0x84, V5)],
)  # fmt: skip
def test_another_protocol_is_told_so(name: str, level: int, answer: int) -> None:
    """3.1.1 [MQTT-3.1.2-1], [MQTT-3.1.2-2], 5.0 [MQTT-3.1.2-1], [MQTT-3.1.2-2]."""
    body = text(name) + bytes([level, 2]) + b"\0\0" + text("c")
    assert refused(body) == (answer, Reason.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("level", VERSIONS)
def test_flags_of_the_fixed_header_are_zero(level: int) -> None:
    """3.1.1 [MQTT-2.2.2-2], 5.0 [MQTT-2.1.3-1]."""
    assert is_silent(connect_body(level), flags=1)


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(0x01, id="3.1.1 [MQTT-3.1.2-3], 5.0 [MQTT-3.1.2-3]"),
        pytest.param(0x08, id="3.1.1 [MQTT-3.1.2-13], 5.0 [MQTT-3.1.2-11]"),
        pytest.param(0x20, id="3.1.1 [MQTT-3.1.2-15], 5.0 [MQTT-3.1.2-13]"),
        pytest.param(0x1C, id="3.1.1 [MQTT-3.1.2-14], 5.0 [MQTT-3.1.2-12]"),
    ],
)
def test_flags_that_cannot_be(level: int, flags: int) -> None:
    """3.1.1 [MQTT-3.1.2-3], [MQTT-3.1.2-11], [MQTT-3.1.2-13], [MQTT-3.1.2-14], [MQTT-3.1.2-15],
    5.0 [MQTT-3.1.2-3], [MQTT-3.1.2-11], [MQTT-3.1.2-12], [MQTT-3.1.2-13]."""
    fails(level, connect_body(level, flags=flags | 2, rest=text("w") + text(b"") + b"\0" * 8))


def test_a_password_needs_a_user_name_before_version_5() -> None:
    """3.1.1 [MQTT-3.1.2-22]; version 5 allows it."""
    for level in (V31, V311):
        assert is_silent(connect_body(level, flags=0x42, rest=text("secret")))
    found = connect.decode(0, connect_body(V5, flags=0x42, rest=text("secret")))
    assert (found.user_name, found.password) == (None, b"secret")


@pytest.mark.parametrize("level", VERSIONS)
def test_fields_are_there_exactly_when_their_flags_are_set(level: int) -> None:
    """3.1.1 [MQTT-3.1.2-18], [MQTT-3.1.2-19], [MQTT-3.1.2-20], [MQTT-3.1.2-21],
    5.0 [MQTT-3.1.2-16], [MQTT-3.1.2-17], [MQTT-3.1.2-18], [MQTT-3.1.2-19]."""
    fails(level, connect_body(level, flags=0x82))
    fails(level, connect_body(level, flags=0x02, rest=text("user")))
    fails(level, connect_body(level, flags=0xC2, rest=text("user")))
    fails(level, connect_body(level, flags=0x06))


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("raw", [b"a\0b", b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_client_identifiers_are_texts(level: int, raw: bytes) -> None:
    """3.1.1 [MQTT-1.5.3-1], [MQTT-1.5.3-2], [MQTT-3.1.3-4], 5.0 [MQTT-1.5.4-1], [MQTT-1.5.4-2],
    [MQTT-3.1.3-4]: UTF-8 without surrogates and U+0000."""
    fails(level, connect_body(level, raw))


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("raw", [b"a\0b", b"\xff"])
def test_user_names_and_topics_of_wills_are_texts(level: int, raw: bytes) -> None:
    """3.1.1 [MQTT-3.1.3-10], [MQTT-3.1.3-11], 5.0 [MQTT-3.1.3-11], [MQTT-3.1.3-12]."""
    fails(level, connect_body(level, flags=0x82, rest=text(raw)))
    will = (block() if level == V5 else b"") + text(raw) + text(b"")
    fails(level, connect_body(level, flags=0x06, rest=will))


def test_a_byte_order_mark_is_kept() -> None:
    """3.1.1 [MQTT-1.5.3-3], 5.0 [MQTT-1.5.4-3]: U+FEFF is a character like others."""
    assert connect.decode(0, connect_body(V311, "\ufeffc")).client_id == "\ufeffc"


def test_which_sessions_need_an_identifier() -> None:
    """3.1.1 [MQTT-3.1.3-6], [MQTT-3.1.3-7], [MQTT-3.1.3-8], 5.0 [MQTT-3.1.3-6]."""
    assert connect.decode(0, connect_body(V311, "")).client_id == ""
    assert connect.decode(0, connect_body(V5, "", flags=0)).client_id == ""
    assert refused(connect_body(V311, "", flags=0)) == (V311, Reason.CLIENT_ID_NOT_VALID)
    assert refused(connect_body(V31, "")) == (V31, Reason.CLIENT_ID_NOT_VALID)


@pytest.mark.parametrize("level", VERSIONS)
def test_identifiers_have_at_most_250_bytes(level: int) -> None:
    """3.1.1 [MQTT-3.1.3-5], [MQTT-3.1.3-9], 5.0 [MQTT-3.1.3-5], [MQTT-3.1.3-8]."""
    assert connect.decode(0, connect_body(level, "å" * 125)).client_id == "å" * 125
    body = connect_body(level, "å" * 125 + "x")
    assert refused(body) == (level, Reason.CLIENT_ID_NOT_VALID)


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("topic", ["", "a/#", "+/b"])
def test_a_will_has_a_topic_without_wildcards(level: int, topic: str) -> None:
    """3.1.1 [MQTT-4.7.1-1], [MQTT-4.7.3-1], 5.0 [MQTT-4.7.0-1], [MQTT-4.7.3-1]."""
    will = (block() if level == V5 else b"") + text(topic) + text(b"")
    body = connect_body(level, flags=0x06, rest=will)
    fails(level, body, Reason.TOPIC_NAME_INVALID)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b"\x21\0\0", Reason.PROTOCOL_ERROR),  # receive maximum 0
        (b"\x27\0\0\0\0", Reason.PROTOCOL_ERROR),  # maximum packet size 0
        (b"\x17\2", Reason.PROTOCOL_ERROR),
        (b"\x19\2", Reason.PROTOCOL_ERROR),
        (b"\x11\0\0\0\1\x11\0\0\0\1", Reason.PROTOCOL_ERROR),  # twice
        (b"\x16" + text(b"x"), Reason.PROTOCOL_ERROR),  # data without method
        (b"\x12" + text("x"), Reason.PROTOCOL_ERROR),  # of CONNACK
        (b"\x18\0\0\0\1", Reason.PROTOCOL_ERROR),  # of a will
        (b"\x7f\0", Reason.MALFORMED_PACKET),  # unknown
        (b"\x11\0\0\0", Reason.MALFORMED_PACKET),  # cut
        (b"\x26" + text("k") + text(b"\xff"), Reason.MALFORMED_PACKET),
        (b"\x91\0\0\0\0\0", Reason.MALFORMED_PACKET),  # a number longer than it has to be
    ],
)  # fmt: skip
def test_properties_that_cannot_be(given: bytes, reason: Reason) -> None:
    """5.0 [MQTT-1.5.5-1], [MQTT-1.5.7-1]: unknown, twice, out of bounds, or of another packet."""
    assert refused(connect_body(V5, properties=block(given))) == (V5, reason)


def test_connect_and_will_have_so_many_user_properties_at_most() -> None:
    pair = b"\x26\0\0\0\0"
    most = block(pair * properties.MOST_USER_PROPERTIES)
    more = block(pair * (properties.MOST_USER_PROPERTIES + 1))
    will = text("w") + text(b"")

    connect.decode(0, connect_body(V5, flags=0x06, properties=most, rest=most + will))
    assert refused(connect_body(V5, properties=more)) == (V5, Reason.QUOTA_EXCEEDED)
    body = connect_body(V5, flags=0x06, rest=more + will)
    assert refused(body) == (V5, Reason.QUOTA_EXCEEDED)


def test_a_block_of_properties_has_the_length_that_it_says() -> None:
    """5.0 [MQTT-2.2.2-1]."""
    assert refused(connect_body(V5, properties=b"\x7f"))[1] == Reason.MALFORMED_PACKET
    assert refused(connect_body(V5, properties=b"\xff\xff\xff\xff\x01"))[0] == V5


@pytest.mark.parametrize("level", VERSIONS)
def test_nothing_shorter_or_longer_is_taken(level: int) -> None:
    """3.1.1 [MQTT-3.1.4-1], 5.0 [MQTT-3.1.4-1]: a CONNECT cut anywhere, or with a byte more, is
    refused."""
    will = (block(b"\x18\0\0\0\5") if level == V5 else b"") + text("w") + text(b"x")
    whole = connect_body(level, "client", flags=0xC6, rest=will + text("u") + text("p"))
    connect.decode(0, whole)
    for end in range(len(whole)):
        with pytest.raises(PacketError):
            connect.decode(0, whole[:end])
    fails(level, whole + b"\0")


@given(st.binary(max_size=80), st.sampled_from(VERSIONS))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(tail: bytes, level: int) -> None:
    """Nothing but PacketError is raised, whatever a client sends."""
    name = b"MQIsdp" if level == V31 else b"MQTT"
    for body in (tail, text(name) + bytes([level]) + tail):
        try:
            found = connect.decode(0, body)
        except PacketError as error:
            assert str(error)
        else:
            assert len(found.client_id.encode()) <= connect.MAX_CLIENT_ID
