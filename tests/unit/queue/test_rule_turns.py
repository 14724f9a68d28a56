"""Many messages that die at once do so in turns, which nobody else can put off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, TimedEvents, publish, settle

MESSAGES = 40
DEATHS_AT_ONCE = 512
"""Before somebody who asks for a message hears of none."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Its portions are over at once."""
    with closing(Bench(tmp_path, TimedEvents())) as made:
        made.loop.portion_units = 1
        yield made


def filled(bench: Bench, name: str = "q") -> _core.Queue:
    """A queue of so many messages."""
    queue = bench.queue(name, durable=False)
    bench.send(publish(name.encode(), b"body") * MESSAGES)
    bench.run()
    assert queue.ready == MESSAGES
    return queue


def step(bench: Bench) -> None:
    """What is to be called now is, and nothing that it adds."""
    ready, bench.events.ready = bench.events.ready, []
    for callback in ready:
        callback()


def test_what_is_past_its_time_dies_however_often_others_wake_the_loop(bench: Bench) -> None:
    queue = filled(bench)
    busy = filled(bench, "busy")
    bench.loop.clock_offset_ms += 1000
    queue.set_features(ttl_ms=1)
    for _ in range(MESSAGES):
        bench.send(publish(b"busy", b"body"))
        bench.advance(1)
    assert queue.ready == 0
    assert busy.ready == 2 * MESSAGES


def test_expiry_leaves_the_rest_to_the_next_turn(bench: Bench) -> None:
    queue = filled(bench)
    bench.loop.clock_offset_ms += 1000
    queue.set_features(ttl_ms=1)
    bench.loop.expire()
    seen = set()
    while queue.ready:
        seen.add(queue.ready)
        step(bench)
    assert len(seen) > MESSAGES / 4


def test_a_limit_leaves_the_rest_to_the_next_turn(bench: Bench) -> None:
    queue = filled(bench)
    queue.set_features(max_length=1)
    seen = set()
    while queue.ready > 1:
        seen.add(queue.ready)
        step(bench)
    assert len(seen) > MESSAGES / 4
    bench.run()
    assert queue.ready == 1
    assert not bench.events.ready


def test_queues_with_too_much_are_heard_in_turn(bench: Bench) -> None:
    """One that has very much to drop does not keep another from its limit."""
    first, second = filled(bench, "first"), filled(bench, "second")
    for queue in (first, second):
        queue.set_features(max_length=1)
    while second.ready > 1:
        step(bench)
        assert abs(first.ready - second.ready) <= 2
    bench.run()
    assert first.ready == second.ready == 1


def test_what_a_limit_leaves_is_nobody_elses_work(bench: Bench) -> None:
    """Whoever publishes to another queue does not drop for it."""
    queue, other = filled(bench), bench.queue("other", durable=False)
    queue.set_features(max_length=1)
    left = queue.ready
    assert left > 1
    bench.send(publish(b"other", b"body"))
    assert (queue.ready, other.ready) == (left, 1)
    bench.run()
    assert (queue.ready, other.ready) == (1, 1)


def test_all_dead_letters_of_a_limit_arrive(bench: Bench) -> None:
    queue = filled(bench)
    dead = bench.queue("dead", durable=False)
    queue.set_features(max_length=1, target=b"", target_key=b"dead")
    bench.run()
    assert (queue.ready, dead.ready) == (1, MESSAGES - 1)


def test_who_asks_while_heads_die_gets_the_first_that_lives(bench: Bench) -> None:
    """Those in front of it are past their time: it takes some turns to pass them."""
    queue = bench.queue("q", durable=False)
    bench.send(publish(b"q", b"old") * 3 * DEATHS_AT_ONCE)
    bench.run()
    queue.set_features(ttl_ms=1000)
    bench.loop.clock_offset_ms += 2000
    bench.send(publish(b"q", b"new"))
    got = bench.get(queue, no_ack=False)
    assert got is None
    while got is None:
        assert queue.ready > 1
        step(bench)
        got = bench.get(queue, no_ack=False)
    assert got.body == b"new"
    bench.send(settle(80, got.tag, 0))
    bench.run()
    assert (queue.ready, queue.unacked) == (0, 0)
