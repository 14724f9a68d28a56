"""Peers that do not read what they asked for: it waits on disk, and they are not heard."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pamqp import commands

from tests.support.hostile import (
    LARGE_BYTES,
    Peer,
    Target,
    bounded_broker,
    fill,
    peers,
    target,
)
from tests.support.process import MIB
from tests.support.wire import Wire, encode, encode_publish

__all__ = ["bounded_broker", "target"]

DEADLINE_S = 120.0
QUEUE = "unread"
PER_LINK_BYTES = 2 * MIB
"""A link has a block for output and its share of the memory for large messages."""
MOST_UNSENT_BYTES = 4 * MIB


@pytest.mark.parametrize(
    ("n_peers", "body_bytes", "count"),
    [(1, 1 << 10, 200_000), (100, 1 << 10, 100_000), (1, 5 * MIB, 40), (100, 5 * MIB, 40)],
    ids=["one-small", "hundred-small", "one-large", "hundred-large"],
)
def test_consumers_that_stop_reading_leave_the_backlog_on_disk(
    target: Target, n_peers: int, body_bytes: int, count: int
) -> None:
    with (
        fill(target.port, QUEUE, bytes(body_bytes), count) as owner,
        peers(target.port, n_peers) as deaf,
    ):
        for peer in deaf:
            consume = commands.Basic.Consume(queue=QUEUE, consumer_tag="deaf", no_ack=True)
            peer.send(encode(1, consume))
        target.witness.wait(5)

        assert target.growth_bytes < LARGE_BYTES + n_peers * PER_LINK_BYTES / 4 + 24 * MIB
        if n_peers == 1:
            assert ready(owner) > count * 0.8


def ready(wire: Wire) -> int:
    declare = commands.Queue.Declare(queue=QUEUE, passive=True)
    return wire.call(1, declare, commands.Queue.DeclareOk).message_count or 0


def test_ten_thousand_gets_of_a_megabyte_wait_for_the_reader(target: Target) -> None:
    with fill(target.port, QUEUE, bytes(MIB), 40) as owner, Peer(target.port) as deaf:
        deaf.push(encode(1, commands.Basic.Get(queue=QUEUE)) * 10_000)
        target.witness.wait()

        assert ready(owner) >= 40 - 2 * MOST_UNSENT_BYTES // MIB
        assert target.growth_bytes < 8 * MOST_UNSENT_BYTES
        deaf.read_until(b"\0\x3c\0\x48")  # get-empty: it was heard again


def test_a_peer_with_heartbeats_that_never_reads_is_dropped(target: Target) -> None:
    """It is not heard, so its silence says nothing; that it takes nothing does."""
    with fill(target.port, QUEUE, bytes(MIB), 40), Peer(target.port, heartbeat_s=1) as deaf:
        deaf.push(encode(1, commands.Basic.Get(queue=QUEUE)) * 10_000)

        deadline = time.monotonic() + 30
        while "it does not read what it asked for" not in target.broker.log_text():
            assert time.monotonic() < deadline, "the peer is never dropped"
            time.sleep(0.1)
        target.witness.wait()


def declares() -> bytes:
    return encode(1, commands.Queue.Declare(queue="u" * 200, durable=False)) * 60_000


def returns() -> bytes:
    return encode_publish(1, "", "nobody", bytes(1 << 16), mandatory=True) * 800


def channel_errors() -> bytes:
    missing = commands.Queue.Declare(queue="m" * 250, passive=True)
    one = [
        encode(channel, missing, commands.Channel.CloseOk(), commands.Channel.Open())
        for channel in range(1, 101)
    ]
    opened = b"".join(encode(channel, commands.Channel.Open()) for channel in range(2, 101))
    return opened + b"".join(one) * 600


@pytest.mark.parametrize("flood", [declares, returns, channel_errors])
def test_a_peer_that_never_reads_its_answers_is_not_heard(
    target: Target, flood: Callable[[], bytes]
) -> None:
    requests = flood()
    with Peer(target.port) as deaf:
        sent = deaf.push(requests)
        target.witness.wait()

        assert sent < len(requests)
        assert target.growth_bytes < 6 * MOST_UNSENT_BYTES
        deaf.drain()
        assert deaf.push(requests[sent:]) > 0, "it reads, so it is heard again"
    with Wire.open(target.port) as wire:
        wire.call(1, commands.Queue.Delete(queue="u" * 200), commands.Queue.DeleteOk)


def test_confirms_that_nobody_reads_are_few_and_the_last_one_counts_for_all(
    target: Target,
) -> None:
    count = 100_000
    declare = commands.Queue.Declare(queue=QUEUE, exclusive=True)
    with Peer(target.port) as deaf:
        deaf.send(encode(1, commands.Confirm.Select(), declare))
        deaf.send(encode_publish(1, "", QUEUE, b"x") * count)
        target.witness.wait()

        assert target.growth_bytes < 2 * MOST_UNSENT_BYTES
        deaf.read_until(count.to_bytes(8, "big") + b"\x01\xce")


def test_many_deaf_peers_share_what_memory_there_is(target: Target) -> None:
    n_peers = 60
    with (
        fill(target.port, QUEUE, bytes(200_000), n_peers * 30),
        peers(target.port, n_peers) as deaf,
    ):
        for peer in deaf:
            peer.send(encode(1, commands.Basic.Get(queue=QUEUE)) * 30)
        target.witness.wait(10)

        assert target.growth_bytes < LARGE_BYTES + n_peers * 3 * MIB // 2 + 24 * MIB


def test_a_large_message_waits_while_deaf_peers_hold_the_memory(target: Target) -> None:
    size = 5 * MIB
    with fill(target.port, QUEUE, bytes(size), 40), peers(target.port, 30) as deaf:
        for peer in deaf:
            peer.send(encode(1, commands.Basic.Consume(queue=QUEUE, consumer_tag="deaf")))
        target.witness.wait(5)
        with Wire.open(target.port) as patient:
            patient.call(1, commands.Basic.Consume(queue=QUEUE), commands.Basic.ConsumeOk)
            before = target.process.cpu_s, time.monotonic()
            target.witness.wait(20)
            used = target.process.cpu_s - before[0]
            assert used < 0.8 * (time.monotonic() - before[1]) + 0.1, "it must not spin"

            for peer in deaf:
                peer.close()

            assert patient.expect_unit(commands.Basic.Deliver).body == bytes(size)
