# mypy: disable-error-code="no-untyped-call"
"""Exchanges, queues and bindings: reserved names, who is in use, what goes with what."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire
from tests.support.wire_actions import (
    bind,
    bind_exchange,
    consume,
    declare,
    declare_exchange,
    get,
    get_all,
    ready,
    unbind,
)

KINDS = ["direct", "fanout", "topic", "headers", "x-consistent-hash"]


def is_there(wire: Wire, queue: str, channel: int = 2) -> bool:
    """Tell whether a queue exists, asking on a channel that the answer may close."""
    wire.send(channel, commands.Queue.Declare(queue=queue, passive=True))
    method = wire.receive().method
    if isinstance(method, commands.Queue.DeclareOk):
        return True
    assert isinstance(method, commands.Channel.Close)
    assert method.reply_code in (404, 405)
    wire.send(channel, commands.Channel.CloseOk())
    wire.open_channel(channel)
    return method.reply_code == 405


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("prefix", ["amq.", "mqtt."])
@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_reserved_names_are_refused(wire: Wire, name: str, prefix: str, kind: str) -> None:
    """edge-cases.md 38"""
    queue = commands.Queue.Declare(queue=prefix + "x", exclusive=True)
    exchange = commands.Exchange.Declare(exchange=prefix + "x", auto_delete=True)

    wire.send(1, queue if kind == "queue" else exchange)

    assert "forbidden" in wire.expect_channel_close(1, 403).reply_text


def test_a_bind_without_a_queue_name_takes_the_last_declared_queue(wire: Wire, name: str) -> None:
    """edge-cases.md 53"""
    declare(wire, name)

    bind(wire, "", "amq.direct", name)

    wire.publish(1, "amq.direct", name, b"m")
    assert get_all(wire, name) == [b"m"]


# ------------------------------------------------------------------ queues


def test_a_queue_that_was_deleted_with_messages_is_empty_when_declared_again(
    wire: Wire, name: str
) -> None:
    """edge-cases.md 51"""
    declare(wire, name)
    for body in (b"1", b"2", b"3"):
        wire.publish(1, "", name, body)
    assert get(wire, name, no_ack=False)

    deleted = wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
    declare(wire, name)

    assert deleted.message_count == 2
    assert ready(wire, name) == 0


@pytest.mark.parametrize("passive", [True, False])
def test_an_exclusive_queue_cannot_even_be_looked_at_by_others(
    wire: Wire, other: Wire, name: str, passive: bool
) -> None:
    """edge-cases.md 52"""
    declare(wire, name)

    other.send(1, commands.Queue.Declare(queue=name, passive=passive))

    other.expect_channel_close(1, 405)


def test_all_exclusive_queues_go_with_their_connection(
    broker: Broker, wire: Wire, name: str
) -> None:
    """edge-cases.md 36"""
    names = [f"{name}-{number}" for number in range(5)]
    with Wire.open(broker.port, host=broker.host) as owner:
        for each in names:
            declare(owner, each)

    wait_for(
        lambda: not any(is_there(wire, each) for each in names),
        "an exclusive queue outlived its connection",
    )


def test_exclusive_queues_are_gone_when_the_end_of_the_connection_is_answered(
    wire: Wire, other: Wire, name: str
) -> None:
    """The client has its answer, and has not closed the socket yet."""
    declare(wire, name)

    wire.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)

    declare(other, name)


def test_exclusive_queues_of_a_connection_that_broke_a_rule_go_before_the_client_does(
    wire: Wire, other: Wire, name: str
) -> None:
    """The broker has closed the connection; the client neither answers nor hangs up."""
    declare(wire, name)

    wire.send(0, commands.Queue.Declare(queue=name))
    wire.expect(commands.Connection.Close, 0)

    declare(other, name)


def test_a_connection_forgets_an_exclusive_queue_that_went_by_itself(
    broker: Broker, wire: Wire, name: str
) -> None:
    """Another queue of that name is none of its business. edge-cases.md 37"""
    mark = f"{name}-mark"
    with Wire.open(broker.port, host=broker.host) as first:
        declare(first, mark)
        declare(first, name, auto_delete=True)
        consume(first, name, "c")
        first.call(1, commands.Basic.Cancel(consumer_tag="c"), commands.Basic.CancelOk)
        declare(wire, name)

    wait_for(lambda: not is_there(wire, mark), "the first connection never goes")
    assert is_there(wire, name)


# ------------------------------------------------------------------ exchanges in use


def test_publishing_to_an_auto_deleted_exchange_closes_the_channel(wire: Wire, name: str) -> None:
    """edge-cases.md 43, 44"""
    declare(wire, name)
    declare_exchange(wire, name, "direct")
    bind(wire, name, name, "a")
    bind(wire, name, name, "b")
    unbind(wire, name, name, "a")
    wire.publish(1, name, "b", b"still there")
    assert get_all(wire, name) == [b"still there"]

    unbind(wire, name, name, "b")
    wire.publish(1, name, "b", b"gone")

    wire.expect_channel_close(1, 404)


@pytest.mark.parametrize(
    ("bound", "used"),
    [((), ""), (("a", "b"), "ab"), (("a", "b", "unbind"), "")],
    ids=["fresh", "bound", "unbound"],
)
def test_an_exchange_is_in_use_at_both_ends_of_a_binding(
    wire: Wire, name: str, bound: tuple[str, ...], used: str
) -> None:
    """edge-cases.md 45, 46"""
    for each in "ab":
        made = commands.Exchange.Declare(exchange=f"{name}-{each}")
        wire.call(1, made, commands.Exchange.DeclareOk)
    ends = {"destination": f"{name}-b", "source": f"{name}-a", "routing_key": "k"}
    if bound:
        wire.call(1, commands.Exchange.Bind(**ends), commands.Exchange.BindOk)
    if "unbind" in bound:
        wire.call(1, commands.Exchange.Unbind(**ends), commands.Exchange.UnbindOk)

    for each in "ab":
        wire.send(2, commands.Exchange.Delete(exchange=f"{name}-{each}", if_unused=True))
        if each in used:
            assert "in use" in wire.expect_channel_close(2, 406).reply_text
            wire.open_channel(2)
        else:
            wire.expect(commands.Exchange.DeleteOk, 2)
    for each in used:
        wire.call(
            1, commands.Exchange.Delete(exchange=f"{name}-{each}"), commands.Exchange.DeleteOk
        )


# ------------------------------------------------------------------ bindings


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_of_a_binding_must_match_to_unbind(wire: Wire, name: str, kind: str) -> None:
    """Their order does not matter, also among many. edge-cases.md 71, 75"""
    declare(wire, name)
    declare_exchange(wire, name, kind)
    given = {"a": 1, "b": "two", "c": True}
    headers = commands.Basic.Properties(headers=dict(given))
    for number in range(20):
        bind(wire, name, name, "1", {"n": number})
    bind(wire, name, name, "1", dict(given))
    for number in range(20):
        unbind(wire, name, name, "1", {"n": number})

    unbind(wire, name, name, "1")
    unbind(wire, name, name, "1", {"a": 1, "b": "two"})
    wire.publish(1, name, "1", b"still bound", headers)
    assert get_all(wire, name) == [b"still bound"]

    bind(wire, name, name, "1", dict(reversed(given.items())))
    unbind(wire, name, name, "1", dict(reversed(given.items())))
    wire.publish(1, name, "1", b"gone with the binding", headers)
    wire.expect_channel_close(1, 404)


def test_another_hop_does_not_duplicate_messages(wire: Wire, name: str) -> None:
    """edge-cases.md 94"""
    declare(wire, name)
    first, second, third = (declare_exchange(wire, f"{name}-{n}", "fanout") for n in range(3))
    bind_exchange(wire, second, first)
    bind(wire, name, first)
    bind(wire, name, second)
    wire.publish(1, first, "", b"1")

    bind_exchange(wire, third, second)
    bind(wire, name, third)
    wire.publish(1, first, "", b"2")

    assert get_all(wire, name) == [b"1", b"2"]
