"""Consumers of streams that say where they end, and deliveries that say when they were stored.

Random readers with an end are in the model of `test_stream.py`; here are the rules one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from lavinmq.arguments.stream import reading
from lavinmq.errors import ChannelError
from lavinmq.fieldtable import FieldTable, Long, Timestamp
from tests.support.streams import REJECT, Delivery, StreamBench, stored_offsets

MakeStream = Callable[..., StreamBench]
TIME = "x-stream-timestamp"


@pytest.fixture
def make_stream(tmp_path: Path) -> Iterator[MakeStream]:
    """Call it with a segment size; what it makes is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda size=4096: stack.enter_context(closing(StreamBench(tmp_path / "data", size)))


def fill(bench: StreamBench, n: int, headers: dict[str, Any] | None = None, size: int = 0) -> None:
    for _ in range(n):
        bench.publish(bytes(size), headers)
    bench.run()


def offsets(found: list[Delivery]) -> list[int]:
    return [delivery.offset for delivery in found]


def ended(bench: StreamBench) -> list[tuple[int, bytes]]:
    """Channels and tags of consumers that were told to be over since the last call."""
    events = [(channel, tag) for _, channel, tag in bench.session.events]
    bench.session.events.clear()
    return events


def until(end: int, start: int | str = "first", **more: Any) -> dict[str, Any]:
    return {"x-stream-offset": start, "x-stream-end-offset": end, **more}


# --- ends -----------------------------------------------------------------------------------------


def test_a_consumer_with_an_end_gets_what_is_below_it(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 10)

    channel = bench.consume(until(6, 3), tag="me", prefetch=100)

    assert offsets(bench.deliveries()) == [3, 4, 5]
    assert ended(bench) == [(channel, b"me")]
    fill(bench, 3)
    assert bench.deliveries() == []
    assert ended(bench) == []


def test_it_is_over_with_the_last_message_whatever_it_has_not_acknowledged(
    make_stream: MakeStream,
) -> None:
    bench = make_stream()
    fill(bench, 5)
    channel = bench.consume(until(3), prefetch=1)

    assert offsets(bench.deliveries()) == [1]
    assert ended(bench) == []
    bench.settle(channel, 1)
    assert offsets(bench.deliveries()) == [2]
    assert ended(bench) == [(channel, b"t")]


@pytest.mark.parametrize(("start", "end"), [(4, 4), (9, 3), ("next", 6), ("last", 1)])
def test_it_is_over_at_once_when_there_is_nothing_below_the_end(
    make_stream: MakeStream, start: int | str, end: int
) -> None:
    bench = make_stream()
    fill(bench, 5)

    channel = bench.consume(until(end, start))

    assert bench.deliveries() == []
    assert ended(bench) == [(channel, b"t")]


def test_an_end_that_is_not_there_yet_is_waited_for(make_stream: MakeStream) -> None:
    bench = make_stream()
    channel = bench.consume(until(4), prefetch=100)
    assert bench.deliveries() == []
    fill(bench, 2)
    assert offsets(bench.deliveries()) == [1, 2]
    assert ended(bench) == []

    fill(bench, 5)

    assert offsets(bench.deliveries()) == [3]
    assert ended(bench) == [(channel, b"t")]


def test_several_consumers_have_ends_of_their_own(make_stream: MakeStream) -> None:
    bench = make_stream()
    channels = {bench.consume(until(end), tag=f"{end}", prefetch=100): end for end in (9, 2, 5)}

    fill(bench, 20)

    found = bench.deliveries()
    for channel, end in channels.items():
        assert offsets([d for d in found if d.channel == channel]) == list(range(1, end))
    assert sorted(ended(bench)) == [(c, b"%d" % end) for c, end in sorted(channels.items())]


def test_a_filter_that_matches_nothing_more_ends_all_the_same(make_stream: MakeStream) -> None:
    bench = make_stream(1 << 24)
    fill(bench, 3, {"k": "a"})
    fill(bench, 2000, {"k": "b"}, 1000)  # more than one turn of passing over
    fill(bench, 3, {"k": "a"})

    some = bench.consume(until(2003, **{"x-stream-filter": {"k": "a"}}), tag="a", prefetch=10)
    none = bench.consume(until(2003, **{"x-stream-filter": {"k": "c"}}), tag="c", prefetch=1)

    assert offsets(bench.deliveries()) == [1, 2, 3]
    assert sorted(ended(bench)) == [(some, b"a"), (none, b"c")]


def test_without_credit_the_rest_is_passed_over_when_there_is_credit(
    make_stream: MakeStream,
) -> None:
    bench = make_stream()
    fill(bench, 1, {"k": "a"})
    fill(bench, 5, {"k": "b"})
    channel = bench.consume(until(7, **{"x-stream-filter": {"k": "a"}}), prefetch=1)
    assert offsets(bench.deliveries()) == [1]
    assert ended(bench) == []

    bench.settle(channel, 1)

    assert bench.deliveries() == []
    assert ended(bench) == [(channel, b"t")]


def test_what_was_rejected_comes_again_before_the_end(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 5)
    channel = bench.consume(until(4), prefetch=2)
    assert offsets(bench.deliveries()) == [1, 2]

    bench.settle(channel, 1, REJECT, True)
    bench.settle(channel, 2, REJECT, True)

    assert [(d.offset, d.redelivered) for d in bench.deliveries()] == [(1, True), (2, True)]
    assert ended(bench) == []
    bench.settle(channel, 4)
    assert offsets(bench.deliveries()) == [3]
    assert ended(bench) == [(channel, b"t")]


def test_retention_may_take_all_that_was_below_the_end(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 1, size=3000)
    channel = bench.consume(until(3), prefetch=1)
    assert offsets(bench.deliveries()) == [1]
    fill(bench, 4, size=3000)

    bench.core.purge()
    bench.settle(channel, 1)

    assert bench.deliveries() == []
    assert ended(bench) == [(channel, b"t")]


def test_a_consumer_that_goes_before_it_is_told_is_not_told(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 3)
    channel = bench.consume(until(2), prefetch=10)

    bench.cancel(channel)
    bench.link.close_channel(channel, False)

    bench.deliveries()
    assert ended(bench) == []


def test_where_it_ended_is_remembered(make_stream: MakeStream) -> None:
    bench = make_stream()
    fill(bench, 9)
    track = {"x-stream-automatic-offset-tracking": True}
    channel = bench.consume(until(4, **track), tag="me", prefetch=10)
    bench.deliveries()
    bench.cancel(channel)  # as the session does when it is told

    for tag in (1, 2, 3):
        bench.settle(channel, tag)
    bench.reopen(crash=True)

    assert stored_offsets(bench.core) == {b"me": 4}


@pytest.mark.parametrize("value", [0, -1, True, "5", 1.5, Timestamp(5), [5], {"a": 5}], ids=repr)
def test_an_end_has_to_be_an_offset(value: Any) -> None:
    with pytest.raises(ChannelError, match="x-stream-end-offset must be a positive integer"):
        reading("t", FieldTable({"x-stream-end-offset": value}), 0, 256)


# --- times ----------------------------------------------------------------------------------------


def stored_times(bench: StreamBench) -> list[int]:
    """The time of each message of a stream of empty bodies and headers, from its file."""
    (path,) = (bench.directory / "s").glob("msgs.*")
    data, at, found = path.read_bytes(), 4, []
    while at < len(data):
        (ms,) = struct.unpack_from("<q", data, at)
        flags, n = struct.unpack_from("<HI", data, at + 8 + 1 + 1 + 1)
        found.append(ms)
        at += 8 + 3 + 2 + (4 + n if flags & 0x2000 else 0) + 8
    return found


def test_deliveries_say_when_their_message_was_stored(make_stream: MakeStream) -> None:
    bench = make_stream()
    for n in range(3):
        bench.loop.clock_offset_ms = n * 1000
        fill(bench, 1, {"a": n, TIME: "mine", "x-stream-offset": "mine"})
    times = stored_times(bench)
    assert times == sorted(set(times))

    with_time = bench.consume({"x-stream-offset": "first", TIME: True}, tag="a")
    without = bench.consume({"x-stream-offset": "first", TIME: False}, tag="b")
    found = bench.deliveries()

    assert [d.headers for d in found if d.channel == with_time] == [
        {"a": n, "x-stream-offset": Long(n + 1), TIME: Long(times[n])} for n in range(3)
    ]
    assert [d.headers for d in found if d.channel == without] == [
        {"a": n, TIME: "mine", "x-stream-offset": Long(n + 1)} for n in range(3)
    ]


def test_they_say_it_of_messages_without_headers_and_when_they_come_again(
    make_stream: MakeStream,
) -> None:
    bench = make_stream()
    before = bench.core.offset_at(1)
    fill(bench, 2)
    channel = bench.consume({"x-stream-offset": "first", TIME: True}, prefetch=2)
    first = [d.headers for d in bench.deliveries()]

    bench.settle(channel, 1, REJECT, True)
    again = bench.deliveries()
    bench.link.recover(channel, False)
    once_more = bench.deliveries()

    assert before == (1, True)
    _, oldest, latest = bench.core.span
    assert [headers[TIME] for headers in first] == [oldest, latest]
    assert [d.headers for d in again] == first[:1]
    assert [d.headers for d in once_more] == [first[1], first[0]]


@pytest.mark.parametrize("value", ["true", 1, 0, "x"], ids=repr)
def test_the_wish_for_times_has_to_be_a_boolean(value: Any) -> None:
    with pytest.raises(ChannelError, match="x-stream-timestamp must be a boolean"):
        reading("t", FieldTable({TIME: value}), 0, 256)
