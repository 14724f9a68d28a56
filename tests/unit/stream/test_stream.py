"""Streams against a small model: readers, settling, tracking, retention, restarts and crashes."""

from __future__ import annotations

import os
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lavinmq.fieldtable import Long, Timestamp
from tests.support.streams import ACK, NAME, REJECT, Delivery, StreamBench, stored_offsets

MakeStream = Callable[..., StreamBench]
BIG = b"x" * 3000
"""Two of these do not fit into a segment."""


@pytest.fixture
def make_stream(tmp_path: Path) -> Iterator[MakeStream]:
    """Call it with a segment size; what it makes is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda size=4096: stack.enter_context(closing(StreamBench(tmp_path / "data", size)))


def offsets(found: list[Delivery]) -> list[int]:
    return [delivery.offset for delivery in found]


def fill(bench: StreamBench, n: int, body: bytes = b"m") -> None:
    for number in range(n):
        bench.publish(b"%d " % number + body)
    bench.run()


# --- the model ------------------------------------------------------------------------------------


class Reader:
    """A consumer as its client understands it."""

    def __init__(
        self, tag: str, position: int, prefetch: int, is_tracked: bool, end: int | None
    ) -> None:
        self.end = end
        self.tag = tag
        self.position = position
        self.prefetch = prefetch
        self.is_tracked = is_tracked
        self.unsettled: dict[int, int] = {}
        self.requeued: list[int] = []
        self.next_tag = 1


class Streams(RuleBasedStateMachine):
    """Every step is made on the broker and in the model; what is delivered has to be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.bodies: dict[int, bytes] = {}
        self.first = self.next = 1
        self.stored: dict[str, int] = {}
        self.readers: dict[int, Reader] = {}
        self.has_limits = False

    @initialize(segment_size=st.sampled_from([2048, 8192, 1 << 20]))
    def start(self, segment_size: int) -> None:
        self.bench = StreamBench(Path(self.folder.name) / "data", segment_size)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            self.bench.core.delete()
        self.folder.cleanup()

    @rule(sizes=st.lists(st.sampled_from([0, 1, 40, 500, 1500, 3000, 300_000]), max_size=12))
    def publish(self, sizes: list[int]) -> None:
        for size in sizes:
            body = struct.pack(">Q", self.next) + bytes(size)
            self.bodies[self.next] = body
            self.next += 1
            self.bench.publish(body)
        self.check()

    @rule(
        start=st.one_of(
            st.none(), st.sampled_from(["first", "last", "next", "1h"]), st.integers(-20, 60)
        ),
        tag=st.sampled_from(["a", "b", "amq.ctag-c"]),
        prefetch=st.sampled_from([1, 2, 5, 100, 1000]),
        wants_tracking=st.booleans(),
        end=st.one_of(st.none(), st.none(), st.integers(1, 60)),
    )
    def consume(
        self, start: str | int | None, tag: str, prefetch: int, wants_tracking: bool,
        end: int | None,
    ) -> None:  # fmt: skip
        # Two consumers of one tag take turns in storing: that has no one right answer.
        if len(self.readers) >= 6 or any(r.tag == tag for r in self.readers.values()):
            return
        arguments: dict[str, Any] = {"x-stream-automatic-offset-tracking": wants_tracking}
        if start is not None:
            arguments["x-stream-offset"] = start
        if end is not None:
            arguments["x-stream-end-offset"] = end
        is_tracked = (wants_tracking or start is None) and tag != "amq.ctag-c"
        position = self.position(start)
        if is_tracked and self.stored.get(tag):
            position = self.stored[tag]
        channel = self.bench.consume(arguments, tag=tag, prefetch=prefetch)
        position = min(max(position, self.first), self.next)
        self.readers[channel] = Reader(tag, position, prefetch, is_tracked, end)
        self.check()

    def position(self, start: str | int | None) -> int:
        if start == "next":
            return self.next
        if start == "last":
            return self.bench.core.segments()[-1][3] if self.next > 1 else 1
        if isinstance(start, int):
            return self.next + start if start < 0 else start
        return self.first  # also "1h": nothing here is that old

    @precondition(lambda self: any(r.unsettled for r in self.readers.values()))
    @rule(data=st.data(), kind=st.sampled_from(["ack", "ack", "multiple", "reject", "requeue"]))
    def settle(self, data: st.DataObject, kind: str) -> None:
        busy = [channel for channel, r in self.readers.items() if r.unsettled]
        channel = data.draw(st.sampled_from(busy))
        reader = self.readers[channel]
        tag = data.draw(st.sampled_from(sorted(reader.unsettled)))
        if kind == "requeue":
            offset = reader.unsettled.pop(tag)
            self.bench.settle(channel, tag, REJECT, True)
            if offset >= self.first:
                reader.requeued.append(offset)
                reader.requeued.sort()
            else:
                self.progress(reader)
        else:
            done = [t for t in reader.unsettled if t == tag or (kind == "multiple" and t < tag)]
            for each in done:
                del reader.unsettled[each]
            method = REJECT if kind == "reject" else ACK
            self.bench.settle(channel, tag, method, kind == "multiple")
            self.progress(reader)
        self.check()

    def progress(self, reader: Reader) -> None:
        if reader.is_tracked:
            waiting = [*reader.unsettled.values(), *reader.requeued]
            self.stored[reader.tag] = max(min(waiting, default=reader.position), self.first)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        channel = data.draw(st.sampled_from(sorted(self.readers)))
        del self.readers[channel]
        self.bench.cancel(channel)
        self.bench.link.close_channel(channel, False)
        self.check()

    @rule(length=st.one_of(st.none(), st.integers(1, 30)), size=st.sampled_from([None, 5000]))
    def limit(self, length: int | None, size: int | None) -> None:
        limits: dict[str, int] = {}
        if length is not None:
            limits["max_length"] = length
        if size is not None:
            limits["max_bytes"] = size
        before = self.bench.core.segments()
        self.bench.core.set_stream_limits(**limits)
        self.bench.run()  # what is much goes in portions
        while len(before) > 1 and (
            (length is not None and sum(s[1] for s in before) >= length)
            or (size is not None and sum(s[2] - 4 for s in before) >= size)
        ):
            before.pop(0)
        assert self.bench.core.segments() == before
        self.has_limits = bool(limits)
        self.check()

    @rule()
    def purge(self) -> None:
        before = self.bench.core.ready
        removed = self.bench.core.purge()
        assert removed == before - self.bench.core.ready
        assert len(self.bench.core.segments()) <= 1
        self.check()

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        self.bench.reopen(crash=crash)
        self.readers.clear()
        assert self.bench.notes == []
        self.has_limits = False
        self.check()

    def check(self) -> None:
        """Let the broker work, and compare what it delivers with what the model expects."""
        found = self.bench.deliveries()
        core = self.bench.core
        assert core.next_offset == self.next
        if not self.has_limits:
            assert self.first <= core.first_offset
        self.retain(core.first_offset)
        assert core.ready == self.next - self.first == sum(s[1] for s in core.segments())
        for channel, reader in self.readers.items():
            mine = [d for d in found if d.channel == channel]
            self.compare(reader, mine)
        self.end_readers()
        stored = {tag.decode(): offset for tag, offset in stored_offsets(core).items()}
        assert stored == {tag: offset for tag, offset in self.stored.items() if offset}
        assert core.lost == 0

    def end_readers(self) -> None:
        """Those that have had all they asked for are told so, once."""
        events = self.bench.session.events
        told = {channel: tag for name, channel, tag in events if name == "on_stream_end"}
        assert len(told) == len(events)
        events.clear()
        for channel, reader in list(self.readers.items()):
            is_over = reader.end is not None and reader.position >= reader.end
            is_over = is_over and not reader.requeued
            if channel not in told:
                # Retention may have moved one that cannot take anything now.
                assert not is_over or len(reader.unsettled) >= reader.prefetch
                continue
            assert is_over and told.pop(channel) == reader.tag.encode()
            del self.readers[channel]
            self.bench.cancel(channel)
            self.bench.link.close_channel(channel, False)
        assert not told

    def retain(self, first: int) -> None:
        self.first = first
        self.stored = {tag: o for tag, o in self.stored.items() if o >= first}
        for reader in self.readers.values():
            reader.position = max(reader.position, first)

    def compare(self, reader: Reader, found: list[Delivery]) -> None:
        expected = []
        while len(reader.unsettled) < reader.prefetch:
            reader.requeued = [offset for offset in reader.requeued if offset >= self.first]
            if reader.requeued:
                offset, redelivered = reader.requeued.pop(0), True
            elif reader.position < min(self.next, reader.end or self.next):
                offset, redelivered = reader.position, False
                reader.position += 1
            else:
                break
            expected.append((reader.next_tag, redelivered, offset, self.bodies[offset]))
            reader.unsettled[reader.next_tag] = offset
            reader.next_tag += 1
        assert [(d.tag, d.redelivered, d.offset, d.body) for d in found] == expected


Streams.TestCase.settings = settings(
    max_examples=int(os.environ.get("STREAM_EXAMPLES", "60")), stateful_step_count=30,
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None,
)  # fmt: skip
TestModel = Streams.TestCase


# --- where consumers begin ------------------------------------------------------------------------


def test_an_offset_begins_there_and_adds_one_header(make_stream: MakeStream) -> None:
    """edge-cases.md 245, 246, 277."""
    bench = make_stream()
    fill(bench, 10, bytes(1000))

    bench.consume({"x-stream-offset": 5}, tag="a", prefetch=100)
    bench.consume({"x-stream-offset": 0}, tag="b", prefetch=100)
    found = bench.deliveries()

    assert offsets([d for d in found if d.channel == 2]) == [5, 6, 7, 8, 9, 10]
    assert offsets([d for d in found if d.channel == 3]) == list(range(1, 11))
    assert all(d.headers == {"x-stream-offset": Long(d.offset)} for d in found)
    assert len(bench.core.segments()) > 2


def test_all_who_wait_get_a_new_message(make_stream: MakeStream) -> None:
    """edge-cases.md 247, 249."""
    bench = make_stream()
    starts: list[str | int] = ["next", "next", "last", "first", -1]
    channels = [bench.consume({"x-stream-offset": start}, tag=f"{n}")
                for n, start in enumerate(starts)]  # fmt: skip
    assert bench.deliveries() == []

    fill(bench, 1)

    assert sorted((d.channel, d.offset) for d in bench.deliveries()) == [(c, 1) for c in channels]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [(-100, range(101, 201)), (-1, [200]), (-1000, range(1, 201)), (-(1 << 63), range(1, 201)),
     (1 << 62, []), ((1 << 63) - 1, [])],
)  # fmt: skip
def test_a_negative_offset_counts_from_the_end(
    make_stream: MakeStream, start: int, wanted: range
) -> None:
    """edge-cases.md 250; amqp.md 20: an offset beyond the end is the next one."""
    bench = make_stream()
    fill(bench, 200, bytes(30))

    bench.consume({"x-stream-offset": start}, prefetch=1000)

    assert offsets(bench.deliveries()) == list(wanted)
    fill(bench, 1)
    assert offsets(bench.deliveries()) == [201]


def record(at_ms: int, body: bytes) -> bytes:
    return struct.pack("<qBB1sHQ", at_ms, 0, 1, b"s", 0, len(body)) + body


def write_segments(bench: StreamBench, *segments: list[int]) -> None:
    """Replace the stream by one with messages stored at these times."""
    bench.shut()
    directory = bench.directory / NAME
    directory.mkdir(exist_ok=True)
    for number, times in enumerate(segments, 1):
        data = b"\x04\0\0\0" + b"".join(record(at, b"%d" % at) for at in times)
        (directory / f"msgs.{number:010}").write_bytes(data)
    bench.open()


def test_a_time_finds_the_first_message_stored_then_or_later(make_stream: MakeStream) -> None:
    """edge-cases.md 248: also across a segment boundary, and where the clock was set back."""
    bench = make_stream()
    t = 1_700_000_000_000
    times = [[t + 1000, t + 2000], [t + 3000, t + 5000, t + 4000], [t + 9000]]
    write_segments(bench, *times)
    flat = [at for each in times for at in each]

    for seconds in range(12):
        at = t // 1000 + seconds
        channel = bench.consume({"x-stream-offset": Timestamp(at)}, tag=f"{seconds}", prefetch=50)
        wanted = next((n for n, ms in enumerate(flat, 1) if ms >= at * 1000), 7)
        assert offsets(bench.deliveries()) == list(range(wanted, 7))
        assert bench.core.offset_at(at * 1000) == (wanted, True)
        bench.cancel(channel)
    assert [s[3:] for s in bench.core.segments()] == [
        (1, t + 1000, t + 2000), (3, t + 3000, t + 5000), (6, t + 9000, t + 9000)
    ]  # fmt: skip


def test_any_offset_of_a_large_segment_is_found(make_stream: MakeStream) -> None:
    """With the marks that writing has left, without any after a restart, with those of reading."""
    bench = make_stream(1 << 24)
    for number in range(1, 20_001):
        bench.publish(struct.pack(">Q", number) + bytes(number % 90))
    bench.run()
    random_ = random.Random(7)

    for _ in range(3):
        for offset in [1, 20_000, *random_.sample(range(1, 20_001), 15)]:
            channel = bench.consume({"x-stream-offset": offset}, prefetch=1)
            (found,) = bench.deliveries()
            assert (found.offset, found.body[:8]) == (offset, struct.pack(">Q", offset))
            bench.cancel(channel)
            bench.link.close_channel(channel, False)
        bench.reopen()
    assert len(bench.core.segments()) == 1


# --- settling and tracking ------------------------------------------------------------------------


def test_a_requeued_message_comes_back_to_its_consumer_alone(make_stream: MakeStream) -> None:
    """edge-cases.md 252."""
    bench = make_stream()
    fill(bench, 3)
    one = bench.consume({"x-stream-offset": "first"}, tag="a")
    bench.consume({"x-stream-offset": "first"}, tag="b")
    bench.deliveries()

    bench.settle(one, 3, REJECT, True)
    bench.settle(one, 1, REJECT, True)

    assert [(d.channel, d.tag, d.redelivered, d.offset) for d in bench.deliveries()] == [
        (one, 4, True, 1), (one, 5, True, 3)
    ]  # fmt: skip


def test_recover_delivers_again_with_the_same_offsets(make_stream: MakeStream) -> None:
    """amqp.md 22.3: basic.recover without requeue is a redelivery to the same consumer."""
    bench = make_stream()
    fill(bench, 3)
    channel = bench.consume(tag="me")
    bench.deliveries()
    bench.settle(channel, 2)

    bench.link.recover(channel, False)
    again = bench.deliveries()
    for delivery in again[:1]:
        bench.settle(channel, delivery.tag)
    bench.deliveries()

    assert [(d.redelivered, d.offset) for d in again] == [(True, 1), (True, 3)]
    assert stored_offsets(bench.core) == {b"me": 3}


def test_what_is_stored_is_acknowledged_and_not_just_read(make_stream: MakeStream) -> None:
    """amqp.md 22.11; edge-cases.md 261: the lowest offset not settled, after a crash too."""
    bench = make_stream()
    fill(bench, 9)
    channel = bench.consume(tag="me", prefetch=5)
    bench.deliveries()

    bench.settle(channel, 2)
    bench.settle(channel, 4)
    bench.deliveries()
    assert stored_offsets(bench.core) == {b"me": 1}
    bench.settle(channel, 1)
    bench.deliveries()
    assert stored_offsets(bench.core) == {b"me": 3}
    bench.settle(channel, 3, REJECT)
    bench.reopen(crash=True)

    assert stored_offsets(bench.core) == {b"me": 5}
    bench.consume(tag="me", prefetch=1)
    assert offsets(bench.deliveries()) == [5]


@pytest.mark.parametrize(
    ("tracking", "is_tracked"), [(True, True), ("true", True), (False, False), ("false", False)]
)
def test_an_explicit_offset_is_tracked_when_asked_for(
    make_stream: MakeStream, tracking: Any, is_tracked: bool
) -> None:
    """edge-cases.md 269, 270."""
    bench = make_stream()
    fill(bench, 9)
    arguments = {"x-stream-offset": -3, "x-stream-automatic-offset-tracking": tracking}
    channel = bench.consume(arguments, tag="me", prefetch=1)
    (first,) = bench.deliveries()
    bench.settle(channel, first.tag)
    bench.deliveries()
    bench.cancel(channel)

    bench.consume(arguments, tag="me", prefetch=1)

    assert first.offset == 7
    assert offsets(bench.deliveries()) == [8 if is_tracked else 7]
    assert stored_offsets(bench.core) == ({b"me": 8} if is_tracked else {})


def test_tags_made_by_the_broker_are_not_tracked(make_stream: MakeStream) -> None:
    """edge-cases.md 271."""
    bench = make_stream()
    fill(bench, 2)
    channel = bench.consume({"x-stream-automatic-offset-tracking": True}, tag="amq.ctag-x")
    bench.deliveries()

    bench.settle(channel, 2, ACK, True)
    bench.deliveries()

    assert stored_offsets(bench.core) == {}
    assert not (bench.directory / NAME / "consumer_offsets").exists()


def test_acknowledging_after_the_stream_was_deleted_is_harmless(make_stream: MakeStream) -> None:
    """edge-cases.md 260, 272, 273: so is publishing, retention, and leaving."""
    bench = make_stream()
    fill(bench, 3, BIG)
    channel = bench.consume(tag="me")
    bench.deliveries()

    bench.exchange.unbind(NAME.encode(), b"", bench.core)
    bench.core.delete()
    bench.publish(b"lost")
    bench.settle(channel, 1)
    bench.settle(channel, 2, REJECT, True)
    bench.core.set_stream_limits(max_length=1)
    assert bench.core.purge() == 0
    bench.cancel(channel)
    bench.settle(channel, 3)
    bench.link.close_channel(channel, False)

    assert bench.deliveries() == []
    assert bench.session.events == []


def test_a_segment_that_cannot_be_read_closes_the_stream(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 6, BIG)
    (bench.directory / NAME / "msgs.0000000003").unlink()

    channel = bench.consume({"x-stream-offset": "first"}, prefetch=50)

    assert len(bench.deliveries()) <= 4
    assert bench.core.is_closed
    assert bench.core.take_broken()
    assert bench.core.read_error == 2
    bench.publish(b"dropped")
    bench.settle(channel, 1)
    assert bench.deliveries() == []


# --- retention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"max_length": 1}, {"max_bytes": 1}])
def test_the_newest_segment_always_stays(make_stream: MakeStream, limits: dict[str, int]) -> None:
    """edge-cases.md 253, 255, 257, 258."""
    bench = make_stream()
    channel = bench.consume({"x-stream-offset": "next"}, prefetch=1)
    fill(bench, 3, BIG)
    bench.deliveries()

    bench.core.set_stream_limits(**limits)

    directory = bench.directory / NAME
    assert (bench.core.ready, bench.core.first_offset, bench.core.next_offset) == (1, 3, 4)
    assert sorted(p.name for p in directory.iterdir()) == ["first.0000000003.3", "msgs.0000000003"]
    fill(bench, 4, BIG)
    assert (bench.core.ready, bench.core.first_offset) == (1, 7)
    bench.cancel(channel)
    assert bench.deliveries() == []


def test_very_many_segments_go_some_at_a_time(make_stream: MakeStream) -> None:
    """A new limit may have thousands of them go: others are served between them."""
    bench = make_stream()
    fill(bench, 30, BIG)
    channel = bench.consume({"x-stream-offset": "first"}, prefetch=2)
    assert offsets(bench.deliveries()) == [1, 2]
    bench.loop.portion_units = 1

    bench.core.set_stream_limits(max_length=3)

    assert bench.core.first_offset == 9
    bench.run()
    assert bench.core.first_offset == 29
    bench.loop.portion_units = 0
    bench.settle(channel, 2, flag=True)
    assert offsets(bench.deliveries()) == [29, 30]


def test_a_stream_that_was_held_keeps_to_its_limits_once_it_is_opened(
    make_stream: MakeStream,
) -> None:
    """It is held while its files are read again, and policies may change meanwhile."""
    bench = make_stream()
    fill(bench, 8, BIG)
    bench.shut()
    bench.open(is_held=True)

    bench.core.set_stream_limits(max_length=3)
    assert bench.core.first_offset == 1
    bench.core.open()

    assert bench.core.first_offset == 7


def test_purge_keeps_the_newest_segment(make_stream: MakeStream) -> None:
    """edge-cases.md 253: three messages that fill a segment each: two are removed."""
    bench = make_stream()
    fill(bench, 3, BIG)

    assert bench.core.purge() == 2
    assert bench.core.purge() == 0
    assert bench.core.ready == 1


def test_offsets_are_never_used_twice(make_stream: MakeStream) -> None:
    """amqp.md 22.38: also when only the write segment is left, or none."""
    bench = make_stream()
    fill(bench, 5, BIG)
    bench.core.purge()

    for crash in (True, False):
        bench.reopen(crash=crash)
        assert (bench.core.first_offset, bench.core.next_offset) == (5, 6)
    (bench.directory / NAME / "msgs.0000000005").unlink()
    bench.reopen()
    assert "offsets go on at 5" in bench.notes[0]
    fill(bench, 1)
    bench.reopen()
    assert bench.core.segments()[0][:2] == (5, 1)
    assert bench.core.first_offset == 5


def test_old_segments_go_and_young_ones_stay_through_a_restart(make_stream: MakeStream) -> None:
    """edge-cases.md 254, 259."""
    bench = make_stream()
    day = 86_400_000
    now = time.time_ns() // 1_000_000
    write_segments(bench, [now - 3 * day], [now - 2 * day, now - 1000], [now - day])

    bench.core.set_stream_limits(max_age_ms=3_600_000)
    assert bench.core.first_offset == 2
    bench.reopen()
    bench.core.set_stream_limits(max_age_ms=3_600_000)
    assert (bench.core.first_offset, bench.core.ready) == (2, 3)
    bench.core.set_stream_limits(max_age_ms=100)
    assert (bench.core.first_offset, bench.core.ready) == (4, 1)


def test_readers_of_removed_segments_go_on_behind_them(make_stream: MakeStream) -> None:
    """edge-cases.md 250, 257: what is requeued and gone is passed over, and counts as settled."""
    bench = make_stream()
    fill(bench, 8, BIG)
    channel = bench.consume(tag="me", prefetch=2)
    assert offsets(bench.deliveries()) == [1, 2]

    bench.core.set_stream_limits(max_length=3)
    bench.settle(channel, 1, REJECT, True)
    assert offsets(bench.deliveries()) == [7]
    bench.settle(channel, 2)
    assert offsets(bench.deliveries()) == [8]
    assert stored_offsets(bench.core) == {b"me": 7}
    bench.consume({"x-stream-offset": -5}, tag="other")
    assert offsets(bench.deliveries()) == [7, 8]
