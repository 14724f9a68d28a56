"""What version 5 adds to publishes: properties, aliases, expiry, sizes, options."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.mqtt_bench import PUBACK, PUBREL, MqttBench, Packet, ack, packet, text

MALFORMED, PROTOCOL, ALIAS, RECEIVE_MAXIMUM = 0x81, 0x82, 0x94, 0x93
FORMAT, CONTENT = b"\x01\x01", b"\x03" + text(b"text/plain")
RESPONSE, CORRELATION = b"\x08" + text(b"answers/me"), b"\x09" + text(b"\0\1\2")
USER = b"\x26" + text(b"key") + text("wört".encode())
EXPIRY_60 = b"\x02\0\0\0\x3c"


def alias(number: int) -> bytes:
    return b"\x23" + number.to_bytes(2, "big")


def test_properties_are_forwarded_as_they_came(bench: MqttBench) -> None:
    """5.0 [MQTT-3.3.2-4], [MQTT-3.3.2-15], [MQTT-3.3.2-16], [MQTT-3.3.2-17], [MQTT-3.3.2-18],
    [MQTT-3.3.2-20]."""
    properties = USER + FORMAT + CONTENT + USER + RESPONSE + CORRELATION
    publisher = bench.client("p", 5)
    direct = bench.client("d", 5).subscribe(b"t", 0)
    stored = bench.client("s", 5).subscribe(b"t", 1)
    old = bench.client("o", 4).subscribe(b"t", 1)

    publisher.publish(b"t", b"x", qos=1, properties=properties)

    assert [each.properties for each in direct.got()] == [properties]
    assert [each.properties for each in stored.got()] == [properties]
    assert [each.body for each in old.got()] == [b"x"]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (FORMAT + FORMAT, PROTOCOL),
        (CONTENT + CONTENT, PROTOCOL),
        (EXPIRY_60 + EXPIRY_60, PROTOCOL),
        (b"\x01\x02", PROTOCOL),
        (b"\x0b\x01", PROTOCOL),
        (b"\x08" + text(b"a/#"), PROTOCOL),
        (b"\x08" + text(b""), PROTOCOL),
        (b"\x11\0\0\0\1", MALFORMED),
        (b"\x00", MALFORMED),
        (b"\x7f\0", MALFORMED),
        (b"\x02\0\0\0", MALFORMED),
        (b"\x03\0\x05abc", MALFORMED),
        (b"\x26" + text(b"key"), MALFORMED),
        (b"\x26" + text(b"key") + b"\0\x05a", MALFORMED),
        (b"\x03" + text(b"\xff"), MALFORMED),
        (b"\x26" + text(b"\0") + text(b""), MALFORMED),
        (alias(0), ALIAS),
        (alias(4), ALIAS),
    ],
)
def test_bad_properties_end_the_connection_with_their_reason(
    bench: MqttBench, properties: bytes, reason: int
) -> None:
    """5.0 [MQTT-1.5.7-1], [MQTT-3.2.2-17], [MQTT-3.3.2-8], [MQTT-3.3.2-9], [MQTT-3.3.2-13],
    [MQTT-3.3.2-14], [MQTT-3.3.2-19], [MQTT-3.3.4-6]."""
    client = bench.client(version=5, alias_maximum_in=3).subscribe(b"#", 0)

    client.publish(b"t", b"x", properties=properties)

    assert client.session.events[0][:2] == ("on_packet_error", reason)
    assert client.heard() == []


def test_properties_that_are_longer_than_the_packet_are_malformed(bench: MqttBench) -> None:
    client = bench.client(version=5)

    client.send(packet(0x30, text(b"t") + b"\x05\x01\x01"))

    assert client.session.events[0][:2] == ("on_packet_error", MALFORMED)


def test_an_alias_stands_for_its_topic_until_it_gets_another(bench: MqttBench) -> None:
    """5.0 [MQTT-3.3.2-12]."""
    client = bench.client(version=5, alias_maximum_in=2).subscribe(b"#", 0)

    client.publish(b"one/topic", b"1", properties=alias(1))
    client.publish(b"two", b"2", properties=alias(2))
    client.publish(b"", b"3", properties=alias(1))
    client.publish(b"three", b"4", properties=alias(1))
    client.publish(b"", b"5", properties=alias(1) + FORMAT)

    got = client.got()
    assert [each.topic for each in got] == [b"one/topic", b"two", b"one/topic", b"three", b"three"]
    assert [each.properties for each in got] == [b""] * 4 + [FORMAT]


def test_an_alias_without_a_topic_is_an_error(bench: MqttBench) -> None:
    client = bench.client(version=5, alias_maximum_in=2)

    client.publish(b"", b"x", properties=alias(1))

    assert client.session.events[0][:2] == ("on_packet_error", PROTOCOL)


def test_topics_get_aliases_on_the_way_out_as_far_as_the_client_takes_them(
    bench: MqttBench,
) -> None:
    """5.0 [MQTT-3.1.2-26], [MQTT-3.3.2-11]."""
    client = bench.client(version=5, alias_maximum_out=2).subscribe(b"#", 0)

    for topic in (b"topic/one", b"topic/two", b"topic/three", b"topic/one", b"topic/two"):
        client.publish(topic, b"x", properties=USER)

    assert [(each.topic, each.properties) for each in client.got()] == [
        (b"topic/one", alias(1) + USER), (b"topic/two", alias(2) + USER), (b"topic/three", USER),
        (b"", alias(1) + USER), (b"", alias(2) + USER),
    ]  # fmt: skip


def test_expiry_is_what_is_left_of_it(bench: MqttBench) -> None:
    """5.0 [MQTT-3.3.2-5], [MQTT-3.3.2-6]."""
    publisher = bench.client("p", 5)
    reader = bench.client("r", 5).subscribe(b"t", 1)
    reader.close()
    publisher.publish(b"t", b"stays", qos=1, properties=EXPIRY_60)
    publisher.publish(b"t", b"goes", qos=1, properties=b"\x02\0\0\0\x0a")
    publisher.publish(b"t", b"for ever", qos=1)

    bench.loop.clock_offset_ms = 20000
    again = bench.client("r", 5)

    got = again.got()
    assert [each.body for each in got] == [b"stays", b"for ever"]
    left = int.from_bytes(got[0].properties[1:], "big")
    assert got[0].properties[:1] == b"\x02"
    assert 38 <= left <= 40
    assert got[1].properties == b""


def test_an_expiry_too_long_for_queues_is_kept_all_the_same(bench: MqttBench) -> None:
    publisher = bench.client("p", 5)
    reader = bench.client("r", 5).subscribe(b"t", 1)
    reader.close()

    publisher.publish(b"t", b"x", qos=1, properties=b"\x02\xff\xff\xff\xff")

    (got,) = bench.client("r", 5).got()
    assert got.properties == b"\x02\xff\xff\xff\xff"


def test_what_is_too_large_for_a_client_is_dropped_for_it(bench: MqttBench) -> None:
    """5.0 [MQTT-3.1.2-24], [MQTT-3.1.2-25]."""
    publisher = bench.client("p", 5)
    small = bench.client("small", 5, maximum_packet_out=100).subscribe(b"t", 1)

    for n in (50, 200, 89, 94, 95, 96):
        publisher.publish(b"t", bytes(n))
        publisher.publish(b"t", bytes(n), qos=1)

    data = small.raw()
    assert data
    assert small.link.mqtt_counters()["dropped"] >= 2
    small.socket.setblocking(False)
    from tests.support.mqtt_bench import parse

    sizes = [2 + len(each.body) for each in parse(data)]
    assert max(sizes) <= 100
    assert 100 in sizes
    assert small.queue.ready == 0


def test_what_a_session_has_published_itself_may_be_left_out(bench: MqttBench) -> None:
    """5.0 [MQTT-3.8.3-3]."""
    one = bench.client("one", 5).subscribe(b"t", 0, no_local=True)
    two = bench.client("two", 5).subscribe(b"t", 0, no_local=True)

    one.publish(b"t", b"mine")
    two.publish(b"t", b"theirs")

    assert one.bodies() == [b"theirs"]
    assert two.bodies() == [b"mine"]


@pytest.mark.parametrize("qos", [0, 1])
def test_retain_stays_as_it_was_published_for_who_wants_that(bench: MqttBench, qos: int) -> None:
    """5.0 [MQTT-3.3.1-12], [MQTT-3.3.1-13]."""
    plain = bench.client("plain", 5).subscribe(b"t", qos)
    kept = bench.client("kept", 5).subscribe(b"t", qos, retain_as_published=True)
    publisher = bench.client("p", 5)

    publisher.publish(b"t", b"x", qos=1, retain=True)
    publisher.publish(b"t", b"y", qos=1)

    assert [each.retain for each in plain.got()] == [False, False]
    assert [each.retain for each in kept.got()] == [True, False]


def test_acknowledgements_may_have_reasons_and_properties(bench: MqttBench) -> None:
    client = bench.client(version=5).subscribe(b"t", 1)
    for n in range(4):
        client.publish(b"t", b"x", qos=1, id=n + 1)
    reason_string = b"\x1f" + text(b"fine")

    client.send(ack(PUBACK, 1, 0))
    client.send(packet(0x40, b"\0\2\0\0"))
    properties = reason_string + USER
    client.send(packet(0x40, b"\0\3\x10" + bytes([len(properties)]) + properties))
    assert client.queue.unacked == 1
    client.send(packet(0x40, b"\0\4\0" + bytes([len(reason_string) * 2]) + reason_string * 2))

    assert client.session.events[0][:2] == ("on_packet_error", MALFORMED)


BLOCKS = st.lists(
    st.sampled_from([FORMAT, CONTENT, RESPONSE, CORRELATION, EXPIRY_60]), unique=True, max_size=5
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    blocks=BLOCKS,
    users=st.lists(
        st.binary(max_size=200).filter(lambda b: b.isascii() and 0 not in b), max_size=3
    ),
    body=st.binary(max_size=300),
    qos=st.integers(0, 2),
    granted=st.integers(0, 2),
    ids=st.lists(st.integers(1, 268435455), unique=True, max_size=3),
    cut=st.integers(1, 20),
)
def test_whatever_is_published_arrives(
    bench: MqttBench,
    blocks: list[bytes],
    users: list[bytes],
    body: bytes,
    qos: int,
    granted: int,
    ids: list[int],
    cut: int,
) -> None:
    """Also when it is cut in pieces of any size."""
    name = f"h{len(bench.clients)}"
    topic = f"{name}/x".encode()
    client = bench.client(name, 5)
    for number, filter_ in enumerate((topic, topic[:-1] + b"+", topic[:-1] + b"#")):
        client.subscribe(
            filter_, granted, subscription_id=ids[number] if number < len(ids) else 0
        )  # fmt: skip
    properties = b"".join(blocks) + b"".join(b"\x26" + text(b"u") + text(user) for user in users)
    from tests.support.mqtt_bench import message, publish

    data = publish(topic, body, qos=qos, id=9, properties=properties)
    for at in range(0, len(data), cut):
        client.send(data[at : at + cut])

    heard: list[Packet] = client.heard()
    (got,) = [message(each, 5) for each in heard if each.kind == 3]
    assert (got.topic, got.body, got.qos) == (topic, body, min(qos, granted))
    without = properties.replace(EXPIRY_60, b"", 1) if EXPIRY_60 in blocks else properties
    assert got.properties.endswith(without)
    assert len(got.properties) == len(properties) + sum(
        2 + (id > 127) + (id > 16383) + (id > 2097151) for id in ids
    )  # fmt: skip
    assert client.session.events == []
    client.close()


def test_no_more_publishes_may_be_unanswered_than_it_was_told(bench: MqttBench) -> None:
    """Of QoS 2 one counts until PUBCOMP; of QoS 0 none does."""
    client = bench.client(version=5, receive_maximum_in=2)
    for id in (1, 2):
        client.publish(b"t", id=id, qos=2)
    for id in (1, 2):
        client.send(ack(PUBREL, id))
    client.publish(b"t", id=3, qos=1)
    client.publish(b"t", id=4, qos=2)
    client.publish(b"t", id=5, qos=2)
    client.publish(b"t")
    assert client.session.events == []

    client.publish(b"t", id=6, qos=1)

    assert client.session.events[0][:2] == ("on_packet_error", RECEIVE_MAXIMUM)


def test_a_client_of_version_3_has_no_receive_maximum(bench: MqttBench) -> None:
    client = bench.client(version=4, receive_maximum_in=2)

    for id in range(1, 6):
        client.publish(b"t", id=id, qos=2)

    assert client.session.events == []
    assert len(client.heard()) == 5


def test_an_answer_for_an_earlier_connection_counts_for_nothing(bench: MqttBench) -> None:
    """PUBREL of a message that came before this connection: one more is no room for two."""
    client = bench.client(version=5, receive_maximum_in=1)
    client.send(ack(PUBREL, 7))
    client.publish(b"t", id=1, qos=2)
    assert client.session.events == []

    client.publish(b"t", id=2, qos=2)

    assert client.session.events[0][:2] == ("on_packet_error", RECEIVE_MAXIMUM)
