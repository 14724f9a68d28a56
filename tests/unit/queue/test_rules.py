"""What a queue does with messages by its rules, with a clock that the test moves.

Each test is one way in which messages, counters or files could go wrong: out-of-order deadlines,
positions that are used twice, delivery counts that outlive their message, syncs that never cover
all. Random sequences of the same things are in test_rules_model.py.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, TimedEvents, properties, publish, settle

MINUTE_MS = 60_000
MakeBench = Callable[[], Bench]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    """Call it for a bench on the test's directory; all are closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Bench(tmp_path / "data", TimedEvents())))


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


def put(bench: Bench, body: bytes, queue: bytes = b"q", **what: object) -> None:
    bench.send(publish(queue, body, properties(**what)))  # type: ignore[arg-type]


def bodies(bench: Bench, queue: _core.Queue) -> list[bytes]:
    """Take all that is ready."""
    found = []
    while (got := bench.get(queue)) is not None:
        found.append(got.body)
    bench.run()
    return found


def close(bench: Bench, queue: _core.Queue, name: bytes = b"q") -> None:
    bench.run()
    bench.exchange.unbind(name, b"", queue)
    queue.close()


# --- deadlines


def test_a_message_expires_behind_one_that_does_not(bench: Bench) -> None:
    """edge-cases.md 171: the first message was there before anything could expire."""
    queue = bench.queue("q")
    put(bench, b"stays")
    put(bench, b"goes", expiration="1000")
    bench.run()
    bench.advance(2000)
    assert queue.ready == 1
    assert bodies(bench, queue) == [b"stays"]


def test_a_message_expires_behind_one_that_lives_longer(bench: Bench) -> None:
    """edge-cases.md 172, also without consuming the head."""
    queue = bench.queue("q")
    put(bench, b"long", expiration="60000")
    put(bench, b"short", expiration="500")
    bench.run()
    bench.advance(1000)
    assert queue.ready == 1
    bench.advance(MINUTE_MS)
    assert queue.ready == 0


@pytest.mark.parametrize("has_had_a_ttl", [False, True])
def test_a_message_expires_behind_one_without_a_deadline_among_others(
    bench: Bench, has_had_a_ttl: bool
) -> None:
    """One that never expires counts as in front of all later ones, whatever came before it."""
    queue = bench.queue("q")
    if has_had_a_ttl:
        queue.set_features(ttl_ms=0)
        queue.set_features()
    else:
        put(bench, b"early", expiration="1000")
    put(bench, b"stays")
    put(bench, b"late", expiration="2000")

    bench.run()
    bench.advance(3000)

    assert queue.ready == 1
    assert bodies(bench, queue) == [b"stays"]


def test_what_expired_out_of_order_hides_no_later_message(bench: Bench) -> None:
    """A transient queue that runs empty uses the same positions again."""
    queue = bench.queue("q", durable=False)
    put(bench, b"a" * 20, expiration="60000")
    put(bench, b"b" * 20, expiration="1000")
    bench.run()
    bench.advance(2000)
    assert bodies(bench, queue) == [b"a" * 20]
    for number in range(3):
        put(bench, b"%020d" % number)
    bench.run()
    assert bodies(bench, queue) == [b"%020d" % number for number in range(3)]


@pytest.mark.parametrize("count", [3, 6000])
def test_requeued_messages_expire_in_time(bench: Bench, count: int) -> None:
    """Also one that lives shorter than thousands of requeued ones before it."""
    queue = bench.queue("q", segment_size=1 << 20)
    for number in range(count):
        put(bench, b"%d" % number, expiration="60000" if number < count - 1 else "30000")
    got = [bench.get(queue, no_ack=False) for _ in range(count)]
    assert got[-1] is not None
    bench.advance(1000)
    bench.send(settle(120, got[-1].tag, 3))
    bench.run()
    assert (queue.ready, queue.unacked) == (count, 0)
    bench.advance(30_000)
    assert queue.ready == count - 1
    bench.advance(MINUTE_MS)
    assert queue.ready == 0
    assert queue.counters()["redeliver"] == 0


def test_a_queue_ttl_works_after_a_restart_with_an_empty_queue(make_bench: MakeBench) -> None:
    """edge-cases.md 177"""
    bench = make_bench()
    close(bench, bench.queue("q", ttl_ms=1000))
    bench = make_bench()
    queue = bench.queue("q", ttl_ms=1000)
    put(bench, b"x")
    bench.run()
    bench.advance(2000)
    assert queue.ready == 0


def test_messages_expire_after_a_restart_wherever_they_are(make_bench: MakeBench) -> None:
    """edge-cases.md 177: nobody takes the head, and the segments before it are finished."""
    bench = make_bench()
    queue = bench.queue("q")
    for number in range(300):
        put(bench, b"." * 100, expiration="60000" if number % 3 == 0 else None)
        bench.run()
    close(bench, queue)
    bench = make_bench()
    queue = bench.queue("q")
    bench.advance(1000)
    assert queue.ready == 300
    for number in range(6):
        put(bench, b"new", expiration="90000" if number % 2 else None)
    bench.advance(MINUTE_MS)
    assert queue.ready == 206
    bench.advance(MINUTE_MS)
    assert queue.ready == 203


def test_a_ttl_of_zero_empties_a_queue_and_taking_it_away_ends_that(bench: Bench) -> None:
    """edge-cases.md 178"""
    queue = bench.queue("q")
    for _ in range(5):
        put(bench, b"x")
    bench.run()
    queue.set_features(ttl_ms=0)
    bench.advance(10)
    assert queue.ready == 0
    queue.set_features()
    put(bench, b"y")
    bench.run()
    bench.advance(MINUTE_MS)
    assert queue.ready == 1


def test_no_timer_runs_when_nothing_can_expire(bench: Bench) -> None:
    """edge-cases.md 174"""
    assert isinstance(bench.events, TimedEvents)
    queue = bench.queue("q")
    put(bench, b"x")
    bench.run()
    assert not bench.events.pending
    put(bench, b"y", expiration="1000")
    bench.run()
    assert bench.events.pending
    bodies(bench, queue)
    bench.advance(5000)
    assert not bench.events.pending


def test_the_timer_waits_for_parts_of_a_second(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not wait at all: the loop turned without a pause until the deadline."""
    assert isinstance(bench.events, TimedEvents)
    call_later, waits = bench.events.call_later, list[float]()

    def noted(delay_s: float, callback: Callable[[], object]) -> object:
        waits.append(delay_s)
        return call_later(delay_s, callback)

    bench.queue("q")
    bench.run()
    monkeypatch.setattr(bench.events, "call_later", noted)
    put(bench, b"x", expiration="1700")
    bench.run()

    assert 1.5 < max(waits) <= 1.7
    assert min(waits) > 0


def test_a_purge_that_leaves_unacked_messages_forgets_no_deadline(bench: Bench) -> None:
    """edge-cases.md 173"""
    queue = bench.queue("q")
    put(bench, b"held", expiration="5000")
    put(bench, b"gone", expiration="1000")
    got = bench.get(queue, no_ack=False)
    assert got is not None
    assert queue.purge() == 1
    bench.send(settle(120, got.tag, 2))
    bench.run()
    assert queue.ready == 1
    bench.advance(6000)
    assert queue.ready == 0


# --- delivery counts


@pytest.mark.parametrize("how", ["no-ack", "purge"])
def test_a_new_message_does_not_inherit_a_count(bench: Bench, how: str) -> None:
    """It may come to stand where one stood that was delivered and requeued."""
    queue = bench.queue("q", durable=False, delivery_limit=1)
    put(bench, b"old")
    got = bench.get(queue, no_ack=False)
    assert got is not None
    bench.send(settle(120, got.tag, 2))
    if how == "purge":
        assert queue.purge() == 1
    else:
        assert bench.get(queue) is not None
    bench.run()
    put(bench, b"new")
    got = bench.get(queue, no_ack=False)
    assert got is not None
    assert (got.body, got.redelivered) == (b"new", False)


def test_counts_of_messages_that_are_gone_are_not_read_again(
    make_bench: MakeBench, tmp_path: Path
) -> None:
    """A loss of power can take messages and leave their counts."""
    bench = make_bench()
    queue = bench.queue("q", delivery_limit=1)
    put(bench, b"x")
    bench.run()
    close(bench, queue)
    entry = struct.pack("<III", 1, 4096 - 100, 1) + struct.pack("<III", 9, 4, 1)
    (tmp_path / "data" / "q" / "deliveries").write_bytes(entry)
    bench = make_bench()
    queue = bench.queue("q", delivery_limit=1)
    assert not (tmp_path / "data" / "q" / "deliveries").exists()


def test_a_store_without_segments_has_no_counts(make_bench: MakeBench, tmp_path: Path) -> None:
    (tmp_path / "data" / "q").mkdir(parents=True)
    (tmp_path / "data" / "q" / "deliveries").write_bytes(struct.pack("<III", 1, 4, 1))
    bench = make_bench()
    queue = bench.queue("q", delivery_limit=1)
    put(bench, b"x")
    got = bench.get(queue, no_ack=False)
    assert got is not None
    assert not got.redelivered
    bench.run()
    close(bench, queue)
    bench = make_bench()
    got = bench.get(bench.queue("q", delivery_limit=1))
    assert got is not None
    assert got.redelivered


def test_a_message_delivered_and_acked_in_one_tick_leaves_the_queue_working(bench: Bench) -> None:
    """The directory of its level does not exist then."""
    queue = bench.queue("q", max_priority=3, delivery_limit=1)
    put(bench, b"x", priority=2)
    got = bench.get(queue, no_ack=False)
    assert got is not None
    bench.send(settle(80, got.tag, 0))
    bench.run()
    assert not queue.is_closed


def test_a_lower_limit_is_kept_for_messages_behind_the_head(bench: Bench) -> None:
    """edge-cases.md 193"""
    queue = bench.queue("q", delivery_limit=5)
    put(bench, b"once")
    put(bench, b"thrice")
    put(bench, b"fresh")
    for times in (0, 2):
        for _ in range(times + 1):
            got = [bench.get(queue, no_ack=False) for _ in range(1 + (times > 0))]
            assert got[-1] is not None
            bench.send(settle(120, got[-1].tag, 3))
    queue.set_features(delivery_limit=0)
    bench.run()
    assert bodies(bench, queue) == [b"fresh"]
    queue.set_features()
    put(bench, b"later")
    assert bodies(bench, queue) == [b"later"]


# --- dead letters


def test_overflow_in_a_ring_of_fanouts_ends(bench: Bench) -> None:
    """Each queue gives what it drops to all others: the broker has to stay responsive."""
    fanout = _core.Exchange(_core.FANOUT, 1)
    bench.vhost.add(b"x", fanout)
    queues = [bench.queue(f"q{n}", durable=False, max_length=0, target=b"x") for n in range(9)]
    for queue in queues:
        fanout.bind(b"", b"", queue)
    put(bench, b"x", queue=b"q0")
    for _ in range(3):
        bench.loop.tick()
    assert bench.link.state == _core.STATE_OPEN


def test_a_dead_letter_that_a_full_queue_refuses_is_lost(bench: Bench) -> None:
    """edge-cases.md 126: also when that queue would dead-letter publishes that it refuses."""
    rule = _core.OVERFLOW["reject-publish-dlx"]
    fanout = _core.Exchange(_core.FANOUT, 1)
    bench.vhost.add(b"x", fanout)
    full = bench.queue("full", max_length=0, overflow=rule, target=b"", target_key=b"last")
    others = [bench.queue(name) for name in ("a", "b", "c")]
    last = bench.queue("last")
    for queue in (others[0], full, *others[1:]):
        fanout.bind(b"", b"", queue)
    source = bench.queue("q", target=b"x", max_length=0)
    put(bench, b"letter")
    bench.run()
    assert [queue.ready for queue in (*others, full, last, source)] == [1, 1, 1, 0, 0, 0]
    put(bench, b"publish", queue=b"full")
    bench.run()
    assert bodies(bench, last) == [b"publish"]


def test_a_history_too_long_to_keep_ends_the_travel(bench: Bench) -> None:
    """Else a ring of more queues than entries are kept would go round for ever."""
    count = 1200
    queues = [
        bench.queue(f"q{n}", durable=False, max_length=0, target=b"",
                    target_key=b"q%d" % ((n + 1) % count))
        for n in range(count)
    ]  # fmt: skip
    put(bench, b"x", queue=b"q0")
    bench.run()
    assert sum(queue.ready for queue in queues) == 0


def test_a_history_of_many_bytes_ends_the_travel(bench: Bench) -> None:
    """Few entries may be as large: each tells the CC of the message. No frame would hold them."""
    copies = (
        b"\x02CCA" + struct.pack(">I", 20_005) + b"S" + struct.pack(">I", 20_000) + b"." * 20_000
    )
    queues = [
        bench.queue(f"q{n}", durable=False, max_length=0 if n < 9 else 1, target=b"",
                    target_key=b"q%d" % (n + 1))
        for n in range(10)
    ]  # fmt: skip
    put(bench, b"goes on", queue=b"q0")
    put(bench, b"ends", queue=b"q0", headers=copies)
    bench.run()
    assert bodies(bench, queues[9]) == [b"goes on"]


def test_moved_messages_are_deleted_while_others_are_being_moved(tmp_path: Path) -> None:
    """A sync that began after the move is enough, whatever is moved during it."""
    with closing(Bench(tmp_path / "data", TimedEvents(), sync=True)) as bench:
        bench.queue("dead", segment_size=1 << 20)
        queue = bench.queue("q", target=b"", target_key=b"dead")
        acks = tmp_path / "data" / "q"
        deadline = time.monotonic() + 10
        try:
            while not list(acks.glob("acks.*")):
                put(bench, b"x" * 100)
                bench.run()
                got = bench.get(queue, no_ack=False)
                assert got is not None
                bench.send(settle(90, got.tag, 0))
                bench.run()
                bench.loop.on_synced()
                time.sleep(0.002)  # a slow disk must not look like one that is never asked
                assert time.monotonic() < deadline, "no deletion was written"
            assert len(list(acks.glob("msgs.*"))) < 5
        finally:
            bench.loop.stop()


def test_dead_letters_are_not_in_both_queues_after_a_stop(make_bench: MakeBench) -> None:
    """edge-cases.md 211"""
    bench = make_bench()
    dead = bench.queue("dead")
    queue = bench.queue("q", target=b"", target_key=b"dead")
    for number in range(50):
        put(bench, b"%d" % number)
    bench.run()
    for _ in range(50):
        got = bench.get(queue, no_ack=False)
        assert got is not None
        bench.send(settle(90, got.tag, 0))
    bench.loop.tick()
    close(bench, queue)
    close(bench, dead, b"dead")
    bench = make_bench()
    assert bench.queue("q").ready == 0
    assert bodies(bench, bench.queue("dead")) == [b"%d" % number for number in range(50)]


def test_a_negative_count_in_x_death_counts_as_none(bench: Bench) -> None:
    """amqp.md 22.25"""
    entry = b"\x05queueS\0\0\0\x01q\x06reasonS\0\0\0\x08rejected\x05countI\xff\xff\xff\xff"
    deaths = b"\x07x-deathA" + struct.pack(">I", len(entry) + 5)
    deaths += b"F" + struct.pack(">I", len(entry)) + entry
    dead = bench.queue("dead")
    queue = bench.queue("q", target=b"", target_key=b"dead")
    put(bench, b"x", headers=deaths)
    got = bench.get(queue, no_ack=False)
    assert got is not None
    bench.send(settle(90, got.tag, 0))
    bench.run()
    letter = bench.get(dead)
    assert letter is not None
    assert b"\x05countl" + struct.pack(">q", 1) in letter.properties
