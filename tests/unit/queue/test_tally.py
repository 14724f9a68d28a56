"""Counters of channels and virtual hosts, and histograms of syncs and confirms, in the core."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lavinmq import _core
from tests.support.core import FRAME_MAX, Bench, frame, publish, settle
from tests.support.waiting import wait_for

ACK, REJECT, NACK = 80, 90, 120
ZERO = {
    "publish": 0, "confirm": 0, "deliver": 0, "deliver_no_ack": 0, "get": 0, "get_no_ack": 0,
    "deliver_get": 0, "ack": 0, "reject": 0, "redeliver": 0, "return_unroutable": 0,
}  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A message path on channel 1 of one connection."""
    with closing(Bench(tmp_path / "bench")) as made:
        yield made


def counted(counters: dict[str, int]) -> dict[str, int]:
    """Only what has been counted."""
    assert counters.keys() == ZERO.keys()
    return {name: count for name, count in counters.items() if count}


def mandatory(key: bytes, body: bytes) -> bytes:
    """A publish that wants to come back when nobody takes it."""
    method = b"\0\x3c\0\x28\0\0\0" + bytes([len(key)]) + key + b"\1"
    header = b"\0\x3c\0\0" + struct.pack(">Q", len(body)) + b"\0\0"
    return frame(1, method) + frame(2, header) + frame(3, body)


def test_nothing_is_counted_before_anything_happens(bench: Bench) -> None:
    assert bench.link.channel_counters(1) == bench.vhost.counters() == ZERO


def test_a_channel_that_is_not_open_has_no_counters(bench: Bench) -> None:
    with pytest.raises(KeyError):
        bench.link.channel_counters(2)


def test_publishes_are_counted_whether_or_not_anybody_takes_them(bench: Bench) -> None:
    bench.queue("q")

    bench.send(publish(b"q", b"1") + publish(b"nowhere", b"2") + publish(b"q", b"3"))

    assert counted(bench.link.channel_counters(1)) == {"publish": 3}


def test_a_message_to_three_queues_was_published_once(bench: Bench) -> None:
    fanout = _core.Exchange(_core.FANOUT, 1)
    for name in ("a", "b", "c"):
        fanout.bind(b"", b"", bench.queue(name))
    bench.link.learn(b"", fanout)

    bench.send(publish(b"q", b"1"))

    assert counted(bench.vhost.counters()) == {"publish": 1}


def test_what_is_returned_is_counted(bench: Bench) -> None:
    bench.send(mandatory(b"nowhere", b"1") + publish(b"nowhere", b"2"))

    assert counted(bench.link.channel_counters(1)) == {"publish": 2, "return_unroutable": 1}


def test_gets_and_settlements_are_counted(bench: Bench) -> None:
    queue = bench.queue("q")
    bench.send(b"".join(publish(b"q", b"%d" % i) for i in range(5)))
    bench.run()

    bench.get(queue, no_ack=True)
    tags = [got.tag for got in (bench.get(queue, no_ack=False) for _ in range(3)) if got]
    bench.send(settle(ACK, tags[0], 0))
    bench.send(settle(REJECT, tags[1], 0) + settle(NACK, tags[2], 2))
    again = bench.get(queue, no_ack=False)

    assert again is not None
    assert again.redelivered
    assert counted(bench.link.channel_counters(1)) == {
        "publish": 5, "get": 4, "get_no_ack": 1, "deliver_get": 5, "ack": 1, "reject": 2,
        "redeliver": 1,
    }  # fmt: skip


def test_an_ack_of_many_counts_each(bench: Bench) -> None:
    queue = bench.queue("q")
    bench.send(b"".join(publish(b"q", b"%d" % i) for i in range(7)))
    bench.run()
    for _ in range(7):
        bench.get(queue, no_ack=False)

    bench.send(settle(ACK, 5, 1))
    assert bench.link.channel_counters(1)["ack"] == 5
    bench.send(settle(ACK, 0, 1))

    assert bench.link.channel_counters(1)["ack"] == 7


def test_deliveries_are_counted_by_kind(bench: Bench) -> None:
    queue, other = bench.queue("q"), bench.queue("other")
    bench.link.add_consumer(1, queue, b"a", False).start()
    bench.link.add_consumer(1, other, b"b", True).start()

    bench.send(publish(b"q", b"1") + publish(b"other", b"2") + publish(b"other", b"3"))
    bench.run()

    assert counted(bench.link.channel_counters(1)) == {
        "publish": 3, "deliver": 1, "deliver_no_ack": 2, "deliver_get": 3,
    }  # fmt: skip


def test_what_goes_back_because_its_channel_closes_was_not_rejected(bench: Bench) -> None:
    queue = bench.queue("q")
    bench.send(publish(b"q", b"1"))
    bench.run()
    bench.get(queue, no_ack=False)

    bench.link.close_channel(1, False)

    assert counted(bench.vhost.counters()) == {"publish": 1, "get": 1, "deliver_get": 1}


def test_totals_of_a_vhost_stay_when_channels_connections_and_queues_go(bench: Bench) -> None:
    queue = bench.queue("q")
    bench.link.open_channel(2, 0)
    bench.link.open_channel(5000, 0)
    bench.send(publish(b"q", b"1") + publish(b"q", b"2"))
    before = bench.vhost.counters()

    for channel in (2, 1, 5000):
        bench.link.close_channel(channel, False)
    queue.delete()

    assert bench.vhost.counters() == before
    assert before["publish"] == 2
    bench.link.close()
    assert bench.vhost.counters() == before


def test_confirms_are_counted_when_they_are_written(bench: Bench) -> None:
    bench.queue("q")
    bench.link.select_confirms(1)

    bench.send(publish(b"q", b"1") + publish(b"q", b"2"))
    assert bench.link.channel_counters(1)["confirm"] == 0
    bench.run()

    assert counted(bench.link.channel_counters(1)) == {"publish": 2, "confirm": 2}
    counts, sum_s = bench.loop.confirm_times()
    assert sum(counts) == 1  # both were confirmed at once
    assert sum_s > 0


def test_a_publish_that_a_full_queue_refuses_was_not_confirmed(bench: Bench) -> None:
    bench.queue("q", max_length=2, overflow=_core.OVERFLOW["reject-publish"])
    bench.link.select_confirms(1)
    highest = 0

    for round_ in range(3):
        bench.send(b"".join(publish(b"q", b"%d" % i) for i in range(3)))
        bench.run()
        confirmed = bench.link.channel_counters(1)["confirm"]
        assert confirmed >= highest, round_
        highest = confirmed

    assert counted(bench.link.channel_counters(1)) == {"publish": 9, "confirm": 2}


def test_syncs_are_counted(bench: Bench, tmp_path: Path) -> None:
    synced: list[bool] = []
    bench.loop.sync = True

    with open(tmp_path / "file", "wb") as file:
        file.write(b"data")
        file.flush()
        bench.loop.sync_file(file.fileno(), lambda: synced.append(True))
        bench.run()

        def is_synced() -> bool:
            if not synced:
                bench.loop.on_synced()  # type: ignore[attr-defined]
            return bool(synced)

        wait_for(is_synced, "the file was not synced")
        bench.loop.stop()

    counts, sum_s = bench.loop.sync_times()
    assert sum(counts) == 1
    assert sum_s > 0


def test_there_is_one_bucket_more_than_bounds(bench: Bench) -> None:
    counts, sum_s = bench.loop.sync_times()

    assert counts == [0] * (len(_core.DURATION_BOUNDS) + 1)
    assert sum_s == 0
    assert list(_core.DURATION_BOUNDS) == sorted(_core.DURATION_BOUNDS)
    assert (_core.DURATION_BOUNDS[0], _core.DURATION_BOUNDS[-1]) == (1e-05, 10.0)


def test_another_vhost_cannot_take_over_a_link_with_channels(bench: Bench) -> None:
    with pytest.raises(ValueError, match="channels are open"):
        bench.link.set_vhost(_core.Vhost())


def test_a_channel_without_a_connection_counts_too(bench: Bench) -> None:
    queue = bench.queue("q")
    local = _core.LocalChannel(bench.loop, bench.vhost, b"guest", True)
    local.publish(bench.exchange, b"", b"q", b"\0\0", b"body")
    row = local.take(queue, 1000, 1000, False)
    assert isinstance(row, tuple)
    local.settle(row[0], False, True)
    local.close()

    assert counted(bench.vhost.counters()) == {
        "publish": 1, "get": 1, "deliver_get": 1, "ack": 1,
    }  # fmt: skip


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "get", "ack", "open", "close"]), st.integers(1, 4)
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_a_vhost_has_what_its_channels_have_whatever_order_they_go_in(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with closing(Bench(tmp_path_factory.mktemp("tally") / "bench")) as bench:
        queue = bench.queue("q", durable=False)
        open_: dict[int, list[int]] = {1: []}
        expected = dict(ZERO)
        for step, channel in steps:
            if step == "open" and channel not in open_:
                bench.link.open_channel(channel, 0)
                open_[channel] = []
            if channel not in open_:
                continue
            _do(bench, queue, step, channel, open_, expected)
            assert bench.vhost.counters() == expected


def _do(
    bench: Bench, queue: _core.Queue, step: str, channel: int, open_: dict[int, list[int]],
    expected: dict[str, Any],
) -> None:  # fmt: skip
    if step == "publish":
        bench.send(_on_channel(publish(b"q", b"x"), channel))
        expected["publish"] += 1
    elif step == "get" and queue.ready:
        assert bench.link.get(channel, queue, False)
        bench.link.flush()
        (got,) = bench.receive()
        open_[channel].append(got.tag)
        expected["get"] += 1
        expected["deliver_get"] += 1
        expected["redeliver"] += got.redelivered
    elif step == "ack" and open_[channel]:
        bench.send(settle(ACK, open_[channel].pop(), 0, channel))
        expected["ack"] += 1
    elif step == "close":
        bench.link.close_channel(channel, False)
        del open_[channel]


def _on_channel(data: bytes, channel: int) -> bytes:
    """The same frames on another channel."""
    at, moved = 0, bytearray(data)
    while at < len(moved):
        (size,) = struct.unpack_from(">I", moved, at + 3)
        struct.pack_into(">H", moved, at + 1, channel)
        at += size + 8
    return bytes(moved)


def test_a_link_that_dies_leaves_its_counts(tmp_path: Path) -> None:
    with closing(Bench(tmp_path / "bench")) as bench:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            link: _core.Link | None = _core.Link(bench.loop, ours.fileno(), _core.AMQP)
            assert link is not None
            link.session = bench.session
            link.set_vhost(bench.vhost)
            link.state = _core.STATE_OPEN
            link.set_limits(FRAME_MAX, 1 << 20, 0)
            link.learn(b"", bench.exchange)
            link.open_channel(1, 0)
            theirs.send(publish(b"nowhere", b"1"))
            link.drain()
            link = None

            assert counted(bench.vhost.counters()) == {"publish": 1}
