"""What the standards demand of a conversation, where no other test shows it."""

from __future__ import annotations

import pytest

from lavinmq import _core
from tests.support.mqtt_bench import (
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Client,
    Message,
    MqttBench,
    ack,
    message,
    publish,
)

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
EXPIRY_10 = b"\x02\0\0\0\x0a"
SHARED = "mqtt.$share/g/t"


def say(bench: MqttBench, *bodies: bytes, qos: int = 1) -> None:
    """Publish to `t` as the broker itself."""
    for body in bodies:
        _core.mqtt_publish(bench.loop, bench.exchange, b"t", body, qos, False)
    bench.events.run()


def messages(client: Client) -> list[Message]:
    """What was published to a client, whatever else it has heard."""
    return [message(each, client.version) for each in client.heard() if each.kind == PUBLISH]


# --- acknowledgements -----------------------------------------------------------------------------


@VERSIONS
def test_an_identifier_that_was_acknowledged_is_a_new_message(
    bench: MqttBench, version: int
) -> None:
    """3.1.1 [MQTT-4.3.2-2], [MQTT-3.3.1-3], 5.0 [MQTT-4.3.2-5], [MQTT-3.3.1-3]: whatever DUP says,
    which is not passed on."""
    reader = bench.client("r", version).subscribe(b"t", 1)
    client = bench.client("p", version)

    client.publish(b"t", b"one", qos=1, id=5)
    client.publish(b"t", b"two", qos=1, id=5, dup=True)

    assert client.raw() == ack(PUBACK, 5) * 2
    assert [(each.body, each.dup) for each in reader.got()] == [(b"one", False), (b"two", False)]


@VERSIONS
def test_answers_to_qos_2_keep_the_order_of_the_messages(bench: MqttBench, version: int) -> None:
    """3.1.1 [MQTT-4.6.0-3], [MQTT-4.6.0-4]: PUBREC as PUBLISH came, PUBREL as PUBREC came."""
    client = bench.client("p", version).subscribe(b"t", 2)
    ids = [7, 3, 9, 1]

    client.send(b"".join(
        publish(b"x", qos=2, id=id, properties=b"" if version == 5 else None) for id in ids
    ))  # fmt: skip

    heard = client.heard()
    assert [each.first >> 4 for each in heard] == [PUBREC] * 4
    assert [each.body[:2] for each in heard] == [id.to_bytes(2, "big") for id in ids]
    say(bench, b"1", b"2", b"3", qos=2)
    assert [each.id for each in messages(client)] == [1, 2, 3]
    client.send(ack(PUBREC, 2) + ack(PUBREC, 3) + ack(PUBREC, 1))
    assert client.raw() == ack(PUBREL, 2) + ack(PUBREL, 3) + ack(PUBREL, 1)


def test_every_new_message_of_qos_2_has_an_unused_identifier(bench: MqttBench) -> None:
    """3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-1]: also while PUBREL waits for its PUBCOMP."""
    client = bench.client("r", 5).subscribe(b"t", 2)
    say(bench, b"1", b"2", qos=2)
    assert [each.id for each in messages(client)] == [1, 2]
    client.send(ack(PUBREC, 1))

    for _ in range(3):
        say(bench, *(b"x" for _ in range(21900)), qos=2)
        ids = [each.id for each in messages(client)]
        assert not {0, 1, 2} & set(ids)
        client.send(b"".join(ack(PUBREC, id) for id in ids))
        client.raw()
        client.send(b"".join(ack(PUBCOMP, id) for id in ids))

    client.send(ack(PUBCOMP, 1) + ack(PUBREC, 2) + ack(PUBCOMP, 2))
    assert client.link.mqtt_counters()["in_flight"] == 0


def test_a_refused_identifier_of_qos_2_is_a_new_message(bench: MqttBench) -> None:
    """5.0 [MQTT-4.3.3-9], [MQTT-3.5.2-1]: PUBREC said that it was not taken."""
    client = bench.client("p", 5)
    reader = bench.client("r", 5).subscribe(b"t", 2)
    reader.close()
    reader.queue.set_features(max_length=1, overflow=_core.OVERFLOW["reject-publish"])
    client.publish(b"t", b"1", qos=2, id=5)
    client.send(ack(PUBREL, 5))
    assert client.raw() == ack(PUBREC, 5) + ack(PUBCOMP, 5)

    client.publish(b"t", b"2", qos=2, id=6)
    assert client.raw() == ack(PUBREC, 6, 0x97)
    reader.queue.set_features(max_length=10)
    client.publish(b"t", b"3", qos=2, id=6)

    assert client.raw() == ack(PUBREC, 6)
    again = bench.client("r", 5)
    assert [each.body for each in messages(again)] == [b"1", b"3"]


def test_what_was_answered_with_an_error_is_not_sent_again(bench: MqttBench) -> None:
    """5.0 [MQTT-4.4.0-2]: by PUBACK and by PUBREC."""
    client = bench.client("r", 5).subscribe(b"t", 2)
    say(bench, b"1")
    say(bench, b"2", qos=2)
    assert [each.id for each in messages(client)] == [1, 2]

    client.send(ack(PUBACK, 1, 0x80) + ack(PUBREC, 2, 0x83))
    client.close()

    assert bench.client("r", 5).raw() == b""


# --- expiry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_expiry_does_not_count_for_what_was_sent(bench: MqttBench, qos: int) -> None:
    """5.0 [MQTT-4.3.3-7], [MQTT-4.3.3-13]: it comes again, and is completed."""
    client = bench.client("r", 5).subscribe(b"t", 2)
    bench.client("p", 5).publish(b"t", b"x", qos=qos, properties=EXPIRY_10)
    assert [each.id for each in messages(client)] == [1]
    client.close()

    bench.loop.clock_offset_ms = 20000
    again = bench.client("r", 5)

    assert [(each.id, each.dup, each.body) for each in messages(again)] == [(1, True, b"x")]
    if qos == 1:
        again.send(ack(PUBACK, 1))
    else:
        again.send(ack(PUBREC, 1))
        assert again.raw() == ack(PUBREL, 1)
        again.send(ack(PUBCOMP, 1))
    assert again.link.mqtt_counters()["in_flight"] == 0
    assert again.queue.unacked == again.queue.ready == 0


def test_what_comes_behind_a_message_that_was_sent_expires_all_the_same(bench: MqttBench) -> None:
    """5.0 [MQTT-3.3.2-5]: nobody has to come for that."""
    client = bench.client("r", 5).subscribe(b"t", 1)
    publisher = bench.client("p", 5)
    publisher.publish(b"t", b"sent", qos=1, properties=EXPIRY_10)
    assert [each.id for each in messages(client)] == [1]
    client.close()
    for number in range(5):
        publisher.publish(b"t", b"%d" % number, qos=1, properties=EXPIRY_10)
    assert client.queue.ready == 6

    bench.loop.clock_offset_ms = 20000
    bench.loop.expire()
    bench.events.run()

    assert client.queue.ready == 1
    assert [each.body for each in messages(bench.client("r", 5))] == [b"sent"]


def test_qos_2_goes_on_for_a_message_that_expires_meanwhile(bench: MqttBench) -> None:
    """5.0 [MQTT-4.3.3-13]: in both directions."""
    reader = bench.client("r", 5).subscribe(b"t", 2)
    client = bench.client("p", 5)
    client.publish(b"t", b"x", qos=2, id=4, properties=EXPIRY_10)
    assert [each.id for each in messages(reader)] == [1]

    bench.loop.clock_offset_ms = 20000
    bench.loop.check_links()
    client.raw()
    client.send(ack(PUBREL, 4))
    reader.send(ack(PUBREC, 1))

    assert client.raw() == ack(PUBCOMP, 4)
    assert reader.raw() == ack(PUBREL, 1)


# --- flow control, aliases ------------------------------------------------------------------------


def test_a_client_without_credit_is_answered_all_the_same(bench: MqttBench) -> None:
    """5.0 [MQTT-3.3.4-10], [MQTT-4.9.0-3]: pings, its own publishes, QoS 2 in both directions."""
    client = bench.client("r", 5, receive_maximum=1).subscribe(b"t", 2)
    say(bench, b"1", b"2", qos=2)
    assert [each.id for each in messages(client)] == [1]

    client.send(b"\xc0\0")
    client.publish(b"x", b"own", qos=2, id=9)
    client.send(ack(PUBREL, 9))
    client.send(ack(PUBREC, 1))

    heard = client.heard()
    assert [each.kind for each in heard] == [PINGRESP, PUBREC, PUBCOMP, PUBREL]
    client.send(ack(PUBCOMP, 1))
    assert [each.body for each in messages(client)] == [b"2"]


def test_there_are_no_aliases_for_who_wants_none(bench: MqttBench) -> None:
    """5.0 [MQTT-3.1.2-27]."""
    client = bench.client("r", 5, alias_maximum_out=0).subscribe(b"#", 0)

    for _ in range(3):
        client.publish(b"topic", b"x")

    assert [(each.topic, each.properties) for each in client.got()] == [(b"topic", b"")] * 3


def test_aliases_end_with_their_connection(bench: MqttBench) -> None:
    """5.0 [MQTT-3.3.2-7]: in both directions."""
    client = bench.client("c", 5, alias_maximum_in=2, alias_maximum_out=2).subscribe(b"#", 0)
    client.publish(b"topic/one", b"x", properties=b"\x23\0\1")
    assert client.got()[0].properties == b"\x23\0\1"
    client.close()

    again = bench.client("c", 5, alias_maximum_in=2, alias_maximum_out=2)
    again.publish(b"topic/one", b"x")
    assert [(each.topic, each.properties) for each in again.got()] == [(b"topic/one", b"\x23\0\1")]
    again.publish(b"", b"x", properties=b"\x23\0\1")

    assert again.session.events[0][:2] == ("on_packet_error", 0x82)


# --- order, the end of subscriptions --------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_client_keep_their_order(bench: MqttBench, version: int, qos: int) -> None:
    """3.1.1 [MQTT-4.6.0-5], [MQTT-4.6.0-6], 5.0 [MQTT-4.6.0-5], [MQTT-4.6.0-6]."""
    reader = bench.client("r", version, receive_maximum=10).subscribe(b"t/+", 2)
    client = bench.client("p", version)

    for number in range(50):
        client.publish(b"t/%d" % (number % 2), b"%d" % number, qos=qos, id=number + 1)

    bodies = []
    while found := messages(reader):
        bodies += [each.body for each in found]
        for each in found:
            if qos == 1:
                reader.send(ack(PUBACK, each.id))
            if qos == 2:
                reader.send(ack(PUBREC, each.id) + ack(PUBCOMP, each.id))
    assert bodies == [b"%d" % number for number in range(50)]


@VERSIONS
def test_what_has_begun_is_completed_after_unsubscribe(bench: MqttBench, version: int) -> None:
    """3.1.1 [MQTT-3.10.4-2], [MQTT-3.10.4-3], 5.0 [MQTT-3.10.4-2], [MQTT-3.10.4-3]."""
    client = bench.client("r", version).subscribe(b"t", 2)
    say(bench, b"1", qos=2)
    say(bench, b"2", qos=1)
    assert [each.id for each in messages(client)] == [1, 2]

    bench.exchange.unbind(b"t", b"", client.queue)
    say(bench, b"3", qos=2)
    client.close()

    again = bench.client("r", version)
    assert [(each.body, each.dup) for each in messages(again)] == [(b"1", True), (b"2", True)]
    again.send(ack(PUBREC, 1) + ack(PUBCOMP, 1) + ack(PUBACK, 2))
    assert again.queue.unacked == again.queue.ready == 0


# --- shared subscriptions -------------------------------------------------------------------------


def members(bench: MqttBench, first_qos: int, second_qos: int) -> tuple[Client, Client]:
    """Two clients that share a subscription of QoS 2."""
    shared = bench.queue(SHARED)
    bench.exchange.bind(b"t", b"", _core.Subscription(shared, 2))
    one, two = bench.client("one", 5), bench.client("two", 5)
    one.link.mqtt_share(shared, first_qos)
    two.link.mqtt_share(shared, second_qos)
    return one, two


def test_each_member_gets_the_qos_it_was_granted(bench: MqttBench) -> None:
    """5.0 [MQTT-4.8.2-3]: at most; the lower one of a message counts."""
    one, two = members(bench, 2, 1)

    say(bench, b"a", b"b", b"c", b"d", qos=2)
    say(bench, b"e", b"f", qos=0)

    assert sorted(each.qos for each in messages(one)) == [0, 2, 2]
    assert sorted(each.qos for each in messages(two)) == [0, 1, 1]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_refuses_goes_to_nobody_else(bench: MqttBench, qos: int) -> None:
    """5.0 [MQTT-4.8.2-6]: by PUBACK, or by PUBREC."""
    one, two = members(bench, qos, qos)
    say(bench, b"1", b"2", qos=qos)
    (first,) = messages(one)
    assert len(messages(two)) == 1

    one.send(ack(PUBACK if qos == 1 else PUBREC, first.id, 0x83))
    one.close()
    bench.events.run()

    assert two.raw() == b""
    assert bench.queue(SHARED).ready == 0
