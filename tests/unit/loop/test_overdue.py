"""Deliveries held for too long are found by the wheel: a connection is looked at when one of its
deliveries may be overdue, and however many others there are costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import FRAME_MAX, Bench, Session, publish, settle
from tests.support.waiting import wait_for

OTHERS = 100
MANY = 30_000
CLOSED = ("on_consumer_timeout", 1)
ALWAYS_S = 1e-9  # a heartbeat so short that the link is looked at each time


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A hundred idle connections beside the one that is used; all are looked at when asked."""
    with closing(Bench(tmp_path)) as made, ExitStack() as stack:
        for link in [made.link, *(other(made) for _ in range(OTHERS))]:
            link.set_limits(FRAME_MAX, 1 << 30, ALWAYS_S)
            link.start(0)
            stack.callback(link.close)
        yield made


def other(bench: Bench) -> _core.Link:
    """An open connection without a socket, with a channel that holds nothing."""
    link = _core.Link(bench.loop, -1, _core.AMQP)
    link.session = Session()
    link.set_vhost(bench.vhost)
    link.state = _core.STATE_OPEN
    link.open_channel(1, 0)
    return link


def held(bench: Bench, timeout_ms: int) -> _core.Queue:
    """A queue with that time-out, whose message channel 1 has got."""
    queue = bench.queue("q")
    queue.consumer_timeout_ms = timeout_ms
    bench.send(publish(b"q", b"m"))
    assert bench.get(queue, no_ack=False) is not None
    return queue


def look(bench: Bench) -> None:
    """All connections whose time has come."""
    while bench.loop.check_links():
        pass


def test_of_many_connections_only_the_holder_is_looked_at_and_once(bench: Bench) -> None:
    held(bench, 100)

    def is_found() -> bool:
        look(bench)
        return CLOSED in bench.session.events

    wait_for(is_found, "the delivery is not overdue")

    assert bench.loop.overdue_looks == 1
    assert bench.session.events.count(CLOSED) == 1


def test_nobody_is_looked_at_before_the_shortest_time_out(bench: Bench) -> None:
    held(bench, 3_600_000)

    look(bench)

    assert bench.loop.overdue_looks == 0


def test_a_time_out_that_comes_later_counts_for_what_is_held(bench: Bench) -> None:
    queue = held(bench, 3_600_000)
    look(bench)
    queue.consumer_timeout_ms = 100

    def is_found() -> bool:
        look(bench)
        return CLOSED in bench.session.events

    wait_for(is_found, "the delivery is not overdue")


def test_who_has_settled_all_keeps_its_channel(bench: Bench) -> None:
    held(bench, 100)
    bench.send(settle(80, 1, 0))

    def is_looked_at() -> bool:
        look(bench)
        return bench.loop.overdue_looks > 0

    wait_for(is_looked_at, "the link was not looked at")

    assert CLOSED not in bench.session.events


def test_looks_at_a_holder_keep_their_distance(bench: Bench) -> None:
    """What it holds may stay for an hour: the holder is looked at once in an interval."""
    bench.loop.overdue_interval_s = 3600
    bench.queue("short").consumer_timeout_ms = 100
    held(bench, 3_600_000)

    def is_looked_at() -> bool:
        look(bench)
        return bench.loop.overdue_looks > 0

    wait_for(is_looked_at, "the link was not looked at")
    for _ in range(3):
        look(bench)

    assert bench.loop.overdue_looks == 1


def looks(bench: Bench) -> int:
    """How often the loop wants to be asked until it has looked at all connections."""
    n = 1
    while bench.loop.check_links():
        n += 1
    return n


def test_one_behind_very_many_patient_ones_is_found_in_portions(bench: Bench) -> None:
    """They were looked at in one go: half a million of them held up everybody."""
    patient = bench.queue("patient", segment_size=1 << 20)
    bench.send(publish(b"patient", b"m") * MANY)
    bench.run()
    for _ in range(MANY):
        assert bench.link.get(1, patient, False)
    bench.link.flush()
    bench.receive()
    few = looks(bench)
    held(bench, 100)
    found: list[int] = []

    def is_found() -> bool:
        found.append(looks(bench))
        return CLOSED in bench.session.events

    wait_for(is_found, "the delivery of the queue that is not patient")

    assert found[-1] >= few + 2


def test_one_that_the_ring_has_left_behind_is_found(bench: Bench) -> None:
    """All but the oldest and the last are settled: the oldest is on the list of old ones."""
    held(bench, 100)
    patient = bench.queue("patient", segment_size=1 << 20)
    bench.send(publish(b"patient", b"m") * MANY)
    bench.run()
    for tag in range(2, MANY + 1):
        assert bench.link.get(1, patient, False)
        bench.send(settle(80, tag, 0))
    bench.link.flush()
    bench.receive()

    def is_found() -> bool:
        looks(bench)
        return CLOSED in bench.session.events

    wait_for(is_found, "the oldest delivery")
