"""`lavinmq/spark/bulk.py` against a broker: the rows that come over AMQP too. No Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from lavinmq.spark.bulk import read_blocks
from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.options import SourceOptions
from lavinmq.spark.planner import RangeTask, plan
from lavinmq.spark.reading import read_range
from lavinmq.spark.schema import COLUMNS
from lavinmq.spark.streams import Streams
from tests.conftest import BrokerFactory
from tests.spark.batches import rows_of
from tests.spark.gate import Gate
from tests.spark.streams import Stream, numbers
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.raw_connection import Properties


@pytest.fixture
def held(http_broker: Broker) -> Stream:
    """An empty stream on a broker of one's own."""
    return Stream(http_broker, "held").declare()


def task_of(stream: Stream, start: int, end: int, **options: str) -> RangeTask:
    chosen = SourceOptions.parse(stream.options(transport="http", readTimeout="5s", **options))
    (task,) = plan(chosen, {stream.name: (start, end)}, chosen.columns, {})
    return task


def rows(task: RangeTask) -> list[dict[str, Any]]:
    return rows_of(task, read_blocks(task))


def test_rows_are_those_that_come_over_amqp(held: Stream) -> None:
    held.publish(numbers(0, 100), properties=Properties(headers={"n": 5, "t": {"a": [1]}}))
    held.publish([b"", b"x" * 1_000_000], properties=Properties(message_id="m", priority=200))
    columns = ",".join(COLUMNS)

    task = task_of(held, 11, 103, columns=columns, batchRows="40")
    over_amqp = [row for batch in read_range(task) for row in batch.to_pylist()]

    assert len(over_amqp) == 92
    assert rows(task) == over_amqp


def test_a_range_of_many_blocks_is_cut_into_batches(held: Stream) -> None:
    held.publish(numbers(0, 30_000))

    task = task_of(held, 1, 30_001, columns="offset,body", batchRows="1000")

    assert [(row["offset"], int(row["body"])) for row in rows(task)] == [
        (n + 1, n) for n in range(30_000)
    ]


def test_an_answer_that_breaks_off_is_asked_for_again(held: Stream) -> None:
    held.publish(b"%06d" % n for n in range(20_000))
    with Gate(held.broker.http_port, 400_000) as gate:
        task = task_of(held, 1, 20_001, columns="offset")
        options = replace(task.connection, http_url=f"http://127.0.0.1:{gate.port}")
        batches = read_blocks(replace(task, connection=options, batch_rows=1000))
        found = next(batches).num_rows
        assert gate.held.wait(30)
        gate.cut()
        found += sum(batch.num_rows for batch in batches)

    assert found == 20_000


def test_what_retention_removed_is_an_error_or_a_gap(
    broker_factory: BrokerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ini = tmp_path / "small-segments.ini"
    ini.write_text("[main]\nsegment_size = 65536\n")
    stream = Stream(broker_factory(["-c", str(ini)], http=True), "short")
    stream.declare(**{"x-max-length": 500})
    stream.publish(b"%04d" % n + b"x" * 200 for n in range(2000))
    with Streams(SourceOptions.parse(stream.options())) as streams:
        first = streams.bounds()["short"].first
    task = task_of(stream, 10, 2001, columns="offset")

    with pytest.raises(DataLossError, match=f"offsets 10 to {first - 1} are gone"):
        rows(task)
    found = rows(replace(task, fail_on_data_loss=False))

    assert [row["offset"] for row in found] == list(range(first, 2001))
    assert f"offsets 10 to {first - 1} are gone, {first - 10} messages" in caplog.text


def test_refusals_are_one_line(held: Stream) -> None:
    held.publish(numbers(0, 5))
    Api(held.broker).as_user("eve", "management", **{"/": (".*", ".*", "^$")})

    def told(**options: str) -> str:
        with pytest.raises(SourceError) as caught:
            rows(task_of(held, 1, 6, **options))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "user 'eve' may not read it" in told(user="eve", password="eve-pw")
    refused = told(password="wrong-password")
    assert "refused with 401" in refused
    assert "wrong-password" not in refused
    held.name = "nowhere"
    assert "no such stream" in told()
