"""Contents and frames that cost much if they are believed: sizes, tables, tags, transactions."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.support.hostile import (
    LARGE_BYTES,
    Peer,
    Target,
    bounded_broker,
    fill,
    target,
)
from tests.support.process import MIB
from tests.support.wire import Wire, WireTimeout, encode, encode_publish, raw_frame

__all__ = ["bounded_broker", "target"]

DEADLINE_S = 120.0
MAX_MESSAGE_SIZE = 134_217_728
FRAME_MAX = 131_072
CHANNELS = 2047
QUEUE = "hostile"


def announce(channel: int, size: int, properties: bytes = b"\0\0", exchange: str = "") -> bytes:
    """basic.publish and a header that announces so many bytes."""
    publish = commands.Basic.Publish(exchange=exchange, routing_key="nobody")
    payload = b"\0\x3c\0\0" + struct.pack(">Q", size) + properties
    return encode(channel, publish) + raw_frame(2, channel, payload)


def with_headers(table: bytes) -> bytes:
    """Properties that are a headers table of this content."""
    return b"\x20\0" + struct.pack(">I", len(table)) + table


def settle(tag: int, multiple: bool = False, method: int = 80) -> bytes:
    """basic.ack, or basic.nack without requeue."""
    return raw_frame(1, 1, struct.pack(">HHQB", 60, method, tag, multiple))


def sync(peer: Peer) -> None:
    """Wait until all that was sent has been handled."""
    peer.send(encode(1, commands.Basic.Qos()))
    peer.read_until(encode(1, commands.Basic.QosOk()))


# ---- bodies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 63, (1 << 64) - 1, MAX_MESSAGE_SIZE + 1])
def test_a_body_beyond_the_limit_is_refused_on_its_announcement(target: Target, size: int) -> None:
    """edge-cases.md 118"""
    with Wire.open(target.port) as wire:
        wire.send_bytes(announce(1, size) + raw_frame(3, 1, b"x" * 100))

        assert f"message size {size}" in wire.expect_channel_close(1, 406).reply_text
    assert target.growth_bytes < 8 * MIB


def test_bodies_that_never_come_take_no_memory(target: Target) -> None:
    channels = range(1, CHANNELS + 1)
    with Peer(target.port, channels) as peer:
        for channel in channels:
            peer.send(announce(channel, MAX_MESSAGE_SIZE) + raw_frame(3, channel, b"few"))
        peer.drain()
        target.witness.wait()

        assert target.growth_bytes < 16 * MIB


def test_halves_of_bodies_share_what_memory_there_is(target: Target) -> None:
    channels = range(1, 201)
    with Wire.open(target.port, channels=channels) as peer:
        half = b"".join(raw_frame(3, 0, bytes(FRAME_MAX - 8)) for _ in range(8))
        for channel in channels:
            frames = half.replace(b"\x03\0\0\0\1", b"\x03" + struct.pack(">H", channel) + b"\0\1")
            peer.send_bytes(announce(channel, 2 * MIB) + frames)

        refused = [peer.receive() for _ in range(100)]

        codes = {unit.method.reply_code for unit in refused}  # type: ignore[union-attr]
        assert codes == {311}
        assert target.growth_bytes < LARGE_BYTES + 16 * MIB
        with Wire.open(target.port) as other:
            other.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            other.publish(1, "", "nobody", bytes(MIB // 2))
            other.expect(commands.Basic.Ack)
            other.publish(1, "", "nobody", bytes(5 * MIB))
            assert "no memory" in other.expect_channel_close(1, 311).reply_text
    with Wire.open(target.port) as other:
        other.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        target.witness.wait()
        other.publish(1, "", "nobody", bytes(5 * MIB))
        other.expect(commands.Basic.Ack)


def test_properties_of_contents_that_never_come_share_that_memory(target: Target) -> None:
    channels = range(1, CHANNELS + 1)
    value = bytes(120_000)
    properties = with_headers(b"\x01aS" + struct.pack(">I", len(value)) + value)
    with Peer(target.port, channels) as peer:
        for channel in channels:
            peer.send(announce(channel, 1000, properties))
        peer.drain()
        target.witness.wait()

        assert target.growth_bytes < LARGE_BYTES + 32 * MIB


def test_a_large_message_does_not_stay_in_the_memory_of_each_queue(target: Target) -> None:
    queues, size = 24, 8 * MIB
    with Wire.open(target.port) as wire:
        for number in range(queues):
            wire.send(
                1,
                commands.Queue.Declare(queue=f"w{number}", exclusive=True, nowait=True),
                commands.Queue.Bind(queue=f"w{number}", exchange="amq.fanout", nowait=True),
            )
        wire.publish(1, "amq.fanout", "", bytes(size))
        wire.publish(1, "amq.fanout", "", b"what stays in the queue")
        for number in range(queues):
            wire.send(1, commands.Basic.Get(queue=f"w{number}", no_ack=True))
            assert len(wire.expect_unit(commands.Basic.GetOk).body) == size

        assert target.growth_bytes < LARGE_BYTES + 16 * MIB


def test_very_many_busy_queues_do_not_keep_a_block_each(target: Target) -> None:
    queues, size = 1500, 100_000
    with Wire.open(target.port) as wire:
        for number in range(queues):
            wire.send(
                1,
                commands.Queue.Declare(queue=f"b{number}", exclusive=True, nowait=True),
                commands.Queue.Bind(queue=f"b{number}", exchange="amq.fanout", nowait=True),
            )
        wire.publish(1, "amq.fanout", "", bytes(size))
        wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)

        # Blocks of 256 KiB, touched as far as the message reaches: at most 512 of them.
        assert target.growth_bytes < 512 * size + 32 * MIB
        for number in random.sample(range(queues), 20):
            wire.send(1, commands.Basic.Get(queue=f"b{number}", no_ack=True))
            assert wire.expect_unit(commands.Basic.GetOk).body == bytes(size)


def test_keys_that_reach_the_same_queues_are_not_added_up(target: Target) -> None:
    queues, keys = 200, 1_024
    strings = b"S\0\0\0\0" * keys
    table = b"\x02CCA" + struct.pack(">I", len(strings)) + strings
    with Wire.open(target.port) as wire:
        for number in range(queues):
            wire.send(
                1,
                commands.Queue.Declare(queue=f"c{number}", exclusive=True, nowait=True),
                commands.Queue.Bind(queue=f"c{number}", exchange="amq.fanout", nowait=True),
            )
        wire.send_bytes(announce(1, 0, with_headers(table), "amq.fanout"))
        wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)

        # Each queue has the message in a block of 256 KiB.
        assert target.growth_bytes < queues * MIB / 4 * 0.6 + 8 * MIB


# ---- frames ----------------------------------------------------------------------------------


def test_a_million_empty_frames(target: Target) -> None:
    with Peer(target.port) as peer:
        peer.send(raw_frame(8, 0, b"") * 1_000_000)
        sync(peer)
        peer.send(announce(1, 1) + raw_frame(3, 1, b"") * 1_000_000 + raw_frame(3, 1, b"x"))
        sync(peer)

    assert target.growth_bytes < 8 * MIB


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        pytest.param(raw_frame(1, 1, b"\0\x3c\0\x28"), 501, id="method-without-arguments"),
        pytest.param(raw_frame(1, 1, b"\0\x3c\0\x50"), 501, id="ack-without-arguments"),
        pytest.param(raw_frame(1, 1, b""), 501, id="method-of-no-bytes"),
        pytest.param(struct.pack(">BHI", 3, 1, (1 << 32) - 1), 501, id="frame-of-4-gib"),
    ],
)
def test_frames_that_are_too_short_or_too_long_end_the_connection(
    target: Target, frame: bytes, code: int
) -> None:
    with Wire.open(target.port) as wire:
        wire.send_bytes(frame * 100)

        close = wire.expect(commands.Connection.Close)

        assert close.reply_code == code
        wire.expect_closed()
    assert target.growth_bytes < 8 * MIB


def test_contents_on_all_channels_that_are_not_open_are_dropped(target: Target) -> None:
    with Peer(target.port) as peer:
        for channel in range(2, 65536):
            peer.send(announce(channel, 3) + raw_frame(3, channel, b"abc"))
        sync(peer)

    assert target.growth_bytes < 8 * MIB


def test_every_channel_id_opened_and_closed(target: Target) -> None:
    close = commands.Channel.Close(200, "", 0, 0)
    with Peer(target.port) as peer:
        for first in range(2, 65536, 4096):
            ids = range(first, min(first + 4096, 65536))
            peer.send(b"".join(encode(id_, commands.Channel.Open(), close) for id_ in ids))
            sync(peer)

    assert target.growth_bytes < 16 * MIB


def test_the_highest_channel_id_costs_no_more_than_another(target: Target) -> None:
    connections = 100
    ids = (65535, 4096, 4095, 40000)
    peers = [Peer(target.port, ids) for _ in range(connections)]

    assert target.growth_bytes < connections * 64 * 1024 + 8 * MIB
    for peer in peers:
        for id_ in ids:
            peer.send(encode(id_, commands.Basic.Qos()))
            peer.read_until(encode(id_, commands.Basic.QosOk()))
        peer.send(encode(65535, commands.Channel.Close(200, "", 0, 0)))
        peer.read_until(encode(65535, commands.Channel.CloseOk()))
        peer.send(encode(40000, commands.Basic.Qos()))
        peer.read_until(encode(40000, commands.Basic.QosOk()))
        peer.close()


def nested(levels: int) -> bytes:
    """A table in a table, so many levels below the outermost."""
    table = b""
    for _ in range(levels):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
    return table


@pytest.mark.parametrize(("levels", "is_taken"), [(60, True), (70, False)])
def test_tables_are_nested_only_so_deep(target: Target, levels: int, is_taken: bool) -> None:
    declare = commands.Queue.Declare(queue=QUEUE, exclusive=True)
    arguments = nested(levels)
    raw = encode(1, declare)[7:-5] + struct.pack(">I", len(arguments)) + arguments
    for attack in (raw_frame(1, 1, raw), announce(1, 0, with_headers(arguments))):
        with Wire.open(target.port) as wire:
            wire.send_bytes(attack)
            wire.send(1, commands.Basic.Qos())
            answers = [wire.receive().method]
            if isinstance(answers[0], commands.Queue.DeclareOk):
                answers.append(wire.receive().method)

            if is_taken:
                assert isinstance(answers[-1], commands.Basic.QosOk)
            else:
                assert isinstance(answers[0], commands.Connection.Close)
                assert answers[0].reply_code == 501


def test_a_table_of_as_many_entries_as_a_frame_holds(target: Target) -> None:
    table = b"\0V" * ((FRAME_MAX - 100) // 2)
    with Wire.open(target.port) as wire:
        declare = encode(1, commands.Queue.Declare(queue=QUEUE, exclusive=True))[7:-5]
        wire.send_bytes(raw_frame(1, 1, declare + struct.pack(">I", len(table)) + table))
        assert "max_arguments_bytes" in wire.expect_channel_close(1, 406).reply_text
        wire.open_channel(1)
        wire.send_bytes(announce(1, 0, with_headers(table), "amq.headers"))
        wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)

    assert target.growth_bytes < 32 * MIB


def test_names_of_255_bytes(target: Target) -> None:
    """edge-cases.md 70"""
    name = "n" * 255
    with Wire.open(target.port) as wire:
        declare = commands.Queue.Declare(queue=name, exclusive=True)
        assert wire.call(1, declare, commands.Queue.DeclareOk).queue == name
        consume = commands.Basic.Consume(queue=name, consumer_tag=name, no_ack=True)
        assert wire.call(1, consume, commands.Basic.ConsumeOk).consumer_tag == name
        wire.publish(1, "", name, b"to all of it")
        delivered = wire.expect(commands.Basic.Deliver)
        assert (delivered.consumer_tag, delivered.routing_key) == (name, name)


# ---- tags and transactions -------------------------------------------------------------------


def deliveries(peer: Peer, count: int) -> None:
    """Read so many small deliveries."""
    seen, tail = 0, b""
    while seen < count:
        data = peer.socket.recv(1 << 18)
        assert data
        seen += (tail + data).count(b"\0\x3c\0\x3c")
        tail = data[-3:]


def orders(first: int, last: int) -> Iterator[tuple[str, bytes]]:
    """Ways to settle the tags first to last."""
    tags = list(range(first, last + 1))
    middle = (first + last) // 2
    yield "last first", b"".join(map(settle, reversed(tags)))
    yield (
        "from the middle",
        (settle(middle, multiple=True) + b"".join(map(settle, range(last, middle, -1)))),
    )
    thinned = [*tags[::7], *(tag for tag in tags if (tag - first) % 7)]
    yield "every seventh first", b"".join(map(settle, thinned))
    random.Random(1).shuffle(tags)
    yield "shuffled", b"".join(map(settle, tags))
    yield "nothing but the last", settle(last, multiple=True)
    yield "refused at once", settle(0, multiple=True, method=120)


def test_full_prefetches_are_settled_in_any_order(target: Target) -> None:
    prefetch, consumers = 65535, 3
    step, first = prefetch * consumers, 1
    count = 0
    with fill(target.port, QUEUE, b"x", 0) as owner, Peer(target.port) as peer:
        peer.send(encode(1, commands.Basic.Qos(prefetch_count=prefetch)))
        for tag in "abc":
            peer.send(encode(1, commands.Basic.Consume(queue=QUEUE, consumer_tag=tag)))
        sync_consume = encode(1, commands.Basic.ConsumeOk("c"))
        peer.read_until(sync_consume)
        for _, acks in orders(first, first + step - 1):
            owner.send_bytes(encode_publish(1, "", QUEUE, b"x") * step)
            deliveries(peer, step)
            offset = count * step
            peer.send(_moved(acks, offset))
            count += 1
        sync(peer)
        passive = commands.Queue.Declare(queue=QUEUE, passive=True)
        assert owner.call(1, passive, commands.Queue.DeclareOk).message_count == 0
        target.process.wait_for_memory(target.before_bytes + 24 * MIB)
        peer.send(encode(1, commands.Basic.Recover(requeue=True)))  # of nothing
        sync(peer)
    assert target.growth_bytes < 64 * MIB


def _moved(acks: bytes, offset: int) -> bytes:
    """The same settlements of tags that are so much higher; 0 means all and stays."""
    size = len(settle(1))
    moved = bytearray(acks)
    for at in range(11, len(acks), size):
        tag = int.from_bytes(acks[at : at + 8], "big")
        moved[at : at + 8] = struct.pack(">Q", tag + offset if tag else 0)
    return bytes(moved)


def test_a_transaction_that_is_never_committed_is_bounded(target: Target) -> None:
    with Wire.open(target.port) as wire:
        wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        one = encode_publish(1, "", "nobody", bytes(100_000))
        for _ in range(2 * LARGE_BYTES // 100_000):
            wire.send_bytes(one)

        assert wire.expect_channel_close(1, 406).reply_text
        assert target.growth_bytes < LARGE_BYTES + 16 * MIB


def test_a_transaction_of_very_many_acks(target: Target) -> None:
    count = 150_000
    with fill(target.port, QUEUE, b"x", count) as owner, Peer(target.port) as peer:
        peer.send(
            encode(
                1,
                commands.Tx.Select(),
                commands.Basic.Qos(prefetch_count=0),
                commands.Basic.Consume(queue=QUEUE, consumer_tag="t"),
            )
        )
        deliveries(peer, count)
        for _ in range(2):
            half = count // 2
            peer.send(b"".join(map(settle, range(count, half, -1))) + settle(half, multiple=True))
            peer.send(settle(0, multiple=True) * 20_000)
            peer.send(encode(1, commands.Tx.Rollback()))
        peer.read_until(encode(1, commands.Tx.RollbackOk()))
        peer.send(settle(0, multiple=True) + encode(1, commands.Tx.Commit()))
        peer.read_until(encode(1, commands.Tx.CommitOk()))

        passive = commands.Queue.Declare(queue=QUEUE, passive=True)
        assert owner.call(1, passive, commands.Queue.DeclareOk).message_count == 0
        assert owner.call(1, commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk)
    assert target.growth_bytes < 48 * MIB


def test_flow_off_for_ever_keeps_messages_in_the_queue(target: Target) -> None:
    """edge-cases.md 33"""
    with fill(target.port, QUEUE, bytes(1000), 0) as owner, Wire.open(target.port) as peer:
        peer.call(1, commands.Channel.Flow(active=False), commands.Channel.FlowOk)
        peer.call(1, commands.Basic.Consume(queue=QUEUE), commands.Basic.ConsumeOk)
        owner.send_bytes(encode_publish(1, "", QUEUE, bytes(1000)) * 50_000)
        passive = commands.Queue.Declare(queue=QUEUE, passive=True)

        assert owner.call(1, passive, commands.Queue.DeclareOk).message_count == 50_000
        with pytest.raises(WireTimeout):
            peer.receive(0.1)
        assert target.growth_bytes < 16 * MIB


def test_a_peer_with_much_to_do_gives_others_their_turn(target: Target) -> None:
    consumers, changes = 10_000, 3_000
    with fill(target.port, QUEUE, b"x", 0), Peer(target.port) as peer:
        for tag in range(consumers):
            consume = commands.Basic.Consume(queue=QUEUE, consumer_tag=str(tag), nowait=True)
            peer.send(encode(1, consume))
        sync(peer)
        before = target.witness.rounds

        peer.send(encode(1, commands.Basic.Qos(prefetch_count=7)) * changes)
        peer.read_until(encode(1, commands.Basic.QosOk()) * changes)

        assert target.witness.rounds - before > 5, "it was heard only when all was done"
