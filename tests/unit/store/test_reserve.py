"""Filling ahead of a segment's data: what the file holds, and what a start makes of it later.

A loss of power is played on the file: of what was written since the last sync any sectors may be
missing, a process that is killed leaves the beginning of its last write. Whatever is left, what was
confirmed is delivered, and nothing that was not published.
"""

from __future__ import annotations

import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lavinmq import _core
from tests.support.core import Bench, publish
from tests.support.segments import readable_end, segment_numbers, segment_path

NAME = "q"
SEGMENT_SIZE = 1 << 20
SECTOR, TERMINATOR = 512, 8
CONFIRM_TIMEOUT_S = 10.0
ACK = b"\0\x3c\0\x50"

MakeQueue = Callable[..., "Confirmed"]


class Confirmed:
    """A durable queue, and a client that has its publishes confirmed."""

    def __init__(self, directory: Path, segment_size: int = SEGMENT_SIZE) -> None:
        self.bench = Bench(directory)
        self.bench.loop.sync = True
        self.bench.link.select_confirms(1)
        self.queue: _core.Queue = self.bench.queue(NAME, segment_size)
        self.directory = directory / NAME
        self.published = 0

    def publish(self, *bodies: bytes) -> None:
        """Publish in one turn of the loop; confirms may come later."""
        self.bench.send(b"".join(publish(NAME.encode(), body, b"\x10\0\x02") for body in bodies))
        self.published += len(bodies)
        self.bench.run()

    def wait(self) -> None:
        """Wait until all is confirmed."""
        deadline = time.monotonic() + CONFIRM_TIMEOUT_S
        received = b""
        while struct.pack(">Q", self.published) not in received:
            assert time.monotonic() < deadline, "no confirm"
            self.bench.loop.on_lingered()
            self.bench.loop.on_synced()
            self.bench.run()
            try:
                received += self.bench.client.recv(1 << 16)
            except BlockingIOError:
                time.sleep(0.0005)

    def drain(self) -> list[bytes]:
        """Take everything."""
        bodies = []
        while self.bench.link.get(1, self.queue, True):
            self.bench.link.flush()
            bodies += [got.body for got in self.bench.receive()]
            self.bench.run()
        return bodies

    def segment(self, number: int = 1) -> Path:
        """The path of a segment."""
        return segment_path(self.directory, number)

    def close(self) -> None:
        """Let go of everything, files as they are."""
        self.bench.loop.stop()
        self.bench.close()


@pytest.fixture
def make_queue() -> Iterator[MakeQueue]:
    """Call it with a directory; what it makes is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(closing(Confirmed(*args)))


def body(number: int, size: int = 100) -> bytes:
    return b"%06d" % number + bytes(number % 256 for _ in range(size))


def pattern_of(segment: Path) -> bytes:
    """The filling of a segment, as docs/formats.md says it."""

    def mix(x: int) -> int:
        for _ in range(2):
            x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 % (1 << 64)
        return x ^ x >> 32

    h = 0
    for word in struct.unpack_from("<8Q", segment.read_bytes()):
        h = mix((h + word + 1) % (1 << 64))
    marks = 0x8080808080808080
    return struct.pack("<2Q", h | marks, mix((h + 1) % (1 << 64)) | marks)


def fill(queue: Confirmed, count: int, batch: int = 1, size: int = 100) -> list[bytes]:
    """Publish so many messages, each batch confirmed before the next."""
    bodies = [body(number, size) for number in range(count)]
    for at in range(0, count, batch):
        queue.publish(*bodies[at : at + batch])
        queue.wait()
    return bodies


def reopened(queue: Confirmed, directory: Path) -> Confirmed:
    """What another start makes of the files as they are now."""
    directory.mkdir()
    shutil.copytree(queue.directory, directory / NAME)
    return Confirmed(directory)


# ---- what is in the file -------------------------------------------------------------------------


def test_short_syncs_find_room_written_ahead(tmp_path: Path, make_queue: MakeQueue) -> None:
    queue = make_queue(tmp_path / "a")
    fill(queue, 100)
    length = queue.segment().stat().st_size

    fill(queue, 10)

    assert queue.segment().stat().st_size == length


def test_a_queue_of_few_messages_is_not_longer_than_they_are(
    tmp_path: Path, make_queue: MakeQueue
) -> None:
    queue = make_queue(tmp_path / "a")

    fill(queue, 10)

    assert queue.segment().stat().st_size == readable_end(queue.segment())


def test_filling_is_never_longer_than_the_data(tmp_path: Path, make_queue: MakeQueue) -> None:
    queue = make_queue(tmp_path / "a")
    for _ in range(20):
        fill(queue, 10)

        assert queue.segment().stat().st_size <= 2 * readable_end(queue.segment())


def test_behind_the_data_stands_a_zero_timestamp(tmp_path: Path, make_queue: MakeQueue) -> None:
    """There the original stops to read."""
    queue = make_queue(tmp_path / "a")
    fill(queue, 200)
    end = readable_end(queue.segment())

    tail = queue.segment().read_bytes()[end:]

    assert tail[:TERMINATOR] == bytes(TERMINATOR)
    assert len(tail) > 1000
    pattern = pattern_of(queue.segment())
    at = (end + TERMINATOR) % len(pattern)
    assert tail[TERMINATOR:] == (pattern * len(tail))[at:][: len(tail) - TERMINATOR]


def test_an_orderly_end_leaves_no_filling(tmp_path: Path, make_queue: MakeQueue) -> None:
    queue = make_queue(tmp_path / "a")
    bodies = fill(queue, 200)
    end = readable_end(queue.segment())

    queue.queue.close()

    assert queue.segment().stat().st_size == end
    with closing(reopened(queue, tmp_path / "b")) as again:
        assert again.drain() == bodies


def test_large_syncs_are_not_written_ahead_of(tmp_path: Path, make_queue: MakeQueue) -> None:
    queue = make_queue(tmp_path / "a")

    fill(queue, 40, batch=10, size=20000)

    assert queue.segment().stat().st_size == readable_end(queue.segment())


def test_a_batch_smaller_than_others_waits_no_longer_than_the_timer(
    tmp_path: Path, make_queue: MakeQueue
) -> None:
    queue = make_queue(tmp_path / "a")

    bodies = fill(queue, 80, batch=8)
    bodies += fill(queue, 3)

    assert queue.drain() == bodies


# ---- after a crash -------------------------------------------------------------------------------


def test_filling_is_not_taken_for_damage(tmp_path: Path, make_queue: MakeQueue) -> None:
    queue = make_queue(tmp_path / "a")
    bodies = fill(queue, 200)

    with closing(reopened(queue, tmp_path / "b")) as again:
        assert again.queue.ready == len(bodies)
        assert again.queue.take_damage() == []
        assert again.drain() == bodies
        assert not list(again.directory.glob("*.damaged"))


def test_writing_goes_on_where_filling_was_left(tmp_path: Path, make_queue: MakeQueue) -> None:
    queue = make_queue(tmp_path / "a")
    bodies = fill(queue, 200)

    with closing(reopened(queue, tmp_path / "b")) as again:
        bodies += fill(again, 50)
        with closing(reopened(again, tmp_path / "c")) as third:
            assert third.drain() == bodies


@pytest.mark.parametrize("is_orderly", [False, True])
def test_finished_segments_are_counted_and_cut(
    tmp_path: Path, make_queue: MakeQueue, is_orderly: bool
) -> None:
    queue = make_queue(tmp_path / "a", 16384)
    bodies = fill(queue, 500)
    numbers = segment_numbers(queue.directory)
    assert len(numbers) > 2
    if is_orderly:
        queue.queue.close()
        for number in numbers:
            assert queue.segment(number).stat().st_size == readable_end(queue.segment(number))
        for number in numbers[:-1]:
            assert (queue.directory / f"meta.{number:010}").exists()

    with closing(reopened(queue, tmp_path / "b")) as again:
        for number in numbers[:-1]:
            assert again.segment(number).stat().st_size == readable_end(again.segment(number))
            assert (again.directory / f"meta.{number:010}").exists()
        assert again.queue.ready == len(bodies)
        assert again.queue.ready_bytes == sum(len(publish_record(body)) for body in bodies)
        assert again.drain() == bodies


def test_finished_segments_of_a_running_stream_are_cut_once_they_are_synced(tmp_path: Path) -> None:
    queue = Confirmed(tmp_path / "a")
    queue.bench.exchange.unbind(NAME.encode(), b"", queue.queue)
    queue.queue.delete()
    stream = _core.Queue(
        queue.bench.loop, str(queue.directory), 16384, True, name=b"s", is_stream=True
    )
    stream.load()
    queue.bench.exchange.bind(NAME.encode(), b"", stream)
    with closing(queue):
        fill(queue, 500)
        numbers = segment_numbers(queue.directory)[:-1]
        sizes = {number: queue.segment(number).stat().st_size for number in numbers}
        filled = [n for n in numbers if sizes[n] > readable_end(queue.segment(n))]
        assert filled

        assert stream.finish_segments()
        assert {n: queue.segment(n).stat().st_size for n in numbers} == sizes
        while stream.finish_segments():
            queue.publish(b"and one more")
            queue.wait()

        for number in numbers:
            assert queue.segment(number).stat().st_size == readable_end(queue.segment(number))
            assert (queue.directory / f"meta.{number:010}").exists()
        stream.end_segment(numbers[0])
        stream.end_segment(4711)


def test_a_message_larger_than_any_block_is_written_over_filling(
    tmp_path: Path, make_queue: MakeQueue
) -> None:
    queue = make_queue(tmp_path / "a")
    bodies = fill(queue, 200)
    bodies.append(body(999, 300_000))
    queue.publish(bodies[-1])
    queue.wait()
    bodies += fill(queue, 20)

    with closing(reopened(queue, tmp_path / "b")) as again:
        assert again.drain() == bodies


def test_a_purge_leaves_filling_behind_the_cursor(tmp_path: Path, make_queue: MakeQueue) -> None:
    queue = make_queue(tmp_path / "a", 16384)
    fill(queue, 500)
    queue.queue.purge()
    queue.bench.run()
    bodies = fill(queue, 100)

    with closing(reopened(queue, tmp_path / "b")) as again:
        assert again.drain() == bodies


@pytest.mark.parametrize("count", [1, 2, 15])
@pytest.mark.parametrize("size", [100, 3000])
def test_a_message_that_happens_to_end_like_filling_is_kept(
    tmp_path: Path, make_queue: MakeQueue, count: int, size: int
) -> None:
    """Also where there has never been any filling."""
    queue = make_queue(tmp_path / "a")
    bodies = [bytes(size)] * 50
    queue.publish(*bodies)
    end = readable_end(queue.segment()) + len(publish_record(b"")) + size
    pattern = pattern_of(queue.segment()) * 2
    bodies.append(bytes(size - count) + pattern[(end - count) % 16 :][:count])
    queue.publish(bodies[-1])
    queue.wait()
    if size == 3000:
        queue.queue.close()
    assert queue.segment().read_bytes()[:end].endswith(bodies[-1])

    with closing(reopened(queue, tmp_path / "b")) as again:
        assert again.drain() == bodies


def publish_record(body: bytes) -> bytes:
    """A record without properties of the default exchange, with the queue's name as its key."""
    key = NAME.encode()
    head = struct.pack("<QBB", 1, 0, len(key)) + key + struct.pack("<HB", 0x1000, 2)
    return head + struct.pack("<Q", len(body)) + body


def test_a_segment_may_be_as_large_as_the_settings_say(
    tmp_path: Path, make_queue: MakeQueue
) -> None:
    """Positions have 32 bits, of which the last ones are for what stands behind the data."""
    queue = make_queue(tmp_path / "data", (1 << 32) - 1)
    queue.publish(b"x")
    queue.wait()

    assert queue.drain() == [b"x"]


@pytest.mark.nightly
def test_what_stands_behind_the_data_ends_within_4_gib(
    tmp_path: Path, make_queue: MakeQueue
) -> None:
    """No start takes a larger file, nor a queue that has one. All but its end is a hole."""
    most = (1 << 32) - 1
    queue = make_queue(tmp_path / "data", most)
    queue.publish(b"x")
    queue.wait()
    queue.queue.close()
    queue.close()
    record = queue.segment().read_bytes()
    over, size = len(record) - 5, most - 100_000
    with open(queue.segment(), "r+b") as file:
        file.seek(len(record) - 9)
        file.write(struct.pack("<Q", size - len(record) + 1))
        file.truncate(size)

    queue = make_queue(tmp_path / "data", most)
    while queue.segment().stat().st_size < most - 30:
        queue.publish(bytes(2000))
        queue.wait()
        size += over + 2000
    while most - size > 6000:
        queue.publish(bytes(2900))
        queue.wait()
        size += over + 2900
    for n in ((most - 3 - size) // 2, (most - 2 - size) // 2):
        queue.publish(bytes(n - over))
        queue.wait()

    assert queue.segment().stat().st_size <= most


@pytest.mark.parametrize("left", range(0, 40))
def test_filling_may_be_used_up_to_any_byte(
    tmp_path: Path, make_queue: MakeQueue, left: int
) -> None:
    queue = make_queue(tmp_path / "a")
    bodies = fill(queue, 60)
    end = readable_end(queue.segment())
    length = queue.segment().stat().st_size
    assert length > end + 100
    bodies.append(b"x" * (length - left - end - len(publish_record(b""))))
    queue.publish(bodies[-1])
    assert readable_end(queue.segment()) == length - left

    with closing(reopened(queue, tmp_path / "b")) as again:
        assert again.drain() == bodies
        assert again.queue.take_damage() == []
        assert not list(again.directory.glob("*.damaged"))


BODIES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(0, 3000).map(bytes),
        st.integers(1, 3000).map(lambda size: b"x" * size),
    ),
    min_size=1,
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batches=st.lists(BODIES, min_size=1, max_size=3), seed=st.integers(0, 1 << 30))
def test_whatever_sectors_are_missing_nothing_confirmed_is_lost_and_nothing_made_up(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]], seed: int
) -> None:
    directory = tmp_path_factory.mktemp("torn")
    chance = random.Random(seed)
    with closing(Confirmed(directory / "a")) as queue:
        confirmed = fill(queue, 300, batch=30)
        durable = queue.segment().read_bytes()
        later = []
        for batch in batches:
            queue.publish(*batch)
            later += batch
        written = queue.segment().read_bytes()
        left = torn(durable, written, chance)
        again_directory = directory / "b" / NAME
        again_directory.mkdir(parents=True)
        segment_path(again_directory, 1).write_bytes(left)

        with closing(Confirmed(directory / "b")) as again:
            found = again.drain()

    assert found[: len(confirmed)] == confirmed
    assert is_part(found[len(confirmed) :], later)


def torn(durable: bytes, written: bytes, chance: random.Random) -> bytes:
    """The last state of the disk's file with some of its sectors older, or a write cut short."""
    if chance.random() < 0.3:
        cut = chance.randrange(len(written))
        return written[:cut] + durable[cut:]
    luck = chance.choice((0.1, 0.5, 0.9))
    left = bytearray(written if chance.random() < 0.7 else written[: len(durable)])
    for start in range(0, min(len(durable), len(left)) - SECTOR + 1, SECTOR):
        if chance.random() < luck:
            left[start : start + SECTOR] = durable[start : start + SECTOR]
    return bytes(left)


def is_part(found: list[bytes], of: list[bytes]) -> bool:
    """Whether `found` is `of` with some left out."""
    rest = iter(of)
    return all(any(one == other for other in rest) for one in found)
