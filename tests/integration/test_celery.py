"""Celery: a real worker runs hundreds of tasks, retries them, and outlives a broker restart.

On py-amqp, and on this project's own client (`lavinmq://`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery, group

from tests.integration.celery_worker import MAX_ATTEMPTS, make_app
from tests.support.broker import Broker

DEADLINE_S = 90.0
START_TIMEOUT_S = 40.0
RESULT_TIMEOUT_S = 40.0
STOP_TIMEOUT_S = 10.0
REPOSITORY = Path(__file__).parents[2]


class Worker:
    """A worker process, the application that sends it tasks, and the log of the runs."""

    def __init__(self, broker: Broker, scheme: str, directory: Path) -> None:
        name = f"test-celery-{uuid.uuid4().hex[:12]}"
        self.node_name = f"{name}@localhost"
        self._runs_path = directory / "runs.txt"
        self._output_path = directory / "worker.log"
        self._runs_path.touch()
        uri = broker.uri.replace("amqp:", f"{scheme}:")
        self.app: Celery = make_app(uri, name, self._runs_path)
        command = [sys.executable, "-m", "tests.integration.celery_worker"]
        with self._output_path.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, uri, name, str(self._runs_path), self.node_name],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def send(self, task: str, numbers: range) -> list[object]:
        """Run a task for each number and return its results in order."""
        signature = self.app.tasks[task].s
        results = group([signature(number) for number in numbers], app=self.app).apply_async()
        try:
            return list(results.get(timeout=RESULT_TIMEOUT_S))
        except TimeoutError as error:
            raise AssertionError(f"results are missing{self.report()}") from error

    def runs(self, task: str) -> Counter[int]:
        """Return how often each number was worked on by `task`."""
        lines = self._runs_path.read_text(encoding="ascii").splitlines()
        return Counter(int(line.split()[1]) for line in lines if line.split()[0] == task)

    def wait_until(self, condition: Callable[[], bool], failure: str, timeout_s: float) -> None:
        """Poll `condition`; raises AssertionError with the worker's output when it stays false."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._process.poll() is None, f"the worker ended{self.report()}"
            assert time.monotonic() < deadline, f"{failure}{self.report()}"
            time.sleep(0.05)

    def wait_until_ready(self) -> None:
        """Wait until the worker answers over its remote control exchange."""

        def answers() -> bool:
            return bool(self.app.control.ping(destination=[self.node_name], timeout=0.5))

        self.wait_until(answers, "the worker does not answer a ping", START_TIMEOUT_S)

    def report(self) -> str:
        """Return the end of the worker's output, for failure messages."""
        output = self._output_path.read_text(encoding="utf-8", errors="replace")
        return f"\n--- output of the worker ---\n{output[-4000:]}"

    def close(self) -> None:
        """End the worker and its pool, whatever their state, and the connections to it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        # Celery leaves these to the garbage collector; both just drop their sockets.
        self.app.backend.result_consumer.on_after_fork()
        self.app.pool.force_close_all()
        self.app.close()


@pytest.fixture(scope="module", params=["amqp", "lavinmq"])
def scheme(request: pytest.FixtureRequest) -> str:
    """What Celery uses: py-amqp, or our client."""
    return str(request.param)


@pytest.fixture(scope="module")
def worker(
    broker: Broker, scheme: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A worker that is ready, shared by the tests that only use other numbers or tasks."""
    started = Worker(broker, scheme, tmp_path_factory.mktemp("celery"))
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.close()


def test_hundreds_of_tasks_run_exactly_once_and_answer(worker: Worker) -> None:
    numbers = range(300)

    results = worker.send("square", numbers)

    assert results == [number * number for number in numbers], worker.report()
    assert worker.runs("square") == dict.fromkeys(numbers, 1), worker.report()


def test_tasks_that_fail_are_retried_until_they_succeed(worker: Worker) -> None:
    numbers = range(100)

    results = worker.send("flaky", numbers)

    assert results == [MAX_ATTEMPTS] * len(numbers), worker.report()
    assert worker.runs("flaky") == dict.fromkeys(numbers, MAX_ATTEMPTS), worker.report()


def test_the_exception_of_a_task_reaches_its_caller(worker: Worker) -> None:
    result = worker.app.tasks["hopeless"].delay("no way")

    with pytest.raises(ValueError, match="no way"):
        result.get(timeout=RESULT_TIMEOUT_S)


def test_remote_control_tells_what_the_worker_does(worker: Worker) -> None:
    inspect = worker.app.control.inspect(destination=[worker.node_name], timeout=5.0)

    queues = inspect.active_queues()
    registered = inspect.registered()

    assert queues is not None, f"no answer{worker.report()}"
    assert registered is not None, f"no answer{worker.report()}"
    assert [queue["name"] for queue in queues[worker.node_name]] == [
        worker.app.conf.task_default_queue
    ]
    assert {"square", "flaky", "hopeless"} <= set(registered[worker.node_name])


def test_no_task_is_lost_when_the_broker_restarts(
    own_broker: Broker, scheme: str, tmp_path: Path
) -> None:
    worker = Worker(own_broker, scheme, tmp_path)
    try:
        worker.wait_until_ready()
        square = worker.app.tasks["square"]
        for number in range(200):
            square.apply_async((number,), ignore_result=True)

        own_broker.restart()
        for number in range(200, 250):
            square.apply_async((number,), ignore_result=True)

        worker.wait_until(
            lambda: set(worker.runs("square")) == set(range(250)),
            "tasks were lost by the restart",
            RESULT_TIMEOUT_S,
        )
    finally:
        worker.close()
