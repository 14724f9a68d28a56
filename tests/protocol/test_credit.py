"""Credit of consumers with a large prefetch: used in batches, but never left unused."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.wire import Wire

PREFETCH = 200


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    """A connection with channel 1 open."""
    with Wire.open(broker.port, host=broker.host, channels=(1,)) as connection:
        yield connection


@pytest.fixture
def full(wire: Wire) -> Wire:
    """A consumer that holds as many messages as it may, with more waiting."""
    name = f"credit-{uuid4().hex[:12]}"
    wire.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
    wire.call(1, commands.Basic.Qos(prefetch_count=PREFETCH), commands.Basic.QosOk)
    wire.call(1, commands.Basic.Consume(queue=name, consumer_tag="c"), commands.Basic.ConsumeOk)
    for number in range(PREFETCH + 100):
        wire.publish(1, "", name, b"%d" % number)
    for tag in range(1, PREFETCH + 1):
        assert wire.expect(commands.Basic.Deliver, 1).delivery_tag == tag
    return wire


def test_a_single_freed_place_is_filled(full: Wire) -> None:
    full.send(1, commands.Basic.Ack(delivery_tag=1))

    assert full.expect(commands.Basic.Deliver, 1).delivery_tag == PREFETCH + 1


def test_many_freed_places_are_all_filled_and_no_more(full: Wire) -> None:
    full.send(1, commands.Basic.Ack(delivery_tag=50, multiple=True))

    for tag in range(PREFETCH + 1, PREFETCH + 51):
        assert full.expect(commands.Basic.Deliver, 1).delivery_tag == tag
    assert full.receive_all(quiet_s=0.2) == []


def test_a_consumer_cancelled_while_its_credit_waits_gets_nothing_more(full: Wire) -> None:
    full.send(
        1,
        commands.Basic.Ack(delivery_tag=1),
        commands.Basic.Cancel(consumer_tag="c", nowait=False),
    )

    full.expect(commands.Basic.CancelOk, 1)
    assert full.receive_all(quiet_s=0.2) == []


def test_a_channel_closed_while_its_credit_waits_returns_its_messages(
    broker: Broker, full: Wire
) -> None:
    full.send(1, commands.Basic.Ack(delivery_tag=1), commands.Channel.Close(200, "", 0, 0))

    full.expect(commands.Channel.CloseOk, 1)
    with Wire.open(broker.port, host=broker.host) as other:
        other.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
