"""Messages whose destination is closed stay parked in their queue, and go on in their order."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, TimedEvents, frame, properties, publish, settle

PAUSE_MS = 600
LETTERS = 300
OTHER_VERSION = b"\x09\0\0\0"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path / "data", TimedEvents())) as made:
        yield made


def closed_queue(bench: Bench, name: str = "dead") -> _core.Queue:
    """A queue whose only segment has another version."""
    directory = bench.directory / name
    directory.mkdir()
    (directory / "msgs.0000000001").write_bytes(OTHER_VERSION)
    queue = _core.Queue(
        bench.loop, str(directory), 4096, True, name=name.encode(), vhost=bench.vhost
    )
    with pytest.raises(ValueError, match="version"):
        queue.load()
    bench.exchange.bind(name.encode(), b"", queue)
    bench._queues.append(queue)
    return queue


def open_queue(bench: Bench, queue: _core.Queue, name: str = "dead") -> None:
    (bench.directory / name / "msgs.0000000001").unlink()
    queue.restart()


def reject_all(bench: Bench, source: _core.Queue, count: int) -> None:
    for number in range(count):
        bench.send(publish(b"source", b"%d" % number))
        got = bench.get(source, no_ack=False)
        assert got is not None
        bench.send(settle(90, got.tag, 0))
    bench.run()


def bodies(bench: Bench, queue: _core.Queue) -> list[bytes]:
    return [got.body for got in iter(lambda: bench.get(queue), None)]


@pytest.mark.parametrize("durable", [True, False])
def test_parked_letters_arrive_in_the_order_of_their_deaths(bench: Bench, durable: bool) -> None:
    dead = closed_queue(bench)
    source = bench.queue("source", durable=durable, target=b"", target_key=b"dead")
    reject_all(bench, source, LETTERS)
    assert (source.ready, source.parked, source.refuser) == (LETTERS, LETTERS, b"dead")
    assert bench.get(source) is None
    bench.advance(PAUSE_MS)
    assert source.parked == LETTERS

    open_queue(bench, dead)
    for _ in range(20):
        bench.advance(PAUSE_MS)

    assert (source.ready, source.parked, source.refuser) == (0, 0, b"")
    assert bodies(bench, dead) == [b"%d" % number for number in range(LETTERS)]


def test_a_letter_for_a_queue_that_works_passes_those_that_are_parked(bench: Bench) -> None:
    closed_queue(bench)
    well = bench.queue("well")
    source = bench.queue("source", target=b"", target_key=b"dead")
    reject_all(bench, source, 3)
    own = properties(headers=b"\x19x-dead-letter-routing-keyS\0\0\0\x04well", expiration="0")
    bench.link.allow(_core.ASK_KIND_LETTER_KEY, b"", [], None)

    bench.send(publish(b"source", b"expires", own))
    bench.advance(1)

    assert bodies(bench, well) == [b"expires"]
    assert source.parked == 3


def test_a_purge_takes_parked_messages_first_and_no_more_than_it_is_told(bench: Bench) -> None:
    closed_queue(bench)
    source = bench.queue("source", target=b"", target_key=b"dead")
    reject_all(bench, source, 5)
    bench.send(publish(b"source", b"ready") * 2)
    bench.run()
    assert source.ready == 7

    purge = _core.Purge(source, 4)
    assert list(purge)[-1] == 4
    assert (source.ready, source.parked) == (3, 1)
    assert source.purge() == 3

    assert (source.ready, source.parked) == (0, 0)


def test_what_is_parked_is_there_after_a_start(bench: Bench) -> None:
    closed_queue(bench)
    source = bench.queue("source", target=b"", target_key=b"dead")
    reject_all(bench, source, 3)
    source.close()

    again = bench.queue("source")

    assert (again.ready, again.parked) == (3, 0)
    assert bodies(bench, again) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("which", ["source", "destination", "both"])
def test_deleting_queues_with_parked_messages_is_harmless(bench: Bench, which: str) -> None:
    dead = closed_queue(bench)
    source = bench.queue("source", target=b"", target_key=b"dead")
    reject_all(bench, source, 3)
    for name, queue in (("source", source), ("destination", dead)):
        if which in (name, "both"):
            bench.exchange.unbind(b"source" if queue is source else b"dead", b"", queue)
            queue.delete()

    bench.advance(PAUSE_MS)
    bench.advance(PAUSE_MS)

    assert (source.ready, source.parked) == (0, 0)


def test_a_released_message_stays_until_all_its_queues_can_take_it(bench: Bench) -> None:
    late = _core.Exchange(_core.FANOUT, 1)
    bench.vhost.add(b"late", late)
    waiting = bench.queue("waiting")
    late.set_delayed(b"late", waiting)
    dead, well = closed_queue(bench), bench.queue("well")
    for name, queue in ((b"dead", dead), (b"well", well)):
        late.bind(name, b"", queue)
    bench.vhost.touch()
    bench.link.learn(b"late", late)
    headers = b"\x07x-delayI\0\0\0\x64"
    content = b"\0\x3c\0\0" + struct.pack(">Q", 1) + properties(headers=headers)
    bench.send(frame(1, b"\0\x3c\0\x28\0\0\x04late\x01k\0") + frame(2, content) + frame(3, b"m"))
    bench.run()
    assert waiting.ready == 1

    bench.advance(200)
    assert (waiting.ready, waiting.parked, well.ready) == (1, 1, 0)
    open_queue(bench, dead)
    bench.advance(PAUSE_MS)

    assert (waiting.ready, bodies(bench, dead), bodies(bench, well)) == (0, [b"m"], [b"m"])


def test_a_move_to_a_closed_queue_moves_nothing(bench: Bench) -> None:
    dead = closed_queue(bench)
    source = bench.queue("source")
    bench.send(publish(b"source", b"m"))
    bench.run()

    assert _core.Move(source, dead).some(1) == 0

    assert (source.ready, source.returned) == (1, 0)


def test_a_disk_that_fails_under_a_queue_of_its_own_letters_is_harmless(bench: Bench) -> None:
    """What was moved in this tick is let go of once, also by a queue that breaks meanwhile."""
    source = bench.queue("source", target=b"", target_key=b"source")
    (bench.directory / "source").write_bytes(b"no directory")
    bench.send(b"".join(publish(b"source", b"%d" % number) for number in range(10)))
    got = [bench.get(source, no_ack=False) for _ in range(10)]
    bench.send(b"".join(settle(90, each.tag, 0) for each in got if each is not None))
    assert not source.is_closed
    bench.run()

    assert source.is_closed
    bench.exchange.unbind(b"source", b"", source)
    bench._queues.clear()
    source.delete()
    del source
    bench.run()
