"""Queues with rules against a small model of them: random operations, time, restarts and kills.

One queue with any rules, whose dead letters go to a second one that may be limited. Compared are
contents, order, the redelivered flag, delivery counts, counters and reasons of death. A kill is a
copy of the files between two ticks: what is missing there must have been dropped by a rule.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lavinmq import _core
from tests.support.core import Bench, Got, TimedEvents, properties, publish, settle

STEP_MS = 100_000
HALF_MS = STEP_MS // 2
"""Lifetimes end between two steps, so that the real clock, which runs on, decides nothing."""
NEVER = 1 << 60
FIXED_BYTES = 18 - 2 + 3
"""Of a record with an empty exchange and a routing key of one byte."""


@dataclass
class Rules:
    """What the queue does; None = no limit. Times are in steps of the test's clock."""

    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    ttl: int | None = None
    delivery_limit: int | None = None
    is_dead_lettering: bool = True

    def arguments(self) -> dict[str, object]:
        """For `Queue.set_features`."""
        return {
            "max_length": _core.UNLIMITED if self.max_length is None else self.max_length,
            "max_bytes": _core.UNLIMITED if self.max_bytes is None else self.max_bytes,
            "overflow": _core.OVERFLOW[self.overflow],
            "ttl_ms": -1 if self.ttl is None else lifetime_ms(self.ttl),
            "delivery_limit": -1 if self.delivery_limit is None else self.delivery_limit,
            "target": b"" if self.is_dead_lettering else None,
            "target_key": b"d" if self.is_dead_lettering else None,
        }


@dataclass
class Message:
    number: int
    body: bytes
    size: int
    level: int
    born: int
    expires: int = NEVER
    count: int = 0
    is_requeued: bool = False
    was_delivered: bool = False


@dataclass
class Model:
    """The queue and its dead letters: (when and why it died, body)."""

    levels: int | None
    rules: Rules = field(default_factory=Rules)
    now: int = 0
    ready: list[Message] = field(default_factory=list)
    unacked: dict[int, Message] = field(default_factory=dict)
    dead: list[tuple[int, str, bytes]] = field(default_factory=list)
    numbers: int = 0
    died: int = 0

    def publish(self, message: Message) -> None:
        rules = self.rules
        if rules.overflow != "drop-head":
            size = sum(each.size for each in self.ready) + message.size
            too_long = rules.max_length is not None and len(self.ready) >= rules.max_length
            if too_long or (rules.max_bytes is not None and size >= rules.max_bytes):
                if rules.overflow == "reject-publish-dlx":
                    self.bury(message, "maxlen")
                return
        self.ready.append(message)
        self.enforce()

    def bury(self, message: Message, reason: str) -> None:
        if self.rules.is_dead_lettering:
            group = -1 - self.now if reason == "expired" else self.died
            self.dead.append((group, reason, message.body))
        self.died += 1

    def deadline(self, message: Message) -> int:
        ttl = NEVER if self.rules.ttl is None else message.born + self.rules.ttl
        return min(ttl, message.expires)

    def sort(self) -> None:
        self.ready.sort(key=lambda each: (-each.level, not each.is_requeued, each.number))

    def has_tried_enough(self, message: Message) -> bool:
        limit = self.rules.delivery_limit
        return limit is not None and message.count > limit

    def enforce(self) -> None:
        self.sort()
        rules = self.rules
        while rules.overflow == "drop-head" and self.ready:
            size = sum(each.size for each in self.ready)
            if rules.max_length is not None and len(self.ready) > rules.max_length:
                self.bury(self.ready.pop(0), "maxlen")
            elif rules.max_bytes is not None and size > rules.max_bytes:
                self.bury(self.ready.pop(0), "maxlenbytes")
            else:
                break
        while self.ready and self.has_tried_enough(self.ready[0]):
            self.bury(self.ready.pop(0), "delivery_limit")
        for message in [each for each in self.ready if self.deadline(each) <= self.now]:
            self.ready.remove(message)
            self.bury(message, "expired")

    def take(self) -> Message | None:
        while self.ready:
            message = self.ready.pop(0)
            if not self.has_tried_enough(message):
                return message
            self.bury(message, "delivery_limit")
        return None

    def requeue(self, message: Message) -> None:
        if self.deadline(message) <= self.now:
            self.bury(message, "expired")
        elif self.has_tried_enough(message):
            self.bury(message, "delivery_limit")
        else:
            message.is_requeued = message.was_delivered = True
            self.ready.append(message)
            self.sort()


def lifetime_ms(steps: int) -> int:
    return max(steps * STEP_MS - HALF_MS, 0)


limits = st.none() | st.integers(0, 4)
rules_of_a_queue = st.builds(
    Rules,
    max_length=limits,
    max_bytes=st.none() | st.integers(0, 300),
    overflow=st.sampled_from(list(_core.OVERFLOW)),
    ttl=st.none() | st.integers(0, 4),
    delivery_limit=st.none() | st.integers(0, 3),
    is_dead_lettering=st.booleans(),
)


class QueueWithRules(RuleBasedStateMachine):
    """The compiled queue and the model side by side."""

    @initialize(
        levels=st.none() | st.sampled_from((0, 1, 9, 255)),
        rules=st.just(Rules()) | rules_of_a_queue,
        durable=st.booleans(),
        segment_size=st.sampled_from((4096, 200)),
        dead_limit=st.none() | st.integers(0, 3),
    )
    def begin(
        self, levels: int | None, rules: Rules, durable: bool, segment_size: int,
        dead_limit: int | None,
    ) -> None:  # fmt: skip
        self.directory = Path(tempfile.mkdtemp(prefix="rules-model-"))
        self.durable, self.segment_size, self.dead_limit = durable, segment_size, dead_limit
        self.model = Model(levels, rules)
        self.bench = Bench(self.directory / "data", TimedEvents())
        self.open(self.bench)

    def open(self, bench: Bench) -> None:
        limit = {} if self.dead_limit is None else {"max_length": self.dead_limit}
        self.dead = bench.queue("d", durable=self.durable, **limit)
        levels = -1 if self.model.levels is None else self.model.levels
        self.queue = bench.queue(
            "q", self.segment_size, self.durable, max_priority=levels,
            **self.model.rules.arguments(),
        )  # fmt: skip

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            assert not self.bench.failures
            assert not self.bench.session.events
            self.bench.close()
            shutil.rmtree(self.directory)

    # --- operations

    @rule(
        filling=st.sampled_from((0, 1, 40, 200)),
        expires=st.none() | st.integers(0, 5),
        priority=st.none() | st.integers(0, 255),
    )
    def publish(self, filling: int, expires: int | None, priority: int | None) -> None:
        model = self.model
        body = struct.pack(">I", model.numbers) + b"." * filling
        text = None if expires is None else str(lifetime_ms(expires))
        props = properties(priority=priority, expiration=text)
        self.bench.send(publish(b"q", body, props))
        level = min(priority or 0, model.levels) if model.levels is not None else 0
        message = Message(
            model.numbers, body, FIXED_BYTES + len(props) + len(body), level, model.now,
            NEVER if expires is None else model.now + expires,
        )  # fmt: skip
        model.numbers += 1
        model.publish(message)
        self.bench.run()

    @rule(no_ack=st.booleans())
    def get(self, no_ack: bool) -> None:
        got = self.bench.get(self.queue, no_ack)
        message = self.model.take()
        assert (got is None) == (message is None)
        if got is not None and message is not None:
            self.compare(got, message)
            if not no_ack:
                message.count += self.model.rules.delivery_limit is not None
                self.model.unacked[got.tag] = message
        self.bench.run()

    def compare(self, got: Got, message: Message) -> None:
        assert (got.body, got.redelivered) == (message.body, message.was_delivered)
        if self.model.rules.delivery_limit is not None and message.count:
            assert b"x-delivery-countI" + struct.pack(">I", message.count) in got.properties
        else:
            assert b"x-delivery-count" not in got.properties

    @precondition(lambda self: self.model.unacked)
    @rule(data=st.data(), how=st.sampled_from(("ack", "reject", "requeue")), multiple=st.booleans())
    def settle(self, data: st.DataObject, how: str, multiple: bool) -> None:
        model = self.model
        tag = data.draw(st.sampled_from(sorted(model.unacked)))
        method = 80 if how == "ack" else 120
        self.bench.send(settle(method, tag, multiple | (how == "requeue") << 1))
        for each in sorted(model.unacked):
            if each == tag or (multiple and each < tag):
                message = model.unacked.pop(each)
                if how == "reject":
                    model.bury(message, "rejected")
                elif how == "requeue":
                    model.requeue(message)
        model.enforce()
        self.bench.run()

    @rule(steps=st.integers(1, 3))
    def wait(self, steps: int) -> None:
        self.model.now += steps
        self.bench.advance(steps * STEP_MS)
        self.model.enforce()

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.model.ready)
        self.model.ready.clear()
        self.bench.run()

    @rule(rules=rules_of_a_queue)
    def change(self, rules: Rules) -> None:
        model = self.model
        if model.rules.delivery_limit is not None and rules.delivery_limit is None:
            for message in (*model.ready, *model.unacked.values()):
                message.was_delivered = message.is_requeued
                message.count = 0
        model.rules = rules
        self.queue.set_features(**rules.arguments())  # type: ignore[arg-type]
        self.bench.run()
        self.bench.advance(10)
        model.enforce()

    @precondition(lambda self: self.durable)
    @rule()
    def restart(self) -> None:
        """An orderly stop and a start."""
        model = self.model
        self.bench.run()
        self.bench.link.close_channel(1, False)
        self.bench.run()
        for tag in sorted(model.unacked):
            model.requeue(model.unacked.pop(tag))
        model.enforce()
        for name, queue in ((b"q", self.queue), (b"d", self.dead)):
            self.bench.exchange.unbind(name, b"", queue)
            queue.close()
        self.open(self.bench)
        self.bench.link.open_channel(1, 0)
        # A head that was delivered too often is dropped now, or when somebody asks for it.
        self.queue.set_features(**model.rules.arguments())  # type: ignore[arg-type]
        self.bench.run()
        self.bench.advance(10)
        for message in model.ready:
            message.is_requeued = False
            # One that was delivered while there was no limit is known to have been, once.
            known = 0 if model.rules.delivery_limit is None else message.count
            message.count = max(known, int(message.was_delivered))
        model.enforce()

    @precondition(lambda self: self.durable)
    @rule()
    def kill(self) -> None:
        """What the files hold between two ticks has all messages, and those delivered are known."""
        self.bench.run()
        copy = self.directory / "copy"
        shutil.copytree(self.directory / "data", copy)
        with closing(Bench(copy, TimedEvents())) as bench:
            bench.loop.clock_offset_ms = self.bench.loop.clock_offset_ms
            queues = self.queue, self.dead
            model = self.model
            held = [*model.ready, *model.unacked.values()]
            self.open(bench)
            kept, buried = take(bench, self.queue), take(bench, self.dead)
            self.queue, self.dead = queues
        there = {got.body for got in (*kept, *buried)}
        assert there.issuperset(each.body for each in held if not self.is_doomed(each))
        if self.dead_limit is None:
            assert there.issuperset(body for _, _, body in model.dead)
        for got in kept:  # one that has died since comes to the other queue as a new one
            for message in held:
                if message.body == got.body and message.count and model.rules.delivery_limit:
                    assert got.redelivered
        shutil.rmtree(copy)

    def is_doomed(self, message: Message) -> bool:
        """A start may drop it, and its dead letter may be dropped by the second queue."""
        return self.dead_limit is not None or not self.model.rules.is_dead_lettering

    # --- what has to hold

    @invariant()
    def counters_agree(self) -> None:
        if hasattr(self, "bench"):
            model = self.model
            assert self.queue.ready == len(model.ready)
            assert self.queue.unacked == len(model.unacked)
            assert self.queue.ready_bytes == sum(each.size for each in model.ready)
            dead = len(model.dead)
            assert self.dead.ready == (
                dead if self.dead_limit is None else min(dead, self.dead_limit)
            )

    @precondition(lambda self: self.dead_limit is None)
    @rule()
    def read_dead_letters(self) -> None:
        """In the order of their deaths, but for those that expired in one step."""
        found = [(reason_of(got), got.body) for got in take(self.bench, self.dead)]
        at = 0
        while at < len(found):
            group = self.model.dead[at][0]
            same = list(takewhile(lambda each, of=group: each[0] == of, self.model.dead[at:]))
            until = at + len(same)
            assert sorted(found[at:until]) == sorted((each[1], each[2]) for each in same)
            at = until
        assert len(found) == len(self.model.dead)
        self.model.dead.clear()


def take(bench: Bench, queue: _core.Queue) -> list[Got]:
    found = []
    while (got := bench.get(queue)) is not None:
        found.append(got)
    bench.run()
    return found


def reason_of(got: Got) -> str:
    key = b"\x14x-first-death-reasonS"
    at = got.properties.index(key) + len(key)
    (length,) = struct.unpack_from(">I", got.properties, at)
    return got.properties[at + 4 : at + 4 + length].decode()


def test_a_queue_with_rules_agrees_with_the_model() -> None:
    """edge-cases.md 178, 180, 182, 183, 239, 240, 243"""
    run_state_machine_as_test(
        QueueWithRules,
        settings=settings(
            max_examples=150, stateful_step_count=40, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
