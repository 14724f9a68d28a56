"""Very many deleted messages in a row: whoever comes to them passes them in turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, TimedEvents, properties, publish

DEAD = 2000
PASSED_AT_ONCE = 256


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Its portions are over at once."""
    with closing(Bench(tmp_path, TimedEvents())) as made:
        yield made


@pytest.fixture(params=[1 << 20, 40_000], ids=["one segment", "two segments"])
def queue(bench: Bench, request: pytest.FixtureRequest) -> _core.Queue:
    """A message, many that have died behind it, and one more."""
    queue = bench.queue("q", segment_size=request.param)
    bench.send(publish(b"q", b"first"))
    bench.send(publish(b"q", b"dead", properties(expiration="1")) * DEAD)
    bench.send(publish(b"q", b"last"))
    bench.run()
    bench.advance(1000)
    assert queue.ready == 2
    bench.loop.portion_units = 1
    return queue


def step(bench: Bench) -> None:
    """What is to be called now is, and nothing that it adds."""
    ready, bench.events.ready = bench.events.ready, []
    for callback in ready:
        callback()


def test_who_asks_for_a_message_asks_again_until_it_is_reached(
    bench: Bench, queue: _core.Queue
) -> None:
    first = bench.get(queue)
    assert first is not None
    assert first.body == b"first"

    asked = 1
    while not queue.reach():
        step(bench)
        asked += 1

    last = bench.get(queue)
    assert last is not None
    assert last.body == b"last"
    assert asked >= DEAD // PASSED_AT_ONCE
    assert queue.reach()
    assert bench.get(queue) is None


def test_a_consumer_gets_what_is_behind_them(bench: Bench, queue: _core.Queue) -> None:
    consumer = bench.link.add_consumer(1, queue, b"c", True)
    consumer.start()
    bench.loop.turn()
    turns = 0
    while queue.ready and turns < DEAD:
        turns += 1
        step(bench)
    bench.link.flush()

    assert [each.body for each in bench.receive()] == [b"first", b"last"]
    assert turns > 3


def test_a_queue_that_has_only_them_left_comes_to_its_end_in_turns(
    bench: Bench, tmp_path: Path
) -> None:
    queue = bench.queue("q", segment_size=40_000)
    bench.send(publish(b"q", b"first"))
    bench.send(publish(b"q", b"dead", properties(expiration="1")) * DEAD)
    bench.run()
    bench.advance(1000)
    files = len(list((tmp_path / "q").glob("msgs.*")))
    bench.loop.portion_units = 1

    assert bench.get(queue) is not None
    turns = 0
    while bench.events.ready and turns < DEAD:
        turns += 1
        step(bench)
    bench.send(publish(b"q", b"new"))
    bench.run()

    assert turns > 3
    assert queue.ready == 1
    assert len(list((tmp_path / "q").glob("msgs.*"))) == 1 < files
    while not queue.reach():
        step(bench)
    new = bench.get(queue)
    assert new is not None
    assert new.body == b"new"


def test_a_limit_drops_what_is_behind_them(bench: Bench, queue: _core.Queue) -> None:
    bench.send(publish(b"q", b"kept"))
    queue.set_features(max_length=1)
    bench.run()

    assert queue.ready == 1
    kept = bench.get(queue)
    assert kept is not None
    assert kept.body == b"kept"


def test_a_purge_goes_over_them(bench: Bench, queue: _core.Queue) -> None:
    steps = list(_core.Purge(queue))

    assert steps[-1] == 2
    assert len(steps) > 1
    assert queue.ready == 0


def test_what_is_behind_them_expires(bench: Bench, queue: _core.Queue) -> None:
    queue.set_features(ttl_ms=1)
    bench.advance(1000)

    assert queue.ready == 0


def test_a_start_finds_what_is_behind_them(bench: Bench, queue: _core.Queue) -> None:
    assert bench.get(queue) is not None
    bench.run()
    queue.close()

    again = bench.queue("q")
    assert again.ready == 1
    while not again.reach():
        step(bench)
    last = bench.get(again)
    assert last is not None
    assert last.body == b"last"
