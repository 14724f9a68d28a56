"""A large message is written in pieces, and nobody notices it before it is whole."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, Got, properties, publish, settle
from tests.support.segments import read_queue, segment_numbers

LARGE = 1 << 20
BODY = random.Random(7).randbytes(LARGE + 300_000)
OTHER = BODY[::-1]
QUEUE_SEGMENT = 1 << 23
RETURN, ACK = b"\0\x3c\0\x32", b"\0\x3c\0\x50"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose portions are over as soon as they can be."""
    made = Bench(tmp_path / "data")
    made.loop.portion_units = 1
    yield made
    made.close()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bodies(bench: Bench, queue: _core.Queue) -> list[str]:
    """What is in a queue: short bodies as text, of others their digests."""
    found = []
    while (got := take(bench, queue)) is not None:
        found.append(shown(got.body))
    return found


def take(bench: Bench, queue: _core.Queue, no_ack: bool = True) -> Got | None:
    """basic.get, and all of the answer."""
    if not bench.link.get(1, queue, no_ack):
        return None
    bench.run()
    return received(bench, 1)[0]


def received(bench: Bench, n: int) -> list[Got]:
    """The next n deliveries."""
    found: list[Got] = []
    for _ in range(100_000):
        found += bench.receive()
        if len(found) >= n:
            return found
        bench.link.on_writable()
        step(bench)
    raise AssertionError("a delivery does not come to its end")


def sent_frames(bench: Bench) -> list[tuple[int, bytes]]:
    """Types and payloads of all that is sent to the client."""
    data = b""
    while bench.link.unsent_bytes or has_answer(bench):
        bench.link.on_writable()
        step(bench)
        with suppress(BlockingIOError):
            data += bench.client.recv(1 << 20)
    found, at = [], 0
    while at < len(data):
        kind, _, size = struct.unpack_from(">BHI", data, at)
        found.append((kind, data[at + 7 : at + 7 + size]))
        at += size + 8
    return found


def shown(body: bytes) -> str:
    return body.decode() if len(body) < 100 else digest(body)


def step(bench: Bench) -> None:
    """One iteration of the event loop."""
    callbacks, bench.events.ready = bench.events.ready, []
    for callback in callbacks:
        callback()


def send(bench: Bench, data: bytes) -> None:
    """Bytes from the client, read while portions are as long as ever, up to the last of them."""
    for part, units in ((data[:-1], 0), (data[-1:], 1)):
        bench.loop.portion_units = units
        assert bench.client.send(part) == len(part)
        expected = bench.link.received_bytes + len(part)
        while bench.link.received_bytes < expected:
            bench.link.on_readable()
            if units == 0 or bench.link.received_bytes < expected:  # it waits behind others
                step(bench)


def begin(bench: Bench, queue: str = "q", body: bytes = BODY, props: bytes = b"\0\0") -> None:
    """Publish a large message up to the middle of its way."""
    send(bench, publish(queue.encode(), body, props))
    for _ in range(10):
        if pieces(bench, queue):
            return
        step(bench)
    raise AssertionError("it has not begun")


def pieces(bench: Bench, queue: str = "q") -> list[Path]:
    """Files of messages that are not whole."""
    return list((bench.directory / queue).rglob("tmp.msgs.*"))


def go_on(bench: Bench) -> None:
    """Let everything come to its end."""
    bench.run()


def local(bench: Bench) -> _core.LocalChannel:
    return _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)


def put(bench: Bench, queue: str, body: bytes) -> None:
    """Somebody else publishes."""
    other = local(bench)
    other.publish(bench.exchange, b"", queue.encode(), b"\0\0", body)
    other.close()


def stream(bench: Bench) -> _core.Queue:
    """A stream of the name `s`, bound to the default exchange."""
    made = _core.Queue(
        bench.loop, str(bench.directory / "s"), QUEUE_SEGMENT, True, name=b"s", is_stream=True
    )
    made.load()
    bench.exchange.bind(b"s", b"", made)
    return made


def has_answer(bench: Bench) -> bool:
    """Whether the client was sent anything."""
    try:
        return bool(bench.client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@pytest.mark.parametrize("durable", [True, False])
def test_what_was_sent_is_delivered(bench: Bench, durable: bool) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT, durable)

    begin(bench)
    go_on(bench)

    assert bodies(bench, queue) == [digest(BODY)]
    assert pieces(bench) == []


def test_nobody_sees_it_before_it_is_whole_and_others_come_first(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    put(bench, "q", b"before")
    begin(bench)

    for number in range(5):
        put(bench, "q", b"%d" % number)
        step(bench)
    assert queue.ready == 6
    go_on(bench)
    put(bench, "q", b"behind")

    assert bodies(bench, queue) == ["before", *"01234", digest(BODY), "behind"]


def test_order_of_the_channel_is_kept(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)

    send(bench, publish(b"q", b"1") + publish(b"q", BODY) + publish(b"q", b"2"))
    go_on(bench)
    send(bench, publish(b"q", OTHER) + publish(b"q", b"3"))
    go_on(bench)

    assert bodies(bench, queue) == ["1", digest(BODY), "2", digest(OTHER), "3"]


def test_segments_roll_while_it_is_written(bench: Bench) -> None:
    queue = bench.queue("q", 4096)
    begin(bench)

    for number in range(12):
        put(bench, "q", b"%02d" % number * 1000)
    assert queue.ready == 12
    go_on(bench)
    put(bench, "q", b"behind")
    bench.run()

    expected = [digest(b"%02d" % number * 1000) for number in range(12)]
    assert len(segment_numbers(bench.directory / "q")) == 8
    assert bodies(bench, queue) == [*expected, digest(BODY), "behind"]


def test_it_takes_the_place_of_a_segment_without_messages(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    begin(bench)
    go_on(bench)
    bench.link.get(1, queue, True)
    received(bench, 1)
    bench.run()
    for body in (BODY, OTHER):
        send(bench, publish(b"q", body))
        go_on(bench)

    assert bodies(bench, queue) == [digest(BODY), digest(OTHER)]


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_that_is_deleted_meanwhile_leaves_no_file(bench: Bench, durable: bool) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT, durable)
    begin(bench)

    bench.exchange.unbind(b"q", b"", queue)
    queue.delete()
    go_on(bench)

    assert pieces(bench) == []
    assert ("on_lost",) not in bench.session.events


def test_a_queue_that_is_purged_meanwhile_has_the_message_afterwards(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    for _ in range(3):
        put(bench, "q", b"m")
    begin(bench)

    for _ in _core.Purge(queue):
        step(bench)
    assert queue.ready == 0
    go_on(bench)

    assert bodies(bench, queue) == [digest(BODY)]


@pytest.mark.parametrize("how", ["channel", "link"])
def test_whoever_goes_in_the_middle_leaves_no_file(bench: Bench, how: str) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    begin(bench)

    if how == "channel":
        bench.link.close_channel(1, True)
    else:
        bench.link.close()
    go_on(bench)

    assert pieces(bench) == []
    assert queue.ready == 0
    assert bench.loop.large_bytes < 100


def test_a_confirm_comes_once_and_when_it_is_whole(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    bench.link.select_confirms(1)
    begin(bench)

    while queue.ready == 0:
        assert not has_answer(bench)
        step(bench)
    go_on(bench)

    assert bench.client.recv(1000)[7:11] == b"\0\x3c\0\x50"
    assert not has_answer(bench)


@pytest.mark.parametrize("level", [0, 3])
def test_a_level_of_a_priority_queue_takes_it(bench: Bench, level: int) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT, max_priority=5)
    put(bench, "q", b"low")
    begin(bench, props=properties(priority=level))
    put(bench, "q", b"too")
    go_on(bench)

    found = bodies(bench, queue)

    assert found == ([digest(BODY), "low", "too"] if level else ["low", "too", digest(BODY)])


def test_a_stream_gives_it_its_offset_when_it_is_whole(bench: Bench) -> None:
    queue = stream(bench)
    put(bench, "s", b"first")
    begin(bench, "s")
    put(bench, "s", b"second")
    go_on(bench)
    put(bench, "s", b"fourth")
    bench.run()

    rows, at, _ = _core.read_stream(queue, 1, 10, 1 << 30, 1 << 30)
    rows += _core.read_stream(queue, at, 10, 1 << 30, 1 << 30)[0]

    assert [(row[0], shown(row[6][:])) for row in rows] == [
        (1, "first"), (2, "second"), (3, digest(BODY)), (4, "fourth"),
    ]  # fmt: skip


def test_each_queue_of_a_fanout_gets_it(bench: Bench) -> None:
    queues = [bench.queue(f"q{n}", QUEUE_SEGMENT, durable=n != 1) for n in range(3)]
    made = _core.Exchange(_core.FANOUT, 7)
    bench.vhost.add(b"fan", made)
    bench.vhost.touch()
    for queue in queues:
        made.bind(b"", b"", queue)
    bench.link.learn(b"fan", made)
    data = publish(b"q", BODY)
    data = data.replace(b"\0\0\0\x01q\0\xce", b"\0\0\x03fan\0\0\xce", 1)
    data = data[:3] + (int.from_bytes(data[3:7], "big") + 2).to_bytes(4, "big") + data[7:]

    send(bench, data)
    go_on(bench)
    bench.link.learn(b"", bench.exchange)

    assert [bodies(bench, queue) for queue in queues] == [[digest(BODY)]] * 3


def test_a_transaction_publishes_it_in_portions(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    bench.link.select_transactions(1)
    send(bench, publish(b"q", b"1") + publish(b"q", BODY) + publish(b"q", b"2"))
    go_on(bench)
    assert queue.ready == 0

    turns = 1
    while bench.link.commit(1):
        turns += 1
        step(bench)
    bench.run()

    assert turns > len(BODY) // 131072
    assert bodies(bench, queue) == ["1", digest(BODY), "2"]
    assert bench.loop.large_bytes < 100


def test_a_channel_without_a_connection_publishes_it_in_portions(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    other = local(bench)
    args = (bench.exchange, b"", b"q", b"\0\0", BODY)

    turns = 1
    while (answer := other.publish_some(*args)) is None:
        assert queue.ready == 0
        turns += 1
        step(bench)

    assert answer == (0, True, True)
    assert turns > len(BODY) // 131072
    other.close()
    assert bodies(bench, queue) == [digest(BODY)]


def test_a_duplicate_is_dropped_when_both_are_whole(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    header = b"x-deduplication-header"
    queue.set_dedup(_core.DedupCache(bench.loop, header, 100, -1, None, 1))
    headers = bytes([len(header)]) + header + b"S\0\0\0\x01k"
    begin(bench, props=properties(headers=headers))
    other = local(bench)
    other.publish(bench.exchange, b"", b"q", properties(headers=headers), OTHER)
    go_on(bench)

    assert bodies(bench, queue) == [digest(OTHER)]
    assert pieces(bench) == []
    other.close()


def test_a_full_queue_refuses_it_and_keeps_no_file(bench: Bench) -> None:
    refuses = _core.OVERFLOW["reject-publish"]
    queue = bench.queue("q", QUEUE_SEGMENT, max_bytes=LARGE, overflow=refuses)
    bench.link.select_confirms(1)

    send(bench, publish(b"q", BODY))
    go_on(bench)

    assert bench.client.recv(1000)[7:11] == b"\0\x3c\0\x78"
    assert queue.ready == 0
    assert pieces(bench) == []


def test_without_room_it_waits_in_memory_as_others_do(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    put(bench, "q", b"1")
    bench.run()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 2, before[1]))
    try:
        begin(bench)
        while queue.ready == 1:
            step(bench)
        assert bench.loop.is_held
        assert pieces(bench) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    bench.loop.retry()
    bench.run()

    assert not bench.loop.is_held
    assert [shown(each.body) for each in read_queue(bench.directory / "q")] == ["1", digest(BODY)]


def test_a_start_finds_it_whole(bench: Bench) -> None:
    bench.queue("q", QUEUE_SEGMENT)
    put(bench, "q", b"1")
    begin(bench)
    put(bench, "q", b"2")
    go_on(bench)
    put(bench, "q", b"3")
    bench.run()

    found = read_queue(bench.directory / "q")
    again = _core.Queue(bench.loop, str(bench.directory / "q"), QUEUE_SEGMENT, True, name=b"q",
                        vhost=bench.vhost)  # fmt: skip
    again.load()

    assert [shown(each.body) for each in found] == ["1", "2", digest(BODY), "3"]
    assert bodies(bench, again) == ["1", "2", digest(BODY), "3"]


def test_a_start_removes_what_a_kill_has_left(bench: Bench) -> None:
    bench.queue("q", QUEUE_SEGMENT)
    put(bench, "q", b"1")
    bench.run()
    begin(bench)
    (left,) = pieces(bench)
    os.link(left, left.with_name("tmp.msgs.4000000000"))

    again = _core.Queue(bench.loop, str(bench.directory / "q"), QUEUE_SEGMENT, True, name=b"q",
                        vhost=bench.vhost)  # fmt: skip
    notes = again.load()

    assert pieces(bench) == []
    assert len(notes) == 2
    assert bodies(bench, again) == ["1"]


# ---- delivering ----------------------------------------------------------------------------------


def fill(bench: Bench, queue: str = "q", *contents: bytes) -> None:
    """Publish, and have it in files."""
    for body in contents or (BODY,):
        put(bench, queue, body)
    bench.run()


def consume(bench: Bench, queue: _core.Queue, no_ack: bool = False, channel: int = 1) -> None:
    bench.link.add_consumer(channel, queue, b"c%d" % channel, no_ack).start()


def let_begin(bench: Bench) -> None:
    """Let a delivery begin."""
    for _ in range(50):
        step(bench)
        bench.link.on_writable()
        if has_answer(bench):
            return
    raise AssertionError("nothing is sent")


@pytest.mark.parametrize("no_ack", [True, False])
def test_a_consumer_gets_it_with_what_comes_behind(bench: Bench, no_ack: bool) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench, "q", b"1", BODY, b"2", OTHER, b"3")

    consume(bench, queue, no_ack)
    got = received(bench, 5)

    assert [shown(each.body) for each in got] == ["1", digest(BODY), "2", digest(OTHER), "3"]
    assert [each.tag for each in got] == [1, 2, 3, 4, 5]
    assert queue.unacked == (0 if no_ack else 5)


def test_answers_to_other_requests_come_behind_it_in_order(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench, "q", BODY, b"2", OTHER, b"4")

    for _ in range(4):
        assert bench.link.get(1, queue, True)
    bench.run()
    got = received(bench, 4)

    assert [shown(each.body) for each in got] == [digest(BODY), "2", digest(OTHER), "4"]


def test_the_link_holds_a_block_of_it_and_not_the_whole(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench)
    bench.narrow()
    before = bench.loop.large_bytes

    consume(bench, queue)
    let_begin(bench)

    assert bench.loop.large_bytes == before
    assert bench.link.unsent_bytes > LARGE // 2
    assert [shown(each.body) for each in received(bench, 1)] == [digest(BODY)]
    assert bench.link.unsent_bytes == 0


@pytest.mark.parametrize("how", ["purge", "delete", "ack", "roll"])
def test_what_happens_to_the_queue_meanwhile_does_not_matter(bench: Bench, how: str) -> None:
    queue = bench.queue("q", 4096)
    fill(bench, "q", BODY, b"2")
    bench.narrow()
    consume(bench, queue, how in ("purge", "delete"))
    let_begin(bench)

    if how == "purge":
        for _ in _core.Purge(queue):
            step(bench)
    elif how == "delete":
        bench.exchange.unbind(b"q", b"", queue)
        queue.delete()
    elif how == "ack":
        bench.client.send(settle(80, 1, 0))
        bench.link.on_readable()
    for number in range(8):
        if how != "delete":
            put(bench, "q", b"%d" % number * 1000)
    step(bench)

    assert shown(received(bench, 1)[0].body) == digest(BODY)


def test_two_slow_clients_get_the_same_stream(bench: Bench) -> None:
    queue = stream(bench)
    fill(bench, "s", b"1", BODY, b"3")
    bench.narrow()
    bench.loop.portion_units = 100  # with less streams do not begin
    bench.link.set_prefetch(1, 10, False)
    bench.link.open_channel(2, 10)
    for channel in (1, 2):
        consumer = bench.link.add_consumer(channel, queue, b"c%d" % channel, False)
        consumer.read_stream("first")
        consumer.start()

    got = received(bench, 6)

    for channel in (1, 2):
        found = [shown(each.body) for each in got if each.channel == channel]
        assert found == ["1", digest(BODY), "3"]


def test_it_is_delivered_again_after_a_requeue_and_a_recover(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench, "q", BODY, b"2")
    bench.link.set_prefetch(1, 1, False)
    consume(bench, queue)
    (first,) = received(bench, 1)

    bench.client.send(settle(120, 1, 2))
    bench.link.on_readable()
    (second,) = received(bench, 1)
    bench.link.recover(1, False)
    (third,) = received(bench, 1)

    assert [digest(each.body) for each in (first, second, third)] == [digest(BODY)] * 3
    assert [each.redelivered for each in (first, second, third)] == [False, True, True]


def test_what_reaches_no_queue_comes_back_in_pieces(bench: Bench) -> None:
    data = publish(b"nowhere", BODY).replace(b"nowhere\0\xce", b"nowhere\1\xce", 1)
    bench.narrow()
    bench.link.select_confirms(1)

    send(bench, data)
    go_on(bench)
    frames = sent_frames(bench)

    assert [payload[:4] for kind, payload in frames if kind == 1] == [RETURN, ACK]
    assert digest(b"".join(payload for kind, payload in frames if kind == 3)) == digest(BODY)
    assert bench.loop.large_bytes < 100


def test_a_rollback_lets_go_of_it(bench: Bench) -> None:
    bench.queue("q", QUEUE_SEGMENT)
    bench.link.select_transactions(1)
    send(bench, publish(b"q", BODY))
    go_on(bench)
    assert bench.loop.large_bytes >= len(BODY)

    bench.link.rollback(1)
    bench.run()

    assert bench.loop.large_bytes < 100


def test_management_reads_it_by_slices(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench)
    other = local(bench)

    taken = other.take(queue, 1 << 30, 1 << 30, False)
    assert isinstance(taken, tuple)
    tag, body = taken[0], taken[6]
    other.settle(tag, False, True)
    os.unlink(bench.directory / "q" / "msgs.0000000001")

    assert isinstance(body, _core.FarBody)
    assert len(body) == len(BODY)
    assert body[:10] + body[10:LARGE] + body[LARGE:] == BODY
    other.close()


def test_small_frames(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench)
    bench.link.set_limits(4096, 1 << 30, 0)
    consume(bench, queue)

    assert shown(received(bench, 1)[0].body) == digest(BODY)


def test_frames_larger_than_a_block(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench, "q", BODY, b"2")
    bench.link.set_limits(1 << 20, 1 << 30, 0)
    consume(bench, queue)

    assert [shown(each.body) for each in received(bench, 2)] == [digest(BODY), "2"]


def test_a_file_that_cannot_be_read_on_ends_the_connection(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench)
    bench.narrow()
    consume(bench, queue)
    let_begin(bench)

    os.truncate(bench.directory / "q" / "msgs.0000000001", LARGE // 2)
    for _ in range(50):
        step(bench)
        bench.link.on_writable()
        with suppress(BlockingIOError):
            bench.client.recv(1 << 20)

    assert ("on_unreadable",) in bench.session.events
    assert bench.link.unsent_bytes == 0


def test_a_connection_that_goes_in_the_middle_gives_it_back(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT)
    fill(bench)
    bench.narrow()
    consume(bench, queue)
    let_begin(bench)

    bench.link.close()
    bench.run()

    assert queue.ready == 1
    assert bench.loop.large_bytes < 100


def test_no_holes_are_made_in_a_file_that_is_being_sent(bench: Bench) -> None:
    queue = bench.queue("q", 4 << 20)
    fill(bench, "q", b"kept", BODY)
    for number in range(8):
        put(bench, "q", b"%d" % number * 600_000)
    bench.run()
    assert take(bench, queue, no_ack=False)
    bench.narrow()
    consume(bench, queue, no_ack=True)
    let_begin(bench)
    bench.run()

    assert not queue.compact(lambda: None)
    assert shown(received(bench, 1)[0].body) == digest(BODY)
    received(bench, 8)
    bench.run()
    assert queue.compact(lambda: None)
    bench.run()
