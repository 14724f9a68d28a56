"""Who gets the next message: the compiled queue against a model, under all forms of credit.

The model knows prefetch per consumer and per channel, flow, priorities and pauses. It does not
predict the order among equals; it checks of each delivery that its consumer could take it, that
none of higher priority could, and that nobody is served twice while an equal waits.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from lavinmq import _core
from tests.support.core import Bench, FakeEvents, Got, frame, publish, settle

ACK, REJECT = 80, 90
HEARTBEAT = frame(8, b"", 0)
CHANNELS = (1, 2, 3)
EXAMPLES = 120
STEPS = 80
MOST_CONSUMERS = 10
PREFETCH = 1
PRIORITIES = (0, 0, 5, 5, -(1 << 31), 1)


@dataclass(eq=False)
class Consumer:
    """A consumer: what it holds, and who was served since it began to wait."""

    tag: bytes
    channel: Channel
    priority: int
    no_ack: bool
    prefetch: int
    core: _core.Consumer
    unacked: int = 0
    served: set[bytes] = field(default_factory=set)

    @property
    def is_able(self) -> bool:
        """Whether it can take one more message."""
        if self.channel.is_stopped:
            return False
        if self.no_ack:
            return True
        limit = self.channel.shared
        return (not self.prefetch or self.unacked < self.prefetch) and (
            not limit or self.channel.taken < limit
        )


@dataclass(eq=False)
class Channel:
    """A channel: its credit, and its unacked deliveries by tag."""

    id: int
    prefetch: int = PREFETCH
    shared: int = 0
    is_stopped: bool = False
    taken: int = 0
    tag: int = 0
    unacked: dict[int, tuple[int, Consumer | None]] = field(default_factory=dict)


class DispatchMachine(RuleBasedStateMachine):
    """Does the same to a queue and to the model; checks every delivery."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.bench = Bench(Path(self.directory.name))
        self.queue = self.bench.queue("q", durable=False)
        for id_ in CHANNELS:
            if id_ > 1:
                self.bench.link.open_channel(id_, 0)
            self.bench.link.set_prefetch(id_, PREFETCH, False)
        self.channels = {id_: Channel(id_) for id_ in CHANNELS}
        self.consumers: dict[bytes, Consumer] = {}
        self.ready: list[tuple[bool, int]] = []  # never delivered before, number
        self.numbers = itertools.count()
        self.is_paused = False

    def teardown(self) -> None:
        self.bench.close()
        self.queue.close()
        self.directory.cleanup()

    ids = st.sampled_from(CHANNELS)
    choice = st.integers(0, 1000)

    @rule(n=st.sampled_from([1, 1, 1, 2, 3, 10]))
    def publish(self, n: int) -> None:
        for number in itertools.islice(self.numbers, n):
            self.bench.send(publish(b"q", b"%d" % number))
            self.ready.append((True, number))
        self.check()

    @precondition(lambda self: len(self.consumers) < MOST_CONSUMERS)
    @rule(
        wanted=st.lists(st.tuples(ids, st.sampled_from(PRIORITIES)), min_size=1, max_size=4),
        no_ack=st.sampled_from([False] * 15 + [True]),
    )
    def consume(self, wanted: list[tuple[int, int]], no_ack: bool) -> None:
        for id_, priority in wanted:
            self.consume_one(id_, priority, no_ack)

    def consume_one(self, id_: int, priority: int, no_ack: bool) -> None:
        channel, tag = self.channels[id_], b"c%d" % next(self.numbers)
        core = self.bench.link.add_consumer(id_, self.queue, tag, no_ack, priority)
        self.consumers[tag] = Consumer(tag, channel, priority, no_ack, channel.prefetch, core)
        self.bench.link.write(HEARTBEAT)  # as consume-ok would be
        core.start()
        self.check()

    @precondition(lambda self: self.consumers)
    @rule(choice=choice)
    def cancel(self, choice: int) -> None:
        self.consumers.pop(self.one_of(choice, self.consumers)).core.cancel()
        self.check()

    @rule(id_=ids, count=st.sampled_from([1, 2, 3, 4, 0]), is_shared=st.booleans())
    def qos(self, id_: int, count: int, is_shared: bool) -> None:
        channel = self.channels[id_]
        self.bench.link.set_prefetch(id_, count, is_shared)
        if is_shared:
            channel.shared = count
        else:
            channel.prefetch = count
            for consumer in self.consumers.values():
                if consumer.channel is channel:
                    consumer.prefetch = count
        self.check()

    @rule(id_=ids, no_ack=st.booleans())
    def get(self, id_: int, no_ack: bool) -> None:
        expected = self.ready if not self.is_paused else []
        assert self.bench.link.get(id_, self.queue, no_ack) is bool(expected)
        self.check(is_get=bool(expected), no_ack=no_ack)

    @precondition(lambda self: any(channel.unacked for channel in self.channels.values()))
    @rule(choice=choice, multiple=st.booleans())
    def ack(self, choice: int, multiple: bool) -> None:
        channel, tag = self.unsettled(choice)
        self.bench.send(settle(ACK, tag, multiple, channel.id))
        for each in [t for t in channel.unacked if t == tag or (multiple and t < tag)]:
            self.settled(channel, each)
        self.check()

    @precondition(lambda self: any(channel.unacked for channel in self.channels.values()))
    @rule(choice=choice, requeue=st.booleans())
    def reject(self, choice: int, requeue: bool) -> None:
        channel, tag = self.unsettled(choice)
        self.bench.send(settle(REJECT, tag, requeue, channel.id))
        number = self.settled(channel, tag)
        if requeue:
            self.ready.append((False, number))
        self.check()

    @rule(id_=ids)
    def requeue_all(self, id_: int) -> None:
        channel = self.channels[id_]
        self.bench.link.recover(id_, True)
        self.ready += [(False, self.settled(channel, tag)) for tag in list(channel.unacked)]
        self.check()

    @rule(id_=ids, is_active=st.sampled_from([True, True, True, False]))
    def flow(self, id_: int, is_active: bool) -> None:
        self.bench.link.set_flow(id_, is_active)
        self.channels[id_].is_stopped = not is_active
        self.check()

    @rule(is_paused=st.sampled_from([False, False, False, True]))
    def pause(self, is_paused: bool) -> None:
        self.queue.is_paused = self.is_paused = is_paused
        self.check()

    def one_of(self, choice: int, items: dict[bytes, Consumer]) -> bytes:
        return sorted(items)[choice % len(items)]

    def unsettled(self, choice: int) -> tuple[Channel, int]:
        """Choose an unacked delivery."""
        all_ = [(each, tag) for each in self.channels.values() for tag in each.unacked]
        return all_[choice % len(all_)]

    def settled(self, channel: Channel, tag: int) -> int:
        """A delivery is over. Returns: the number of its message."""
        number, consumer = channel.unacked.pop(tag)
        if consumer is not None:
            consumer.unacked -= 1
            channel.taken -= 1
        return number

    def check(self, is_get: bool = False, no_ack: bool = False) -> None:
        """Compare what is delivered now with what may be, and see that nothing is kept back."""
        self.ready.sort()  # what was delivered before comes first
        self.forget_who_cannot()
        self.bench.run()
        for got in self.bench.receive():
            consumer = self.consumers[got.consumer] if got.consumer else None
            assert (consumer is None) is is_get
            if consumer is not None:
                assert not self.is_paused
                self.check_turn(consumer)
                no_ack = consumer.no_ack
            is_get = False
            self.take(got, consumer, no_ack)
            self.forget_who_cannot()
        waiting = [] if self.is_paused else [c for c in self.consumers.values() if c.is_able]
        assert not (self.ready and waiting), "a message waits, and a consumer for it"
        assert self.queue.ready == len(self.ready)
        assert self.queue.unacked == sum(len(each.unacked) for each in self.channels.values())
        for consumer in self.consumers.values():
            assert consumer.core.unacked == consumer.unacked

    def check_turn(self, consumer: Consumer) -> None:
        """It could take the message, it comes first, and no equal has waited longer."""
        assert consumer.is_able, "more than it asked for"
        for other in self.consumers.values():
            if other is consumer or not other.is_able:
                continue
            assert other.priority <= consumer.priority, "one of higher priority could take it"
            if other.priority == consumer.priority:
                assert consumer.tag not in other.served, "served twice while an equal waits"
                other.served.add(consumer.tag)
        consumer.served.clear()

    def take(self, got: Got, consumer: Consumer | None, no_ack: bool) -> None:
        """It is the head of the queue, with the channel's next tag."""
        channel = self.channels[got.channel]
        channel.tag += 1
        is_new, number = self.ready.pop(0)
        assert (got.tag, got.body, got.redelivered) == (channel.tag, b"%d" % number, not is_new)
        if no_ack:
            return
        channel.unacked[got.tag] = number, consumer
        if consumer is not None:
            consumer.unacked += 1
            channel.taken += 1

    def forget_who_cannot(self) -> None:
        """Who cannot take a message loses its turn."""
        for consumer in self.consumers.values():
            if not consumer.is_able:
                consumer.served.clear()


def test_credit_turns_and_priorities_are_those_of_the_model() -> None:
    """Several forms of prefetch at once are accounted exactly, gets are not counted, equals take
    turns. edge-cases.md 140, 141, 142, 143, 144, 145, 146, 151, 153; amqp.md 22.6, 22.30"""
    run_state_machine_as_test(
        DispatchMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class SlowTimers(FakeEvents):
    """No timer goes off."""

    def call_later(self, _delay_s: float, _callback: Callable[[], Any]) -> FakeEvents:
        return self


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path, SlowTimers())) as made:
        yield made


def test_who_was_served_waits_behind_its_equals(bench: Bench) -> None:
    """Each acks at once, so that both are able for every message. edge-cases.md 146"""
    queue = bench.queue("q", durable=False)
    for id_, tag in ((1, b"a"), (2, b"b")):
        if id_ == 2:
            bench.link.open_channel(2, 0)
        bench.link.set_prefetch(id_, 1, False)
        bench.link.add_consumer(id_, queue, tag, False, 3).start()

    turns = []
    for _ in range(6):
        bench.send(publish(b"q", b"m"))
        bench.run()
        (got,) = bench.receive()
        turns.append(got.consumer)
        bench.send(settle(ACK, got.tag, 0, got.channel))
        bench.run()

    assert turns == [b"a", b"b"] * 3


def test_credit_that_comes_back_wins_at_once_where_priorities_count(bench: Bench) -> None:
    """A large prefetch is refilled in batches, but not while one of lower priority waits."""
    queue = bench.queue("q", durable=False)
    bench.link.set_prefetch(1, 64, False)
    bench.link.add_consumer(1, queue, b"high", False, 5).start()
    bench.link.open_channel(2, 0)
    bench.link.add_consumer(2, queue, b"low", False, 0).start()
    bench.send(publish(b"q", b"m") * 65)
    bench.run()
    assert [got.consumer for got in bench.receive()] == [b"high"] * 64 + [b"low"]

    bench.send(settle(ACK, 1, 0) + publish(b"q", b"next"))
    bench.run()

    assert [got.consumer for got in bench.receive()] == [b"high"]


def test_a_consumer_gets_nothing_before_its_start(bench: Bench) -> None:
    """Neither credit nor flow lets deliveries overtake consume-ok. amqp.md 22.21"""
    queue = bench.queue("q", durable=False)
    bench.send(publish(b"q", b"m"))
    consumer = bench.link.add_consumer(1, queue, b"c", True)
    bench.link.set_prefetch(1, 5, True)
    bench.link.set_flow(1, True)
    bench.run()
    assert bench.receive() == []

    consumer.start()
    bench.link.set_flow(1, True)
    bench.run()

    assert [got.body for got in bench.receive()] == [b"m"]


def test_a_cancelled_consumer_does_not_start_again(bench: Bench) -> None:
    queue = bench.queue("q", durable=False)
    consumer = bench.link.add_consumer(1, queue, b"c", True)
    consumer.cancel()

    consumer.start()
    bench.send(publish(b"q", b"m"))
    bench.run()

    assert bench.receive() == []
    assert queue.ready == 1


def test_what_a_consumer_holds_is_not_delivered_again_while_the_queue_is_paused(
    bench: Bench,
) -> None:
    queue = bench.queue("q", durable=False)
    bench.link.add_consumer(1, queue, b"c", False).start()
    bench.send(publish(b"q", b"m"))
    bench.run()
    assert len(bench.receive()) == 1
    queue.is_paused = True

    bench.link.recover(1, False)
    bench.run()

    assert bench.receive() == []
    assert (queue.ready, queue.unacked) == (1, 0)
