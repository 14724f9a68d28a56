"""Messages of QoS 1 and 2 on their way out: packet ids, acknowledgements, and what comes again."""

from __future__ import annotations

import pytest

from lavinmq import _core
from tests.support.mqtt_bench import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Client,
    MqttBench,
    ack,
    message,
)


def fill(bench: MqttBench, n: int, qos: int = 1) -> None:
    for number in range(n):
        _core.mqtt_publish(bench.loop, bench.exchange, b"t", b"%d" % number, qos, False)
    bench.events.run()


def test_a_message_stays_until_it_is_acknowledged(bench: MqttBench) -> None:
    """3.1.1 [MQTT-4.3.2-1], 5.0 [MQTT-4.3.2-3]."""
    client = bench.client().subscribe(b"t", 1)
    fill(bench, 3)

    got = client.got()
    assert [each.id for each in got] == [1, 2, 3]
    assert client.queue.unacked == 3
    client.send(ack(PUBACK, 2) + ack(PUBACK, 1) + ack(PUBACK, 3))

    assert client.queue.unacked == client.queue.ready == 0
    assert client.session.events == []


def test_an_acknowledgement_of_an_id_not_in_flight_is_an_error(bench: MqttBench) -> None:
    client = bench.client().subscribe(b"t", 1)
    fill(bench, 1)

    client.send(ack(PUBACK, 1))
    client.send(ack(PUBACK, 1))

    assert client.session.events[0][:2] == ("on_packet_error", 0x82)


def test_no_more_are_in_flight_than_the_client_takes(bench: MqttBench) -> None:
    """5.0 [MQTT-3.3.4-9], [MQTT-4.9.0-1], [MQTT-4.9.0-2]."""
    client = bench.client(version=5, receive_maximum=3).subscribe(b"t", 1)
    fill(bench, 7)

    assert client.bodies() == [b"0", b"1", b"2"]
    client.send(ack(PUBACK, 2))
    assert client.bodies() == [b"3"]
    client.send(ack(PUBACK, 1) + ack(PUBACK, 3))
    assert client.bodies() == [b"4", b"5"]


def test_what_is_unacknowledged_comes_again_with_its_id_and_dup(bench: MqttBench) -> None:
    """3.1.1 [MQTT-2.3.1-4], [MQTT-3.3.1-1], [MQTT-4.4.0-1], [MQTT-4.6.0-1], 5.0 [MQTT-2.2.1-4],
    [MQTT-3.3.1-1], [MQTT-4.4.0-1]: in the order of before."""
    first = bench.client().subscribe(b"t", 1)
    fill(bench, 4)
    assert len(first.got()) == 4
    first.send(ack(PUBACK, 2))
    first.close()
    fill(bench, 1)

    again = bench.client()

    got = [(each.id, each.body, each.dup) for each in again.got()]
    assert got[:3] == [(1, b"0", True), (3, b"2", True), (4, b"3", True)]
    assert got[3][1:] == (b"0", False)
    assert got[3][0] not in (1, 3, 4)
    again.send(b"".join(ack(PUBACK, id) for id, *_ in got))
    assert again.queue.unacked == 0
    assert again.link.mqtt_counters()["in_flight"] == 0


def test_ids_are_never_0_and_never_in_use(bench: MqttBench) -> None:
    """3.1.1 [MQTT-2.3.1-1], [MQTT-2.3.1-4], [MQTT-4.3.2-1], 5.0 [MQTT-2.2.1-4], [MQTT-4.3.2-1]."""
    client = bench.client(receive_maximum=65535).subscribe(b"t", 1)
    fill(bench, 1)
    client.got()
    for _ in range(7):
        fill(bench, 10000)
        ids = [each.id for each in client.got()]
        assert 0 not in ids
        assert 1 not in ids
        assert len(set(ids)) == 10000
        client.send(b"".join(ack(PUBACK, id) for id in ids))

    client.send(ack(PUBACK, 1))
    assert client.queue.unacked == 0


def qos_2(client: Client) -> list[int]:
    got = [message(each, client.version) for each in client.heard() if each.kind == 3]
    return [each.id for each in got]


@pytest.mark.parametrize("version", [4, 5])
def test_qos_2_takes_four_steps_out(bench: MqttBench, version: int) -> None:
    """3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-2.2.1-5], [MQTT-4.3.3-3], [MQTT-4.3.3-4], [MQTT-4.3.3-5]."""
    client = bench.client(version=version, receive_maximum=2).subscribe(b"t", 2)
    fill(bench, 3, 2)

    assert qos_2(client) == [1, 2]
    client.send(ack(PUBREC, 1))
    assert client.raw() == ack(PUBREL, 1)
    assert client.queue.unacked == 1
    client.send(ack(PUBREC, 1))
    assert client.raw() == ack(PUBREL, 1)
    client.send(ack(PUBCOMP, 1))
    assert qos_2(client) == [3]
    client.send(ack(PUBREC, 2) + ack(PUBREC, 3) + ack(PUBCOMP, 2) + ack(PUBCOMP, 3))

    assert client.link.mqtt_counters()["in_flight"] == 0
    assert client.queue.unacked == client.queue.ready == 0


def test_pubrel_is_said_again_after_a_reconnect(bench: MqttBench) -> None:
    """3.1.1 [MQTT-4.3.3-1], [MQTT-4.4.0-1], 5.0 [MQTT-4.3.3-5], [MQTT-4.3.3-6], [MQTT-4.4.0-1]."""
    first = bench.client().subscribe(b"t", 2)
    fill(bench, 2, 2)
    first.send(ack(PUBREC, 1))
    first.close()

    again = bench.client()

    heard = again.heard()
    assert (heard[0].first, heard[0].body) == (PUBREL << 4 | 2, b"\0\1")
    got = message(heard[1], 4)
    assert (got.id, got.dup, got.qos, got.body) == (2, True, 2, b"1")
    again.send(ack(PUBCOMP, 1) + ack(PUBREC, 2) + ack(PUBCOMP, 2))
    assert again.link.mqtt_counters()["in_flight"] == 0


def test_an_error_in_pubrec_ends_the_delivery(bench: MqttBench) -> None:
    """5.0 [MQTT-4.3.3-4], [MQTT-4.4.0-2]."""
    client = bench.client(version=5).subscribe(b"t", 2)
    fill(bench, 1, 2)
    client.heard()

    client.send(ack(PUBREC, 1, 0x97))

    assert client.raw() == b""
    assert client.queue.unacked == 0
    assert client.link.mqtt_counters()["in_flight"] == 0


def test_an_unknown_id_is_not_found(bench: MqttBench) -> None:
    """5.0 [MQTT-3.6.2-1], [MQTT-3.7.2-1]."""
    client = bench.client(version=5)

    client.send(ack(PUBREC, 7) + ack(PUBREL, 8) + ack(PUBCOMP, 9))

    assert client.raw() == b"\x62\x03\x00\x07\x92" + b"\x70\x03\x00\x08\x92"


@pytest.mark.parametrize("version", [4, 5])
def test_qos_2_comes_in_once(bench: MqttBench, version: int) -> None:
    """3.1.1 [MQTT-2.3.1-6], [MQTT-4.3.3-2], 5.0 [MQTT-2.2.1-5], [MQTT-4.3.3-8], [MQTT-4.3.3-10],
    [MQTT-4.3.3-11], [MQTT-4.3.3-12]."""
    reader = bench.client("r").subscribe(b"t", 0)
    client = bench.client("p", version)

    client.publish(b"t", b"x", qos=2, id=5)
    client.publish(b"t", b"x", qos=2, id=5, dup=True)
    assert client.raw() == ack(PUBREC, 5) * 2
    assert reader.bodies() == [b"x"]
    client.send(ack(PUBREL, 5))
    assert client.raw() == ack(PUBCOMP, 5)
    client.publish(b"t", b"y", qos=2, id=5)

    assert reader.bodies() == [b"y"]


def test_what_came_with_qos_2_is_known_after_a_reconnect(bench: MqttBench) -> None:
    """3.1.1 [MQTT-4.3.3-2], 5.0 [MQTT-4.3.3-10]."""
    reader = bench.client("r").subscribe(b"t", 0)
    client = bench.client("p")
    client.publish(b"t", b"x", qos=2, id=5)
    client.close()

    again = bench.client("p")
    again.publish(b"t", b"x", qos=2, id=5, dup=True)

    assert again.raw() == ack(PUBREC, 5)
    assert reader.bodies() == [b"x"]


def test_ids_can_be_taken_over_from_before_a_restart(bench: MqttBench) -> None:
    client = bench.unopened("c")
    client.subscribe(b"t", 2)
    _core.mqtt_restore(client.queue, [5], [], [9])

    client.open()
    client.publish(b"t", b"x", qos=2, id=5)

    assert client.raw() == ack(PUBREL, 9) + ack(PUBREC, 5)
    assert client.link.mqtt_counters()["in_flight"] == 1


def test_a_message_from_before_a_restart_keeps_its_id(bench: MqttBench) -> None:
    """It comes by the cursor, and not as one that went back."""
    client = bench.unopened("c").subscribe(b"t", 2)
    fill(bench, 2)
    _core.mqtt_restore(client.queue, [], [(7, 1, 4)], [])

    client.open()

    assert [(each.id, each.dup) for each in client.got()] == [(7, True), (1, False)]


SENT_TWICE = 1 << 31
"""In the segment of a message of QoS 2 that is sent."""


def test_a_message_that_is_gone_is_let_go_of_with_qos_2(bench: MqttBench) -> None:
    """The broker has not noted the PUBREC by which it went, and its client would take the next
    message with that id for the same. With QoS 1 the id is free."""
    client = bench.unopened("c").subscribe(b"t", 2)
    _core.mqtt_restore(client.queue, [], [(7, SENT_TWICE | 1, 4), (9, 1, 4000)], [])

    client.open()

    assert client.raw() == ack(PUBREL, 7)
    assert client.link.mqtt_counters()["in_flight"] == 1
    client.send(ack(PUBCOMP, 7))
    assert client.link.mqtt_counters()["in_flight"] == 0


def test_a_message_that_comes_to_the_place_of_one_that_is_gone_has_its_own_id(
    bench: MqttBench,
) -> None:
    """The place was noted, and a loss of power took the message. The client may have the id."""
    client = bench.unopened("c").subscribe(b"t", 2)
    assert _core.mqtt_restore(client.queue, [], [(1, SENT_TWICE | 1, 4)], []) == [1]
    fill(bench, 1, 2)

    client.open()

    released, sent = client.heard()
    assert (released.kind, released.body) == (PUBREL, b"\0\1")
    got = message(sent, 4)
    assert (got.id, got.dup, got.body) == (2, False, b"0")


def test_a_message_that_is_purged_is_let_go_of_with_qos_2(bench: MqttBench) -> None:
    """Its client may have it, and its PUBREC may have been lost with the connection."""
    first = bench.client().subscribe(b"t", 2)
    fill(bench, 1, 2)
    first.close()
    for _ in _core.Purge(first.queue):
        pass

    again = bench.client()

    assert again.raw() == ack(PUBREL, 1)


def test_members_of_a_shared_subscription_take_turns_and_inherit(bench: MqttBench) -> None:
    shared = bench.queue("mqtt.$share-g-t")
    bench.exchange.bind(b"t", b"", _core.Subscription(shared, 2))
    one, two = bench.client("one", 5), bench.client("two", 5)
    one.link.mqtt_share(shared, 1, 77)
    two.link.mqtt_share(shared, 0)

    fill(bench, 4, 2)

    first, second = one.got(), two.got()
    assert {each.body for each in (*first, *second)} == {b"0", b"1", b"2", b"3"}
    assert [(each.qos, each.properties) for each in first] == [(1, b"\x0b\x4d")] * 2
    assert [(each.qos, each.properties) for each in second] == [(0, b"")] * 2
    one.close()
    bench.events.run()
    assert [each.body for each in two.got()] == [each.body for each in first]
    fill(bench, 1, 0)
    assert two.bodies() == [b"0"]
