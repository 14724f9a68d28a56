"""Archive, replay, restore, verify: what comes back is what was published, in its order."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lavinmq.pipeline.errors import UsageError
from lavinmq.pipeline.failures import explain
from lavinmq.pipeline.files import Files
from lavinmq.pipeline.publishing import STATE
from tests.spark.jobs import Archive, broker_arguments, run_job
from tests.spark.streams import Stream, channel, numbers
from tests.support.broker import Broker
from tests.support.raw_connection import Properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORIGIN = ("--ignore-header", "x-origin-queue", "--ignore-header", "x-origin-offset")


@pytest.fixture
def archive(spark: SparkSession, stream: Stream, tmp_path: Path) -> Archive:
    return Archive(spark, stream, tmp_path)


def another(archive: Archive, tmp_path: Path, suffix: str = "copy") -> Archive:
    """Another stream, and an archive of it."""
    stream = Stream(archive.stream.broker, f"{archive.stream.name}-{suffix}").declare()
    return Archive(archive.spark, stream, tmp_path / suffix)


EVERYTHING = Properties(
    content_type="application/json", content_encoding="gzip", delivery_mode=2, priority=9,
    correlation_id="c", reply_to="r", expiration="600000", message_id="m", message_type="t",
    user_id="guest", app_id="a", timestamp=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    headers={
        "bool": True, "small": 1, "large": 1 << 40, "double": 1.5, "text": "ünïcode", "none": None,
        "bytes": bytearray(b"\x00\xff"), "list": [1, "two", {"three": 3}], "table": {"a": {"b": 1}},
        "time": datetime(2026, 1, 1, tzinfo=UTC), "": "no name",
    },
)  # fmt: skip


def publish_everything(stream: Stream) -> None:
    """Publish messages that are all different in some property, and some that are not."""
    stream.publish([b"", b"\x00\xff" * 100, struct.pack(">d", 1.5)], properties=EVERYTHING)
    stream.publish([b"plain", b"plain", b"\xe2\x82"])
    for name in ("content_type", "message_id", "app_id"):
        stream.publish([b"one property"], properties=Properties(**{name: "only"}))


def test_archive_replay_archive_gives_equal_sets(archive: Archive, tmp_path: Path) -> None:
    """Bodies to the byte, headers with their types, every property."""
    copy = another(archive, tmp_path)
    publish_everything(archive.stream)
    archive.update()

    done = run_job(archive.spark, "replay", archive.path, *broker_arguments(archive.stream),
                   "--exchange", "", "--routing-key", copy.stream.name, "--mandatory")  # fmt: skip
    copy.update()

    assert done.values["rows"] == 9
    compared = run_job(archive.spark, "verify", archive.path, copy.path, "--ignore", "routing_key",
                       *ORIGIN)  # fmt: skip
    assert compared.status == 0, compared.text
    names = [name for name in archive.rows()[0].asDict() if name not in {"queue", "offset"}]
    left_out = {"timestamp", "date", "routing_key", "headers_json"}
    for before, after in zip(archive.rows(), copy.rows(), strict=True):
        for name in names:
            assert name in left_out or before[name] == after[name], name
        assert_same_headers(before["headers_json"], after["headers_json"], before)


def assert_same_headers(before: str | None, after: str, row: Any) -> None:
    """The same text, but for the two headers that tell the origin."""
    import json

    found = json.loads(after)
    assert found.pop("x-origin-queue") == {"S": row["queue"]}
    assert list(found.pop("x-origin-offset").values()) == [row["offset"]]
    assert found == json.loads(before or "{}")


def test_a_replay_can_leave_headers_as_they_are(archive: Archive, tmp_path: Path) -> None:
    copy = another(archive, tmp_path)
    publish_everything(archive.stream)
    archive.update()

    run_job(archive.spark, "replay", f"queue:{archive.stream.name}", "--no-origin",
            *broker_arguments(archive.stream), "--exchange", "",
            "--routing-key", copy.stream.name)  # fmt: skip
    compared = run_job(archive.spark, "verify", archive.path, f"queue:{copy.stream.name}",
                       *broker_arguments(copy.stream), "--ignore", "routing_key")  # fmt: skip

    assert compared.status == 0, compared.text


def stop_at_note(
    number: int, monkeypatch: pytest.MonkeyPatch, spark: SparkSession, *job: object
) -> None:
    """Run a job in rounds of 30 messages; it ends when a round is published and not noted yet."""
    monkeypatch.setattr("lavinmq.pipeline.publishing.ROUND_ROWS", 30)
    with monkeypatch.context() as patch:
        saves: list[str] = []
        write = Files.write

        def stop(files: Files, name: str, text: str, **more: bool) -> bool:
            saves.append(name)
            if len(saves) == number:
                raise RuntimeError("stopped here")
            return write(files, name, text, **more)

        patch.setattr(Files, "write", stop)
        with pytest.raises(RuntimeError, match="stopped here"):
            run_job(spark, *job)
    assert saves == [STATE] * number


@pytest.mark.nightly
def test_order_and_progress_of_a_replay_survive_its_stop(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages come in order; those of the rounds that were done do not come again."""
    copy = another(archive, tmp_path)
    archive.stream.publish(numbers(0, 100))
    archive.update()
    arguments = [archive.path, *broker_arguments(archive.stream), "--exchange", "",
        "--routing-key", copy.stream.name, "--checkpoint", tmp_path / "replayed"]  # fmt: skip
    stop_at_note(3, monkeypatch, archive.spark, "replay", *arguments)

    rest = run_job(archive.spark, "replay", *arguments)
    again = run_job(archive.spark, "replay", *arguments)
    copy.update()

    got = [int(body) for body in copy.bodies()]
    assert set(got) == set(range(100))
    n_repeated = len(got) - 100
    assert 0 < n_repeated <= 40
    third = got[len(got) - rest.values["rows"] :]
    assert third == sorted(third)
    assert got[: len(got) - len(third)] == list(range(len(got) - len(third)))
    assert again.values["rows"] == 0
    with pytest.raises(UsageError, match="--checkpoint is of another job: its key is"):
        run_job(archive.spark, "replay", *arguments, "--key", "a.#")


def test_filters_choose_and_a_dry_run_counts(archive: Archive, tmp_path: Path) -> None:
    with channel(archive.stream.broker) as opened:
        name = archive.stream.name
        opened.declare_exchange(name, "topic")
        opened.bind_queue(name, name, "#")
        opened.confirm_select()
        for number in range(20):
            headers = {"half": number // 10, "name": "x.y"}
            key = f"{'a' if number % 2 else 'b'}.k.{number}"
            opened.publish(name, key, b"%d" % number, Properties(headers=headers))
        while (opened.confirm(30).delivery_tag or 0) < 20:
            pass
    archive.update()

    def count(*filters: object) -> int:
        found = run_job(archive.spark, "replay", archive.path, "--dry-run", *filters)
        return int(found.values["rows"])

    assert count() == 20
    assert count("--key", "a.#") == 10
    assert count("--key", "a.#", "--key", "b.*.0") == 11
    assert count("--header", "half=1", "--header", "name=x.y") == 10
    assert count("--header", "none=1") == 0
    assert count("--since", "2000-01-01", "--until", "2100-01-01", "--queue", name) == 20
    assert count("--until", "2000-01-01") == 0


def test_a_stream_is_restored_with_its_properties(archive: Archive) -> None:
    publish_everything(archive.stream)
    archive.update()
    restored = Stream(archive.stream.broker, f"{archive.stream.name}-restored")
    arguments = [*broker_arguments(restored), archive.path, restored.name]

    done = run_job(archive.spark, "restore", *arguments)

    assert done.values["verified"] is True
    assert done.status == 0
    with pytest.raises(Exception, match="has 9 messages already") as refusal:
        run_job(archive.spark, "restore", *arguments)
    assert "\n" not in str(explain(refusal.value))
    with channel(restored.broker) as opened:
        # The exchange of the job is gone: declaring it as another type is allowed.
        opened.declare_exchange(f"lavinmq-pipeline.restore.{restored.name}", "direct")


def test_a_restore_that_is_stopped_in_its_first_round_goes_on_and_tells_what_is_there_twice(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It refused to: the stream had messages, and its checkpoint did not know of them."""
    archive.stream.publish(numbers(0, 100))
    archive.update()
    restored = another(archive, tmp_path, "restored")
    restored.stream.delete()
    arguments = [*broker_arguments(archive.stream), "--checkpoint", tmp_path / "restoring",
        archive.path, restored.stream.name]  # fmt: skip
    stop_at_note(2, monkeypatch, archive.spark, "restore", *arguments)

    rest = run_job(archive.spark, "restore", *arguments)
    restored.update()

    got = [int(body) for body in restored.bodies()]
    twice = len(got) - 100
    assert 0 < twice <= 40
    assert set(got) == set(range(100))
    assert got[-rest.values["rows"] :] == list(range(100 - rest.values["rows"], 100))
    # The round that was not noted is there twice, and the comparison at the end says so.
    assert (rest.status, rest.values["verified"]) == (1, False)


@pytest.mark.nightly
def test_small_files_become_one_and_messages_stay(archive: Archive, tmp_path: Path) -> None:
    import shutil

    archive.stream.publish(numbers(0, 50))
    archive.update("--rows-per-file", 10)
    before = tmp_path / "before"
    shutil.copytree(archive.path, before)

    would = run_job(archive.spark, "compact", archive.path, "--dry-run")
    n_before = len(archive.files())
    done = run_job(archive.spark, "compact", archive.path)
    compared = run_job(archive.spark, "verify", archive.path, before, "--place")
    again = run_job(archive.spark, "compact", archive.path)

    assert n_before >= 5
    assert would.values["files_before"] == done.values["files_before"] == n_before
    assert len(archive.files()) == done.values["files_after"] <= 2
    assert compared.status == 0, compared.text
    assert again.values["files_before"] == 0
    archive.stream.publish(numbers(50, 60))
    archive.update()
    assert archive.bodies() == numbers(0, 60)


def test_verify_tells_what_differs_and_what_is_there_twice(
    archive: Archive, tmp_path: Path
) -> None:
    import shutil

    archive.stream.publish(numbers(0, 30))
    archive.update("--rows-per-file", 10)
    less, twice = tmp_path / "less", tmp_path / "twice"
    shutil.copytree(archive.path, less)
    shutil.copytree(archive.path, twice)
    first = next(iter(sorted(less.glob("date=*/*.parquet"))))
    first.unlink()
    second = next(iter(sorted(twice.glob("date=*/*.parquet"))))
    shutil.copy(second, second.with_name("again.parquet"))

    whole = run_job(archive.spark, "verify", archive.path)
    compared = run_job(archive.spark, "verify", archive.path, less)
    doubled = run_job(archive.spark, "verify", twice)

    (queue,) = whole.values["queues"]
    assert (queue["rows"], queue["first_offset"], queue["last_offset"]) == (30, 1, 30)
    assert (queue["missing"], queue["duplicates"], whole.status) == (0, 0, 0)
    one, other = compared.values["sides"]
    assert (compared.status, one["only_here"], other["only_here"]) == (1, 10, 0)
    assert [each["offset"] for each in one["examples"]] == [1, 2, 3]
    assert (doubled.status, doubled.values["duplicates"]) == (1, 10)


def test_a_data_directory_is_a_source(http_broker: Broker, spark: SparkSession) -> None:
    """Streams and classic queues, read from files, in the order of the queue."""
    stream = Stream(http_broker, "s").declare()
    publish_everything(stream)
    with channel(http_broker) as opened:
        opened.declare_queue("classic", durable=True)
        opened.declare_queue("copy", durable=True)
        opened.confirm_select()
        for body in numbers(0, 50):
            opened.publish("", "classic", body, Properties(delivery_mode=2))
        while (opened.confirm(30).delivery_tag or 0) < 50:
            pass
    source = f"segments:{http_broker.data_dir}"

    counted = run_job(spark, "replay", source, "--dry-run")
    compared = run_job(spark, "verify", source, "queue:s", "--queue", "s",
                       *broker_arguments(stream))  # fmt: skip
    run_job(spark, "replay", source, "--queue", "classic", "--exchange", "", "--routing-key",
            "copy", "--mandatory", *broker_arguments(stream))  # fmt: skip

    assert {q["queue"]: q["rows"] for q in counted.values["queues"]} == {"classic": 50, "s": 9}
    assert compared.status == 0, compared.text
    with channel(http_broker) as opened:
        got = [opened.get("copy", no_ack=True) for _ in range(50)]
    assert [each.body for each in got if each is not None] == numbers(0, 50)
