"""SUBSCRIBE, UNSUBSCRIBE, DISCONNECT and AUTH: what is read, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.mqtt import filters, properties, requests
from lavinmq.mqtt.filters import Shared
from lavinmq.mqtt.reasons import PacketError, Reason
from lavinmq.mqtt.requests import Auth, Disconnect, Subscribe, Unsubscribe, Wish
from tests.support.mqtt_bytes import V5, V31, V311, block, subscribe_body, text

T = TypeVar("T")
Reader = Callable[[bytes], object]


def whole(steps: Generator[None, None, T]) -> T:
    """What a reader comes to, which reads in steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)


def subscribe(level: int, flags: int, body: bytes) -> Subscribe:
    return whole(requests.subscribe(level, flags, body))


def unsubscribe(level: int, flags: int, body: bytes) -> Unsubscribe:
    return whole(requests.unsubscribe(level, flags, body))


VERSIONS = (V31, V311, V5)


def reason(read: Callable[[int, int, bytes], object], level: int, flags: int, body: bytes) -> int:
    """Why a packet is refused."""
    with pytest.raises(PacketError) as caught:
        read(level, flags, body)
    return caught.value.reason


def unsubscribe_body(level: int, packet_id: int, *filters: str | bytes) -> bytes:
    """The body of UNSUBSCRIBE."""
    given = block() if level == V5 else b""
    return packet_id.to_bytes(2, "big") + given + b"".join(map(text, filters))


@pytest.mark.parametrize("level", VERSIONS)
def test_subscriptions_are_read_in_order(level: int) -> None:
    """3.1.1 [MQTT-3.8.4-4], 5.0 [MQTT-3.8.4-5]: each topic filter is a wish of its own."""
    body = subscribe_body(level, 10, ("a/b", 0), ("c/+/#", 1), ("å", 2))
    wishes = (Wish("a/b", 0), Wish("c/+/#", 1), Wish("å", 2))
    assert subscribe(level, 2, body) == Subscribe(10, wishes)


def test_options_of_version_5_are_read() -> None:
    """5.0 section 3.8.3.1: no local, retain as published, retain handling; the identifier."""
    body = subscribe_body(V5, 1, ("a", 0x2E), properties=block(b"\x0b\x80\x01"))
    assert subscribe(V5, 2, body) == Subscribe(1, (Wish("a", 2, True, True, 2),), 128)


@pytest.mark.parametrize("level", VERSIONS)
def test_shared_subscriptions_are_known_in_every_version(level: int) -> None:
    """5.0 [MQTT-4.8.2-1], [MQTT-4.8.2-2]."""
    body = subscribe_body(level, 1, ("$share/g/a/+", 1))
    assert subscribe(level, 2, body).wishes[0].shared == Shared("g", "a/+")
    for wrong in (
        "$share",
        "$share/",
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/g+/a",
        "$share/#",
    ):
        body = subscribe_body(level, 1, (wrong, 1))
        assert reason(subscribe, level, 2, body) == Reason.TOPIC_FILTER_INVALID, wrong


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10])
def test_reserved_flags_of_requests(level: int, flags: int) -> None:
    """3.1.1 [MQTT-3.8.1-1], [MQTT-3.10.1-1], 5.0 [MQTT-3.8.1-1], [MQTT-3.10.1-1]."""
    body = subscribe_body(level, 1, ("a", 0))
    assert reason(subscribe, level, flags, body) == Reason.MALFORMED_PACKET
    body = unsubscribe_body(level, 1, "a")
    assert reason(unsubscribe, level, flags, body) == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("level", VERSIONS)
def test_requests_have_an_identifier_and_a_filter(level: int) -> None:
    """3.1.1 [MQTT-2.3.1-1], [MQTT-3.8.3-3], [MQTT-3.10.3-2], 5.0 [MQTT-2.2.1-3], [MQTT-3.8.3-2],
    [MQTT-3.10.3-2]."""
    assert reason(subscribe, level, 2, subscribe_body(level, 0, ("a", 0))) == 0x82
    assert reason(subscribe, level, 2, subscribe_body(level, 1)) == 0x82
    assert reason(unsubscribe, level, 2, unsubscribe_body(level, 0, "a")) == 0x82
    assert reason(unsubscribe, level, 2, unsubscribe_body(level, 1)) == 0x82


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("raw", [b"\xff", b"a\0"])
def test_filters_are_texts(level: int, raw: bytes) -> None:
    """3.1.1 [MQTT-3.8.3-1], [MQTT-3.10.3-1], [MQTT-4.7.3-2], 5.0 [MQTT-3.8.3-1], [MQTT-3.10.3-1],
    [MQTT-4.7.3-2]."""
    assert reason(subscribe, level, 2, subscribe_body(level, 1, (raw, 0))) == 0x81
    assert reason(unsubscribe, level, 2, unsubscribe_body(level, 1, raw)) == 0x81


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("wrong", ["", "a#", "#/a", "a/#/b", "a/b#", "+a", "a+/b", "##", "++"])
def test_where_wildcards_may_stand(level: int, wrong: str) -> None:
    """3.1.1 [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.7.3-1], 5.0 [MQTT-4.7.1-1], [MQTT-4.7.1-2],
    [MQTT-4.7.3-1]."""
    body = subscribe_body(level, 1, (wrong, 0))
    assert reason(subscribe, level, 2, body) == Reason.TOPIC_FILTER_INVALID


@pytest.mark.parametrize("right", ["#", "+", "/", "//", "+/+", "a/#", "/#", "+/a/#", " ", "$SYS/#"])
def test_filters_that_are_right(right: str) -> None:
    """3.1.1 [MQTT-4.7.1-2], [MQTT-4.7.1-3], 5.0 [MQTT-4.7.1-1], [MQTT-4.7.1-2]."""
    assert subscribe(V311, 2, subscribe_body(V311, 1, (right, 0))).wishes[0].filter == right


@pytest.mark.parametrize(
    ("wanted", "topic", "does"),
    [("$SYS/#", "$SYS/a", True), ("$SYS/#", "$SYS", True), ("#", "$SYS/a", False),
     ("+/a", "$SYS/a", False), ("$SYS/+", "$SYS/a", True), ("$SYS/+", "$SYS/a/b", False),
     ("$SYS/+/b", "$SYS/a/b", True), ("$SYS/a", "$SYS/a/b", False), ("a/b/c", "a/b", False),
     ("a//#", "a/", True), ("+", "/", False)],
)  # fmt: skip
def test_filters_match_topics(wanted: str, topic: str, does: bool) -> None:
    """3.1.1 [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.7.2-1], for topics of the broker itself."""
    assert filters.matches(wanted, topic) == does


def test_a_filter_may_have_65535_bytes() -> None:
    """3.1.1 [MQTT-4.7.3-3], 5.0 [MQTT-4.7.3-3]."""
    long = "/".join("å" * 5 for _ in range(5957))[:-1]
    assert subscribe(V311, 2, subscribe_body(V311, 1, (long, 0))).wishes[0].filter == long


@pytest.mark.parametrize("level", VERSIONS)
def test_reserved_options_of_subscriptions(level: int) -> None:
    """3.1.1 [MQTT-3.8.3-4], 5.0 [MQTT-3.8.3-5]."""
    for options in (3, 0x40, 0x80, *((0x04, 0x08, 0x10) if level != V5 else ())):
        body = subscribe_body(level, 1, ("a", options))
        assert reason(subscribe, level, 2, body) == Reason.MALFORMED_PACKET, options


def test_options_that_do_not_go_together() -> None:
    """5.0 [MQTT-3.8.3-4]: no local on a shared subscription; retain handling 3."""
    for name, options in (("$share/g/a", 0x04), ("a", 0x30)):
        body = subscribe_body(V5, 1, (name, options))
        assert reason(subscribe, V5, 2, body) == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("given", [b"\x0b\0", b"\x0b\1\x0b\1", b"\x1f" + text("why")])
def test_properties_of_subscribe_that_cannot_be(given: bytes) -> None:
    """5.0 section 3.8.2.1: a subscription identifier is not 0, and comes once."""
    body = subscribe_body(V5, 1, ("a", 0), properties=block(given))
    assert reason(subscribe, V5, 2, body) == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("level", VERSIONS)
def test_filters_to_unsubscribe_are_taken_as_they_are(level: int) -> None:
    """3.1.1 [MQTT-3.10.4-1], 5.0 [MQTT-3.10.4-1]: they are compared character by character."""
    body = unsubscribe_body(level, 7, "a/#/b", "x")
    assert unsubscribe(level, 2, body) == Unsubscribe(7, ("a/#/b", "x"))


@pytest.mark.parametrize("level", [V31, V311])
def test_disconnect_is_empty_before_version_5(level: int) -> None:
    """3.1.1 [MQTT-3.14.1-1], [MQTT-2.2.2-2]."""
    assert requests.disconnect(level, 0, b"") == Disconnect()
    assert reason(requests.disconnect, level, 0, b"\0") == Reason.MALFORMED_PACKET
    assert reason(requests.disconnect, level, 1, b"") == Reason.MALFORMED_PACKET


def test_disconnect_of_version_5() -> None:
    """5.0 [MQTT-3.14.1-1], [MQTT-3.14.2-1]: reason, session expiry, reason string."""
    assert requests.disconnect(V5, 0, b"") == Disconnect()
    assert requests.disconnect(V5, 0, b"\x04") == Disconnect(Reason.DISCONNECT_WITH_WILL)
    given = block(b"\x11\0\0\0\x09", b"\x1f" + text("bye"))
    assert requests.disconnect(V5, 0, b"\0" + given) == Disconnect(Reason.SUCCESS, 9, "bye")
    assert reason(requests.disconnect, V5, 2, b"") == Reason.MALFORMED_PACKET
    for code in (1, 0x87, 0x8B, 0x8E, 0x9C, 0xA2, 0xFF):
        assert reason(requests.disconnect, V5, 0, bytes([code])) == Reason.PROTOCOL_ERROR
    moved = b"\0" + block(b"\x1c" + text("elsewhere"))
    assert reason(requests.disconnect, V5, 0, moved) == Reason.PROTOCOL_ERROR
    assert reason(requests.disconnect, V5, 0, b"\0" + block() + b"\0") == Reason.MALFORMED_PACKET


def test_auth() -> None:
    """5.0 [MQTT-3.15.1-1], [MQTT-3.15.2-1]."""
    given = block(b"\x15" + text("M"), b"\x16" + text(b"\1\2"))
    assert requests.auth(V5, 0, b"\x18" + given) == Auth(
        Reason.CONTINUE_AUTHENTICATION, "M", b"\1\2"
    )
    assert requests.auth(V5, 0, b"\x19" + given).reason == Reason.RE_AUTHENTICATE
    assert reason(requests.auth, V5, 1, b"\x18" + given) == Reason.MALFORMED_PACKET
    assert reason(requests.auth, V5, 0, b"\x18") == Reason.PROTOCOL_ERROR
    for wrong in (b"", b"\0" + given, b"\x87" + given):
        assert reason(requests.auth, V5, 0, wrong) == Reason.PROTOCOL_ERROR
    assert reason(requests.auth, V311, 0, b"\x18" + given) == Reason.MALFORMED_PACKET


@given(
    st.sampled_from([subscribe, unsubscribe, requests.disconnect, requests.auth]),
    st.sampled_from(VERSIONS),
    st.sampled_from([0, 2]),
    st.binary(max_size=60),
)
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_read_or_refused(
    read: Callable[[int, int, bytes], object], level: int, flags: int, body: bytes
) -> None:
    """Nothing but PacketError is raised, whatever a client sends."""
    try:
        read(level, flags, body)
    except PacketError as error:
        assert str(error)


@pytest.mark.parametrize("level", [V311, V5])
def test_a_packet_has_so_many_topic_filters_at_most(level: int) -> None:
    most = [("a", 0)] * requests.MOST_FILTERS

    assert len(subscribe(level, 2, subscribe_body(level, 1, *most)).wishes) == len(most)
    more = subscribe_body(level, 1, *most, ("a", 0))
    assert reason(subscribe, level, 2, more) == Reason.QUOTA_EXCEEDED
    names = block() if level == V5 else b""
    many = b"\0\1" + names + text("a") * (len(most) + 1)
    assert reason(unsubscribe, level, 2, many) == Reason.QUOTA_EXCEEDED


def with_properties(*given: bytes) -> list[tuple[Reader, bytes]]:
    """Each request of version 5 with these properties, and who reads it."""
    names, method = block(*given), block(b"\x15" + text("M"), *given)
    return [
        (lambda body: subscribe(V5, 2, body), b"\0\1" + names + text("a") + b"\0"),
        (lambda body: unsubscribe(V5, 2, body), b"\0\1" + names + text("a")),
        (lambda body: requests.disconnect(V5, 0, body), b"\0" + names),
        (lambda body: requests.auth(V5, 0, body), b"\x18" + method),
    ]


def refusal(read: Reader, body: bytes) -> int:
    """Why a request is refused."""
    with pytest.raises(PacketError) as caught:
        read(body)
    return caught.value.reason


def test_user_properties_are_checked_and_change_nothing() -> None:
    """5.0 sections 3.8.2.1.3, 3.10.2.1.2, 3.14.2.2.4, 3.15.2.2.5: what they mean is not defined."""
    pair = b"\x26" + text("k") + text("v")
    plain = [read(body) for read, body in with_properties()]
    assert [read(body) for read, body in with_properties(pair, pair)] == plain
    for wrong in (b"\x26" + text(b"\xff") + text("v"), b"\x26" + text("k") + text("\0"), b"\x26\0"):
        for read, body in with_properties(pair, wrong):
            assert refusal(read, body) == Reason.MALFORMED_PACKET, wrong


def test_a_request_has_so_many_user_properties_at_most() -> None:
    most = b"\x26\0\0\0\0" * properties.MOST_USER_PROPERTIES

    for read, body in with_properties(most):
        read(body)
    for read, body in with_properties(most, b"\x26\0\0\0\0"):
        assert refusal(read, body) == Reason.QUOTA_EXCEEDED


def test_properties_of_a_request_have_so_many_bytes_at_most() -> None:
    """Those that come once fit whatever their size; the bound is for user properties."""
    long = text("x" * 65535)
    data = b"\x16" + long, b"\x15" + long, b"\x1f" + long
    assert requests.auth(V5, 0, b"\x18" + block(*data)).data == b"x" * 65535

    for read, body in with_properties(b"\x26" + long + text("x" * 65000)):
        read(body)
    for read, body in with_properties(*(b"\x26" + long + long,) * 2):
        assert refusal(read, body) == Reason.QUOTA_EXCEEDED
    cut = b"\0" + block(b"\x26" + long + long, b"\x26" + long + long)[:-1]
    assert reason(requests.disconnect, V5, 0, cut) == Reason.MALFORMED_PACKET


def test_a_long_packet_is_read_in_steps() -> None:
    steps = requests.subscribe(V311, 2, subscribe_body(V311, 1, *[("a", 0)] * 100))

    assert sum(1 for _ in steps) == 100
