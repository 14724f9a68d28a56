"""`lavinmq-pipeline archive`: each message is in the archive once, whatever happens to the job."""

from __future__ import annotations

import json
import os
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lavinmq.pipeline.errors import DATA_LOSS, FAILED, PipelineError, UsageError
from lavinmq.pipeline.failures import explain
from tests.spark.jobs import Archive, run_job, stop_at
from tests.spark.streams import Stream, numbers
from tests.support.raw_connection import Properties
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def archive(spark: SparkSession, stream: Stream, tmp_path: Path) -> Archive:
    return Archive(spark, stream, tmp_path)


def test_each_run_adds_what_is_new_and_nothing_twice(archive: Archive) -> None:
    archive.stream.publish(numbers(0, 250))
    first = archive.update("--max-rows", 100)
    again = archive.update()
    archive.stream.publish(numbers(250, 300))
    later = archive.update()

    assert archive.bodies() == numbers(0, 300)
    assert [row["offset"] for row in archive.rows()] == list(range(1, 301))
    assert (first["rows"], first["batches"]) == (250, 3)
    assert (again["rows"], later["rows"]) == (0, 50)


def test_columns_and_directories_are_those_of_the_messages(archive: Archive) -> None:
    properties = Properties(
        content_type="text/plain", message_id="m1", priority=3, headers={"n": 1, "s": "x"}
    )
    archive.stream.publish([b"one"], properties=properties)

    archive.update("--hour", "--key-words", 1)

    (row,) = archive.rows()
    assert (row["content_type"], row["message_id"], row["priority"]) == ("text/plain", "m1", 3)
    assert json.loads(row["headers_json"]) == {"n": {"b": 1}, "s": {"S": "x"}}
    assert abs(row["timestamp"].astimezone(UTC) - datetime.now(UTC)).total_seconds() < 600
    (file,) = archive.files()
    words = [part.partition("=")[0] for part in file.relative_to(archive.path).parts[:-1]]
    assert words == ["date", "hour", "key"]


@pytest.mark.nightly
def test_files_are_as_large_as_asked_for(archive: Archive) -> None:
    archive.stream.publish(numbers(0, 100))

    archive.update("--rows-per-file", 30)

    counts = [archive.spark.read.parquet(str(file)).count() for file in archive.files()]
    assert sum(counts) == 100
    assert max(counts) <= 30
    assert len(counts) <= 5


def test_a_batch_that_spark_does_again_is_not_written_again(archive: Archive) -> None:
    """Stopped after the files were there, before Spark had noted that the batch was done."""
    archive.stream.publish(numbers(0, 20))
    archive.update()
    for commit in (archive.checkpoint / "commits").iterdir():
        commit.unlink()
    archive.stream.publish(numbers(20, 30))

    archive.update()

    assert archive.bodies() == numbers(0, 30)


def test_a_run_that_is_stopped_while_it_publishes_is_finished_by_the_next(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``test_ledger.py`` stops it at every step; here Spark runs the batch again."""
    archive.stream.publish(numbers(0, 40))
    with monkeypatch.context() as patch:
        stop_at(patch, "half moved")
        with pytest.raises(Exception, match="stopped here"):
            archive.update("--rows-per-file", 10)
    n_seen = len(archive.rows())
    archive.stream.publish(numbers(40, 50))

    archive.update("--rows-per-file", 10)

    assert 0 < n_seen < 40
    assert archive.bodies() == numbers(0, 50)


def test_an_archive_that_was_emptied_is_not_continued(archive: Archive) -> None:
    import shutil

    archive.stream.publish(numbers(0, 5))
    archive.update()
    shutil.rmtree(archive.path)
    archive.stream.publish(numbers(5, 10))

    with pytest.raises(Exception, match=r"lacks batch 0.*was the archive moved or emptied") as info:
        archive.update()

    assert PipelineError.__name__ in str(info.value)


def test_lost_messages_are_refused_with_a_status_of_their_own(archive: Archive) -> None:
    archive.stream.publish(numbers(0, 10))
    archive.update()
    archive.stream.delete()
    archive.stream.declare().publish(numbers(10, 12))

    with pytest.raises(Exception, match="data loss") as refusal:
        archive.update()

    failure = explain(refusal.value)
    assert failure.status == DATA_LOSS
    assert archive.stream.name in str(failure)
    assert "\n" not in str(failure)
    assert archive.bodies() == numbers(0, 10)


def test_a_wrong_password_is_one_line(archive: Archive) -> None:
    url = archive.stream.broker.uri.replace("guest:guest", "guest:not-this-one")

    with pytest.raises(Exception, match="refused") as refusal:
        archive.update("--url", url)

    failure = explain(refusal.value)
    assert failure.status == FAILED
    assert "\n" not in str(failure)
    assert "not-this-one" not in str(failure)


@pytest.mark.nightly
def test_two_checkpoints_fill_one_archive(
    archive: Archive, spark: SparkSession, tmp_path: Path
) -> None:
    other = Stream(archive.stream.broker, f"{archive.stream.name}-2").declare()
    beside = Archive(spark, other, tmp_path)
    beside.checkpoint = tmp_path / "checkpoint-2"
    archive.stream.publish([b"a"])
    other.publish([b"b"])

    archive.update()
    beside.update()

    found = {(row["queue"], bytes(row["body"])) for row in archive.rows()}
    assert found == {(archive.stream.name, b"a"), (other.name, b"b")}


def test_a_job_without_an_end_stops_in_order_when_it_is_told_to(archive: Archive) -> None:
    archive.stream.publish(numbers(0, 20))
    told = threading.Event()

    def tell() -> None:
        try:
            wait_for(lambda: bool(archive.files()), "nothing was archived", 120)
            told.set()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # else the job goes on without an end

    telling = threading.Thread(target=tell)
    telling.start()
    arguments = [each for each in archive.arguments("--trigger", "500ms") if each != "--once"]
    done = run_job(archive.spark, "archive", *arguments)
    telling.join()

    assert told.is_set()
    assert done.status == 0
    archive.update()
    assert archive.bodies() == numbers(0, 20)


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_format_without_its_jars_is_wrong_usage(archive: Archive, name: str) -> None:
    with pytest.raises(UsageError, match=f"--format {name}: its jars are not there"):
        archive.update("--format", name)
