"""Connections that are slow, silent, half-closed, reset or too many, and clients that go at once
with all they have declared."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.hostile import (
    HANDSHAKE_TIMEOUT_S,
    Peer,
    Target,
    bounded_broker,
    fill,
    login,
    target,
)
from tests.support.ports import HOST
from tests.support.process import KIB, MIB, Process
from tests.support.waiting import wait_for
from tests.support.wire import (
    PROTOCOL_HEADER,
    Wire,
    WireClosed,
    encode,
    encode_publish,
    raw_frame,
)
from tests.support.witness import Witness

__all__ = ["bounded_broker", "target"]

DEADLINE_S = 120.0
QUEUE = "hostile"
OPENED = raw_frame(1, 1, b"\0\x14\0\x0b\0\0\0\0")
CLOSE = commands.Connection.Close(200, "", 0, 0)


# ---- slow and silent -------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_connections_that_say_only_the_header(target: Target) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(10_000, hard - 500)
    with ExitStack() as stack:
        for number in range(count):
            peer = stack.enter_context(socket.socket())
            peer.bind((f"127.0.0.{2 + number % 200}", 0))
            peer.connect((HOST, target.port))
            peer.sendall(PROTOCOL_HEADER)
        Wire.open(target.port).close()
        target.witness.wait()

        assert target.growth_bytes / count < 16 * KIB
        target.process.wait_for_descriptors(target.descriptors, HANDSHAKE_TIMEOUT_S + 15)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_handshake_byte_by_byte_is_done_or_dropped_in_time(target: Target) -> None:
    data = login() + encode(1, commands.Channel.Open())
    with Peer(target.port, is_silent=True) as quick:
        for byte in data:
            quick.send(bytes([byte]))
        quick.read_until(OPENED)
    with Peer(target.port, is_silent=True) as slow:
        began = time.monotonic()
        at = 0
        while not slow.is_closed_within(0.01):
            assert time.monotonic() - began < HANDSHAKE_TIMEOUT_S + DEADLINE_S
            if at < len(data) - 60:
                slow.socket.send(data[at : at + 1])
                at += 1
        assert time.monotonic() - began > HANDSHAKE_TIMEOUT_S - 1


def test_a_message_byte_by_byte_is_a_message(target: Target) -> None:
    with fill(target.port, QUEUE, b"", 0) as owner, Peer(target.port) as slow:
        for byte in encode(1, commands.Confirm.Select()) + encode_publish(1, "", QUEUE, b"slow"):
            slow.send(bytes([byte]))
        slow.read_until(encode(1, commands.Basic.Ack(1, True)))
        owner.send(1, commands.Basic.Get(queue=QUEUE, no_ack=True))
        assert owner.expect_unit(commands.Basic.GetOk).body == b"slow"


def test_a_client_without_its_heartbeats_is_dropped(target: Target) -> None:
    with Peer(target.port, heartbeat_s=1) as silent, Peer(target.port, heartbeat_s=1) as alive:
        while not silent.is_closed_within(0.2):
            alive.send(raw_frame(8, 0, b""))
        alive.send(encode(0, CLOSE))
        alive.read_until(encode(0, commands.Connection.CloseOk()))


# ---- closing ---------------------------------------------------------------------------------


CHATTER = {
    "nothing": b"",
    "close": encode(0, CLOSE),
    "close-ok": encode(0, commands.Connection.CloseOk()),
    "publishes": encode_publish(1, "", "nobody", b"x"),
    "heartbeats": raw_frame(8, 0, b""),
}
"""What a peer may go on saying after the connection was closed."""


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(encode(9, commands.Basic.Qos()), id="closed-by-the-broker"),
        pytest.param(encode(0, CLOSE), id="closed-by-the-peer"),
    ],
)
def test_a_closing_connection_ends_in_time_whatever_the_peer_says(
    target: Target, begin: bytes
) -> None:
    """amqp.md 22.28"""
    with ExitStack() as stack:
        peers = {word: stack.enter_context(Peer(target.port)) for word in CHATTER}
        for peer in peers.values():
            peer.read_until(OPENED)
            peer.send(begin)
        deadline = time.monotonic() + 12
        while target.process.descriptors > target.descriptors:
            assert time.monotonic() < deadline, "some live for ever"
            for word, peer in peers.items():
                peer.push(CHATTER[word])
            time.sleep(0.05)


def test_a_channel_close_that_is_never_answered_keeps_only_its_channel(target: Target) -> None:
    with Wire.open(target.port, channels=(1, 2)) as wire:
        wire.send(1, commands.Queue.Declare(queue="missing", passive=True))
        assert wire.expect(commands.Channel.Close, 1).reply_code == 404
        wire.send_bytes(encode_publish(1, "", "nobody", bytes(100_000)) * 300)
        wire.call(2, commands.Basic.Qos(), commands.Basic.QosOk)
        assert target.growth_bytes < 8 * MIB
        wire.send(1, commands.Channel.CloseOk())
        wire.open_channel(1)


def test_what_came_before_a_half_close_is_carried_out(target: Target) -> None:
    """The end of file means that the client has gone: it gets no confirms any more."""
    count = 5_000
    with fill(target.port, QUEUE, b"", 0) as owner:
        with Peer(target.port) as peer:
            peer.send(encode(1, commands.Confirm.Select()))
            peer.send(encode_publish(1, "", QUEUE, b"x" * 100) * count)
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.is_closed_within(10)
        passive = commands.Queue.Declare(queue=QUEUE, passive=True)
        assert owner.call(1, passive, commands.Queue.DeclareOk).message_count == count


CONVERSATION = (
    login()
    + encode(
        1,
        commands.Channel.Open(),
        commands.Confirm.Select(),
        commands.Queue.Declare(queue="cut", exclusive=True),
        commands.Basic.Consume(queue="cut", no_ack=False),
    )
    + encode_publish(1, "", "cut", bytes(500))
    + encode(1, commands.Basic.Ack(1), commands.Basic.Cancel("none"))
    + encode(2, commands.Channel.Open(), commands.Tx.Select())
    + encode_publish(2, "", "cut", b"in a transaction")
    + encode(2, commands.Tx.Commit())
    + encode(0, CLOSE)
)


def test_a_reset_at_any_place_leaves_nothing_behind(target: Target) -> None:
    for cut in range(0, len(CONVERSATION), 7):
        peer = Peer(target.port, is_silent=True)
        peer.push(CONVERSATION[:cut])
        peer.reset()
    target.witness.wait()


def test_five_thousand_resets(target: Target) -> None:
    linger = struct.pack("ii", 1, 0)
    for number in range(5_000):
        peer = socket.create_connection((HOST, target.port))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if number % 2:
            peer.sendall(PROTOCOL_HEADER)
        peer.close()
    target.witness.wait()

    assert target.growth_bytes < 32 * MIB


# ---- no descriptors --------------------------------------------------------------------------


@contextmanager
def crowd(port: int, count: int) -> Iterator[None]:
    """So many connections, accepted or not, for the time of the block."""
    with ExitStack() as stack:
        for _ in range(count):
            peer = stack.enter_context(socket.create_connection((HOST, port)))
            peer.sendall(PROTOCOL_HEADER)
        yield


def is_open_to_us(port: int) -> bool:
    """Whether a client may log in."""
    try:
        Wire.open(port).close()
    except (WireClosed, ConnectionError):
        return False
    return True


def test_a_crowd_does_not_take_the_last_descriptors(broker_factory: Callable[..., Broker]) -> None:
    broker = broker_factory()
    process = Process(broker.pid)
    with Witness(broker.port) as witness:
        witness.wait(1)
        before = process.descriptors
        process.limit_descriptors(before + 200)
        with ExitStack() as stack:
            for _ in range(150):  # who has not logged in has a share of its own only
                stack.enter_context(Wire.open(broker.port))
            stack.enter_context(crowd(broker.port, 400))
            while "cannot accept" not in broker.log_text():
                witness.wait(1)
            used, began = process.cpu_s, time.monotonic()
            witness.wait(50)
            assert process.cpu_s - used < 0.8 * (time.monotonic() - began) + 0.1, "it spins"
        # The crowd that is left in the kernel's queue is still of this address for a moment.
        wait_for(partial(is_open_to_us, broker.port), "clients may come again")
        process.wait_for_descriptors(before)


def test_publishers_are_held_while_no_descriptor_is_left(
    broker_factory: Callable[..., Broker],
) -> None:
    broker = broker_factory()
    process = Process(broker.pid)
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Queue.Declare(queue="new", durable=True), commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        before = process.descriptors
        process.limit_descriptors(1)

        wire.publish(1, "", "new", b"without a file")
        while "publishers are held" not in broker.log_text():
            time.sleep(0.02)
        wire.publish(1, "", "new", b"held")
        wire.expect(commands.Connection.Blocked)
        assert broker.is_running()

        process.limit_descriptors(1000)
        acked = 0
        while acked < 2:
            method = wire.receive().method
            if isinstance(method, commands.Basic.Ack):
                acked = method.delivery_tag
            else:
                assert isinstance(method, commands.Connection.Unblocked)
        wire.call(1, commands.Queue.Delete(queue="new"), commands.Queue.DeleteOk)
        process.wait_for_descriptors(before)


def test_held_publishers_that_have_gone_leave_their_descriptors(own_broker: Broker) -> None:
    process = Process(own_broker.pid)
    with file_limit(own_broker, 100_000), Wire.open(own_broker.port) as wire:
        wire.call(1, commands.Queue.Declare(queue="full", durable=True), commands.Queue.DeclareOk)
        while "publishers are held" not in own_broker.log_text():
            wire.publish(1, "", "full", bytes(10_000))
        before = process.descriptors
        for _ in range(20):
            with Wire.open(own_broker.port) as held:
                held.publish(1, "", "full", b"held")
                held.expect(commands.Connection.Blocked)
        process.wait_for_descriptors(before)


@contextmanager
def file_limit(broker: Broker, size: int) -> Iterator[None]:
    """No file of the broker may grow beyond this, for the time of the block."""
    soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (soft, hard))


# ---- all at once -----------------------------------------------------------------------------


def queues(count: int) -> Iterator[bytes]:
    for n in range(count):
        yield encode(1, commands.Queue.Declare(queue=f"x{n}", exclusive=True, nowait=True))


def bound_queues(count: int) -> Iterator[bytes]:
    for n in range(count):
        yield encode(
            1,
            commands.Queue.Declare(queue=f"b{n}", exclusive=True, nowait=True),
            commands.Queue.Bind(
                queue=f"b{n}", exchange="amq.topic", routing_key=f"k.{n}.*", nowait=True
            ),
            commands.Basic.Consume(queue=f"b{n}", nowait=True),
        )


def exchanges(count: int) -> Iterator[bytes]:
    """Exchanges that go with the queue that is bound to them."""
    yield encode(1, commands.Queue.Declare(queue="end", exclusive=True, nowait=True))
    for n in range(count):
        yield encode(
            1,
            commands.Exchange.Declare(exchange=f"x{n}", auto_delete=True, nowait=True),
            commands.Queue.Bind(queue="end", exchange=f"x{n}", nowait=True),
        )


def consumers(count: int) -> Iterator[bytes]:
    yield encode(1, commands.Queue.Declare(queue="many", exclusive=True, nowait=True))
    for n in range(count):
        yield encode(1, commands.Basic.Consume(queue="many", consumer_tag=str(n), nowait=True))


@pytest.mark.parametrize(
    ("declare", "count"),
    [(queues, 10_000), (bound_queues, 3_000), (exchanges, 3_000), (consumers, 20_000)],
)
def test_all_that_one_client_declared_goes_at_once(
    target: Target, declare: Callable[[int], Iterator[bytes]], count: int
) -> None:
    """edge-cases.md 36"""
    with Peer(target.port) as peer:
        for data in declare(count):
            peer.send(data)
        peer.send(encode(1, commands.Basic.Qos()))
        peer.read_until(encode(1, commands.Basic.QosOk()))
    target.witness.wait()
    wait_for(lambda: is_missing(target.port, "x0"), "the first queue is still there")


def is_missing(port: int, queue: str) -> bool:
    """Whether there is no such queue; one that is about to go with its client answers 405."""
    with Wire.open(port) as wire:
        wire.send(1, commands.Queue.Declare(queue=queue, passive=True))
        return wire.expect(commands.Channel.Close, 1).reply_code == 404
