"""Answers as bytes, and the tables that they are made from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.mqtt import answers, codec, properties
from lavinmq.mqtt.codec import Reader
from lavinmq.mqtt.reasons import PacketError, Reason, reason_of, return_code
from tests.support.mqtt_bytes import V5, V31, V311, block, text


@pytest.mark.parametrize("level", [V31, V311])
def test_connack_before_version_5(level: int) -> None:
    """3.1.1 [MQTT-3.2.2-1], [MQTT-3.2.2-2]: two bytes."""
    assert answers.connack(level) == bytes([0x20, 2, 0, 0])
    assert answers.connack(level, session_present=True) == bytes([0x20, 2, 1, 0])


@pytest.mark.parametrize(
    ("reason", "code"),
    [(Reason.UNSUPPORTED_VERSION, 1), (Reason.CLIENT_ID_NOT_VALID, 2),
     (Reason.SERVER_UNAVAILABLE, 3), (Reason.QUOTA_EXCEEDED, 3), (Reason.NOT_AUTHORIZED, 5),
     (Reason.BAD_USER_NAME_OR_PASSWORD, 5)],
)  # fmt: skip
def test_refusals_have_no_session(reason: Reason, code: int) -> None:
    """3.1.1 [MQTT-3.2.2-4], 5.0 [MQTT-3.2.2-6], [MQTT-3.2.2-8]: session present is 0."""
    assert answers.connack_refused(V311, reason) == bytes([0x20, 2, 0, code])
    assert answers.connack_refused(V5, reason) == bytes([0x20, 3, 0, reason, 0])


def test_what_no_return_code_says_is_not_said() -> None:
    """3.1.1 [MQTT-3.2.2-6]: the socket is closed without CONNACK."""
    assert return_code(Reason.MALFORMED_PACKET) is None
    assert answers.connack_refused(V311, Reason.MALFORMED_PACKET) == b""
    assert answers.disconnect(V311, Reason.SERVER_SHUTTING_DOWN) == b""


@pytest.mark.parametrize("most", range(1, 5))
def test_a_packet_that_does_not_fit_is_none(most: int) -> None:
    """5.0 [MQTT-3.1.2-24]: the least CONNACK has five bytes, the least DISCONNECT four."""
    assert answers.connack_refused(V5, Reason.NOT_AUTHORIZED, "why", most) == b""
    said = answers.disconnect(V5, Reason.NOT_AUTHORIZED, "why", most)
    assert len(said) == (4 if most == 4 else 0)
    assert len(answers.connack_refused(V5, Reason.NOT_AUTHORIZED, "why", 5)) == 5


def test_connack_of_version_5() -> None:
    """5.0 [MQTT-2.2.2-1], [MQTT-3.2.2-1], [MQTT-3.2.2-16]."""
    found = answers.connack(
        V5, given={properties.ASSIGNED_CLIENT_ID: "abc", properties.SERVER_KEEP_ALIVE: 60}
    )
    body = b"\0\0" + block(b"\x12" + text("abc"), b"\x13\0\x3c")
    assert found == bytes([0x20, len(body)]) + body


def test_suback_and_unsuback_have_a_code_for_each_filter() -> None:
    """3.1.1 [MQTT-2.3.1-7], [MQTT-3.8.4-2], [MQTT-3.8.4-5], [MQTT-3.9.3-1], [MQTT-3.9.3-2],
    [MQTT-3.10.4-4], 5.0 [MQTT-2.2.1-6], [MQTT-3.8.4-2], [MQTT-3.8.4-6], [MQTT-3.9.3-1],
    [MQTT-3.10.4-5], [MQTT-3.11.3-1]."""
    assert answers.suback(V311, 0x0102, [1, 0x87, 2]) == bytes([0x90, 5, 1, 2, 1, 0x80, 2])
    assert answers.suback(V5, 0x0102, [1, 0x87, 2]) == bytes([0x90, 6, 1, 2, 0, 1, 0x87, 2])
    assert answers.unsuback(V311, 0x0102, [0, 0x11]) == bytes([0xB0, 2, 1, 2])
    assert answers.unsuback(V5, 0x0102, [0, 0x11]) == bytes([0xB0, 5, 1, 2, 0, 0, 0x11])


def test_disconnect_and_auth_of_version_5() -> None:
    """5.0 [MQTT-3.14.2-1], [MQTT-3.15.2-1]."""
    assert answers.disconnect(V5, Reason.SESSION_TAKEN_OVER) == bytes([0xE0, 2, 0x8E, 0])
    body = bytes([0x81]) + block(b"\x1f" + text("why"))
    assert answers.disconnect(V5, Reason.MALFORMED_PACKET, "why") == bytes([0xE0, len(body)]) + body
    body = bytes([0x18]) + block(b"\x15" + text("M"), b"\x16" + text(b"\7"))
    assert (
        answers.auth(Reason.CONTINUE_AUTHENTICATION, "M", b"\7") == bytes([0xF0, len(body)]) + body
    )


def test_every_reason_has_its_words() -> None:
    """5.0 section 2.4: 43 codes, each found by its number."""
    assert len(Reason) == 43
    assert all(reason_of(reason) is reason and reason.text for reason in Reason)


@given(st.integers(0, codec.MAX_VARINT))
def test_numbers_come_back_in_as_few_bytes_as_can_be(value: int) -> None:
    """5.0 [MQTT-1.5.5-1]."""
    raw = codec.varint(value)
    assert Reader(raw).varint() == value
    assert len(raw) == 1 + (value > 127) + (value > 16383) + (value > 2097151)


_VALUES = {
    properties.BYTE: st.integers(0, 1), properties.U16: st.integers(1, 65535),
    properties.U32: st.integers(1, 2**32 - 1), properties.VARINT: st.integers(1, codec.MAX_VARINT),
    properties.TEXT: st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9),
    properties.BINARY: st.binary(max_size=9),
}  # fmt: skip
_VALUES[properties.PAIR] = st.tuples(_VALUES[properties.TEXT], _VALUES[properties.TEXT])


@given(st.data(), st.sampled_from(range(16)))
def test_properties_come_back(data: st.DataObject, place: int) -> None:
    """5.0 section 2.2.2: what is written is what is read, in each place; user
    properties only where somebody wants them."""
    given: dict[int, object] = {}
    for number, row in properties.PROPERTIES.items():
        if place in row.places and data.draw(st.booleans()):
            values = _VALUES[row.form]
            several = st.lists(values, min_size=1, max_size=3)
            given[number] = data.draw(several if place in row.again else values)
    raw = properties.write(given)
    if place in (codec.SUBSCRIBE, codec.UNSUBSCRIBE, codec.DISCONNECT, codec.AUTH):
        given.pop(properties.USER_PROPERTY, None)
    assert properties.read(Reader(raw), place) == given
    for number, row in properties.PROPERTIES.items():
        if place not in row.places:
            wrong = codec.varint(number) + row.form.write(data.draw(_VALUES[row.form]))
            with pytest.raises(PacketError):
                properties.read(Reader(codec.binary_varint(wrong)), place)
