"""Clients that send nothing and get nothing: they have no channel, and what comes wakes them."""

from __future__ import annotations

import pytest

from lavinmq import _core
from tests.support.mqtt_bench import (
    PINGRESP,
    PUBACK,
    PUBREC,
    PUBREL,
    Client,
    MqttBench,
    ack,
    publish,
)
from tests.support.waiting import wait_for

PING = b"\xc0\x00"


def tell(bench: MqttBench, topic: bytes, body: bytes, qos: int) -> None:
    _core.mqtt_publish(bench.loop, bench.exchange, topic, body, qos, False)
    bench.events.run()


def watched(client: Client) -> Client:
    """As a broker has it: its link is looked at now and then."""
    client.link.start(0)
    return client


def look_until(bench: MqttBench, *clients: Client) -> None:
    """Let time pass until they are asleep."""

    def are_asleep() -> bool:
        bench.loop.check_links()
        bench.events.run()
        return all(each.link.is_asleep for each in clients)

    wait_for(are_asleep, "sleep", timeout_s=30)


def test_a_client_begins_asleep_and_pings_do_not_wake_it(bench: MqttBench) -> None:
    client = bench.client()

    client.send(PING)
    client.send(PING)

    assert [each.kind for each in client.heard()] == [PINGRESP, PINGRESP]
    assert client.link.is_asleep
    assert client.queue.consumers == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_wakes_its_client(bench: MqttBench, qos: int) -> None:
    client = bench.client().subscribe(b"t")

    tell(bench, b"t", b"1", qos)

    assert [(each.body, each.qos) for each in client.got()] == [(b"1", qos)]
    assert not client.link.is_asleep
    assert client.queue.consumers == 1
    assert client.link.mqtt_counters()["dropped"] == 0


@pytest.mark.parametrize("at", [1, 5, 7])
def test_a_packet_wakes_its_client_wherever_it_is_cut(bench: MqttBench, at: int) -> None:
    client = bench.client()
    data = publish(b"t", b"1", qos=1, id=9)

    client.send(data[:at])
    client.send(data[at:])

    assert [each.kind for each in client.heard()] == [PUBACK]
    assert client.link.mqtt_counters()["publish"] == 1


def test_a_ping_before_a_publish_in_one_read_is_answered_first(bench: MqttBench) -> None:
    client = bench.client()

    client.send(PING + publish(b"t", b"1", qos=1))

    assert [each.kind for each in client.heard()] == [PINGRESP, PUBACK]


def test_a_session_with_messages_is_awake_at_once(bench: MqttBench) -> None:
    client = bench.client(is_persistent=True).subscribe(b"t")
    client.close()
    assert client.queue.consumers == 0
    tell(bench, b"t", b"kept", 1)

    again = bench.client()

    assert again.bodies() == [b"kept"]


def test_who_leaves_asleep_is_gone(bench: MqttBench) -> None:
    client = bench.client().subscribe(b"t")

    client.link.mqtt_close()
    tell(bench, b"t", b"1", 0)

    assert client.queue.consumers == client.queue.ready == 0
    assert client.raw() == b""


def test_quiet_clients_fall_asleep_and_those_with_something_under_way_do_not(
    bench: MqttBench,
) -> None:
    quiet = watched(bench.client("quiet", receive_maximum=2).subscribe(b"t/quiet"))
    unacked = watched(bench.client("unacked").subscribe(b"t/unacked"))
    received = watched(bench.client("received", version=5, alias_maximum_in=2))
    member = watched(bench.client("member"))
    shared = bench.queue("mqtt.$share/g/t")
    bench.exchange.bind(b"shared", b"", _core.Subscription(shared, 1))
    member.link.mqtt_share(shared, 1)
    tell(bench, b"t/quiet", b"1", 1)
    tell(bench, b"t/unacked", b"1", 1)
    quiet.send(ack(PUBACK, quiet.got()[0].id))
    quiet.publish(b"elsewhere", b"x" * 300)
    received.publish(b"alias", properties=b"\x23\x00\x01")
    assert not quiet.link.is_asleep

    look_until(bench, quiet)

    assert not any(each.link.is_asleep for each in (unacked, received, member))
    assert quiet.queue.consumers == 1
    assert quiet.link.mqtt_counters()["publish"] == 1
    for body in (b"2", b"3", b"4"):
        tell(bench, b"t/quiet", body, 1)
    assert [(each.body, each.id) for each in quiet.got()] == [(b"2", 2), (b"3", 3)]
    quiet.send(ack(PUBACK, 2))
    assert quiet.bodies() == [b"4"]
    unacked.send(ack(PUBACK, unacked.got()[0].id))
    assert unacked.session.events == []
    received.publish(b"", b"1", properties=b"\x23\x00\x01")
    assert received.session.events == []
    tell(bench, b"shared", b"1", 1)
    assert member.bodies() == [b"1"]


def test_an_id_of_qos_2_outlives_the_sleep_of_its_sender(bench: MqttBench) -> None:
    sender = watched(bench.client())
    sender.send(publish(b"t", b"1", qos=2, id=7))
    assert [each.kind for each in sender.heard()] == [PUBREC]

    look_until(bench, sender)
    sender.send(publish(b"t", b"1", qos=2, id=7, dup=True))

    assert sender.link.mqtt_counters()["received"] == 1
    sender.send(ack(PUBREL, 7))
    assert sender.link.mqtt_counters()["received"] == 0
