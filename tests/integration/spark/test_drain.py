"""`lavinmq-pipeline drain`: what leaves a queue is in a file, whatever happens on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyarrow import parquet

from lavinmq.pipeline.arguments import job_parser
from lavinmq.pipeline.cli import main
from lavinmq.pipeline.errors import PipelineError
from lavinmq.pipeline.job import Result, Run, find_jobs
from lavinmq.pipeline.jobs.drain import Archive
from lavinmq.pipeline.progress import Silence
from tests.integration.conftest import UniqueName
from tests.integration.rules_actions import holds, send, taken
from tests.support.broker import Broker


@pytest.fixture
def queue(channel: BlockingChannel, unique: UniqueName) -> str:
    name = unique("drained")
    channel.queue_declare(name, durable=True)
    return name


def drain(broker: Broker, queue: str, target: Path, *more: str) -> Result:
    job = find_jobs()["drain"]
    args = ["--url", broker.uri, "--once", *more, queue, str(target)]
    return job.run(Run(job, job_parser(job).parse_args(args), Silence()))


def rows(target: Path) -> list[dict[str, Any]]:
    """All rows of all files, by offset."""
    files = sorted(target.glob("*.parquet"))
    found = [row for file in files for row in parquet.read_table(file).to_pylist()]
    return sorted(found, key=lambda row: row["offset"])


def test_a_drained_queue_is_in_files_in_its_order(
    broker: Broker, channel: BlockingChannel, queue: str, tmp_path: Path
) -> None:
    sent = [str(number) for number in range(25)]
    send(channel, queue, *sent)
    holds(channel, queue, 25)

    result = drain(broker, queue, tmp_path / "new", "--rows-per-file", "10")

    found = rows(tmp_path / "new")
    assert [row["body"].decode() for row in found] == sent
    assert [row["offset"] for row in found] == list(range(1, 26))
    assert (result.values["messages"], result.values["files"]) == (25, 3)
    holds(channel, queue, 0)


def test_properties_and_headers_come_along(
    broker: Broker, channel: BlockingChannel, queue: str, tmp_path: Path
) -> None:
    properties = pika.BasicProperties(
        content_type="text/plain", priority=200, timestamp=1_700_000_000, headers={"a": [1, "x"]}
    )
    channel.basic_publish("", queue, b"\x00\xff", properties)
    holds(channel, queue, 1)

    drain(broker, queue, tmp_path)

    (row,) = rows(tmp_path)
    assert (row["queue"], row["exchange"], row["routing_key"]) == (queue, "", queue)
    assert (row["body"], row["content_type"], row["priority"]) == (b"\x00\xff", "text/plain", 200)
    assert row["timestamp"] == row["message_timestamp"]
    assert row["timestamp"].timestamp() == 1_700_000_000
    (value,) = json.loads(row["headers_json"])["a"]["A"][1:]
    assert value == {"S": "x"}


def test_numbers_go_on_in_the_next_run(
    broker: Broker, channel: BlockingChannel, queue: str, tmp_path: Path
) -> None:
    for body in ("a", "b"):
        send(channel, queue, body)
        holds(channel, queue, 1)
        drain(broker, queue, tmp_path)

    assert [(row["offset"], row["body"]) for row in rows(tmp_path)] == [(1, b"a"), (2, b"b")]


def test_no_more_than_the_limit_is_taken(
    broker: Broker, channel: BlockingChannel, queue: str, tmp_path: Path
) -> None:
    send(channel, queue, "1", "2", "3")
    holds(channel, queue, 3)

    drain(broker, queue, tmp_path, "--limit", "2")

    assert [row["body"] for row in rows(tmp_path)] == [b"1", b"2"]
    assert taken(channel, queue, 1) == ["3"]


def test_much_more_than_the_limit_in_large_messages_is_no_trouble(
    broker: Broker, channel: BlockingChannel, queue: str, tmp_path: Path
) -> None:
    send(channel, queue, *(f"{number:03}" + "x" * 400_000 for number in range(150)))
    holds(channel, queue, 150)

    drain(broker, queue, tmp_path, "--limit", "60", "--rows-per-file", "20")

    assert [row["body"][:3] for row in rows(tmp_path)] == [b"%03d" % n for n in range(60)]
    assert [body[:3] for body in taken(channel, queue, 90)] == [f"{n:03}" for n in range(60, 150)]


def test_a_file_that_cannot_be_written_leaves_its_messages(
    broker: Broker,
    channel: BlockingChannel,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first file is safe and acknowledged, the second one fails at its rename."""
    send(channel, queue, *"abcd")
    holds(channel, queue, 4)
    rename, calls = Path.rename, []

    def fail_later(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) > 1:
            raise OSError(28, "No space left on device", str(target))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail_later)
        with pytest.raises(OSError, match="No space left"):
            drain(broker, queue, tmp_path, "--rows-per-file", "2")

    holds(channel, queue, 2)
    assert [row["body"] for row in rows(tmp_path)] == [b"a", b"b"]
    drain(broker, queue, tmp_path)
    assert [row["body"] for row in rows(tmp_path)] == [b"a", b"b", b"c", b"d"]
    assert not list(tmp_path.glob(".*"))


def test_a_directory_has_one_drain_at_a_time(
    broker: Broker, channel: BlockingChannel, queue: str, unique: UniqueName, tmp_path: Path
) -> None:
    """Another one would give its files the names of those that are there: what the first one has
    taken from its queue would be gone."""
    other = unique("other")
    channel.queue_declare(other, durable=True)
    first = Archive(tmp_path, other, "zstd")
    first.open()
    send(channel, queue, "a")
    holds(channel, queue, 1)

    with pytest.raises(PipelineError, match="another drain writes there"):
        drain(broker, queue, tmp_path)
    holds(channel, queue, 1)

    first.close()
    drain(broker, queue, tmp_path)
    assert [row["body"] for row in rows(tmp_path)] == [b"a"]


def test_an_empty_queue_makes_no_file(broker: Broker, queue: str, tmp_path: Path) -> None:
    result = drain(broker, queue, tmp_path)

    assert (result.values["messages"], list(tmp_path.iterdir())) == (0, [])


def test_a_missing_queue_is_one_line(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drain", "--url", broker.uri, "no-such", str(tmp_path)]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ") and "404" in line and "'no-such'" in line
