"""`lavinmq/spark/bulk.py` against a broker: the rows that come over AMQP too. No Spark."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from lavinmq.spark.bulk import read_blocks
from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.options import ConnectionOptions, Node, SourceOptions
from lavinmq.spark.planner import RangeTask, plan
from lavinmq.spark.reading import read_range
from lavinmq.spark.schema import COLUMNS
from lavinmq.spark.streams import Streams
from tests.conftest import BrokerFactory
from tests.spark.batches import rows_of
from tests.spark.gate import Gate
from tests.spark.streams import Stream, damage, numbers
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


@pytest.mark.parametrize("end", [401, 202])
def test_messages_that_the_broker_finds_damaged_are_data_loss(
    broker_factory: BrokerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture, end: int
) -> None:
    """A block that begins further on, or the end of the answer, passed over them without a word."""
    config = tmp_path / "lavinmq.ini"
    config.write_text("[main]\nsegment_size = 65536\n")
    stream = Stream(broker_factory(["-c", str(config)], http=True), "s").declare()
    stream.publish([b"body %04d" % n + bytes(200) for n in range(1, 501)])
    damage(stream.broker, b"body 0201")
    task = task_of(stream, 1, end, columns="offset")

    with pytest.raises(DataLossError, match="'s': data loss: offsets 201 to 201 are gone"):
        rows(task)
    found = rows(replace(task, fail_on_data_loss=False))

    assert [row["offset"] for row in found] == [n for n in range(1, end) if n != 201]
    assert "offsets 201 to 201 are gone, 1 messages" in caplog.text


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[RangeTask]:
    """A task for offsets 1 to 3 at a server that answers everything with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        options = ConnectionOptions(
            (Node("127.0.0.1", 1),), http_url=f"http://127.0.0.1:{server.server_port}"
        )
        yield RangeTask(options, "s", 1, 4, ("offset", "body"), transport="http", read_timeout_s=1)
        server.shutdown()
        serving.join(10)


def block(offset: int, count: int, records: bytes) -> bytes:
    return struct.pack("<QII", offset, count, len(records)) + records


RECORD = struct.pack("<Q", 1_700_000_000_000) + b"\0\x01s" + b"\0\0" + struct.pack("<Q", 1) + b"x"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (block(1, 2, RECORD) + block(3, 1, RECORD) + block(4, 0, b""), "no record at offset 2"),
        (block(1, 3, RECORD + bytes(64)) + block(4, 0, b""), "no record at offset 2"),
        (block(1, 1, RECORD * 2) + block(2, 2, RECORD * 2) + block(4, 0, b""), "at offset 3"),
        (block(1 << 63, 1, RECORD) + block(4, 0, b""), "a block of offset 9223372036854775808"),
        (block(4, 1, RECORD) + block(4, 0, b""), "a block of offset 4"),
        (block(2, 2, RECORD * 2) + block(4, 0, b""), "offsets 1 to 1 are gone"),
        (block(1, 1, RECORD) + block(4, 0, b""), "offsets 2 to 3 are gone"),
        (block(1, 1, RECORD) + block(1 << 63, 0, b""), "offsets 2 to 3 are gone"),
    ],
    ids=range(8),
)  # fmt: skip
def test_an_answer_that_does_not_fit_ends_the_task(answer: bytes, error: str) -> None:
    """Rows were left out, or came twice, and nothing was said."""
    with answering(answer) as task, pytest.raises(SourceError, match=error):
        rows(task)


def test_a_block_that_comes_again_brings_no_row_twice() -> None:
    answer = block(1, 2, RECORD * 2) + block(1, 1, RECORD) + block(3, 1, RECORD) + block(4, 0, b"")

    with answering(answer) as task:
        found = rows(task)

    assert [row["offset"] for row in found] == [1, 2, 3]


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
