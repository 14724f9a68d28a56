# mypy: disable-error-code="no-untyped-call"
"""Messages whose header frame is larger than a client takes: it is told, and nothing is lost.

Publishers may have larger frames than consumers, and the broker adds headers: `x-death` grows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.wire import Wire
from tests.support.wire_actions import bind, consume, declare, declare_exchange, get, ready

SMALL = 4096
TEXT = "a message has a larger header than the frame_max of this connection allows"
FITS = SMALL - 8 - 12
"""Bytes of properties that such a client takes."""


@pytest.fixture
def small(broker: Broker) -> Iterator[Wire]:
    """A client with the smallest frames there are."""
    with Wire.open(broker.port, frame_max=SMALL, channels=(1, 2)) as opened:
        yield opened


def padded(n: int) -> commands.Basic.Properties:
    """Properties of n bytes on the wire."""
    empty = len(commands.Basic.Properties(headers={"pad": ""}).marshal())
    return commands.Basic.Properties(headers={"pad": "." * (n - empty)})


def expect_refusal(wire: Wire, method: tuple[int, int]) -> None:
    close = wire.expect_channel_close(1, 406)
    assert close.reply_text == f"PRECONDITION_FAILED - {TEXT}"
    assert (close.class_id, close.method_id) == method


def test_the_largest_header_that_fits_is_delivered(wire: Wire, small: Wire, name: str) -> None:
    declare(wire, name, exclusive=False, auto_delete=True)
    consume(small, name, "c")

    wire.publish(1, "", name, b"m", padded(FITS))

    unit = small.expect_unit(commands.Basic.Deliver)
    assert (unit.body, len(unit.properties.marshal())) == (b"m", FITS)


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_consumer_is_told_and_another_gets_the_message(
    wire: Wire, small: Wire, name: str, no_ack: bool
) -> None:
    declare(wire, name, exclusive=False)
    consume(small, name, "small", no_ack=no_ack)

    wire.publish(1, "", name, b"large", padded(FITS + 1))
    wire.publish(1, "", name, b"behind it")

    expect_refusal(small, (60, 20))
    assert ready(wire, name) == 2
    consume(wire, name, "large", no_ack=True)
    found = [wire.expect_unit(commands.Basic.Deliver) for _ in range(2)]
    assert [(unit.body, unit.method.redelivered) for unit in found] == [
        (b"large", False), (b"behind it", False),
    ]  # fmt: skip
    wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
    assert small.call(
        2, commands.Queue.Declare(queue=f"{name}-2", exclusive=True), commands.Queue.DeclareOk
    ), "the connection lives"


def test_a_get_is_refused_and_the_message_stays(wire: Wire, small: Wire, name: str) -> None:
    declare(wire, name, exclusive=False, auto_delete=True)
    wire.publish(1, "", name, b"large", padded(FITS + 1))
    assert ready(wire, name) == 1

    small.send(1, commands.Basic.Get(queue=name))

    expect_refusal(small, (60, 70))
    assert ready(wire, name) == 1
    unit = get(wire, name)
    assert unit is not None
    assert unit.body == b"large"


def test_hidden_headers_do_not_count(wire: Wire, small: Wire, name: str) -> None:
    """BCC is not delivered."""
    declare(wire, name, exclusive=False, auto_delete=True)
    consume(small, name, "c")

    hidden = commands.Basic.Properties(headers={"BCC": ["x" * 200] * 30, "k": "v"})
    wire.publish(1, "", name, b"m", hidden)

    unit = small.expect_unit(commands.Basic.Deliver)
    assert unit.properties.headers == {"k": "v"}


def test_what_the_broker_adds_counts(wire: Wire, small: Wire, name: str) -> None:
    """Each death makes the header longer; here the first one makes it too long."""
    dead = declare(wire, f"{name}-dead", exclusive=False)
    exchange = declare_exchange(wire, f"{name}-x", "fanout")
    bind(wire, dead, exchange)
    arguments = {"x-dead-letter-exchange": exchange, "x-max-length": 0}
    declare(wire, name, arguments=arguments)
    consume(small, dead, "c")

    wire.publish(1, "", name, b"m", padded(FITS))

    expect_refusal(small, (60, 20))
    unit = get(wire, dead)
    assert unit is not None
    assert unit.properties.headers["x-death"][0]["count"] == 1
    wire.call(1, commands.Queue.Delete(queue=dead), commands.Queue.DeleteOk)


def test_a_stream_tells_its_reader_too(wire: Wire, small: Wire, name: str) -> None:
    arguments = {"x-queue-type": "stream"}
    declare(wire, name, durable=True, exclusive=False, arguments=arguments)
    small.call(1, commands.Basic.Qos(prefetch_count=5), commands.Basic.QosOk)
    request = commands.Basic.Consume(queue=name, arguments={"x-stream-offset": "first"})
    small.call(1, request, commands.Basic.ConsumeOk)

    wire.publish(1, "", name, b"large", padded(FITS))

    expect_refusal(small, (60, 20))
    wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
