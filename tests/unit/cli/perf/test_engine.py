"""The compiled clients of lavinmqperf, against a broker played by the test over a socket pair.

SOCK_SEQPACKET keeps what was sent apart, so one read of the engine is one `send` of the test: a
stream is split exactly where the test says.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pamqp import commands

from lavinmq import _perf
from tests.support.raw_wire import (
    FrameReader,
    Properties,
    RawFrame,
    build,
    decode_close,
    decode_method,
    encode_content,
    encode_method,
)

TIMEOUT_S = 20.0
FRAME_MAX = 4096
CHUNK = FRAME_MAX - 8


def pattern(size: int) -> bytes:
    return bytes(i % 27 + 64 for i in range(size))


def delivery(tag: int, body: bytes, frame_max: int = FRAME_MAX) -> bytes:
    method = build(
        commands.Basic.Deliver, consumer_tag="ctag", delivery_tag=tag, exchange="", routing_key="q"
    )
    return encode_method(1, method) + encode_content(1, Properties(), body, frame_max)


def get_ok(tag: int, body: bytes) -> bytes:
    method = build(
        commands.Basic.GetOk, delivery_tag=tag, exchange="", routing_key="q", message_count=0
    )
    return encode_method(1, method) + encode_content(1, Properties(), body, FRAME_MAX)


class Peer:
    """The broker's end: reads whole frames with a deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._reader = FrameReader()

    def frame(self) -> RawFrame:
        while (raw := self._reader.next()) is None:
            data = self.sock.recv(1 << 20)
            assert data, "the engine hung up"
            self._reader.feed(data)
        return raw

    def method(self) -> Any:
        raw = self.frame()
        assert raw.kind == 1
        return decode_method(raw.payload)

    def message(self) -> tuple[str, bytes]:
        """Return routing key and body of one published message."""
        publish = self.method()
        assert isinstance(publish, commands.Basic.Publish)
        head = self.frame()
        assert head.kind == 2
        (size,) = struct.unpack_from(">Q", head.payload, 4)
        body = b""
        while len(body) < size:
            body += self.frame().payload
        return publish.routing_key, body

    def send(self, method: Any) -> None:
        self.sock.sendall(encode_method(1, method))


@contextmanager
def pair(kind: int = socket.SOCK_STREAM) -> Iterator[tuple[socket.socket, Peer]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    theirs.settimeout(TIMEOUT_S)
    with ours, theirs:
        yield ours, Peer(theirs)


@contextmanager
def background(run: _perf.Run, work: Callable[[], Any]) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(work)
        finally:
            run.stop()


def consume(
    stream: list[bytes], *, count: int, kind: int = socket.SOCK_SEQPACKET, **options: Any
) -> tuple[_perf.Consumer, int, bytes, list[Any]]:
    """Feed a consumer; return it, how it ended, and the methods it sent."""
    run = _perf.Run(consume_limit=count)
    consumer = _perf.Consumer(run, **options)
    with pair(kind) as (ours, peer):
        for packet in stream:
            peer.sock.sendall(packet)
        end, rest = consumer.run(ours.fileno())
        ours.shutdown(socket.SHUT_WR)
        data = b""
        while piece := peer.sock.recv(1 << 20):
            data += piece
    reader = FrameReader()
    reader.feed(data)
    return consumer, end, rest, [decode_method(f.payload) for f in iter(reader.next, None)]


SMALL = delivery(1, b"") + delivery(2, pattern(16)) + delivery(3, pattern(16))


@pytest.mark.parametrize("at", range(1, len(SMALL)))
def test_a_delivery_stream_may_be_split_anywhere(at: int) -> None:
    consumer, end, rest, sent = consume([SMALL[:at], SMALL[at:]], count=3, ack=1)

    assert (end, rest, consumer.consumed) == (_perf.DONE, b"", 3)
    assert [method.delivery_tag for method in sent] == [1, 2, 3]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 8, 9])
def test_a_delivery_stream_may_come_in_pieces_of_any_size(step: int) -> None:
    pieces = [SMALL[at : at + step] for at in range(0, len(SMALL), step)]
    run = _perf.Run(consume_limit=3)
    consumer = _perf.Consumer(run)
    with (
        pair(socket.SOCK_SEQPACKET) as (ours, peer),
        background(run, lambda: consumer.run(ours.fileno())) as ended,
    ):
        for piece in pieces:
            peer.sock.sendall(piece)
        end, _ = ended.result(TIMEOUT_S)

    assert (end, consumer.consumed) == (_perf.DONE, 3)


@pytest.mark.parametrize("chunk", [1, 5, 7, 8, 9, 27, 100])
def test_a_verified_body_may_come_in_frames_of_any_size(chunk: int) -> None:
    body = pattern(100)

    consumer, end, _, _ = consume(
        [delivery(1, body, chunk + 8)], count=1, verify=True, body_size=100
    )

    assert (end, consumer.consumed, consumer.mismatched) == (_perf.DONE, 1, 0)


def test_bytes_read_before_the_loan_count() -> None:
    consumer = _perf.Consumer(_perf.Run(consume_limit=1))
    with pair() as (ours, _):
        end, _ = consumer.run(ours.fileno(), delivery(1, b"abc"))

    assert (end, consumer.consumed) == (_perf.DONE, 1)


def test_bytes_that_were_not_used_are_handed_back() -> None:
    second = delivery(2, b"x")

    consumer, _, rest, _ = consume([delivery(1, b"x") + second], count=1)

    assert (consumer.consumed, rest) == (1, second)


@pytest.mark.parametrize(
    ("body", "first"),
    [
        (pattern(99), (99, -1)),
        (pattern(101), (101, -1)),
        (b"!" + pattern(100)[1:], (100, 0)),
        (pattern(100)[:99] + b"!", (100, 99)),
    ],
)
def test_a_body_unlike_the_pattern_is_counted_once(body: bytes, first: tuple[int, int]) -> None:
    stream = [delivery(1, body, 30), delivery(2, pattern(100))]

    consumer, end, _, _ = consume(stream, count=2, verify=True, body_size=100)

    assert (end, consumer.consumed, consumer.mismatched) == (_perf.DONE, 2, 1)
    assert consumer.first_mismatch == first


def test_random_bodies_are_verified_by_size_alone() -> None:
    stream = [delivery(1, b"?" * 10), delivery(2, b"?" * 11)]

    consumer, _, _, _ = consume(stream, count=2, verify=True, random=True, body_size=10)

    assert consumer.mismatched == 1


def test_acks_cover_every_n_messages_and_the_rest_at_the_end() -> None:
    stream = [delivery(tag, b"x") for tag in range(1, 9)]

    _, _, _, sent = consume(stream, count=8, ack=3)

    assert [(ack.delivery_tag, ack.multiple) for ack in sent] == [(3, True), (6, True), (8, True)]


def test_acks_are_committed_every_n_messages() -> None:
    stream = [delivery(tag, b"x") for tag in range(1, 6)]

    _, _, _, sent = consume(stream, count=5, ack=1, transaction=2)

    kinds = [method.name for method in sent]
    assert kinds == ["Basic.Ack", "Basic.Ack", "Tx.Commit"] * 2 + ["Basic.Ack", "Tx.Commit"]


def test_acks_left_after_the_last_commit_are_committed_too() -> None:
    stream = [delivery(tag, b"x") for tag in range(1, 5)]

    _, _, _, sent = consume(stream, count=4, ack=3, transaction=4)

    kinds = [method.name for method in sent]
    assert kinds == ["Basic.Ack", "Tx.Commit", "Basic.Ack", "Tx.Commit"]


def test_no_more_than_the_limit_is_counted_or_acknowledged() -> None:
    stream = [b"".join(delivery(tag, b"x") for tag in range(1, 10))]

    consumer, _, _, sent = consume(stream, count=4, ack=100)

    assert consumer.consumed == 4
    assert [ack.delivery_tag for ack in sent] == [4]


def test_more_acks_than_the_output_buffer_holds_all_arrive() -> None:
    count = 10_000
    run = _perf.Run(consume_limit=count)
    consumer = _perf.Consumer(run, ack=1)
    stream = b"".join(delivery(tag, b"") for tag in range(1, count + 1))
    with pair() as (ours, peer):
        writer = threading.Thread(target=peer.sock.sendall, args=(stream,))
        writer.start()
        with background(run, lambda: consumer.run(ours.fileno())) as ended:
            tags = [peer.method().delivery_tag for _ in range(count)]
            end, _ = ended.result(TIMEOUT_S)
        writer.join(TIMEOUT_S)

    assert end == _perf.DONE
    assert tags == list(range(1, count + 1))


def test_polling_asks_for_one_message_at_a_time() -> None:
    get = encode_method(1, build(commands.Basic.Get, queue="q"))[7:-1]
    run = _perf.Run(consume_limit=2)
    consumer = _perf.Consumer(run, get=get, ack=1)
    with pair() as (ours, peer), background(run, lambda: consumer.run(ours.fileno())) as ended:
        first = peer.method()
        peer.send(build(commands.Basic.GetEmpty))
        second = peer.method()
        peer.sock.sendall(get_ok(1, b"x"))
        third = [peer.method(), peer.method()]
        peer.sock.sendall(get_ok(2, b"x"))
        end, _ = ended.result(TIMEOUT_S)

    assert (end, consumer.consumed) == (_perf.DONE, 2)
    assert [first.name, second.name] == ["Basic.Get", "Basic.Get"]
    assert [method.name for method in third] == ["Basic.Ack", "Basic.Get"]


def test_a_close_by_the_peer_is_handed_over() -> None:
    close = build(
        commands.Channel.Close, reply_code=404, reply_text="NOT_FOUND", class_id=60, method_id=20
    )

    _, end, payload, _ = consume([encode_method(1, close)], count=1)

    assert end == _perf.CLOSED
    assert str(decode_close(payload)) == "404 NOT_FOUND"


def test_end_of_file_is_a_lost_connection() -> None:
    consumer = _perf.Consumer(_perf.Run())
    with pair() as (ours, peer):
        peer.sock.close()
        end, reason = consumer.run(ours.fileno())

    assert (end, reason) == (_perf.LOST, b"connection closed by the server")


@pytest.mark.parametrize(
    "stream",
    [
        SMALL[:-1] + b"\0",
        b"\x09\x00\x01\x00\x00\x00\x00\xce",
        b"\x01\x00\x01\xff\xff\xff\xff\x00",
        b"\x01\x00\x01\x00\x00\x00\x00\xce",
        b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x3c\xce",
        b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x3c\xff\xce",
        encode_content(1, Properties(), b"x", FRAME_MAX),
        SMALL[:42] + SMALL[:42],
        delivery(1, b"x")[:-9] + b"\x03\x00\x01\x00\x00\x00\x02xx\xce",
    ],
)
def test_what_amqp_does_not_allow_ends_the_run(stream: bytes) -> None:
    _, end, _, _ = consume([stream], count=100)

    assert end == _perf.VIOLATION


def test_a_stopped_consumer_ends() -> None:
    run = _perf.Run()
    consumer = _perf.Consumer(run)
    with pair() as (ours, _), background(run, lambda: consumer.run(ours.fileno())) as ended:
        run.stop()
        end, _ = ended.result(TIMEOUT_S)

    assert (run.stopped, end) == (True, _perf.DONE)


def test_latencies_are_sampled_and_the_interval_starts_anew() -> None:
    run = _perf.Run(consume_limit=3)
    consumer = _perf.Consumer(run, stamp=True)
    with pair() as (ours, _):
        stamps = [time.monotonic_ns() - age for age in (1_000_000, 3_000_000, 2_000_000)]
        stream = b"".join(delivery(1, struct.pack("<q", stamp), 8 + 3) for stamp in stamps)
        consumer.run(ours.fileno(), stream)

    count, least, sample = run.latencies()
    assert (count, len(sample), sample) == (3, 3, sorted(sample))
    assert least == sample[0] >= 1_000_000
    assert sample[2] >= 3_000_000
    assert run.interval_latencies()[0] == 3
    assert run.interval_latencies() == (0, 0, [])


def test_the_reservoir_keeps_131072_of_more_latencies() -> None:
    count = 140_000
    run = _perf.Run(consume_limit=count)
    consumer = _perf.Consumer(run, stamp=True)
    stream = delivery(1, struct.pack("<q", time.monotonic_ns())) * 1000
    with pair() as (ours, peer), background(run, lambda: consumer.run(ours.fileno())) as ended:
        for _ in range(count // 1000):
            peer.sock.sendall(stream)
        ended.result(TIMEOUT_S)

    seen, _, sample = run.latencies()
    assert (seen, len(sample)) == (count, 131072)


def publisher(
    run: _perf.Run, body: bytes = b"x" * 16, keys: tuple[str, ...] = ("q",), **options: Any
) -> _perf.Publisher:
    methods = [encode_method(1, build(commands.Basic.Publish, routing_key=key)) for key in keys]
    content = encode_content(1, Properties(), body, FRAME_MAX)
    return _perf.Publisher(
        run,
        methods=methods,
        first=options.pop("first", 0),
        content=content,
        body_size=len(body),
        chunk=CHUNK,
        **options,
    )


@pytest.mark.parametrize("size", [0, 1, 16, CHUNK, CHUNK + 1, 3 * CHUNK, 200_000])
def test_exactly_the_limit_is_published_in_whole_frames(size: int) -> None:
    run = _perf.Run(publish_limit=50)
    engine = publisher(run, pattern(size))
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())) as ended:
        messages = [peer.message() for _ in range(50)]
        end, _ = ended.result(TIMEOUT_S)
        ours.shutdown(socket.SHUT_WR)
        assert peer.sock.recv(1) == b""

    assert (end, engine.published) == (_perf.DONE, 50)
    assert messages == [("q", pattern(size))] * 50


def test_two_publishers_share_one_limit() -> None:
    run = _perf.Run(publish_limit=101)
    first, second = publisher(run, window=5), publisher(run)
    with (
        pair() as (ours, peer),
        pair() as (other, _),
        background(run, lambda: first.run(ours.fileno())) as ended,
    ):
        for _ in range(5):
            peer.message()
        second.run(other.fileno())
        peer.send(build(commands.Basic.Ack, delivery_tag=5, multiple=True))
        ended.result(TIMEOUT_S)

    assert (first.published, second.published) == (5, 96)


def test_messages_rotate_over_the_routing_keys() -> None:
    run = _perf.Run(publish_limit=7)
    engine = publisher(run, pattern(16), ("a", "bb", "ccc"), first=1)
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())):
        messages = [peer.message() for _ in range(7)]

    assert [key for key, _ in messages] == ["bb", "ccc", "a", "bb", "ccc", "a", "bb"]
    assert {body for _, body in messages} == {pattern(16)}


def test_random_bodies_differ_and_keep_their_frames() -> None:
    run = _perf.Run(publish_limit=4)
    size = 2 * CHUNK + 13
    engine = publisher(run, bytes(size), random=True)
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())):
        bodies = [peer.message()[1] for _ in range(4)]

    assert len(set(bodies)) == 4
    assert {len(body) for body in bodies} == {size}
    assert all(
        len(set(body[at : at + 100])) > 20 for body in bodies for at in (0, CHUNK, size - 99)
    )


@pytest.mark.parametrize("keys", [("q",), ("q1", "q22")])
def test_a_stamp_is_the_monotonic_clock_in_little_endian(keys: tuple[str, ...]) -> None:
    run = _perf.Run(publish_limit=3)
    engine = publisher(run, pattern(20), keys, stamp=True)
    before = time.monotonic_ns()
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())):
        bodies = [peer.message()[1] for _ in range(3)]

    for body in bodies:
        assert before <= struct.unpack_from("<q", body)[0] <= time.monotonic_ns()
        assert body[8:] == pattern(20)[8:]


def test_no_more_than_the_window_is_unconfirmed() -> None:
    run = _perf.Run(publish_limit=9)
    engine = publisher(run, window=4)
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())) as ended:
        for _ in range(4):
            peer.message()
        peer.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.frame()
        peer.sock.settimeout(TIMEOUT_S)
        peer.send(build(commands.Basic.Ack, delivery_tag=3))
        peer.message()
        peer.send(build(commands.Basic.Nack, delivery_tag=4, multiple=True))
        for _ in range(3):
            peer.message()
        peer.send(build(commands.Basic.Ack, delivery_tag=0, multiple=True))
        peer.message()
        peer.send(build(commands.Basic.Ack, delivery_tag=9))
        end, _ = ended.result(TIMEOUT_S)

    assert end == _perf.DONE
    assert (engine.published, engine.confirmed, engine.nacked) == (9, 6, 3)


def test_a_confirm_is_counted_once() -> None:
    run = _perf.Run(publish_limit=3)
    engine = publisher(run, window=3)
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())) as ended:
        for _ in range(3):
            peer.message()
        for tag, multiple in ((2, False), (2, False), (2, True), (1, False), (3, True)):
            peer.send(build(commands.Basic.Ack, delivery_tag=tag, multiple=multiple))
        ended.result(TIMEOUT_S)

    assert engine.confirmed == 3


def test_a_confirm_of_what_was_never_sent_is_a_violation() -> None:
    run = _perf.Run(publish_limit=1)
    engine = publisher(run, window=1)
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())) as ended:
        peer.message()
        peer.send(build(commands.Basic.Ack, delivery_tag=2))

        assert ended.result(TIMEOUT_S)[0] == _perf.VIOLATION


def test_transactions_are_committed_every_n_and_for_the_rest() -> None:
    run = _perf.Run(publish_limit=5)
    engine = publisher(run, transaction=2)
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())) as ended:
        for count in (2, 2, 1):
            for _ in range(count):
                peer.message()
            assert isinstance(peer.method(), commands.Tx.Commit)
            peer.send(build(commands.Tx.CommitOk))
        end, _ = ended.result(TIMEOUT_S)

    assert (end, engine.published) == (_perf.DONE, 5)


def test_a_publisher_without_confirms_notices_a_close() -> None:
    run = _perf.Run()
    engine = publisher(run)
    close = build(
        commands.Channel.Close, reply_code=404, reply_text="NO", class_id=60, method_id=40
    )
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())) as ended:
        peer.message()
        peer.send(close)
        while not ended.done():
            peer.sock.settimeout(0.05)
            try:
                peer.sock.recv(1 << 20)
            except TimeoutError:
                continue

        assert ended.result()[0] == _perf.CLOSED


def test_what_was_not_sent_goes_back_into_the_total() -> None:
    run = _perf.Run(publish_limit=100_000)
    engine, again = publisher(run, bytes(1000)), publisher(run, b"")
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())) as ended:
        peer.message()
        peer.sock.close()
        end, _ = ended.result(TIMEOUT_S)
        run_again = ThreadPoolExecutor(1)
        with pair() as (other, second), run_again:
            done = run_again.submit(again.run, other.fileno()) if not run.stopped else None
            assert done is not None
            second.sock.settimeout(0.05)
            while not done.done():
                try:
                    second.sock.recv(1 << 20)
                except TimeoutError:
                    continue

    assert end == _perf.LOST
    assert engine.published + again.published == 100_000


def test_a_stopped_publisher_finishes_its_frame() -> None:
    run = _perf.Run()
    engine = publisher(run, pattern(200_000))
    data = b""
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())) as ended:
        data += peer.sock.recv(1000)
        run.stop()
        peer.sock.settimeout(0.05)
        while not ended.done():
            try:
                data += peer.sock.recv(1 << 20)
            except TimeoutError:
                continue
        ours.shutdown(socket.SHUT_WR)
        while piece := peer.sock.recv(1 << 20):
            data += piece
    reader = FrameReader()
    reader.feed(data)

    frames = list(iter(reader.next, None))

    assert reader.take() == b""
    assert sum(frame.kind == 1 for frame in frames) == engine.published


def test_a_paced_publisher_sends_no_burst() -> None:
    run = _perf.Run()
    engine = publisher(run, rate=1e-6)
    with pair() as (ours, peer), background(run, lambda: engine.run(ours.fileno())):
        peer.message()
        peer.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.frame()

    assert engine.published == 1


def test_a_paced_consumer_leaves_the_rest_unread() -> None:
    run = _perf.Run()
    consumer = _perf.Consumer(run, rate=1e-6, ack=1)
    with pair() as (ours, peer), background(run, lambda: consumer.run(ours.fileno())) as ended:
        peer.sock.sendall(delivery(1, b"x") + delivery(2, b"x"))
        assert peer.method().delivery_tag == 1
        run.stop()
        _, rest = ended.result(TIMEOUT_S)

    assert (consumer.consumed, rest) == (1, delivery(2, b"x"))


def test_a_stamp_needs_room() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        publisher(_perf.Run(), b"1234567", stamp=True)
