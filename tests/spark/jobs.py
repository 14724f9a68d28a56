"""Jobs of lavinmq-pipeline on the session of the tests, from their command lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lavinmq.pipeline.arguments import job_parser
from lavinmq.pipeline.files import Files
from lavinmq.pipeline.job import Result, Run, find_jobs
from lavinmq.pipeline.ledger import Ledger
from lavinmq.pipeline.progress import Silence
from tests.spark.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


def run_job(spark: SparkSession, name: str, *args: object) -> Result:
    """Run a job as the command line does, but leave errors as they are, and the session alive."""
    job = find_jobs()[name]
    options = job_parser(job).parse_args([str(each) for each in args])
    return job.run(Run(job, options, Silence(), spark))


class Archive:
    """An archive of a stream, in a directory of its own."""

    def __init__(self, spark: SparkSession, stream: Stream, directory: Path) -> None:
        self.spark = spark
        self.stream = stream
        self.path = directory / "archive"
        self.checkpoint = directory / "checkpoint"

    def arguments(self, *more: object) -> list[object]:
        """The command line of `archive --once`."""
        return [*broker_arguments(self.stream), "--queue", self.stream.name, "--once",
                "--checkpoint", self.checkpoint, *more, self.path]  # fmt: skip

    def update(self, *more: object) -> dict[str, Any]:
        """Archive what is new; returns the values of the result."""
        return dict(run_job(self.spark, "archive", *self.arguments(*more)).values)

    def rows(self) -> list[Row]:
        """What any reader of Parquet finds, by offset."""
        return self.spark.read.parquet(str(self.path)).orderBy("offset").collect()

    def bodies(self) -> list[bytes]:
        """All bodies, by offset."""
        return [bytes(row["body"]) for row in self.rows()]

    def files(self) -> list[Path]:
        """The files that hold messages. A running job's own directories, which begin with `_`, are
        not looked into: what is in them may go at any time."""
        entries = self.path.glob("[!_]*")
        found = (each.rglob("*.parquet") if each.is_dir() else [each] for each in entries)
        return sorted(each for several in found for each in several if each.suffix == ".parquet")


def broker_arguments(stream: Stream) -> list[object]:
    """Options that say where the broker of a stream is."""
    found: list[object] = ["--url", stream.broker.uri]
    return [*found, "--http-url", stream.broker.http_url]


def stop_at(patch: pytest.MonkeyPatch, step: str) -> None:
    """Make the next publication of a change fail at a step: as if the job had been killed there."""

    def stop(*_: object, **__: object) -> None:
        raise RuntimeError("stopped here")

    moves = []
    move = Files.move

    def move_some(files: Files, source: str, target: str) -> bool:
        moves.append(target)
        if len(moves) > 2:
            stop()
        return move(files, source, target)

    match step:
        case "staged":
            patch.setattr(Ledger, "publish", stop)
        case "change":
            patch.setattr(Ledger, "_do", stop)
        case "half moved":
            patch.setattr(Files, "move", move_some)
        case "moved":
            patch.setattr(Files, "delete", stop)
        case _:
            raise ValueError(step)
