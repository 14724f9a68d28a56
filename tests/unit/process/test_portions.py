"""What is long and goes in steps."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import uvloop

from lavinmq.process import portions
from lavinmq.process.portions import (
    Portions,
    SharedPortion,
    emptied,
    in_portions,
    others_first,
)

Begin = Callable[[asyncio.AbstractEventLoop, Iterator[None]], None]


@pytest.mark.parametrize(
    "several",
    [[1, 2, 3], {1, 2, 3}, deque([1, 2, 3]), {1: "a", 2: "b", 3: "c"}],
    ids=["list", "set", "deque", "dict"],
)
def test_things_are_let_go_one_in_each_step(
    several: list[int] | set[int] | deque[int] | dict[int, str],
) -> None:
    more = [4]

    left = [len(several) + len(more) for _ in emptied(several, more)]

    assert left == [3, 2, 1, 0]


def begin_alone(events: asyncio.AbstractEventLoop, steps: Iterator[None]) -> None:
    """Work that has a portion of each turn for itself, one step long."""
    in_portions(events.call_soon, steps, 0.0)


def begin_shared(events: asyncio.AbstractEventLoop, steps: Iterator[None]) -> None:
    """Work that shares portions with others."""
    Portions(events.call_soon).begin(steps)


def begin_waiting(events: asyncio.AbstractEventLoop, steps: Iterator[None]) -> None:
    """Work of a coroutine."""

    async def work() -> None:
        for _ in steps:
            await others_first()

    events.create_task(work())


@pytest.mark.parametrize("begin", [begin_alone, begin_shared, begin_waiting])
def test_who_came_meanwhile_is_answered_before_the_next_portion(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "PORTION_S", 0.0)  # a step each
    events = uvloop.new_event_loop()
    ours, theirs = socket.socketpair()
    seen: list[str] = []

    def heard() -> None:
        ours.recv(1)
        events.call_soon(seen.append, "answered")  # as the message path does

    def steps() -> Iterator[None]:
        for _ in range(3):
            seen.append("step")
            theirs.send(b"?")
            yield
        events.stop()

    events.add_reader(ours, heard)
    events.call_soon(begin, events, steps())
    events.call_later(10, events.stop)
    events.run_forever()
    events.close()
    ours.close()
    theirs.close()

    assert seen == ["step", "answered"] * 3


def test_many_who_begin_something_short_share_the_portion_of_a_turn() -> None:
    """Each in one step: a thousand of them at once would take long together."""
    ready: deque[Callable[[], object]] = deque()
    now_s = 0.0

    def call_soon(function: Callable[..., object], *args: object) -> None:
        ready.append(partial(function, *args))

    def step() -> Iterator[None]:
        nonlocal now_s
        now_s += portions.PORTION_S / 4
        done.append(len(ready))
        yield

    done: list[int] = []
    shared = SharedPortion(call_soon, lambda: now_s)
    works = Portions(call_soon, shared)

    for _ in range(100):
        works.begin(step())
    assert not done

    turns = []
    while ready:
        before = len(done)
        for _ in range(len(ready)):  # what a loop calls in one turn
            ready.popleft()()
        turns.append(len(done) - before)
    assert sum(turns) == 100
    assert max(turns) == 4


@pytest.mark.parametrize("is_at_the_end", [False, True])
def test_a_bug_in_one_work_does_not_keep_the_others_waiting(is_at_the_end: bool) -> None:
    """In a step, or in what is called behind the last one."""
    events = asyncio.new_event_loop()
    bugs: list[str] = []
    events.set_exception_handler(lambda _, about: bugs.append(str(about["exception"])))
    ticks, done = iter(range(1_000_000)), list[str]()
    works = Portions(events.call_soon, SharedPortion(events.call_soon, lambda: float(next(ticks))))

    def bug() -> None:
        raise LookupError("a bug")

    def steps() -> Iterator[None]:
        yield
        if not is_at_the_end:
            bug()

    works.begin(steps(), bug)
    works.begin(iter((None, None)), partial(done.append, "other"))
    for _ in range(20):
        events.call_soon(events.stop)
        events.run_forever()
    events.close()

    assert bugs == ["a bug"]
    assert done == ["other"]
