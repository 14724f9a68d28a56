# mypy: disable-error-code="no-untyped-call"
"""Who gets a message and when: prefetch, flow, waking up, exclusive consumers."""

from __future__ import annotations

from pamqp import commands

from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire
from tests.support.wire_actions import (
    consume,
    declare,
    deliveries,
    get,
    get_all,
    qos,
    ready,
    synchronise,
)

QUIET_S = 0.1


def publish(wire: Wire, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        wire.publish(2, "", queue, body)


def test_no_delivery_while_the_flow_is_off_not_even_into_freed_prefetch(
    wire: Wire, name: str
) -> None:
    """edge-cases.md 33"""
    declare(wire, name)
    publish(wire, name, b"1", b"2", b"3")
    qos(wire, 1)
    consume(wire, name, "c")
    deliveries(wire, 1)
    wire.call(1, commands.Channel.Flow(active=False), commands.Channel.FlowOk)

    wire.send(1, commands.Basic.Ack(delivery_tag=1))

    assert wire.receive_all(QUIET_S) == []
    assert ready(wire, name, channel=2) == 2
    wire.call(1, commands.Channel.Flow(active=True), commands.Channel.FlowOk)
    assert deliveries(wire, 1)[0].body == b"2"


def test_prefetch_counts_for_each_consumer(wire: Wire, name: str) -> None:
    """edge-cases.md 141"""
    declare(wire, name)
    qos(wire, 2)
    consume(wire, name, "a")
    consume(wire, name, "b")

    publish(wire, name, b"1", b"2", b"3", b"4", b"5")

    tags = [unit.method.consumer_tag for unit in deliveries(wire, 4)]
    assert sorted(tags) == ["a", "a", "b", "b"]
    assert ready(wire, name, channel=2) == 1


def test_global_prefetch_is_held_by_the_first_consumer(wire: Wire, name: str) -> None:
    """edge-cases.md 142"""
    declare(wire, name)
    qos(wire, 2, is_global=True)
    publish(wire, name, b"1", b"2", b"3")
    consume(wire, name, "a")
    first = deliveries(wire, 2)
    consume(wire, name, "b")

    assert wire.receive_all(QUIET_S) == []
    assert {unit.method.consumer_tag for unit in first} == {"a"}
    assert ready(wire, name, channel=2) == 1


def test_a_global_prefetch_lowered_below_what_is_out_waits_for_acks(wire: Wire, name: str) -> None:
    """What basic.get has fetched does not count, and what is recovered counts no more.

    amqp.md 22.6
    """
    declare(wire, name)
    publish(wire, name, b"1", b"2", b"3", b"4", b"5", b"6")
    assert get(wire, name, no_ack=False)
    qos(wire, 3, is_global=True)
    consume(wire, name, "a")
    assert [unit.body for unit in deliveries(wire, 3)] == [b"2", b"3", b"4"]

    qos(wire, 1, is_global=True)
    wire.send(1, commands.Basic.Ack(delivery_tag=3, multiple=True))
    synchronise(wire)
    assert wire.receive_all(QUIET_S) == []
    wire.send(1, commands.Basic.Ack(delivery_tag=4))

    assert [unit.body for unit in deliveries(wire, 1)] == [b"5"]
    assert wire.receive_all(QUIET_S) == []
    wire.call(1, commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)
    [again] = deliveries(wire, 1)
    assert (again.body, again.method.redelivered) == (b"5", True)
    assert ready(wire, name, channel=2) == 1


def test_two_consumers_of_prefetch_one_get_one_message_each(
    wire: Wire, other: Wire, name: str
) -> None:
    """edge-cases.md 143"""
    declare(wire, name, exclusive=False)
    for each in (wire, other):
        qos(each, 1)
        consume(each, name, "c")

    publish(wire, name, b"1", b"2", b"3")

    got = [deliveries(each, 1)[0].body for each in (wire, other)]
    assert sorted(got) == [b"1", b"2"]
    assert ready(wire, name, channel=2) == 1
    wire.call(2, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


def test_an_exclusive_consumer_keeps_others_out_until_its_connection_goes(
    broker: Broker, wire: Wire, name: str
) -> None:
    """edge-cases.md 148"""
    declare(wire, name, exclusive=False)
    with Wire.open(broker.port, host=broker.host) as owner:
        alone = commands.Basic.Consume(queue=name, consumer_tag="alone", exclusive=True)
        owner.call(1, alone, commands.Basic.ConsumeOk)
        wire.send(1, commands.Basic.Consume(queue=name, consumer_tag="c"))
        wire.expect_channel_close(1, 403)
        wire.open_channel(1)

    passive = commands.Queue.Declare(queue=name, passive=True)
    wait_for(
        lambda: wire.call(2, passive, commands.Queue.DeclareOk).consumer_count == 0,
        "the consumer outlives its connection",
    )
    consume(wire, name, "c")
    wire.call(2, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


def test_consumers_get_what_was_there_and_what_comes_later(wire: Wire, name: str) -> None:
    """edge-cases.md 150, 152"""
    declare(wire, name)
    consume(wire, name, "early", no_ack=True)
    for body in (b"1", b"2"):
        publish(wire, name, body)
        assert [unit.body for unit in deliveries(wire, 1)] == [body]
        synchronise(wire)  # the consumer has been idle in between
    wire.call(1, commands.Basic.Cancel(consumer_tag="early"), commands.Basic.CancelOk)
    publish(wire, name, b"3", b"4")
    assert ready(wire, name, channel=2) == 2

    consume(wire, name, "late", no_ack=True)

    assert [unit.body for unit in deliveries(wire, 2)] == [b"3", b"4"]


def test_consume_ok_comes_before_the_first_delivery(wire: Wire, name: str) -> None:
    """amqp.md 22.21"""
    declare(wire, name)
    publish(wire, name, *(b"%d" % number for number in range(50)))
    synchronise(wire, channel=2)

    for round_ in range(50):
        wire.send(1, commands.Basic.Consume(queue=name, consumer_tag=f"c{round_}", no_ack=True))
        assert wire.expect(commands.Basic.ConsumeOk, 1).consumer_tag == f"c{round_}"
        wire.send(1, commands.Basic.Cancel(consumer_tag=f"c{round_}"))
        while not isinstance(wire.receive().method, commands.Basic.CancelOk):
            pass
        publish(wire, name, b"next")
        synchronise(wire, channel=2)

    assert get_all(wire, name, channel=2) == [b"next"]


def test_a_reply_consumer_keeps_its_tag_and_its_address_cannot_be_guessed(
    wire: Wire, other: Wire, name: str
) -> None:
    """edge-cases.md 162, 165 and amqp.md 22.16"""
    declare(wire, name)
    addresses = []
    for each in (wire, other):
        consume(each, "amq.direct.reply-to", "same tag", no_ack=True)
        asks = commands.Basic.Properties(reply_to="amq.direct.reply-to")
        each.publish(1, "", name, b"ask", asks)
        synchronise(each)
        request = get(wire, name, channel=2)
        assert request is not None and request.properties is not None
        addresses.append(request.properties.reply_to)

    for number, address in enumerate(addresses):
        wire.publish(2, "", address, b"%d" % number)

    assert len(set(addresses)) == 2
    assert all(address.startswith("amq.direct.reply-to.") for address in addresses)
    assert not [address for address in addresses if "same tag" in address]
    for number, each in enumerate((wire, other)):
        [reply] = deliveries(each, 1)
        assert (reply.body, reply.method.consumer_tag) == (b"%d" % number, "same tag")
