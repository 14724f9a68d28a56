"""The engine in many threads at once: program threads publish, settle, ask and let go, while one
plays the loop. With a GIL it proves little; without one, and below ThreadSanitizer, all of it.

`CLIENT_THREADS_ROUNDS` has each test do more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lavinmq.client import _engine
from tests.support import client_frames as frames

ROUNDS = int(os.environ.get("CLIENT_THREADS_ROUNDS", "300"))
PROGRAMS = 3
DEADLINE_S = 300.0
MOST = 1 << 16


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Have a GIL go round as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(*works: Callable[[], None]) -> None:
    """Run all in threads of their own, from one moment on. Raises: what one of them raised."""
    start = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            start.wait(DEADLINE_S)
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def pause() -> None:
    """Leave the processor to those who get on."""
    time.sleep(0.0001)


class Ring(_engine.Ring):
    """A ring with a loop that looks at it all the time."""

    def __init__(self, **options: Any) -> None:
        self.woken = 0
        self.configure(**{"routing_key": "q", **options})

    def wake(self) -> None:
        self.woken += 1

    def full(self, body: bytes, prepared: Any) -> Any:
        return None


class Loop:
    """What the loop's thread does for a ring: send, hear, tell; and lose its connection."""

    def __init__(self, ring: Ring, answer: str = "confirm") -> None:
        self.ring, self.answer = ring, answer
        self.out = _engine.Output()
        self.bodies: list[bytes] = []
        self.outcomes: Counter[str] = Counter()
        self.connect()

    def connect(self) -> None:
        self.input = _engine.Input()
        self.input.open(_engine.Port(1, ring=self.ring))
        self.ring.attach(1, 131072)
        self.tag = 0

    def turn(self) -> None:
        pause()
        n = self.ring.pump(self.out, MOST, "too large", "expired")
        sent = [payload for kind, _, payload in frames.cut(self.out.take()) if kind == 3]
        assert len(sent) == n
        self.bodies += sent
        self.tag += n
        if n:
            self.input.feed(frames.confirm(1, self.tag, multiple=True))
        self.tell()

    def tell(self) -> None:
        # Once: programs may end messages as fast as they are told of.
        for receipt in self.ring.take_ended():
            receipt.run_callbacks(frames.raised)
        self.outcomes.update(outcome for outcome, _, _ in self.ring.take_outcomes())

    def lose(self) -> None:
        self.ring.reset()
        self.connect()


def looked_at(ring: Ring) -> None:
    """As metrics and health polls do."""
    buckets = sum(ring.latency_buckets)
    assert 0 <= ring.count <= ring.published and ring.first <= ring.last
    assert buckets <= ring.count_of("confirmed")
    for figure in (ring.n_bytes, ring.in_flight, ring.resent, ring.nacks, ring.memory):
        assert figure >= 0
    assert ring.oldest_flight >= 0.0
    assert ring.retry_in is None or ring.retry_in >= 0.0
    assert isinstance(ring.has_work or ring.waits_for_room or ring.accepting, bool)


def publish_all(ring: Ring, number: int, told: list[str]) -> None:
    """What a program does with messages and their receipts."""
    kept = []
    for n in range(ROUNDS):
        body = b"%d %d" % (number, n)
        options = {"headers": {"n": n}} if n % 3 == 0 else {}
        while (receipt := ring.publish(body, **options)) is None:
            pause()
        if n % 2:
            receipt.add_done_callback(lambda done: told.append(done.status))
        if n % 5 == 0:
            kept.append(receipt)
        assert receipt.status in ("buffered", "sent", "confirmed")
        assert (receipt.size, receipt.failed, receipt.reason) == (1, 0, None)
    for receipt in kept:
        while not receipt.done():
            pause()
        assert receipt.value() == "confirmed" and receipt.delivery_tag > 0


@pytest.mark.parametrize("loses", [False, True])
def test_publishing_from_many_threads_ends_each_message_once_and_in_order(loses: bool) -> None:
    ring = Ring(capacity=200, max_in_flight=50, properties={"delivery_mode": 2})
    ring.want("confirmed")
    loop = Loop(ring)
    told: list[str] = []
    left = list(range(PROGRAMS))

    def program(number: int) -> None:
        publish_all(ring, number, told)
        left.pop()

    def turning() -> None:
        turns = 0
        while left or ring.count:
            loop.turn()
            turns += 1
            if loses and turns % 20 == 0:
                loop.lose()

    def looking() -> None:
        while left or ring.count:
            looked_at(ring)
            pause()

    at_once(turning, looking, *(lambda k=k: program(k) for k in range(PROGRAMS)))
    loop.tell()

    total = PROGRAMS * ROUNDS
    assert loop.outcomes == {"confirmed": total} == {"confirmed": ring.count_of("confirmed")}
    assert ring.count == ring.n_bytes == ring.in_flight == 0
    assert told == ["confirmed"] * (PROGRAMS * (ROUNDS // 2))
    for number in range(PROGRAMS):
        mine = [int(body.split()[1]) for body in loop.bodies if body.split()[0] == b"%d" % number]
        assert list(dict.fromkeys(mine)) == list(range(ROUNDS))


def test_batches_of_many_threads_end_when_all_of_each_has() -> None:
    ring = Ring(capacity=100, max_in_flight=50)
    loop = Loop(ring)
    left = list(range(PROGRAMS))

    def program() -> None:
        for n in range(ROUNDS // 10):
            receipt, bodies, at = ring.batch(), [b"x"] * (n + 1), 0
            while at < len(bodies):
                at = ring.add_many(bodies, at, (None, None, 0), receipt)
                if at < len(bodies) and (more := ring.publish(bodies[at])) is not None:
                    receipt.adopt(more)
                    at += 1
                else:
                    pause()
            receipt.seal()
            while not receipt.done():
                assert receipt.size == n + 1
                pause()
            assert receipt.value() == "confirmed" and receipt.failed == 0
        left.pop()

    def turning() -> None:
        while left or ring.count:
            loop.turn()

    at_once(turning, *[program] * PROGRAMS)

    assert ring.count == 0


def test_closing_while_others_publish_ends_what_was_taken() -> None:
    for _ in range(max(1, ROUNDS // 100)):
        ring = Ring(capacity=500, max_in_flight=20)
        loop = Loop(ring)
        receipts: list[Any] = []
        is_closed = threading.Event()

        def program(ring: Ring = ring, receipts: list[Any] = receipts) -> None:
            # Not for ever: below a sanitizer who tells callbacks would never be done.
            while ring.accepting and len(receipts) < MOST:
                if (receipt := ring.publish(b"x")) is not None:
                    receipts.append(receipt)
                    receipt.add_done_callback(lambda _: None)
                ring.drop_oldest("full")

        def turning(ring: Ring = ring, loop: Loop = loop, closed: Any = is_closed) -> None:
            for _ in range(30):
                loop.turn()
                ring.expire("expired")
            ring.accepting = False
            while ring.count:
                ring.give_up("closed")
                loop.tell()
            closed.set()

        at_once(turning, *[program] * PROGRAMS)
        ring.give_up("closed")

        assert is_closed.is_set() and ring.count == 0
        ends = Counter(each.status for each in receipts)
        assert set(ends) <= {"confirmed", "dropped"}
        assert ends["confirmed"] == ring.count_of("confirmed")


def test_receipts_may_be_let_go_of_while_they_end() -> None:
    ring = Ring(capacity=300, max_in_flight=300)
    loop = Loop(ring)
    left = list(range(PROGRAMS))

    def program() -> None:
        for _ in range(ROUNDS):
            kept = [ring.publish(b"y") for _ in range(5)]
            while kept:
                kept.pop(0)
        left.pop()

    def turning() -> None:
        while left or ring.count:
            loop.turn()

    at_once(turning, *[program] * PROGRAMS)

    assert ring.count == 0


def test_what_comes_out_of_a_file_and_what_is_published_share_a_ring() -> None:
    ring = Ring(capacity=200, max_in_flight=100, stamped=True,
                properties={"message_id": _engine.SEQUENCE_MARK})  # fmt: skip
    loop = Loop(ring)
    left = list(range(PROGRAMS))
    ended: list[str] = []

    def program() -> None:
        for n in range(ROUNDS):
            props, target, flags = ring.stamped((None, None, 0))
            receipt = ring.loose_receipt()
            receipt.add_done_callback(lambda done: ended.append(done.status))
            while not ring.add_spilled(b"spilled", props, target, flags, receipt, True):
                pause()
            while ring.publish(b"published") is None:
                pause()
            if n % 10 == 0:
                ring.refuse(b"refused", (None, None, 0), "full").value  # noqa: B018
        left.pop()

    def turning() -> None:
        while left or ring.count:
            loop.turn()
        loop.tell()

    at_once(turning, *[program] * PROGRAMS)

    assert ended == ["confirmed"] * (PROGRAMS * ROUNDS)
    assert Counter(loop.bodies) == {b"spilled": PROGRAMS * ROUNDS, b"published": PROGRAMS * ROUNDS}


def test_acks_from_many_threads_settle_each_delivery_once() -> None:
    tracker, reading = _engine.Tracker(), _engine.Input()
    woken: list[None] = []
    tracker.wake = lambda: woken.append(None)
    tracker.reset(2)
    port = _engine.Port(2, tracker=tracker)
    reading.open(port)
    messages: list[Any] = []
    settled: Counter[str] = Counter()
    lock = threading.Lock()
    out = _engine.Output()
    told: list[tuple[bool, int, bool]] = []
    is_over = threading.Event()

    def turning() -> None:
        for tag in range(1, ROUNDS + 1):
            reading.feed(frames.delivery(2, tag, b"%d" % tag, props=b"\x20\x00" + table()))
            messages.extend(port.take())
            flush()
        is_over.set()

    def flush() -> None:
        tracker.flush(out)
        for _, _, payload in frames.cut(out.take()):
            tag, bits = int.from_bytes(payload[4:12], "big"), payload[12]
            told.append((payload[3] == 80, tag, bool(bits & 1)))

    def program(number: int) -> None:
        at = 0
        while True:
            is_last = is_over.is_set()  # before the look for more
            if at == len(messages):
                if is_last:
                    return
                pause()
                continue
            message = messages[at]
            assert message.headers == {"k": "v"} and message.parse is not None
            way = (at + number) % 3
            is_mine = message.nack(False) if way == 2 else message.ack()
            assert message.settled
            with lock:
                settled["settled"] += is_mine
            at += 1

    def looking() -> None:
        while not is_over.is_set():
            assert tracker.acked + tracker.rejected <= ROUNDS
            assert tracker.settled_to <= ROUNDS and len(tracker.unacked_tags) <= ROUNDS
            assert reading.bytes_in >= 0 and tracker.wants_flush in (False, True)
            pause()

    at_once(turning, looking, *(lambda k=k: program(k) for k in range(PROGRAMS)))
    flush()

    assert tracker.delivered == ROUNDS
    assert (settled["settled"], tracker.acked + tracker.rejected) == (ROUNDS, ROUNDS)
    assert tracker.count == 0 and tracker.unacked_tags == [] and woken
    refused = [tag for is_ack, tag, _ in told if not is_ack]
    assert len(refused) == len(set(refused)) == tracker.rejected


def table() -> bytes:
    """Headers with one text."""
    return _engine.encode_table({"k": "v"})


def test_what_goes_on_shares_its_ring_and_its_tracker_with_other_threads() -> None:
    ring, tracker = Ring(capacity=10_000, max_in_flight=100), _engine.Tracker()
    passage = _engine.Passage(ring, exchange="", routing_key="to")
    source = _engine.Input()
    port = _engine.Port(2, tracker=tracker)
    source.open(port)
    tracker.reset(2)
    passage.restart(tracker)
    port.passage = passage
    loop, out = Loop(ring), _engine.Output()
    left = list(range(PROGRAMS))

    def turning() -> None:
        for tag in range(1, ROUNDS + 1):
            source.feed(frames.delivery(2, tag, b"passing"))
            loop.turn()
            tracker.flush(out)
            out.take()
        while left or ring.count:
            loop.turn()

    def program() -> None:
        for n in range(ROUNDS):
            while ring.publish(b"published") is None:
                pause()
            tracker.ack(n)
        left.pop()

    at_once(turning, *[program] * PROGRAMS)

    assert Counter(loop.bodies) == {b"passing": ROUNDS, b"published": PROGRAMS * ROUNDS}
    assert tracker.count == 0 and ring.count == 0
