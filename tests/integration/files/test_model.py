"""A durable queue does what a small model of it does, under random operations and restarts.

The model is `QueueModel`, a list and a dictionary; hypothesis chooses the operations and reduces a
failure to the shortest story. One connection is used, so that the order of events is certain.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from pamqp import base, commands

from tests.support.broker import Broker
from tests.support.wire import Unit, Wire

DEADLINE_S = 240.0
EXAMPLES = 20
STEPS = 60
MOST_RESTARTS = 2
SEGMENT_SIZE = 16384
CHANNELS = (1, 2)
COUNT_TIMEOUT_S = 10.0


@dataclass(order=True, slots=True)
class Message:
    """A message: its place in publish order, its body, and whether it came back once."""

    place: int
    body: bytes = field(compare=False)
    redelivered: bool = field(default=False, compare=False)


class QueueModel:
    """What a queue and the channels that take from it hold; as simple as can be."""

    def __init__(self) -> None:
        self.ready: list[Message] = []
        self.unacked: dict[int, dict[int, Message]] = {channel: {} for channel in CHANNELS}
        self._tags = dict.fromkeys(CHANNELS, 0)

    def take(self, channel: int, no_ack: bool) -> tuple[int, Message]:
        """Take the head; return its delivery tag and the message."""
        message = self.ready.pop(0)
        self._tags[channel] += 1
        if not no_ack:
            self.unacked[channel][self._tags[channel]] = message
        return self._tags[channel], message

    def settle(self, channel: int, tag: int, multiple: bool, requeue: bool) -> None:
        """Forget a delivery, or all up to it, or put them back where they were."""
        held = self.unacked[channel]
        settled = [each for each in held if each == tag or (multiple and each < tag)]
        messages = [held.pop(each) for each in settled]
        if requeue:
            self.put_back(messages)

    def put_back(self, messages: list[Message]) -> None:
        for message in messages:
            message.redelivered = True
        self.ready = sorted(self.ready + messages)

    def close_channel(self, channel: int) -> None:
        self.put_back(list(self.unacked[channel].values()))
        self.unacked[channel] = {}
        self._tags[channel] = 0

    def restart(self) -> None:
        """Everything unsettled is there again."""
        for channel in CHANNELS:
            self.close_channel(channel)


class QueueMachine(RuleBasedStateMachine):
    """Does the same to the broker and to the model and compares every answer."""

    names: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.model = QueueModel()
        self.queue = f"model-{next(self.names)}"
        self.places = itertools.count()
        self.confirms = 0
        self.restarts = 0
        self.wire = self.connect()
        request = commands.Queue.Declare(queue=self.queue, durable=True)
        self.wire.call(1, request, commands.Queue.DeclareOk)

    def connect(self) -> Wire:
        wire = Wire.open(self.broker.port, channels=CHANNELS)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        self.confirms = 0
        return wire

    channels = st.sampled_from(CHANNELS)
    held = st.integers(0, 1000)

    @rule(sizes=st.lists(st.sampled_from([0, 1, 50, 3000, 20000, 150000]), min_size=1, max_size=6))
    def publish(self, sizes: list[int]) -> None:
        for size in sizes:
            place = next(self.places)
            message = Message(place, f"{self.queue}/{place}:".encode() + b"x" * size)
            self.wire.publish(1, "", self.queue, message.body)
            self.model.ready.append(message)
        self.confirms += len(sizes)
        while self.wire.expect(commands.Basic.Ack, 1).delivery_tag != self.confirms:
            pass

    @rule(channel=channels, no_ack=st.booleans())
    def get(self, channel: int, no_ack: bool) -> None:
        self.wire.send(channel, commands.Basic.Get(queue=self.queue, no_ack=no_ack))
        if not self.model.ready:
            self.wire.expect(commands.Basic.GetEmpty, channel)
            return
        unit = self.wire.expect_unit(commands.Basic.GetOk, channel)
        self.compare_next(unit, no_ack)
        assert isinstance(unit.method, commands.Basic.GetOk)
        assert unit.method.message_count == len(self.model.ready)

    @rule(channel=channels, prefetch=st.integers(1, 5))
    def consume_and_cancel(self, channel: int, prefetch: int) -> None:
        self.call(channel, commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)
        consume = commands.Basic.Consume(queue=self.queue, consumer_tag="model")
        self.call(channel, consume, commands.Basic.ConsumeOk)
        for _ in range(min(prefetch, len(self.model.ready))):
            self.compare_next(self.wire.expect_unit(commands.Basic.Deliver, channel), no_ack=False)
        cancel = commands.Basic.Cancel(consumer_tag="model")
        self.call(channel, cancel, commands.Basic.CancelOk)

    @precondition(lambda self: any(self.model.unacked.values()))
    @rule(choice=held, multiple=st.booleans())
    def ack(self, choice: int, multiple: bool) -> None:
        channel, tag = self.choose(choice)
        self.wire.send(channel, commands.Basic.Ack(tag, multiple))
        self.synchronise()
        self.model.settle(channel, tag, multiple, requeue=False)

    @precondition(lambda self: any(self.model.unacked.values()))
    @rule(choice=held, multiple=st.booleans(), requeue=st.booleans())
    def nack(self, choice: int, multiple: bool, requeue: bool) -> None:
        channel, tag = self.choose(choice)
        self.wire.send(channel, commands.Basic.Nack(tag, multiple, requeue))
        self.synchronise()
        self.model.settle(channel, tag, multiple, requeue)

    @precondition(lambda self: any(self.model.unacked.values()))
    @rule(choice=held, requeue=st.booleans())
    def reject(self, choice: int, requeue: bool) -> None:
        channel, tag = self.choose(choice)
        self.wire.send(channel, commands.Basic.Reject(tag, requeue))
        self.synchronise()
        self.model.settle(channel, tag, multiple=False, requeue=requeue)

    @rule()
    def purge(self) -> None:
        request = commands.Queue.Purge(queue=self.queue)
        purged = self.wire.call(2, request, commands.Queue.PurgeOk)
        assert purged.message_count == len(self.model.ready)
        self.model.ready.clear()

    @rule()
    def count(self) -> None:
        assert self.count_ready() == len(self.model.ready)

    @rule()
    def close_channel(self) -> None:
        close = commands.Channel.Close(200, "", 0, 0)
        self.call(2, close, commands.Channel.CloseOk)
        self.wire.open_channel(2)
        self.model.close_channel(2)

    @rule()
    def disconnect(self) -> None:
        self.synchronise()
        self.wire.close()
        self.wire = self.connect()
        for channel in CHANNELS:
            self.model.close_channel(channel)
        self.wait_for_count()

    @precondition(lambda self: self.restarts < MOST_RESTARTS)
    @rule()
    def restart(self) -> None:
        self.restarts += 1
        self.synchronise()
        self.wire.close()
        self.broker.restart()
        self.wire = self.connect()
        self.model.restart()
        assert self.count_ready() == len(self.model.ready)

    def teardown(self) -> None:
        """Take what is left, in order, and remove the queue."""
        try:
            while self.model.ready:
                self.get(1, no_ack=True)
            self.call(1, commands.Queue.Delete(queue=self.queue), commands.Queue.DeleteOk)
        finally:
            self.wire.close()

    def call(self, channel: int, request: base.Frame, reply: type[base.Frame]) -> None:
        self.wire.call(channel, request, reply)

    def choose(self, choice: int) -> tuple[int, int]:
        """Return the channel and tag of one unsettled delivery."""
        unsettled = [(each, tag) for each in CHANNELS for tag in self.model.unacked[each]]
        return unsettled[choice % len(unsettled)]

    def compare_next(self, unit: Unit, no_ack: bool) -> None:
        """Compare a delivery with what the model would deliver."""
        method = unit.method
        assert isinstance(method, commands.Basic.GetOk | commands.Basic.Deliver)
        tag, message = self.model.take(unit.channel, no_ack)
        assert unit.body == message.body
        assert method.delivery_tag == tag
        assert method.redelivered == message.redelivered

    def count_ready(self) -> int:
        request = commands.Queue.Declare(queue=self.queue, passive=True)
        return self.wire.call(2, request, commands.Queue.DeclareOk).message_count or 0

    def wait_for_count(self) -> None:
        """Wait until the broker has noticed the lost connection."""
        deadline = time.monotonic() + COUNT_TIMEOUT_S
        while self.count_ready() != len(self.model.ready):
            assert time.monotonic() < deadline, "messages of a lost connection do not return"
            time.sleep(0.005)

    def synchronise(self) -> None:
        """Return when the broker has handled everything sent."""
        for channel in CHANNELS:
            self.call(channel, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)


def test_queue_behaves_like_the_model(
    tmp_path: Path, broker_factory: Callable[..., Broker]
) -> None:
    config = tmp_path / "lavinmq.ini"
    config.write_text(f"[main]\nsegment_size = {SEGMENT_SIZE}\n")
    broker = broker_factory(["-c", str(config)])

    run_state_machine_as_test(
        functools.partial(QueueMachine, broker),  # type: ignore[arg-type]  # any factory does
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
