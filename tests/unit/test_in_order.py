"""Works that wait for the disk, one after the other: their order, and who does them when."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from lavinmq.files.in_order import MOST_AT_ONCE, InOrder
from lavinmq.process.worker import Worker


class Threads:
    """Threads and a loop that do what they have when they are told to."""

    def __init__(self) -> None:
        self.submitted: deque[tuple[Callable[[], Any], Callable[..., object]]] = deque()
        self.later: deque[Callable[[], object]] = deque()

    def submit(self, work: Callable[[], Any], done: Callable[..., object]) -> None:
        self.submitted.append((work, done))

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        self.later.append(partial(function, *args))

    def run(self) -> None:
        """What has been submitted, in its threads."""
        for work, _ in self.submitted:
            work()

    def report(self) -> None:
        """That it is over, to the loop."""
        if self.submitted:
            self.submitted.popleft()[1](None, None)
        while self.later:
            self.later.popleft()()


class Events(list[str]):
    """What has happened."""

    def work(self, name: str) -> tuple[Callable[[], str], Callable[..., None]]:
        def work() -> str:
            self.append(name)
            if name.startswith("bad"):
                raise OSError(28, name)
            return name

        return work, lambda result, error: self.append(f"{result or error.strerror} done")


@pytest.fixture
def threads() -> Threads:
    return Threads()


def test_what_comes_meanwhile_is_the_next_batch_and_one_runs_at_a_time(threads: Threads) -> None:
    line, events = InOrder(threads.submit, threads.call_soon), Events()
    line.start()
    line.add(*events.work("a"))
    line.add(*events.work("b"))
    line.add(*events.work("bad c"))

    assert len(threads.submitted) == 1 and not events
    threads.run()
    assert events == ["a"]
    threads.submitted.popleft()[1](None, None)
    assert events == ["a", "a done"] and len(threads.submitted) == 1
    threads.run()
    threads.report()

    assert events == ["a", "a done", "b", "bad c", "b done", "bad c done"]
    line.add(*events.work("d"))
    assert len(threads.submitted) == 1


def test_a_batch_is_bounded(threads: Threads) -> None:
    line, events = InOrder(threads.submit, threads.call_soon), Events()
    line.start()
    for number in range(1 + MOST_AT_ONCE + 3):
        line.add(*events.work(str(number)))
    done = []
    while threads.submitted:
        threads.run()
        done.append(len(events))
        threads.submitted.popleft()[1](None, None)
        del events[:]

    assert done == [1, MOST_AT_ONCE, 3]


def test_before_the_start_and_after_the_stop_all_is_done_at_once(threads: Threads) -> None:
    line, events = InOrder(threads.submit, threads.call_soon), Events()
    line.add(*events.work("before"))
    assert events == ["before", "before done"]
    line.start()
    line.add(*events.work("a"))
    threads.run()
    line.add(*events.work("b"))

    line.stop()  # the thread has ended, its report has not come

    assert events[2:] == ["a", "a done", "b", "b done"]
    threads.report()
    line.stop()
    line.add(*events.work("c"))
    assert events[6:] == ["c", "c done"]


def test_a_patient_line_begins_with_the_start_and_leaves_the_rest_to_the_next(
    threads: Threads,
) -> None:
    line, events = InOrder(threads.submit, threads.call_soon, is_patient=True), Events()
    line.add(*events.work("a"))
    line.add(*events.work("b"))
    assert not threads.submitted
    line.start()
    threads.run()

    line.stop()

    assert events == ["a", "a done"]


def test_without_threads_all_is_done_at_once(threads: Threads) -> None:
    events = Events()
    line = InOrder(None, threads.call_soon, is_patient=True)
    line.start()
    line.add(*events.work("a"))

    assert events == ["a", "a done"]


def test_a_bug_in_a_work_fails_that_work(
    threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    line, told = InOrder(threads.submit, threads.call_soon), []
    line.start()
    line.add(lambda: 1 // 0, lambda result, error: told.append(error))
    line.add(lambda: 7, lambda result, error: told.append(result))
    for _ in range(2):
        threads.run()
        threads.report()

    assert isinstance(told[0], OSError) and told[1] == 7
    assert "bug in a task" in caplog.text


def test_a_worker_finishes_what_it_was_given_before_it_ends() -> None:
    told: SimpleQueue[tuple[object, ...]] = SimpleQueue()
    worker = Worker("w", lambda done, *outcome: done(*outcome))
    names = []
    for number in range(5):
        worker.submit(
            lambda: names.append(threading.current_thread().name),
            lambda *outcome, number=number: told.put((number, *outcome)),
        )
    worker.stop()
    worker.stop()

    assert [told.get_nowait() for _ in range(5)] == [(n, None, None) for n in range(5)]
    assert set(names) == {"w"}


def test_where_no_thread_can_be_started_the_callers_does_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interpreter that ends starts none: whoever declared a durable queue waited for ever."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    later: deque[Callable[[], object]] = deque()
    worker = Worker("w", lambda done, *args: later.append(partial(done, *args)))
    line, events = (
        InOrder(worker.submit, lambda call, *args: later.append(partial(call, *args))),
        Events(),
    )
    line.start()
    for name in ("a", "bad b", "c"):
        line.add(*events.work(name))
    while later:
        later.popleft()()
    worker.stop()
    line.stop()

    assert sorted(events) == ["a", "a done", "bad b", "bad b done", "c", "c done"]


def test_as_many_threads_work_as_there_may_be() -> None:
    told: SimpleQueue[object] = SimpleQueue()
    both = threading.Barrier(2, timeout=20)
    worker = Worker("w", lambda done, *outcome: done(*outcome), n_threads=2)
    for _ in range(2):
        worker.submit(both.wait, lambda result, error: told.put((result, error)))
    worker.stop()

    assert sorted(told.get_nowait() for _ in range(2)) == [(0, None), (1, None)]
