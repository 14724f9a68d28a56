"""Publishes of QoS 0 and 1: who gets them, with what, and when they are answered."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.mqtt_bench import PUBACK, MqttBench, ack, parse, publish

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


@VERSIONS
def test_a_message_goes_to_who_has_subscribed(bench: MqttBench, version: int) -> None:
    one = bench.client("one", version).subscribe(b"a/b", 0)
    two = bench.client("two", version).subscribe(b"a/+", 0)
    bench.client("other", version).subscribe(b"b/#", 0)

    one.publish(b"a/b", b"hello")

    (got,) = one.got()
    assert (got.topic, got.body, got.qos) == (b"a/b", b"hello", 0)
    assert not got.retain
    assert not got.dup
    assert two.bodies() == [b"hello"]
    assert one.queue.ready == two.queue.ready == 0


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_the_lower_qos_counts(bench: MqttBench, published: int, granted: int) -> None:
    """3.1.1 [MQTT-2.3.1-5], [MQTT-3.8.4-6], 5.0 [MQTT-2.2.1-2], [MQTT-3.8.4-8]: QoS 0 goes without
    a packet identifier."""
    publisher = bench.client("p")
    reader = bench.client("r").subscribe(b"t", granted)

    publisher.publish(b"t", b"x", qos=published, id=7)

    (got,) = reader.got()
    assert got.qos == min(published, granted)
    assert (got.id != 0) == (got.qos != 0)


def test_a_session_that_matches_several_times_gets_one_copy_of_the_highest_qos(
    bench: MqttBench,
) -> None:
    """3.1.1 [MQTT-3.3.5-1], 5.0 [MQTT-3.3.4-2], [MQTT-3.3.4-3], [MQTT-3.3.4-4]."""
    reader = bench.client("r", 5).subscribe(b"a/b", 0).subscribe(b"a/+", 1, subscription_id=300)
    reader.subscribe(b"#", 0, subscription_id=1)

    reader.publish(b"a/b", b"x", qos=2)

    got = [each for each in reader.heard() if each.kind == 3]
    assert len(got) == 1
    assert got[0].first & 6 == 2
    assert sorted((b"\x0b\x01", b"\x0b\xac\x02")) == sorted(
        part for part in (b"\x0b\x01", b"\x0b\xac\x02") if part in got[0].body
    )


def test_qos_0_is_dropped_for_a_session_without_a_client(bench: MqttBench) -> None:
    publisher = bench.client("p")
    reader = bench.client("r").subscribe(b"t", 2)
    reader.close()

    publisher.publish(b"t", b"x")
    publisher.publish(b"t", b"y", qos=1)

    assert reader.queue.ready == 1


def test_puback_comes_also_when_nobody_has_subscribed(bench: MqttBench) -> None:
    three = bench.client("three", 4)
    five = bench.client("five", 5)

    three.publish(b"t", qos=1, id=9)
    five.publish(b"t", qos=1, id=9)

    assert three.raw() == b"\x40\x02\x00\x09"
    assert five.raw() == b"\x40\x03\x00\x09\x10"


def test_acknowledgements_leave_in_the_order_of_the_publishes(bench: MqttBench) -> None:
    """3.1.1 [MQTT-4.6.0-2]."""
    client = bench.client()

    client.send(b"".join(publish(b"t", qos=1, id=n) for n in range(1, 2000)))

    assert client.raw() == b"".join(ack(PUBACK, n) for n in range(1, 2000))


def test_puback_waits_for_the_disk(tmp_path: Path) -> None:
    """3.1.1 [MQTT-4.3.2-2], 5.0 [MQTT-4.3.2-4]: nothing is answered before the sync that covers the
    message is over."""
    (tmp_path / "d").mkdir()
    bench = MqttBench(tmp_path / "d", sync=True)
    client = bench.client().subscribe(b"t", 1)

    client.publish(b"t", b"x", qos=1, id=5)

    heard = client.heard()
    deadline = time.monotonic() + 10
    while not any(each.kind == PUBACK for each in heard) and time.monotonic() < deadline:
        bench.loop.on_synced()
        bench.loop.on_lingered()
        bench.events.run()
        heard += client.heard()
    assert [each.kind for each in heard] == [3, PUBACK]
    size = (tmp_path / "d" / "mqtt.a" / "msgs.0000000001").stat().st_size
    assert size > 4
    bench.close()


def test_a_slow_client_holds_a_bounded_backlog_of_qos_0(bench: MqttBench) -> None:
    publisher = bench.client("p")
    reader = bench.client("r").subscribe(b"t", 0)
    body = bytes(100000)

    for _ in range(400):
        publisher.publish(b"t", body)

    assert reader.queue.ready_bytes <= (8 << 20) + 200000
    dropped = reader.link.mqtt_counters()["dropped"]
    assert dropped > 0
    assert len(reader.bodies()) == 400 - dropped


def test_large_messages_pass_in_both_qualities(bench: MqttBench) -> None:
    publisher = bench.client("p")
    reader = bench.client("r").subscribe(b"t", 1)
    body = bytes(range(256)) * 12288

    publisher.publish(b"t", body)
    publisher.publish(b"t", body, qos=1)

    got = reader.bodies()
    assert got == [body, body]
    assert publisher.raw() == ack(PUBACK, 1)


def test_a_long_topic_survives_the_queue(bench: MqttBench) -> None:
    topic = b"a/" * 32000 + b"end"
    publisher = bench.client("p")
    reader = bench.client("r").subscribe(b"#", 1)
    reader.close()

    publisher.publish(topic, b"x", qos=1)
    publisher.publish(topic, b"y", qos=1)
    again = bench.client("r")

    assert [(each.topic, each.body) for each in again.got()] == [(topic, b"x"), (topic, b"y")]


def test_many_sessions_get_a_message_in_portions(bench: MqttBench) -> None:
    readers = [bench.client(f"r{n}").subscribe(b"t", n % 2) for n in range(150)]
    publisher = bench.client("p")
    bench.loop.portion_units = 1

    publisher.publish(b"t", b"x", qos=1, id=3)
    publisher.publish(b"t", b"y", qos=1, id=4)

    for reader in readers:
        assert reader.bodies() == [b"x", b"y"]
    assert publisher.raw() == ack(PUBACK, 3) + ack(PUBACK, 4)


def test_a_session_that_goes_while_a_message_is_given_out_does_no_harm(bench: MqttBench) -> None:
    readers = [bench.client(f"r{n}").subscribe(b"t", 1) for n in range(100)]
    publisher = bench.client("p")
    bench.loop.portion_units = 1
    publisher.socket.send(publish(b"t", b"x", qos=1))
    publisher.link.on_readable()
    for reader in readers[50:]:
        reader.close()
        bench.exchange.unbind(b"t", b"", reader.queue)
        reader.queue.delete()
        del bench.queues[f"mqtt.{reader.name}"]

    bench.events.run()
    publisher.link.drain()
    bench.events.run()

    assert all(reader.bodies() == [b"x"] for reader in readers[:50])
    assert publisher.raw() == ack(PUBACK, 1)


def test_topics_are_asked_about_once(bench: MqttBench) -> None:
    """3.1.1 [MQTT-3.3.5-2]: what is refused is acknowledged; 5.0 [MQTT-3.4.2-1]."""
    client = bench.client("p", 5, checks_topics=True).subscribe(b"#", 0)

    def answer(_kind: int, topic: bytes) -> None:
        client.session.events.append(("asked", topic))
        client.link.mqtt_allow(topic, topic != b"secret")

    client.session.on_topic_miss = answer
    for topic in (b"a", b"b", b"b", b"c", b"b", b"secret", b"secret", b"c"):
        client.publish(topic, b"x", qos=1, id=1)

    asked = [event[1] for event in client.session.events if event[0] == "asked"]
    assert asked == [b"a", b"b", b"c", b"secret", b"secret"]
    heard = client.heard()
    assert sum(each.kind == 3 for each in heard) == 6
    assert [each.body for each in heard if each.kind == PUBACK].count(b"\0\1\x87") == 2
    assert client.link.mqtt_counters()["denied"] == 2


def test_what_the_broker_publishes_itself_goes_to_all_that_match(bench: MqttBench) -> None:
    one = bench.client("one", 5).subscribe(b"will/+", 1)
    bench.client("two").subscribe(b"x", 1)

    assert _core.mqtt_publish(bench.loop, bench.exchange, b"will/one", b"gone", 1, False) == 1
    bench.events.run()

    (got,) = one.got()
    assert (got.topic, got.body, got.qos, got.retain) == (b"will/one", b"gone", 1, False)


def test_what_the_broker_publishes_itself_goes_in_portions(bench: MqttBench) -> None:
    """Once each, also when a session goes meanwhile; what is given up half way leaks nothing."""
    clients = [bench.client(f"{n}").subscribe(b"will", 1) for n in range(40)]
    bench.loop.portion_units = 1

    steps = _core.MqttPublish(bench.loop, bench.exchange, b"will", b"gone", 1, False)
    dropped = _core.MqttPublish(bench.loop, bench.exchange, b"will", b"not", 1, False)
    next(dropped)
    del dropped
    n_steps = sum(1 for _ in steps)
    bench.loop.portion_units = 0
    bench.events.run()

    assert n_steps > 10
    got = [[each.body for each in client.got()] for client in clients]
    assert all(each.count(b"gone") == 1 for each in got)
    assert not all(b"not" in each for each in got)


def test_what_many_clients_get_is_sent_in_portions(bench: MqttBench) -> None:
    """None waits for ever, not even behind those that get something new in each tick; one that
    ends before its turn does no harm."""
    clients = [bench.client(f"{n}").subscribe(b"t", 0) for n in range(200)]
    bench.events.run()
    bench.loop.portion_units = 1
    _core.mqtt_publish(bench.loop, bench.exchange, b"t", b"1", 0, False)
    bench.loop.tick()
    at_once = sum(bool(each.link.unsent_bytes) for each in clients)
    ended = [each for each in clients if each.link.unsent_bytes][::9]
    for each in ended:
        each.close()
    for n in range(2, 20):
        _core.mqtt_publish(bench.loop, bench.exchange, b"t", b"%d" % n, 0, False)
        bench.loop.tick()
    left = [each for each in clients if each not in ended]
    n_unsent = sum(each.link.sent_bytes == 0 for each in left)
    bench.loop.portion_units = 0
    bench.events.run()

    assert 0 < at_once < len(clients)
    assert n_unsent == 0
    wanted = [b"%d" % n for n in range(1, 20)]
    assert all([got.body for got in each.got()] == wanted for each in left)


def test_a_message_can_be_put_into_one_session(bench: MqttBench) -> None:
    one = bench.client("one", 5)

    taken = _core.mqtt_enqueue(
        one.queue, b"t", b"kept", 2, True, b"\x01\x01", 60, granted=1, subscription_id=5
    )
    bench.events.run()

    assert taken
    (got,) = one.got()
    assert (got.topic, got.body, got.qos, got.retain) == (b"t", b"kept", 1, True)
    assert got.properties == b"\x02\0\0\0\x3c\x0b\x05\x01\x01"


def test_publishers_wait_while_the_disk_is_low(bench: MqttBench) -> None:
    client = bench.client().subscribe(b"t", 0)
    client.session.on_held = lambda _channel: client.link.hold()
    bench.loop.is_low = True

    client.publish(b"t", b"x")
    assert client.bodies() == []
    bench.loop.is_low = False
    bench.events.run()

    assert client.bodies() == [b"x"]


def test_a_full_queue_that_refuses_is_told_by_reason(bench: MqttBench) -> None:
    """3.1.1 [MQTT-4.8.0-2], 5.0 [MQTT-3.4.2-1]."""
    three, five = bench.client("three"), bench.client("five", 5)
    full = bench.client("full").subscribe(b"t", 1)
    full.close()
    full.queue.set_features(max_length=1, overflow=_core.OVERFLOW["reject-publish"])

    five.publish(b"t", b"1", qos=1, id=1)
    five.publish(b"t", b"2", qos=1, id=2)
    three.publish(b"t", b"3", qos=1, id=3)

    assert five.raw() == b"\x40\x02\x00\x01\x40\x03\x00\x02\x97"
    assert parse(three.raw()) == []
    assert three.session.events[0][:2] == ("on_packet_error", 0x97)


@pytest.mark.slow
def test_a_packet_that_is_kept_whole_for_very_many_turns_is_walked_and_not_read(
    bench: MqttBench,
) -> None:
    """A drain that came to its bound left a link that was to be read, with more kept than a read
    has room for: what was kept was written over other memory."""
    readers = [bench.client(f"r{n}").subscribe(b"t", 1) for n in range(100)]
    publisher = bench.client("p")
    bench.loop.portion_units = 1

    publisher.publish(b"t", b"x" * 1_500_000, qos=1, id=3)

    assert all(len(reader.bodies()) == 1 for reader in readers)
    assert publisher.raw() == ack(PUBACK, 3)


def test_what_is_no_topic_is_found_wherever_it_stands(bench: MqttBench) -> None:
    """3.1.1 [MQTT-1.5.3-2], [MQTT-3.3.2-2]: a topic is looked at in words of eight bytes, and what
    is left of it byte by byte."""
    for n in range(1, 26):
        for at in range(n):
            for character in (b"+", b"#", b"\0", b"\x80", b"\xff", b"\xed\xa0\x80"):
                topic = b"a" * at + character + b"b" * (n - at)
                with pytest.raises(ValueError, match="no topic"):
                    _core.mqtt_publish(bench.loop, bench.exchange, topic, b"", 0, False)
            for character in (b"*", b"\x01", b"\x7f", b"/", b"\xc3\xa4", b"\xf0\x9f\x8c\xa1"):
                topic = b"a" * at + character + b"b" * (n - at)
                _core.mqtt_publish(bench.loop, bench.exchange, topic, b"", 0, False)
