"""What a job is: its command, its options, and the function that carries it out.

A job is a module of ``lavinmq/pipeline/jobs/`` with a `JOB`; nothing else has to know it. Such
a module imports pyspark and pyarrow inside its functions only, so that help and wrong usage answer
at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline.errors import DONE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lavinmq.pipeline.arguments import Parser
    from lavinmq.pipeline.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command.

    `configure` adds the options that only this job has; `run` does the work. `needs_spark`: gets
    --master and --conf, and `Run.spark` works. `is_stream`: gets --checkpoint, --once and
    --trigger. `publishes`: messages leave it, so that speculative tasks would publish twice.
    """

    name: str
    help: str
    configure: Callable[[Parser], None]
    run: Callable[[Run], Result]
    description: str = ""
    needs_spark: bool = True
    is_stream: bool = False
    publishes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a job found: `values` for --json, `text` for people (else the values), the status."""

    values: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    status: int = DONE


@dataclass(slots=True)
class Run:
    """One run of a job: its options, where progress is shown, and the session, made when needed."""

    job: Job
    options: argparse.Namespace
    progress: Progress
    _spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The session. Raises: PipelineError when there can be none."""
        if self._spark is None:
            from lavinmq.pipeline.session import make_session

            self.progress.note("starting Spark")
            self._spark = make_session(
                f"lavinmq-pipeline {self.job.name}",
                master=self.options.master,
                conf=dict(self.options.conf),
                publishes=self.job.publishes,
                is_debug=self.options.debug,
            )
        return self._spark

    def close(self) -> None:
        """Stop the session, if there is one."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


def find_jobs() -> dict[str, Job]:
    """Return all jobs by name, in alphabetical order."""
    from importlib import import_module
    from pkgutil import iter_modules

    from lavinmq.pipeline import jobs

    names = (f"{jobs.__name__}.{module.name}" for module in iter_modules(jobs.__path__))
    found: list[Job] = [import_module(name).JOB for name in names]
    return {job.name: job for job in sorted(found, key=lambda job: job.name)}
