# mypy: disable-error-code="no-untyped-call"
"""Acks, rejects and what comes back: the exact rules, on the shared broker."""

from __future__ import annotations

import pytest
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


def publish(wire: Wire, queue: str, count: int) -> list[bytes]:
    """Publish numbered messages and wait until they are ready; return them."""
    sent = [b"%d" % number for number in range(count)]
    for body in sent:
        wire.publish(1, "", queue, body)
    synchronise(wire)
    return sent


@pytest.mark.parametrize(
    "settlement",
    [
        commands.Basic.Ack(delivery_tag=1),
        commands.Basic.Nack(delivery_tag=1),
        commands.Basic.Reject(delivery_tag=1),
    ],
    ids=lambda settlement: settlement.name,
)
def test_settling_on_a_channel_the_client_has_closed_is_ignored(
    wire: Wire, name: str, settlement: commands.Basic.Ack
) -> None:
    """edge-cases.md 22"""
    declare(wire, name, channel=2)
    publish(wire, name, 1)
    assert get(wire, name, no_ack=False)
    wire.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)

    wire.send(1, settlement)

    synchronise(wire, channel=2)
    assert get_all(wire, name, channel=2) == [b"0"]


@pytest.mark.parametrize("multiple", [False, True])
def test_a_settled_tag_cannot_be_settled_again_whatever_else_is_outstanding(
    wire: Wire, name: str, multiple: bool
) -> None:
    """edge-cases.md 26, 27"""
    declare(wire, name)
    sent = publish(wire, name, 3)
    for _ in sent:
        assert get(wire, name, no_ack=False)
    wire.send(1, commands.Basic.Ack(delivery_tag=2))

    wire.send(1, commands.Basic.Ack(delivery_tag=2, multiple=multiple))

    assert wire.expect_channel_close(1, 406).reply_text.endswith("unknown delivery tag 2")
    assert get_all(wire, name, channel=2) == [b"0", b"2"]


def test_a_closing_channel_gives_back_what_it_has_not_settled(wire: Wire, name: str) -> None:
    """edge-cases.md 29, 153"""
    declare(wire, name)
    publish(wire, name, 10)
    assert get(wire, name, channel=2)
    assert get(wire, name, channel=2, no_ack=False)
    assert get(wire, name, channel=2, no_ack=False)
    consume(wire, name, "c", channel=2)
    deliveries(wire, 7)
    assert ready(wire, name) == 0

    wire.call(2, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)

    assert ready(wire, name) == 9


def test_a_consumer_that_dies_before_the_delivery_leaves_the_message(
    broker: Broker, wire: Wire, name: str
) -> None:
    """edge-cases.md 31"""
    declare(wire, name, exclusive=False)
    with Wire.open(broker.port, host=broker.host) as doomed:
        consume(doomed, name, "c")
        doomed.reset()
        publish(wire, name, 1)

    wait_for(lambda: ready(wire, name) == 1, "the message stays with the dead consumer")
    assert get_all(wire, name) == [b"0"]
    deleted = wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
    assert deleted.message_count == 0


def test_what_a_channel_gives_back_reaches_an_idle_consumer_of_another_connection(
    wire: Wire, other: Wire, name: str
) -> None:
    """edge-cases.md 32"""
    declare(wire, name, exclusive=False)
    publish(wire, name, 1)
    assert get(wire, name, channel=2, no_ack=False)
    consume(other, name, "idle")

    wire.call(2, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)

    [again] = deliveries(other, 1)
    assert (again.body, again.method.redelivered) == (b"0", True)
    wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


def test_what_the_only_consumer_rejects_comes_back_to_it(wire: Wire, name: str) -> None:
    """edge-cases.md 151, 155"""
    declare(wire, name)
    sent = publish(wire, name, 3)
    consume(wire, name, "c")
    tags = [unit.method.delivery_tag for unit in deliveries(wire, 3)]
    assert ready(wire, name, channel=2) == 0

    for tag in tags:
        wire.send(1, commands.Basic.Reject(delivery_tag=tag, requeue=True))

    again = deliveries(wire, 3)
    assert [unit.body for unit in again] == sent
    assert all(unit.method.redelivered for unit in again)


def test_rejecting_one_by_one_drains_the_queue(wire: Wire, name: str) -> None:
    """edge-cases.md 154"""
    declare(wire, name)
    sent = publish(wire, name, 200)
    qos(wire, 1)
    consume(wire, name, "c")

    for body in sent:
        [unit] = deliveries(wire, 1)
        assert unit.body == body
        wire.send(1, commands.Basic.Reject(delivery_tag=unit.method.delivery_tag, requeue=False))

    deleted = wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
    assert deleted.message_count == 0


def test_recover_gives_back_what_a_cancelled_consumer_holds(wire: Wire, name: str) -> None:
    """edge-cases.md 156"""
    declare(wire, name)
    publish(wire, name, 5)
    consume(wire, name, "c")
    deliveries(wire, 5)
    wire.call(1, commands.Basic.Cancel(consumer_tag="c"), commands.Basic.CancelOk)

    wire.call(1, commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)

    deleted = wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
    assert deleted.message_count == 5


@pytest.mark.parametrize("requeue", [True, False])
def test_deliveries_without_acks_leave_nothing_to_come_back(
    wire: Wire, name: str, requeue: bool
) -> None:
    """edge-cases.md 153"""
    declare(wire, name)
    publish(wire, name, 20)
    consume(wire, name, "c", channel=2, no_ack=True)
    deliveries(wire, 20)

    wire.call(2, commands.Basic.Recover(requeue=requeue), commands.Basic.RecoverOk)
    wire.call(2, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)

    assert ready(wire, name) == 0


def test_acks_after_the_queue_or_the_connection_has_gone_are_harmless(
    broker: Broker, wire: Wire, name: str
) -> None:
    """amqp.md 22.23"""
    declare(wire, name)
    publish(wire, name, 2)
    assert get(wire, name, no_ack=False)
    assert get(wire, name, no_ack=False)
    wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)

    wire.send(1, commands.Basic.Ack(delivery_tag=1))
    synchronise(wire)
    wire.send(0, commands.Connection.Close(200, "", 0, 0))
    wire.send(1, commands.Basic.Ack(delivery_tag=2), commands.Basic.Nack(delivery_tag=2))

    wire.expect(commands.Connection.CloseOk, 0)
    with Wire.open(broker.port, host=broker.host) as after:
        synchronise(after)
