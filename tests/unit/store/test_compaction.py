"""Segments that a few old messages keep: the space of the others is given back.

Works on the compiled queue without a server; what is in the files is read by a reader of its own.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, publish, settle
from tests.support.segments import read_queue

ACK, NACK = 80, 120
SEGMENT_SIZE = 1 << 18
BODY = 1000
MESSAGES = 1200
NAME = "pinned"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as bench:
        yield bench


def body(number: int) -> bytes:
    """A body that tells messages apart."""
    return b"%08d" % number * (BODY // 8)


def fill(bench: Bench, keep: set[int]) -> None:
    """Publish, take everything, and acknowledge all but the messages in `keep`."""
    queue = bench.queue(NAME, SEGMENT_SIZE)
    for number in range(MESSAGES):
        bench.send(publish(NAME.encode(), body(number)))
        bench.run()
    consumer = bench.link.add_consumer(1, queue, b"tag", False)
    consumer.start()
    received = []
    for _ in range(MESSAGES):
        bench.loop.tick()
        received += bench.receive()
    assert len(received) == MESSAGES
    for got in received:
        if int(got.body[:8]) not in keep:
            bench.send(settle(ACK, got.tag, 0))
    bench.run()
    bench.kept = queue  # type: ignore[attr-defined]


def compact(bench: Bench) -> int:
    """Compact until there is nothing more to do; how many segments that were."""
    queue, n = bench.kept, 0  # type: ignore[attr-defined]
    while queue.compact():
        bench.run()
        n += 1
    return n


def used(directory: Path) -> int:
    """Bytes of disk that the segments take."""
    return sum(path.stat().st_blocks * 512 for path in directory.glob("msgs.*"))


def bodies(directory: Path) -> list[bytes]:
    """What another reader of the format finds."""
    return [record.body for record in read_queue(directory)]


def reopened(directory: Path) -> list[bytes]:
    """What the broker delivers from a copy of a queue's directory."""
    copy = directory.parent / f"{directory.name}-copy" / NAME
    shutil.copytree(directory, copy)
    try:
        with closing(Bench(copy.parent)) as bench:
            queue = bench.queue(NAME, SEGMENT_SIZE)
            found = []
            while bench.link.get(1, queue, True):
                bench.run()
                found += [got.body for got in bench.receive()]
            assert queue.ready == 0
            assert queue.take_damage() == []
            return found
    finally:
        shutil.rmtree(copy.parent)


@pytest.mark.parametrize("keep", [{0, 250, 600}, {255, 700}, {3, 4, 5, 400, 401, 900}])
def test_a_few_old_messages_do_not_hold_the_disk(bench: Bench, keep: set[int]) -> None:
    fill(bench, keep)
    directory = bench.directory / NAME
    before = used(directory)

    assert compact(bench) >= 1

    assert used(directory) < before / 2
    wanted = [body(number) for number in sorted(keep)]
    assert bodies(directory)[: len(wanted)] == wanted
    assert reopened(directory) == wanted


def test_what_was_kept_can_still_be_settled_and_requeued(bench: Bench) -> None:
    fill(bench, {0, 1, 300, 800})
    compact(bench)

    bench.send(settle(NACK, 2, 2))
    bench.send(settle(ACK, 1, 0))
    bench.run()

    assert [(got.body, got.redelivered) for got in bench.receive()] == [(body(1), True)]
    assert reopened(bench.directory / NAME) == [body(1), body(300), body(800)]


def test_the_rest_goes_when_the_last_message_is_settled(bench: Bench) -> None:
    fill(bench, {0, 300})
    compact(bench)
    first = bench.directory / NAME / "msgs.0000000001"
    assert first.exists()

    bench.send(settle(ACK, 1, 0))
    bench.run()

    assert not first.exists()


def test_a_segment_is_not_looked_at_twice_for_nothing(bench: Bench) -> None:
    fill(bench, set(range(0, MESSAGES, 7)))  # no run is long enough

    compact(bench)

    assert compact(bench) == 0
    assert reopened(bench.directory / NAME) == [body(n) for n in range(0, MESSAGES, 7)]


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_at_any_point_loses_and_returns_nothing(bench: Bench, seed: int) -> None:
    """Each file is taken from before or from after, as a crash may leave them."""
    chance = random.Random(seed)
    keep = set(chance.sample(range(MESSAGES - 300), 5))
    fill(bench, keep)
    directory = bench.directory / NAME
    before = bench.directory / "before"
    shutil.copytree(directory, before)
    compact(bench)

    # The order of the writes: the meta file goes, fillers, holes, then acks.
    mixed = bench.directory / "mixed" / NAME
    for stage in range(3):
        shutil.copytree(directory, mixed)
        for old in before.glob("*"):
            if (old.name.startswith("acks") and stage < 2) or (
                old.name.startswith("meta") and stage < 1
            ):
                shutil.copy2(old, mixed / old.name)
        assert reopened(mixed) == [body(number) for number in sorted(keep)]
        shutil.rmtree(mixed.parent)


def test_a_filler_is_no_message_when_the_ack_file_is_lost(bench: Bench) -> None:
    keep = {0, 250, 600}
    fill(bench, keep)
    assert compact(bench) >= 1
    directory = bench.directory / NAME
    for acks in directory.glob("acks.*"):
        acks.unlink()

    found = reopened(directory)

    assert {body(number) for number in keep} <= set(found)
    assert {len(each) for each in found} == {BODY}


def run_and_interrupt(bench: Bench, after: int, action: Callable[[], object]) -> bool:
    """Compact, and do something after so many callbacks. Returns: whether there were so many."""
    ready, over = bench.events.ready, []
    assert bench.kept.compact(lambda: over.append(True))  # type: ignore[attr-defined]
    for _ in range(after):
        if not ready:
            break
        ready.pop(0)()
    was_under_way = not over
    action()
    bench.run()
    assert over == [True]
    return was_under_way


STEPS = range(0, 24, 2)
"""Callbacks after which something happens: before, in, and after each step."""


@pytest.mark.parametrize("after", STEPS)
def test_what_is_settled_meanwhile_stays_settled(bench: Bench, after: int) -> None:
    keep = {0, 3, 100, 180, 500}
    fill(bench, keep)

    run_and_interrupt(bench, after, lambda: bench.send(settle(ACK, 101, 0)))
    bench.run()

    wanted = [body(number) for number in sorted(keep - {100})]
    assert reopened(bench.directory / NAME) == wanted
    assert compact(bench) < 10
    assert reopened(bench.directory / NAME) == wanted


@pytest.mark.parametrize("after", STEPS)
def test_the_segment_may_go_meanwhile(bench: Bench, after: int) -> None:
    fill(bench, {0, 700})

    run_and_interrupt(bench, after, lambda: bench.send(settle(ACK, 1, 0)))
    bench.run()

    assert reopened(bench.directory / NAME) == [body(700)]
    assert not list((bench.directory / NAME).glob("*.0000000001"))


@pytest.mark.parametrize("after", STEPS)
@pytest.mark.parametrize("end", [_core.Queue.close, _core.Queue.delete])
def test_the_queue_may_end_meanwhile(
    bench: Bench, after: int, end: Callable[[_core.Queue], object]
) -> None:
    fill(bench, {0, 700})

    run_and_interrupt(bench, after, lambda: end(bench.kept))  # type: ignore[attr-defined]

    assert reopened(bench.directory / NAME) == [body(0), body(700)]


def test_the_steps_come_to_an_end_within_those_that_are_tried(bench: Bench) -> None:
    fill(bench, {0, 700})

    assert run_and_interrupt(bench, STEPS[-3], bench.run) is False
