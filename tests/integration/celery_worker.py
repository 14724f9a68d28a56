"""The Celery application of `test_celery.py`, and a worker for it when run as a program.

    python -m tests.integration.celery_worker BROKER_URI QUEUE LOG_PATH NODE_NAME

Every run of a task appends the line `<task> <number>` to the log, so that lost and repeated runs
show. The test makes the same application to send tasks and to collect results.
"""

from __future__ import annotations

import sys
from pathlib import Path

from celery import Celery, Task

import lavinmq.client.kombu  # noqa: F401  # makes lavinmq:// known

MAX_ATTEMPTS = 3


def make_app(broker_uri: str, queue: str, log_path: Path) -> Celery:
    """Return an application that keeps its tasks in `queue` and its results in reply queues."""
    app = Celery("integration", broker=broker_uri, backend="rpc://", set_as_current=False)
    app.conf.update(
        task_default_queue=queue,
        # A task cut short by a lost connection comes again, instead of being lost.
        task_acks_late=True,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
    )

    def log_run(task: str, number: int) -> None:
        # Opened for appending and written at once, so lines of several processes do not mix.
        with log_path.open("a", encoding="ascii") as log:
            log.write(f"{task} {number}\n")

    # shared: by default a task is registered with every other application of the process too.
    @app.task(name="square", shared=False)
    def square(number: int) -> int:
        log_run("square", number)
        return number * number

    @app.task(
        name="flaky", shared=False, bind=True, max_retries=MAX_ATTEMPTS, default_retry_delay=0
    )
    def flaky(self: Task, number: int) -> int:
        log_run("flaky", number)
        attempt: int = self.request.retries + 1
        if attempt < MAX_ATTEMPTS:
            raise self.retry()
        return attempt

    @app.task(name="hopeless", shared=False)
    def hopeless(reason: str) -> None:
        raise ValueError(reason)

    return app


def main(broker_uri: str, queue: str, log_path: str, node_name: str) -> None:
    """Work until SIGTERM, with Celery's defaults: prefork pool, gossip, mingle, remote control."""
    app = make_app(broker_uri, queue, Path(log_path))
    app.worker_main(["worker", "--concurrency=2", "--loglevel=INFO", f"--hostname={node_name}"])


if __name__ == "__main__":
    main(*sys.argv[1:])
