"""How policies come to queues and exchanges: in portions, the newest wins, nothing is missed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from lavinmq import _core
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.policy.features import PLAIN
from lavinmq.policy.policies import Policy
from lavinmq.process.portions import in_portions
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.rules import MAX_SHARED, VHostRules


class Turns:
    """An event loop as far as `call_soon` goes, turned by hand."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], Any]] = deque()
        self.taken = 0

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        self._calls.append(partial(function, *args))

    def turn(self) -> bool:
        """Make one turn. Returns: whether there was anything to do."""
        for _ in range(count := len(self._calls)):
            self._calls.popleft()()
        self.taken += count > 0
        return count > 0

    def run(self) -> None:
        while self.turn():
            pass


class NoCore:
    """What stands for the compiled half of a queue."""

    def set_features(self, **rules: object) -> None:
        """Nothing is held to the rules here."""


def a_queue(name: str, arguments: FieldTable = EMPTY) -> Queue:
    return Queue(name, cast(_core.Queue, NoCore()), False, False, None, arguments)


class World:
    """Queues and exchanges with rules, without a broker."""

    def __init__(self, directory: Path) -> None:
        self.turns = Turns()
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.changed: list[str] = []
        self.rules = VHostRules(
            directory, "/", self.queues, self.exchanges, self.turns.call_soon,
            lambda queue: None, lambda exchange: self.changed.append(exchange.name),
        )  # fmt: skip
        self.rules.load()

    def declare(self, *names: str, arguments: FieldTable = EMPTY) -> None:
        for name in names:
            self.queues[name] = a_queue(name, arguments)
            self.rules.apply_to_queue(self.queues[name])

    def put(self, name: str, pattern: str, priority: int = 0, **definition: Any) -> None:
        given = {key.replace("_", "-"): value for key, value in definition.items()}
        self.rules.put_policy(Policy.of(name, pattern, given, priority))

    def lengths(self) -> set[int | None]:
        return {queue.features.max_length for queue in self.queues.values()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_portion_ends_and_the_rest_follows_in_later_turns() -> None:
    turns, done = Turns(), []

    def steps() -> Iterator[None]:
        for number in range(5):
            done.append(number)
            yield

    in_portions(turns.call_soon, steps(), portion_s=0)
    assert done == [0]
    turns.turn()
    assert done == [0]  # others are served
    turns.turn()
    assert done == [0, 1]
    turns.run()

    assert done == [0, 1, 2, 3, 4]


def test_what_takes_no_time_is_done_in_one_turn() -> None:
    turns = Turns()
    in_portions(turns.call_soon, iter(range(3)), portion_s=1e9)

    assert not turns.turn()


def test_a_policy_comes_to_all_queues_in_many_turns(world: World) -> None:
    world.declare(*(f"q{number}" for number in range(5000)))

    world.put("p", "^q", max_length=7)
    assert world.lengths() == {None}
    world.turns.run()

    assert world.lengths() == {7}
    assert world.turns.taken > 3


def test_a_queue_declared_meanwhile_is_right_at_once(world: World) -> None:
    world.declare(*(f"q{number}" for number in range(1000)))
    world.put("p", "^q", max_length=7)

    world.declare("q-new", "other")

    assert world.queues["q-new"].features.max_length == 7
    assert world.queues["q-new"].policy == "p"
    assert world.queues["other"].features is PLAIN
    world.turns.run()
    assert world.queues["q-new"].features.max_length == 7


def test_the_newest_change_wins(world: World) -> None:
    world.declare(*(f"q{number}" for number in range(3000)))
    world.put("p", "^q", max_length=1)
    world.turns.turn()
    world.turns.turn()
    world.put("p", "^q", max_length=2)
    world.turns.turn()
    world.put("p", "^q", max_length=3)
    world.turns.run()

    assert world.lengths() == {3}


def test_changes_that_never_stop_still_reach_the_last_queue(world: World) -> None:
    world.declare(*(f"q{number}" for number in range(3000)))
    last = world.queues["q2999"]

    number = 0
    while last.features.max_length is None:
        world.put("p", "^q", max_length=number)
        assert world.turns.turn()
        number += 1
        assert number < 3000

    world.turns.run()
    assert world.lengths() == {number - 1}


def test_deleting_a_policy_removes_it_from_all(world: World) -> None:
    """edge-cases.md 289, 297"""
    world.declare("q1", "q2")
    world.put("p", "^q", max_length=1)
    world.put("other", "^q", -1, message_ttl=5)
    world.turns.run()

    assert world.rules.delete_policy("p")
    assert not world.rules.delete_policy("p")
    world.turns.run()
    features = world.queues["q1"].features
    assert (features.max_length, features.message_ttl_ms, features.policy) == (None, 5, "other")

    assert world.rules.delete_policy("other")
    world.turns.run()
    assert {queue.features for queue in world.queues.values()} == {PLAIN}
    assert world.queues["q1"].policy is None


def test_policy_and_operator_policy_combine(world: World) -> None:
    """edge-cases.md 294"""
    world.declare("q", arguments=FieldTable({"x-max-length": 30}))
    world.put("p", "", max_length=20)
    world.rules.put_operator_policy(Policy.of("o", "", {"max-length": 10}, is_operator=True))
    world.turns.run()
    queue = world.queues["q"]
    assert (queue.features.max_length, queue.policy, queue.operator_policy) == (10, "p", "o")

    assert world.rules.delete_operator_policy("o")
    world.turns.run()
    assert (queue.features.max_length, queue.policy, queue.operator_policy) == (20, "p", None)

    assert world.rules.delete_policy("p")
    world.turns.run()
    assert queue.features.max_length == 30


def test_callers_can_wait_until_all_is_applied(world: World) -> None:
    world.declare(*(f"q{number}" for number in range(1000)))
    seen: list[set[int | None]] = []
    world.rules.when_applied(lambda: seen.append(world.lengths()))
    assert seen == [{None}]

    world.put("p", "", max_length=1)
    world.rules.when_applied(lambda: seen.append(world.lengths()))
    world.turns.turn()
    world.put("p", "", max_length=2)
    assert len(seen) == 1
    world.turns.run()

    assert seen[1:] == [{2}]


def test_a_queue_that_is_gone_is_left_alone(world: World) -> None:
    world.declare("a", "b")
    gone = world.queues["b"]
    world.put("p", "", max_length=1)
    del world.queues["b"]
    world.turns.run()

    assert gone.features is PLAIN
    assert world.queues["a"].features.max_length == 1


def test_a_queue_is_told_of_changes_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int | None] = []
    monkeypatch.setattr(Queue, "_set_features", lambda _self, given: told.append(given.max_length))
    world.declare("q")
    for length in (1, 1, 2):
        world.put("p", "", max_length=length)
        world.turns.run()
    world.put("elsewhere", "^nothing", max_length=9)
    world.turns.run()

    assert told == [1, 2]


def test_queues_share_their_features(world: World) -> None:
    world.declare(*(f"q{number}" for number in range(100)))
    world.put("p", "", max_length=1)
    world.turns.run()

    assert len({id(queue.features) for queue in world.queues.values()}) == 1


def test_what_is_remembered_for_sharing_is_bounded(world: World) -> None:
    for number in range(MAX_SHARED + 10):
        world.declare(f"small-{number}", arguments=FieldTable({"x-max-length": number}))
    assert len(world.rules._shared) <= MAX_SHARED
    remembered = len(world.rules._shared)

    world.declare("large", arguments=FieldTable({"x-max-length": 7, "x-large": "x" * 1000}))

    assert world.queues["large"].features.max_length == 7
    assert len(world.rules._shared) == remembered


def test_an_exchange_is_reported_when_its_features_change(world: World) -> None:
    world.exchanges["x"] = Exchange("x", "direct")
    world.exchanges["y"] = Exchange("y", "direct")
    rules = world.rules
    rules.put_policy(Policy.of("p", "x", {"alternate-exchange": "y"}, 0, "exchanges"))
    world.turns.run()

    assert world.changed == ["x"]
    assert world.exchanges["x"].alternate_name == "y"
    assert (world.exchanges["x"].policy, world.exchanges["y"].policy) == ("p", None)
    rules.delete_policy("p")
    world.turns.run()
    assert world.changed == ["x", "x"]
    assert world.exchanges["x"].alternate_name is None


def test_everything_is_loaded_again(world: World, tmp_path: Path) -> None:
    world.put("p", "^q", max_length=1)
    world.rules.limits.set("max-queues", 5)
    world.turns.run()

    again = World(tmp_path)
    again.declare("q")

    assert again.queues["q"].features.max_length == 1
    assert again.rules.limits.max_queues == 5
