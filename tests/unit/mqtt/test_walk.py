"""Packets of MQTT on a link: what is Python's, what is malformed, and where they may be cut."""

from __future__ import annotations

import pytest

from tests.support.mqtt_bench import PINGRESP, Client, MqttBench, Packet, packet, publish, text

CONNECT = packet(0x10, text(b"MQTT") + b"\4\2\0\x3c" + text(b"me"))
MALFORMED, PROTOCOL, TOPIC, TOO_LARGE = 0x81, 0x82, 0x90, 0x95


def reasons(client: Client) -> list[int]:
    return [event[1] for event in client.session.events if event[0] == "on_packet_error"]


def test_connect_is_handed_over_whole(bench: MqttBench) -> None:
    client = bench.unopened()

    for octet in CONNECT:
        client.send(bytes([octet]))

    assert client.session.events == [("on_packet", 1, 0, CONNECT[2:])]


@pytest.mark.parametrize("first", [0x30, 0xC0, 0xE0, 0x82, 0xF0, 0x00])
def test_anything_but_connect_is_refused_at_first(bench: MqttBench, first: int) -> None:
    """3.1.1 [MQTT-3.1.0-1], 5.0 [MQTT-3.1.0-1]."""
    client = bench.unopened()

    client.send(bytes([first, 0]))

    assert reasons(client) == [PROTOCOL]


def test_flags_of_connect_are_zero(bench: MqttBench) -> None:
    client = bench.unopened()

    client.send(packet(0x11, b""))

    assert reasons(client) == [MALFORMED]


def test_only_auth_and_disconnect_follow_before_the_session_is_open(bench: MqttBench) -> None:
    """5.0 [MQTT-3.1.2-30]: nothing else is taken before CONNACK."""
    client = bench.unopened()

    client.send(CONNECT + packet(0xF0, b"\x18") + publish(b"t", b"x"))

    assert [event[:2] for event in client.session.events] == [
        ("on_packet", 1), ("on_packet", 15), ("on_packet_error", PROTOCOL),
    ]  # fmt: skip


def test_a_connect_above_64_kib_is_refused_by_its_length(bench: MqttBench) -> None:
    client = bench.unopened()

    client.send(b"\x10\x81\x80\x04")

    assert reasons(client) == [TOO_LARGE]


def test_a_second_connect_is_an_error(bench: MqttBench) -> None:
    """3.1.1 [MQTT-3.1.0-2], 5.0 [MQTT-3.1.0-2]."""
    client = bench.client()

    client.send(CONNECT)

    assert reasons(client) == [PROTOCOL]


def test_ping_is_answered(bench: MqttBench) -> None:
    """3.1.1 [MQTT-3.12.4-1], 5.0 [MQTT-3.12.4-1]."""
    client = bench.client()

    client.send(b"\xc0\0")

    assert client.heard() == [Packet(PINGRESP << 4, b"")]


def test_packets_of_python_come_with_their_flags(bench: MqttBench) -> None:
    client = bench.client(version=5)

    client.send(packet(0x82, b"abc") + packet(0xA2, b"d") + packet(0xF0, b"") + b"\xe0\0")

    assert client.session.events == [
        ("on_packet", 8, 2, b"abc"), ("on_packet", 10, 2, b"d"), ("on_packet", 15, 0, b""),
        ("on_packet", 14, 0, b""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\0", PROTOCOL),
        (b"\x20\0", PROTOCOL),
        (b"\x90\0", PROTOCOL),
        (b"\xd0\0", PROTOCOL),
        (b"\xf0\0", PROTOCOL),
        (b"\x80\3\0\1\0", MALFORMED),
        (b"\xa0\3\0\1\0", MALFORMED),
        (b"\xe1\0", MALFORMED),
        (b"\xc1\0", MALFORMED),
        (b"\xc0\1\0", PROTOCOL),
        (b"\x60\2\0\1", MALFORMED),
        (b"\x72\2\0\1", MALFORMED),
        (b"\x41\2\0\1", MALFORMED),
        (b"\x40\1\0", MALFORMED),
        (b"\x40\3\0\1\0", MALFORMED),
        (b"\x40\2\0\0", PROTOCOL),
        (b"\x50\2\0\0", PROTOCOL),
        (b"\x30\xff\xff\xff\xff\x7f", MALFORMED),
        (b"\x30\0", MALFORMED),
        (b"\x30\2\0\1", MALFORMED),
        (b"\x30\2\0\0", PROTOCOL),
        (b"\x36\5\0\1t\0\1", MALFORMED),
        (b"\x38\3\0\1t", MALFORMED),
        (b"\x32\3\0\1t", MALFORMED),
        (b"\x32\5\0\1t\0\0", PROTOCOL),
        (publish(b"a/#"), TOPIC),
        (publish(b"a+"), TOPIC),
        (publish(b"a\0b"), TOPIC),
        (publish(b"\xff"), TOPIC),
        (publish("\ud800".encode("utf-8", "surrogatepass")), TOPIC),
    ],
)
def test_a_malformed_packet_ends_the_connection_with_its_reason(
    bench: MqttBench, data: bytes, reason: int
) -> None:
    """3.1.1 [MQTT-1.5.3-1], [MQTT-1.5.3-2], [MQTT-2.2.2-2], [MQTT-2.3.1-1], [MQTT-3.3.1-2],
    [MQTT-3.3.1-4], [MQTT-3.3.2-1], [MQTT-3.3.2-2], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1],
    [MQTT-3.14.1-1], 5.0 [MQTT-1.5.4-1], [MQTT-1.5.4-2], [MQTT-2.1.3-1], [MQTT-3.3.1-2],
    [MQTT-3.3.1-4], [MQTT-3.3.2-1], [MQTT-3.3.2-2], [MQTT-3.6.1-1]."""
    client = bench.client()

    client.send(data)

    assert reasons(client) == [reason]
    assert client.heard() == []


def test_a_packet_above_the_maximum_is_refused_by_its_length(bench: MqttBench) -> None:
    """5.0 [MQTT-3.2.2-15]."""
    client = bench.client(maximum_packet_in=1000)

    client.send(b"\x30\xe9\x07")

    assert reasons(client) == [TOO_LARGE]


@pytest.mark.parametrize("version", [4, 5])
def test_packets_may_be_cut_anywhere(bench: MqttBench, version: int) -> None:
    """3.1.1 [MQTT-7.1.1-1], 5.0 [MQTT-4.2-1]: what counts is the order of the bytes."""
    client = bench.client(version=version).subscribe(b"#", 0)
    properties = b"" if version == 5 else None
    script = b"".join(
        publish(b"topic/%d" % n, b"x" * n, properties=properties) for n in range(0, 300, 37)
    )

    for octet in script + b"\xc0\0":
        client.send(bytes([octet]))

    heard = client.heard()
    assert [len(each.body) for each in heard[:-1]] == [
        len(b"topic/%d" % n) + 2 + n + (version == 5) for n in range(0, 300, 37)
    ]
    assert heard[-1].kind == PINGRESP


def test_a_portion_that_ends_at_each_packet_changes_nothing(bench: MqttBench) -> None:
    client = bench.client().subscribe(b"a/+", 0).subscribe(b"#", 0)
    bench.loop.portion_units = 1

    client.send(b"".join(publish(b"a/%d" % n, b"%d" % n) for n in range(5)))

    assert client.bodies() == [b"%d" % n for n in range(5)]


def test_silence_for_longer_than_allowed_is_told_without_grace(bench: MqttBench) -> None:
    client = bench.client()
    client.link.set_limits(65536, 1 << 20, 1e-9)
    client.link.start(0)

    bench.loop.check_links()

    assert client.session.events == [("on_timeout", "no heartbeat")]
    assert client.heard() == []
