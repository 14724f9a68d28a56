"""A link with TLS against a TLS library that does what ours never does twice: waits and failures.

The library is a stand-in over the socket pair, so that every wait can be made at will.
"""

from __future__ import annotations

import select
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support._trial_tls import SocketTls
from tests.support.core import Bench, FakeEvents, publish

RECORD = 16384


class Library:
    """What a library of TLS is to a link; bytes pass as they are."""

    def __init__(self) -> None:
        self.input: deque[bytes | Exception] = deque()
        self.held = b""
        self.output = b""
        self.refusals: deque[Exception] = deque()
        self.room = 1 << 30
        self.reads = 0

    def read(self, size: int, buffer: memoryview) -> int:
        """Give at most the rest of one record, as OpenSSL does."""
        self.reads += 1
        if not self.held:
            if not self.input:
                raise ssl.SSLWantReadError
            following = self.input.popleft()
            if isinstance(following, Exception):
                raise following
            if not following:
                self.input.appendleft(b"")
                return 0
            self.held = following
        taken, self.held = self.held[:size], self.held[size:]
        buffer[: len(taken)] = taken
        return len(taken)

    def pending(self) -> int:
        return len(self.held)

    def write(self, data: memoryview) -> int:
        if self.refusals:
            raise self.refusals.popleft()
        taken = bytes(data[: min(RECORD, self.room)])
        if not taken:
            raise ssl.SSLWantWriteError
        self.room -= len(taken)
        self.output += taken
        return len(taken)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as made:
        yield made


@pytest.fixture
def library(bench: Bench) -> Library:
    made = Library()
    bench.link.use_tls(SocketTls(made))
    bench.link.start(0)
    return made


@pytest.fixture
def events(bench: Bench) -> FakeEvents:
    return bench.events


def feed(library: Library, data: bytes, size: int) -> None:
    library.input.extend(data[at : at + size] for at in range(0, len(data), size))


# --- reading


@pytest.mark.parametrize("size", [1, 7, 1000, RECORD])
def test_messages_come_whole_whatever_the_records(
    bench: Bench, library: Library, size: int
) -> None:
    queue = bench.queue("q", segment_size=1 << 20, durable=False)
    feed(library, publish(b"q", b"x" * 3000) * 20, size)

    while library.input or library.held:
        bench.link.on_readable()
        bench.run()

    assert queue.ready == 20


def test_one_turn_reads_no_more_than_a_buffer_and_comes_back(
    bench: Bench, library: Library, events: FakeEvents
) -> None:
    queue = bench.queue("q", segment_size=1 << 22, durable=False)
    feed(library, publish(b"q", b"x" * 100_000) * 10, 1 << 20)

    bench.link.on_readable()
    assert queue.ready == 2
    events.run()  # the socket has nothing to show: only the link itself knows of the rest
    assert queue.ready == 10


def test_a_large_message_does_not_keep_the_loop(bench: Bench, library: Library) -> None:
    bench.queue("q", segment_size=1 << 24, durable=False)
    feed(library, publish(b"q", b"x" * 8_000_000), RECORD)

    bench.link.on_readable()
    before = library.reads
    bench.link.on_readable()

    assert library.reads - before <= 17


def test_what_the_library_holds_waits_for_the_end_of_a_pause(
    bench: Bench, library: Library, events: FakeEvents
) -> None:
    queue = bench.queue("q", segment_size=1 << 22, durable=False)
    feed(library, publish(b"q", b"x" * 100_000) * 10, 1 << 20)
    bench.link.on_readable()
    bench.link.pause()
    events.run()
    assert queue.ready == 2

    bench.link.resume()
    events.run()
    assert queue.ready == 10


def test_the_end_behind_the_last_message_is_told_without_an_event(
    bench: Bench, library: Library, events: FakeEvents
) -> None:
    queue = bench.queue("q", durable=False)
    feed(library, publish(b"q", b"x" * (RECORD - len(publish(b"q", b"")) - 8)), 1 << 20)
    feed(library, publish(b"q", b"x"), 1 << 20)
    library.input.append(b"")

    bench.link.on_readable()
    bench.link.on_readable()
    events.run()

    assert queue.ready == 2
    assert bench.session.events == [("on_lost", "")]


def test_a_failure_is_told_with_its_reason(bench: Bench, library: Library) -> None:
    error = ssl.SSLError(1, "[SSL: X] x (_ssl.c:1)")
    error.reason = "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
    library.input.append(error)

    bench.link.on_readable()
    bench.run()

    assert bench.session.events == [("on_lost", "TLS: DECRYPTION_FAILED_OR_BAD_RECORD_MAC")]


# --- writing


def test_output_goes_in_records_and_waits_for_room(
    bench: Bench, library: Library, events: FakeEvents
) -> None:
    library.room = 20_000
    bench.link.write(b"x" * 50_000)
    bench.run()
    assert len(library.output) == 20_000
    assert bench.watched & select.EPOLLOUT

    library.room = 1 << 20
    bench.link.on_writable()
    assert library.output == b"x" * 50_000
    assert not bench.watched & select.EPOLLOUT


def test_a_write_that_fails_ends_the_link_with_its_reason(bench: Bench, library: Library) -> None:
    library.refusals.append(ConnectionResetError(104, "Connection reset by peer"))
    bench.link.write(b"x" * 100)

    bench.run()

    assert bench.session.events == [("on_lost", "TLS: Connection reset by peer")]


def test_an_interrupt_inside_a_write_ends_the_link(bench: Bench, library: Library) -> None:
    """What was taken is not known then: going on could send it twice."""
    library.refusals.append(KeyboardInterrupt("x"))  # type: ignore[arg-type]
    bench.link.write(b"x" * 100)

    bench.run()

    assert bench.session.events == [("on_lost", "TLS: x")]


def test_deliveries_of_a_slow_reader_stay_in_the_queue(bench: Bench, library: Library) -> None:
    queue = bench.queue("q", segment_size=1 << 22, durable=False)
    library.room = 100_000
    for _ in range(20):
        feed(library, publish(b"q", b"x" * 100_000), RECORD)
    while library.input or library.held:
        bench.link.on_readable()
        bench.run()  # it may have to wait for its turn
    bench.link.add_consumer(1, queue, b"c", True).start()
    bench.loop.tick()
    assert queue.ready > 10

    library.room = 1 << 30
    while bench.link.unsent_bytes:
        bench.link.on_writable()
        bench.run()
    assert queue.ready == 0
    assert library.output.count(b"x" * 100_000) == 20


def test_nothing_is_read_or_written_after_the_close(bench: Bench, library: Library) -> None:
    feed(library, publish(b"q", b"x" * 100), 10)
    bench.link.write(b"x")

    bench.link.close()
    bench.link.on_readable()
    bench.run()

    assert (library.reads, library.output) == (0, b"")


def test_a_large_message_goes_in_pieces_whatever_tls_waits_for(
    bench: Bench, library: Library, events: FakeEvents
) -> None:
    queue = bench.queue("q", segment_size=1 << 23)
    body = b"".join(b"%07d" % number for number in range(200_000))
    other = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    other.publish(bench.exchange, b"", b"q", b"\0\0", body)
    other.publish(bench.exchange, b"", b"q", b"\0\0", b"behind")
    other.close()
    library.room = 0
    bench.link.add_consumer(1, queue, b"c", True).start()
    bench.loop.tick()
    bench.run()

    waits = 0
    while bench.link.unsent_bytes or queue.ready:
        waits += 1
        if waits % 3 == 0:
            library.refusals.append(ssl.SSLWantWriteError())
        library.room = 100_000
        assert bench.watched & select.EPOLLOUT
        bench.link.on_writable()
        bench.run()
    bench.run()

    frames, at = [], 0
    while at < len(library.output):
        size = int.from_bytes(library.output[at + 3 : at + 7], "big")
        frames.append((library.output[at], library.output[at + 7 : at + 7 + size]))
        at += size + 8
    assert b"".join(payload for kind, payload in frames if kind == 3) == body + b"behind"
    assert waits > len(body) // 100_000
    assert queue.ready == 0
