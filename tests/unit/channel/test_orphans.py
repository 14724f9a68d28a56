"""Deliveries of a channel that ends, and settlements of very many: in portions, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, publish, settle

MANY = 3000
ACK, NACK, REQUEUE, MULTIPLE = 80, 120, 2, 1


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as bench:
        yield bench


def body(number: int) -> bytes:
    return b"%d" % number


def held(bench: Bench, n: int = MANY) -> _core.Queue:
    """A queue whose messages, which are numbered, are all unacked on channel 2."""
    queue = bench.queue("q", segment_size=65_536)
    for number in range(n):
        bench.send(publish(b"q", body(number)))
    bench.run()
    bench.link.open_channel(2, 0)
    for _ in range(n):
        assert bench.link.get(2, queue, False)
    bench.link.flush()
    bench.receive()
    bench.run()
    assert (queue.ready, queue.unacked) == (0, n)
    return queue


def turn(bench: Bench) -> None:
    """One turn of the loop, in which as little is done as can be."""
    bench.events.ready.pop(0)()


def bodies(bench: Bench, queue: _core.Queue) -> list[bytes]:
    found = []
    while (got := bench.get(queue)) is not None:
        found.append(got.body)
        assert got.redelivered
    return found


def test_many_deliveries_of_a_closed_channel_come_back_in_turns(bench: Bench) -> None:
    queue = held(bench)
    bench.loop.portion_units = 1
    told: list[int] = []

    bench.link.close_channel(2, False)
    bench.loop.when_returned(lambda: told.append(queue.ready))
    turn(bench)

    assert 0 < queue.ready < MANY
    assert queue.ready + queue.unacked == MANY
    assert not told
    bench.run()
    assert (queue.ready, queue.unacked) == (MANY, 0)
    assert told == [MANY]


def test_many_who_wait_for_what_comes_back_are_told_in_turns(bench: Bench) -> None:
    held(bench)
    bench.loop.portion_units = 1
    told: list[int] = []

    bench.link.close_channel(2, False)
    for n in range(50):
        bench.loop.when_returned(partial(told.append, n))
    while bench.events.ready:
        before = len(told)
        turn(bench)
        assert len(told) - before <= 1

    assert told == list(range(50))


def test_nothing_is_delivered_before_older_messages_are_back(bench: Bench) -> None:
    queue = held(bench)
    bench.loop.portion_units = 1
    bench.link.close_channel(2, True)
    turn(bench)
    bench.send(publish(b"q", b"younger"))

    assert queue.ready
    assert bench.get(queue) is None
    bench.loop.portion_units = 0
    bench.run()
    for number in range(MANY):
        got = bench.get(queue)
        assert got is not None
        assert got.body == body(number)
    got = bench.get(queue)
    assert got is not None
    assert got.body == b"younger"


def test_an_operator_moves_nothing_before_older_messages_are_back(bench: Bench) -> None:
    queue, to = held(bench), bench.queue("to", segment_size=65_536)
    move = _core.Move(queue, to)
    bench.loop.portion_units = 1
    bench.link.close_channel(2, True)
    turn(bench)
    bench.send(publish(b"q", b"younger"))

    assert queue.ready
    assert move.some(MANY) is None
    bench.loop.portion_units = 0
    bench.run()
    while move.some(MANY):
        bench.run()
    moved = [got.body for got in iter(lambda: bench.get(to), None)]
    assert moved == [*map(body, range(MANY)), b"younger"]


def test_what_comes_back_while_its_queue_is_deleted_is_forgotten(bench: Bench) -> None:
    queue = held(bench)
    bench.loop.portion_units = 1
    bench.link.close_channel(2, False)
    turn(bench)

    bench.exchange.unbind(b"q", b"", queue)
    queue.delete()
    bench.run()

    told: list[bool] = []
    bench.loop.when_returned(lambda: told.append(True))
    assert (queue.ready, told) == (0, [True])


def test_a_queue_is_written_out_with_all_that_was_on_its_way_back(
    bench: Bench, tmp_path: Path
) -> None:
    queue = held(bench)
    bench.loop.portion_units = 1
    bench.link.close_channel(2, False)
    turn(bench)

    bench.exchange.unbind(b"q", b"", queue)
    queue.close()

    bench.loop.portion_units = 0
    again = bench.queue("q", segment_size=65_536)
    assert again.ready == MANY
    assert bodies(bench, again) == [body(number) for number in range(MANY)]


def test_recover_gives_back_more_than_fits_in_a_turn(bench: Bench) -> None:
    queue = held(bench)
    bench.loop.portion_units = 1

    bench.link.recover(2, False)
    turn(bench)

    assert 0 < queue.ready < MANY
    bench.run()
    assert (queue.ready, bench.link.unacked(2)) == (MANY, 0)


@pytest.mark.parametrize("tag", [0, MANY])
@pytest.mark.parametrize("method", [ACK, NACK])
def test_settling_very_many_goes_in_turns_and_spares_later_deliveries(
    bench: Bench, method: int, tag: int
) -> None:
    queue = held(bench)
    bench.loop.portion_units = 1

    bench.client.send(settle(method, tag, MULTIPLE, channel=2))
    bench.link.on_readable()

    assert 0 < queue.unacked < MANY
    bench.loop.portion_units = 0
    bench.send(publish(b"q", b"later"))  # waits for its turn, as all of this client does
    bench.run()
    assert queue.unacked == 0
    assert [got.body for got in [bench.get(queue)] if got is not None] == [b"later"]


def test_messages_delivered_during_a_settlement_are_not_settled(bench: Bench) -> None:
    queue = held(bench)
    bench.loop.portion_units = 1
    local = _core.LocalChannel(bench.loop, bench.vhost, b"guest", True)
    local.publish(bench.exchange, b"", b"q", b"\0\0", b"later")

    bench.client.send(settle(ACK, 0, MULTIPLE, channel=2))
    bench.link.on_readable()
    assert 0 < bench.link.unacked(2) < MANY
    assert bench.link.get(2, queue, False)
    bench.run()

    assert (bench.link.unacked(2), queue.unacked) == (1, 1)
