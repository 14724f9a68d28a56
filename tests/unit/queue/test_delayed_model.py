"""What waits in a delayed exchange does what a sorted list does, whatever happens meanwhile.

Hypothesis publishes, lets time pass, restarts and purges; the clock moves in steps that are much
longer than a test, so that it is certain what is due. A message is what its routing key says.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from pamqp import commands

from lavinmq import _core
from tests.support.core import Bench, FakeEvents
from tests.support.wire import encode_publish

EXAMPLES = 60
STEPS = 30
STEP_MS = 3_600_000
SEGMENT_SIZE = 4096


class StillEvents(FakeEvents):
    """Timers are the test's: it says when the loop is to look."""

    def call_later(self, _delay_s: float, _callback: Callable[[], Any]) -> StillEvents:
        return self


@dataclass(order=True, slots=True)
class Waiting:
    """A message: the step at which it is due, and its number."""

    due: int
    number: int


class DelayedMachine(RuleBasedStateMachine):
    """Does the same to an exchange and to a list, and compares."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        super().__init__()
        self.directory = directory()
        self.now = 0
        self.numbers = itertools.count()
        self.waiting: list[Waiting] = []
        self.released: list[int] = []
        self.start()

    def start(self) -> None:
        self.bench = Bench(self.directory, StillEvents())
        self.bench.loop.clock_offset_ms = self.now * STEP_MS
        self.exchange = _core.Exchange(_core.FANOUT, 1)
        self.internal = self.queue("internal")
        self.exchange.set_delayed(b"x", self.internal)
        self.out = self.queue("out")
        for queue in (self.internal, self.out):
            queue.load()
        self.exchange.bind(b"", b"", self.out)
        self.bench.link.learn(b"x", self.exchange)

    def queue(self, name: str) -> _core.Queue:
        path = str(self.directory / name)
        return _core.Queue(
            self.bench.loop, path, SEGMENT_SIZE, True, name=name.encode(), vhost=self.bench.vhost
        )

    def end(self) -> None:
        self.bench.close()
        self.bench.loop.stop()

    # ---- what happens

    @rule(
        messages=st.lists(
            st.tuples(st.integers(-1, 5) | st.none(), st.sampled_from([0, 100, 1500, 6000])),
            min_size=1,
            max_size=12,
        )
    )
    def publish(self, messages: list[tuple[int | None, int]]) -> None:
        for delay, size in messages:
            number = next(self.numbers)
            headers = {} if delay is None else {"x-delay": delay * STEP_MS}
            properties = commands.Basic.Properties(headers=headers)
            body = f"{number}".encode() + bytes(size)
            self.bench.send(encode_publish(1, "x", str(number), body, properties))
            if delay is None or delay <= 0:
                self.released.append(number)
            else:
                self.waiting.append(Waiting(self.now + delay, number))
        self.compare()

    @rule(steps=st.integers(1, 4))
    def time_passes(self, steps: int) -> None:
        self.now += steps
        self.bench.loop.clock_offset_ms = self.now * STEP_MS
        self.look()
        self.compare()

    @rule()
    def look(self) -> None:
        """The loop's timer goes off."""
        due = sorted(each for each in self.waiting if each.due <= self.now)
        for _ in range(1 + len(due)):  # a turn ends after a while, whatever is left
            self.bench.loop.expire()
            self.bench.run()
        self.released += [each.number for each in due]
        self.waiting = [each for each in self.waiting if each.due > self.now]
        self.compare()

    @rule(is_orderly=st.booleans(), steps=st.integers(0, 3))
    def restart(self, is_orderly: bool, steps: int) -> None:
        self.compare()
        for queue in (self.internal, self.out):
            if is_orderly:
                queue.close()
            else:
                queue.delete()
        self.end()
        self.now += steps
        self.start()
        assert self.internal.ready == len(self.waiting)
        self.look()

    @rule()
    def purge(self) -> None:
        assert self.internal.purge() == len(self.waiting)
        self.waiting = []
        self.compare()

    @rule()
    def release_all(self) -> None:
        while self.internal.release_some():
            pass
        self.released += [each.number for each in sorted(self.waiting)]
        self.waiting = []
        self.compare()

    # ---- comparing

    def compare(self) -> None:
        self.bench.run()
        assert self.internal.ready == len(self.waiting)
        pending = [int(key) for _, key, _ in self.internal.pending(1000)]
        assert pending == [each.number for each in sorted(self.waiting)]
        assert self.internal.ready_bytes == sum(size for _, _, size in self.internal.pending(1000))
        assert self.out.ready == len(self.released)
        while self.out.ready:
            assert self.bench.link.get(1, self.out, True)
            self.bench.link.flush()
        found = self.bench.receive()
        assert [int(got.routing_key) for got in found] == self.released
        for got in found:
            assert got.body.rstrip(b"\0") == got.routing_key
            assert b"x-delay" not in got.properties
        self.released = []
        self.bench.run()

    def teardown(self) -> None:
        try:
            self.time_passes(100)
            assert self.internal.ready == 0
            assert len(list((self.directory / "internal").glob("msgs.*"))) <= 1
        finally:
            self.end()


def test_what_waits_leaves_by_due_time_once_and_never_early(tmp_path: Path) -> None:
    """edge-cases.md 227, 229"""
    numbers = itertools.count()

    run_state_machine_as_test(
        functools.partial(DelayedMachine, lambda: tmp_path / str(next(numbers))),  # type: ignore[arg-type]
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
