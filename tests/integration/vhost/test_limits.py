# mypy: disable-error-code="no-untyped-call"
"""Limits of connections and channels: none at all, and low ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.wire import PROTOCOL_HEADER, Wire
from tests.support.wire_actions import consume, declare, get, synchronise

UNLIMITED = "[amqp]\nframe_max = 0\nchannel_max = 0\nmax_consumers_per_channel = 0\n"
LOW = "[amqp]\nchannel_max = 1\nmax_consumers_per_channel = 2\n"
FEW = """[amqp]
max_consumers_per_connection = 2
max_bindings_per_queue = 2
max_bindings_per_vhost = 3
"""


def started(directory_factory: pytest.TempPathFactory, settings: str) -> Iterator[Broker]:
    directory = directory_factory.mktemp("limits")
    (directory / "lavinmq.ini").write_text(settings)
    broker = Broker(directory / "data", ["-c", str(directory / "lavinmq.ini")])
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker without limits."""
    yield from started(tmp_path_factory, UNLIMITED)


@pytest.fixture(scope="module")
def low(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with low limits."""
    yield from started(tmp_path_factory, LOW)


def test_without_limits_nothing_is_proposed_and_nothing_need_be_chosen(unlimited: Broker) -> None:
    """edge-cases.md 4, 8 and amqp.md 22.14"""
    with Wire(unlimited.port) as wire:
        tune = wire.login("guest", "guest", "/")
        wire.frame_max = 1 << 20
        wire.open_channel(1)
        declare(wire, "wide")
        body = bytes(300_000)
        wire.publish(1, "", "wide", body)  # in one frame
        received = get(wire, "wide")

    assert (tune.channel_max, tune.frame_max) == (0, 0)
    assert received is not None and received.body == body


def test_without_a_limit_channels_are_opened_at_will(unlimited: Broker) -> None:
    """edge-cases.md 5"""
    with Wire.open(unlimited.port, channels=()) as wire:
        wire.send_bytes(b"".join(frame_of_open(number) for number in range(1, 3001)))
        for number in range(1, 3001):
            wire.expect(commands.Channel.OpenOk, number)
        synchronise(wire, 3000)


def frame_of_open(channel: int) -> bytes:
    return b"\1" + channel.to_bytes(2, "big") + b"\0\0\0\5\0\x14\0\x0a\0\xce"


def test_one_channel_too_many_closes_the_connection(low: Broker) -> None:
    """edge-cases.md 6"""
    with Wire.open(low.port) as wire:
        wire.send(2, commands.Channel.Open())

        text = wire.expect_connection_close(530).reply_text

    assert "number of channels opened (1) has reached the negotiated channel_max (1)" in text


def test_one_consumer_too_many_closes_the_connection(low: Broker) -> None:
    """edge-cases.md 28"""
    with Wire.open(low.port) as wire:
        declare(wire, "q")
        consume(wire, "q", "1")
        consume(wire, "q", "2")

        wire.send(1, commands.Basic.Consume(queue="q", consumer_tag="3"))

        wire.expect_connection_close(506)


def test_without_a_limit_consumers_are_started_at_will(unlimited: Broker) -> None:
    """edge-cases.md 28"""
    with Wire.open(unlimited.port) as wire:
        declare(wire, "q")
        for number in range(200):
            consume(wire, "q", str(number))


@pytest.mark.parametrize(
    "first", [b"HTTP", b"GET / HTTP/1.1\r\n\r\n", b"AMQP\0\1\0\0", b"\0\0\0\0"]
)
def test_what_is_no_header_is_answered_with_ours(low: Broker, first: bytes) -> None:
    """edge-cases.md 1"""
    with Wire(low.port) as wire:
        wire.send_bytes(first)

        [unit] = wire.expect_closed()

    assert unit.method.name == "ProtocolHeader"
    assert unit.method.marshal() == PROTOCOL_HEADER


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that allows few consumers and bindings."""
    yield from started(tmp_path_factory, FEW)


def test_consumers_of_all_channels_of_a_connection_are_limited(few: Broker) -> None:
    with Wire.open(few.port, channels=(1, 2)) as wire, Wire.open(few.port) as other:
        declare(wire, "consumed", exclusive=False, auto_delete=True)
        consume(wire, "consumed", "a")
        consume(wire, "consumed", "b", channel=2)

        wire.send(2, commands.Basic.Consume(queue="consumed", consumer_tag="c"))

        text = wire.expect_connection_close(506).reply_text
        assert "max_consumers_per_connection" in text
        declare(other, "consumed", exclusive=False, auto_delete=True)
        consume(other, "consumed", "c")
        consume(other, "consumed", "d")


def bind(wire: Wire, queue: str, key: str) -> None:
    wire.send(1, commands.Queue.Bind(queue=queue, exchange="amq.topic", routing_key=key))


def test_bindings_of_a_queue_and_of_a_virtual_host_are_limited(few: Broker) -> None:
    with Wire.open(few.port) as wire:
        declare(wire, "bound")
        declare(wire, "bound too")
        for key in ("a", "b", "b"):  # what is there already is no further one
            bind(wire, "bound", key)
            wire.expect(commands.Queue.BindOk, 1)
        bind(wire, "bound", "c")
        assert "max_bindings_per_queue" in wire.expect_channel_close(1, 406).reply_text
        wire.open_channel(1)
        bind(wire, "bound too", "a")
        wire.expect(commands.Queue.BindOk, 1)

        bind(wire, "bound too", "b")

        assert "max_bindings_per_vhost" in wire.expect_channel_close(1, 406).reply_text
        wire.open_channel(1)
        wire.send(1, commands.Queue.Delete(queue="bound"))
        wire.expect(commands.Queue.DeleteOk, 1)
        bind(wire, "bound too", "b")
        wire.expect(commands.Queue.BindOk, 1)
