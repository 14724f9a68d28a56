# mypy: disable-error-code="no-untyped-call"
"""Bodies of many frames, several destinations, and transactions."""

from __future__ import annotations

import hashlib

import pytest
from pamqp import commands

from tests.support.wire import Wire, encode_publish
from tests.support.wire_actions import bind, declare, declare_exchange, get, get_all, ready


def body_of(size: int, seed: int = 0) -> bytes:
    """Return a body in which every block differs, so that swapped frames show."""
    blocks = (hashlib.sha256(b"%d.%d" % (seed, n)).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]


@pytest.mark.parametrize("size", [128 * 1024 + 1, 500_000])
def test_large_bodies_arrive_whole_one_after_the_other(wire: Wire, name: str, size: int) -> None:
    """edge-cases.md 116"""
    declare(wire, name)
    sent = [body_of(size, seed) for seed in range(4)]

    for body in sent:
        wire.publish(1, "", name, body)

    assert get_all(wire, name) == sent


def test_a_large_body_is_whole_in_each_of_two_queues(wire: Wire, name: str) -> None:
    """edge-cases.md 117"""
    queues = [declare(wire, f"{name}-{number}") for number in range(2)]
    declare_exchange(wire, name, "fanout")
    for queue in queues:
        bind(wire, queue, name)
    sent = [body_of(400_000, seed) for seed in range(2)]

    for body in sent:
        wire.publish(1, name, "", body)

    assert [get_all(wire, queue) for queue in queues] == [sent, sent]


def test_an_immediate_publish_without_a_ready_consumer_comes_back(wire: Wire, name: str) -> None:
    """edge-cases.md 114"""
    declare(wire, name)

    wire.send_bytes(encode_publish(1, "", name, b"now", immediate=True))

    returned = wire.expect_unit(commands.Basic.Return, 1)
    assert (returned.method.reply_code, returned.method.reply_text) == (313, "NO_CONSUMERS")
    assert ready(wire, name) == 0


def test_a_commit_makes_large_messages_visible_whole_and_in_order(wire: Wire, name: str) -> None:
    """edge-cases.md 135"""
    declare(wire, name)
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    sent = [body_of(300_000, seed) for seed in range(2)]
    for body in sent:
        wire.publish(1, "", name, body)
    assert ready(wire, name) == 0

    wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

    assert get_all(wire, name, channel=2) == sent


def test_a_commit_to_two_queues_and_to_none_gives_each_its_bodies(wire: Wire, name: str) -> None:
    """edge-cases.md 136"""
    queues = [declare(wire, f"{name}-{number}") for number in range(2)]
    declare_exchange(wire, name, "fanout")
    for queue in queues:
        bind(wire, queue, name)
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    for body in (b"first", b"", body_of(200_000)):
        wire.publish(1, name, "", body)
        wire.publish(1, "", f"{name}-nowhere", b"")

    wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

    wanted = [b"first", b"", body_of(200_000)]
    assert [get_all(wire, queue, channel=2) for queue in queues] == [wanted, wanted]


@pytest.mark.parametrize(
    ("finish", "answer", "left"),
    [
        (commands.Tx.Commit(), commands.Tx.CommitOk, 0),
        (commands.Tx.Rollback(), commands.Tx.RollbackOk, 2),
    ],
    ids=["commit", "rollback"],
)
def test_acks_count_when_they_are_committed(
    wire: Wire, name: str, finish: commands.Tx.Commit, answer: type[commands.Tx.CommitOk], left: int
) -> None:
    """edge-cases.md 138, 139"""
    declare(wire, name)
    for body in (b"1", b"2"):
        wire.publish(1, "", name, body)
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    for _ in range(2):
        unit = get(wire, name, no_ack=False)
        assert unit is not None
        wire.send(1, commands.Basic.Ack(delivery_tag=unit.method.delivery_tag))

    wire.call(1, finish, answer)
    wire.call(1, commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)

    assert ready(wire, name) == left


def test_what_is_rolled_back_never_shows(wire: Wire, name: str) -> None:
    """edge-cases.md 137"""
    declare(wire, name)
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    for number in range(3):
        wire.publish(1, "", name, b"%d" % number)

    wire.call(1, commands.Tx.Rollback(), commands.Tx.RollbackOk)
    wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

    assert ready(wire, name) == 0
