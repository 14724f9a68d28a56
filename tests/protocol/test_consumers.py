"""Consumers on the wire: priorities, a single active one, exclusive ones, time-outs.

Who may take which message under random credit is tested in `tests/unit/queue/test_dispatch.py`;
what operators do to queues in `tests/integration/vhost/test_queue_operators.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.wire import Wire, encode, encode_publish

QUIET_S = 0.2
SINGLE = {"x-single-active-consumer": True}


def declare(wire: Wire, name: str, arguments: dict[str, Any] | None = None) -> None:
    """Declare a transient queue that goes with its last consumer."""
    request = commands.Queue.Declare(queue=name, auto_delete=True, arguments=arguments or {})
    wire.call(1, request, commands.Queue.DeclareOk)


def consume(
    wire: Wire, name: str, tag: str, *, channel: int = 1, prefetch: int = 0, no_ack: bool = False,
    exclusive: bool = False, arguments: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Start a consumer."""
    qos = commands.Basic.Qos(prefetch_count=prefetch)
    wire.call(channel, qos, commands.Basic.QosOk)
    request = commands.Basic.Consume(
        queue=name, consumer_tag=tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments or {}
    )
    wire.call(channel, request, commands.Basic.ConsumeOk)


def delivered(wire: Wire, channel: int = 1) -> tuple[str, bytes]:
    """Consumer and body of the next unit, a delivery."""
    unit = wire.expect_unit(commands.Basic.Deliver, channel)
    assert isinstance(unit.method, commands.Basic.Deliver)
    return unit.method.consumer_tag, unit.body


def synchronise(wire: Wire, channel: int = 1) -> None:
    """Return when the broker has handled everything sent."""
    wire.call(channel, commands.Confirm.Select(), commands.Confirm.SelectOk)


# ------------------------------------------------------------------ priorities


def test_the_higher_priority_gets_everything_while_it_has_room(wire: Wire, name: str) -> None:
    """Also when it came later, and again as soon as it has acked. edge-cases.md 144, 145"""
    declare(wire, name)
    consume(wire, name, "low", channel=2)
    consume(wire, name, "high", prefetch=2, arguments={"x-priority": 10})

    for number in range(3):
        wire.publish(1, "", name, b"%d" % number)

    assert [delivered(wire), delivered(wire)] == [("high", b"0"), ("high", b"1")]
    assert delivered(wire, 2) == ("low", b"2")
    wire.send(1, commands.Basic.Ack(delivery_tag=1))
    wire.publish(1, "", name, b"3")
    assert delivered(wire) == ("high", b"3")


def test_a_consumer_of_higher_priority_that_comes_later_wins_over_waiting_ones(
    wire: Wire, other: Wire, name: str
) -> None:
    """Consumers of two lower priorities wait already; a still higher one comes. amqp.md 22.30"""
    declare(wire, name)
    consume(wire, name, "lowest", channel=2, no_ack=True, arguments={"x-priority": -3})
    consume(wire, name, "low", channel=2, no_ack=True)
    wire.publish(1, "", name, b"0")
    assert delivered(wire, 2) == ("low", b"0")

    consume(other, name, "high", no_ack=True, arguments={"x-priority": 7})
    wire.publish(1, "", name, b"1")

    assert delivered(other) == ("high", b"1")
    other.call(1, commands.Basic.Cancel(consumer_tag="high"), commands.Basic.CancelOk)
    wire.publish(1, "", name, b"2")
    assert delivered(wire, 2) == ("low", b"2")


def test_equals_of_the_highest_priority_take_turns(wire: Wire, name: str) -> None:
    """edge-cases.md 143, 146"""
    declare(wire, name)
    for tag, priority in (("a", 2), ("low", 1), ("b", 2)):
        consume(wire, name, tag, no_ack=True, arguments={"x-priority": priority})

    for number in range(100):
        wire.publish(1, "", name, b"%d" % number)

    assert [delivered(wire)[0] for _ in range(100)] == ["a", "b"] * 50


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("b", struct.pack(">b", -5)), ("s", struct.pack(">h", 300)),
        ("I", struct.pack(">i", -(1 << 31))), ("l", struct.pack(">q", (1 << 31) - 1)),
    ],
)  # fmt: skip
def test_priority_is_an_integer_of_any_width(
    wire: Wire, name: str, kind: str, value: bytes
) -> None:
    """edge-cases.md 147"""
    declare(wire, name)

    wire.send_bytes(raw_consume(name, b"\x0ax-priority" + kind.encode() + value))

    wire.expect(commands.Basic.ConsumeOk, 1)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("l", struct.pack(">q", 1 << 31), "out of bounds"),
        ("l", struct.pack(">q", -(1 << 31) - 1), "out of bounds"),
        ("S", struct.pack(">I", 1) + b"1", "must be an integer"),
        ("d", struct.pack(">d", 1.0), "must be an integer"),
    ],
)
def test_a_priority_that_is_no_32_bit_integer_is_refused(
    wire: Wire, name: str, kind: str, value: bytes, reason: str
) -> None:
    """edge-cases.md 147"""
    declare(wire, name)

    wire.send_bytes(raw_consume(name, b"\x0ax-priority" + kind.encode() + value))

    close = wire.expect_channel_close(1, 406)
    assert reason in close.reply_text
    assert (close.class_id, close.method_id) == (60, 20)


def raw_consume(name: str, table: bytes) -> bytes:
    """basic.consume with these bytes as arguments."""
    payload = struct.pack(">HHH", 60, 20, 0) + bytes([len(name)]) + name.encode() + b"\x01c\0"
    payload += struct.pack(">I", len(table)) + table
    return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"


def test_immediate_asks_consumers_of_all_priorities(wire: Wire, name: str) -> None:
    """One of lower priority can take it when the higher one is full."""
    declare(wire, name)
    consume(wire, name, "low", channel=2, prefetch=1)
    consume(wire, name, "high", prefetch=1, arguments={"x-priority": 1})

    taken = []
    for number in range(3):
        frames = bytearray(encode_publish(1, "", name, b"%d" % number))
        flags = frames.index(name.encode()) + len(name)
        frames[flags] |= 2
        wire.send_bytes(bytes(frames))
        unit = wire.receive()  # one by one: credit is used up by a delivery, not by a publish
        taken.append((type(unit.method), unit.channel))

    assert taken == [
        (commands.Basic.Deliver, 1),
        (commands.Basic.Deliver, 2),
        (commands.Basic.Return, 1),
    ]


# ------------------------------------------------------------------ a single active consumer


def test_the_single_active_consumer_is_followed_in_order_of_coming(
    wire: Wire, other: Wire, name: str
) -> None:
    """The old one can still ack what it holds. edge-cases.md 149"""
    declare(wire, name, SINGLE)
    consume(wire, name, "first", prefetch=1)
    consume(wire, name, "second", channel=2, prefetch=1)
    consume(other, name, "third", prefetch=1, arguments={"x-priority": 9})
    for number in range(3):
        wire.publish(1, "", name, b"%d" % number)
    assert delivered(wire) == ("first", b"0")
    assert other.receive_all(QUIET_S) == []

    wire.send(1, commands.Basic.Cancel(consumer_tag="first"))

    wire.expect(commands.Basic.CancelOk, 1)
    assert delivered(wire, 2) == ("second", b"1")
    wire.send(1, commands.Basic.Ack(delivery_tag=1))
    synchronise(wire)
    assert other.receive_all(QUIET_S) == []
    wire.send(2, commands.Channel.Close(200, "", 0, 0))
    wire.expect(commands.Channel.CloseOk, 2)
    assert delivered(other) == ("third", b"1")


def test_a_waiting_consumer_that_leaves_changes_nothing(wire: Wire, other: Wire, name: str) -> None:
    """edge-cases.md 149"""
    declare(wire, name, SINGLE)
    consume(wire, name, "active", no_ack=True)
    consume(other, name, "waiting", no_ack=True)

    other.call(1, commands.Basic.Cancel(consumer_tag="waiting"), commands.Basic.CancelOk)
    wire.publish(1, "", name, b"m")

    assert delivered(wire) == ("active", b"m")


def test_a_connection_that_is_lost_hands_over_what_it_held(
    wire: Wire, broker: Broker, name: str
) -> None:
    """Both consumers of the lost connection are passed over. edge-cases.md 149"""
    declare(wire, name, SINGLE)
    with Wire.open(broker.port, host=broker.host, channels=(1, 2)) as lost:
        consume(lost, name, "a", prefetch=1)
        consume(lost, name, "b", channel=2, prefetch=1)
        consume(wire, name, "c")
        wire.publish(1, "", name, b"0")
        wire.publish(1, "", name, b"1")
        assert delivered(lost) == ("a", b"0")

    assert [delivered(wire), delivered(wire)] == [("c", b"0"), ("c", b"1")]


def test_flow_and_credit_do_not_start_a_waiting_consumer(
    wire: Wire, other: Wire, name: str
) -> None:
    declare(wire, name, SINGLE)
    consume(wire, name, "active", prefetch=1)
    consume(other, name, "waiting", prefetch=1)
    for body in (b"0", b"1"):
        wire.publish(1, "", name, body)
    assert delivered(wire) == ("active", b"0")

    other.call(1, commands.Basic.Qos(prefetch_count=10), commands.Basic.QosOk)
    other.call(1, commands.Basic.Qos(prefetch_count=10, global_=True), commands.Basic.QosOk)
    other.call(1, commands.Channel.Flow(active=True), commands.Channel.FlowOk)

    assert other.receive_all(QUIET_S) == []


# ------------------------------------------------------------------ exclusive consumers


def test_exclusive_consume_is_refused_while_others_consume(
    wire: Wire, other: Wire, name: str
) -> None:
    """amqp.md 22.17"""
    declare(wire, name)
    consume(wire, name, "shared")

    other.send(1, commands.Basic.Consume(queue=name, consumer_tag="own", exclusive=True))

    close = other.expect_channel_close(1, 403)
    assert close.reply_text == f"ACCESS_REFUSED - Queue '{name}' in vhost '/' in exclusive use"


@pytest.mark.parametrize("end", ["cancel", "channel", "connection"])
def test_an_exclusive_consumer_leaves_the_queue_to_others(
    wire: Wire, broker: Broker, name: str, end: str
) -> None:
    """Released on cancel and on close. edge-cases.md 148"""
    wire.call(1, commands.Queue.Declare(queue=name), commands.Queue.DeclareOk)
    with Wire.open(broker.port, host=broker.host) as owner:
        consume(owner, name, "own", exclusive=True)
        wire.send(2, commands.Basic.Consume(queue=name, consumer_tag="shared"))
        wire.expect_channel_close(2, 403)
        wire.open_channel(2)
        if end == "cancel":
            owner.call(1, commands.Basic.Cancel(consumer_tag="own"), commands.Basic.CancelOk)
        elif end == "channel":
            owner.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        else:
            owner.send(0, commands.Connection.Close(200, "", 0, 0))
            owner.expect(commands.Connection.CloseOk)

        consume(wire, name, "shared", channel=2)

    wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


# ------------------------------------------------------------------ order on the wire


def test_consume_ok_comes_before_the_first_delivery(wire: Wire, name: str) -> None:
    """Everything in one write, with messages waiting. amqp.md 22.21, edge-cases.md 150, 162"""
    declare(wire, name)
    wire.publish(1, "", name, b"waiting")

    wire.send_bytes(
        encode(1, commands.Basic.Consume(queue=name, consumer_tag="mine", no_ack=True))
        + encode_publish(1, "", name, b"later")
    )

    assert wire.expect(commands.Basic.ConsumeOk, 1).consumer_tag == "mine"
    assert [delivered(wire), delivered(wire)] == [("mine", b"waiting"), ("mine", b"later")]


def test_a_name_with_control_characters_cannot_be_consumed(wire: Wire) -> None:
    wire.send_bytes(raw_consume("a\x01b", b""))

    assert wire.expect_channel_close(1, 406).reply_text.endswith("Queue name isn't valid")


# ------------------------------------------------------------------ limits and time-outs


def configured(
    broker_factory: Callable[..., Broker], tmp_path: Path, *settings: tuple[str, str]
) -> Broker:
    """A broker with these settings, each with its section."""
    path = tmp_path / "lavinmq.ini"
    path.write_text("".join(f"[{section}]\n{line}\n" for section, line in settings))
    return broker_factory(["-c", str(path)])


def test_more_consumers_than_allowed_close_the_connection(
    broker_factory: Callable[..., Broker], tmp_path: Path
) -> None:
    """Consumers of direct replies count; one that replaces another does not. edge-cases.md 28"""
    broker = configured(broker_factory, tmp_path, ("amqp", "max_consumers_per_channel = 2"))
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        declare(wire, "q")
        consume(wire, "q", "a")
        for _ in range(2):
            consume(wire, "amq.rabbitmq.reply-to", "replies", no_ack=True)
        consume(wire, "q", "c", channel=2)

        wire.send(1, commands.Basic.Consume(queue="q", consumer_tag="d"))

        assert wire.expect_connection_close(506).reply_text.startswith("RESOURCE_ERROR - ")
    with Wire.open(broker.port) as wire:
        declare(wire, "q")
        consume(wire, "q", "a")
        consume(wire, "q", "b")
        reply_to = "amq.rabbitmq.reply-to"
        wire.send(1, commands.Basic.Consume(queue=reply_to, consumer_tag="r", no_ack=True))
        wire.expect_connection_close(506)


@pytest.fixture
def impatient(broker_factory: Callable[..., Broker], tmp_path: Path) -> Broker:
    """A broker that looks for late consumers every second; by default it gives them 300 ms."""
    return configured(
        broker_factory, tmp_path,
        ("main", "consumer_timeout_loop_interval = 1\nconsumer_timeout = 300"),
    )  # fmt: skip


def test_a_delivery_unacked_for_too_long_closes_its_channel_once(impatient: Broker) -> None:
    """What it held is ready again, and other channels go on. By argument, by default, and with a
    void argument; delivered, and taken by a get. edge-cases.md 161; amqp.md 22.7"""
    arguments: dict[int, dict[str, Any]] = {
        1: {"x-consumer-timeout": 100}, 2: {}, 3: {"x-consumer-timeout": None},
    }  # fmt: skip
    with Wire.open(impatient.port, channels=(1, 2, 3, 4)) as wire:
        for channel, each in arguments.items():
            request = commands.Queue.Declare(queue=f"late{channel}", durable=True, arguments=each)
            wire.call(4, request, commands.Queue.DeclareOk)
            wire.publish(4, "", f"late{channel}", b"m")
        for channel in (1, 3):
            consume(wire, f"late{channel}", "c", channel=channel)
            assert delivered(wire, channel) == ("c", b"m")
        wire.call(2, commands.Basic.Get(queue="late2"), commands.Basic.GetOk)

        closes = [wire.expect_unit(commands.Channel.Close) for _ in arguments]

        assert {unit.channel for unit in closes} == set(arguments)
        for unit in closes:
            close = unit.method
            assert isinstance(close, commands.Channel.Close)
            assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 20)
            assert close.reply_text == "PRECONDITION_FAILED - consumer timeout"
        # No second close, though close-ok is still to come: the next look is a second away.
        assert wire.receive_all(1.2) == []
        for channel in arguments:
            name = f"late{channel}"
            got = wire.call(4, commands.Basic.Get(queue=name, no_ack=True), commands.Basic.GetOk)
            assert got.redelivered
            request = commands.Queue.Declare(queue=name, passive=True)
            assert wire.call(4, request, commands.Queue.DeclareOk).consumer_count == 0
            wire.send(channel, commands.Channel.CloseOk())
            wire.open_channel(channel)


def test_who_acks_in_time_or_needs_no_ack_stays(impatient: Broker) -> None:
    """Two looks of the broker go by. `x-consumer-timeout: 0` means for ever."""
    with Wire.open(impatient.port, channels=(1, 2)) as wire:
        declare(wire, "patient", {"x-consumer-timeout": 0})
        declare(wire, "quick")
        consume(wire, "patient", "holds", channel=2)
        consume(wire, "quick", "acks")
        for queue in ("patient", "quick"):
            wire.publish(1, "", queue, b"m")
        units = [wire.receive(), wire.receive()]
        assert {unit.body for unit in units} == {b"m"}
        wire.send(1, commands.Basic.Ack(delivery_tag=1))

        assert wire.receive_all(2.5) == []

        synchronise(wire, 1)
        synchronise(wire, 2)
