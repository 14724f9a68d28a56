"""Streaming queries of the format lavinmq: portions, ends, restarts, and what was lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lavinmq.spark.options import SourceOptions
from lavinmq.spark.streams import Streams
from tests.conftest import BrokerFactory
from tests.spark.frames import failure
from tests.spark.streams import Stream, numbers
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

END_S = 120


class Archive:
    """A query that copies a stream to Parquet files, and what they hold."""

    def __init__(self, spark: SparkSession, stream: Stream, directory: Path) -> None:
        self._spark = spark
        self._stream = stream
        self.data = directory / "data"
        self.checkpoint = directory / "checkpoint"

    def frame(self, **options: str) -> DataFrame:
        given = {"startingOffsets": "earliest", "columns": "queue,offset,body"} | options
        return (
            self._spark.readStream.format("lavinmq").options(**self._stream.options(**given)).load()
        )

    def start(self, *, once: bool = True, **options: str) -> StreamingQuery:
        writer = self.frame(**options).writeStream.format("parquet")
        writer = writer.option("path", str(self.data))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, **options: str) -> StreamingQuery:
        """Copy what there is now."""
        query = self.start(**options)
        assert query.awaitTermination(END_S), "the query does not end"
        return query

    def numbers(self) -> list[int]:
        """The bodies in all files, in the order of offsets; none may be there twice."""
        rows = self._spark.read.parquet(str(self.data)).collect()
        assert len({(row.queue, row.offset) for row in rows}) == len(rows)
        return [int(row.body) for row in sorted(rows, key=lambda row: row.offset)]

    def logged(self, batch: int) -> dict[str, int]:
        """The offsets at which a batch ended, as the checkpoint has them."""
        lines = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
        return json.loads(lines[2])["offsets"]


@pytest.fixture
def archive(spark: SparkSession, stream: Stream, tmp_path: Path) -> Archive:
    return Archive(spark, stream, tmp_path)


def sizes(query: StreamingQuery) -> list[int]:
    """The rows of each batch that had any."""
    return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]


def test_what_is_there_now_is_read_in_portions_while_a_publisher_goes_on(
    stream: Stream, archive: Archive
) -> None:
    stream.publish(numbers(0, 250))
    is_done = threading.Event()

    def publish() -> None:
        while not is_done.is_set():
            stream.publish(numbers(1000, 1010))

    publisher = threading.Thread(target=publish)
    query = archive.start(maxOffsetsPerTrigger="100")
    try:
        # The end is frozen before the first batch.
        first = archive.checkpoint / "offsets" / "0"
        wait_for(first.exists, "no batch begins", END_S)
        publisher.start()
        assert query.awaitTermination(END_S), "the query does not end"
    finally:
        is_done.set()
        publisher.join()

    assert archive.numbers() == list(range(250))
    assert sizes(query) == [100, 100, 50]


def test_a_query_goes_on_where_its_checkpoint_says(stream: Stream, archive: Archive) -> None:
    stream.publish(numbers(0, 100))
    archive.run()
    stream.publish(numbers(100, 150))

    # What it is told of the start counts for a new query only.
    archive.run(startingOffsets="latest")

    assert archive.numbers() == list(range(150))
    assert archive.logged(1) == {stream.name: 151}


def test_a_batch_that_was_logged_and_not_committed_is_read_again(
    stream: Stream, archive: Archive
) -> None:
    stream.publish(numbers(0, 120))
    gone_wrong = archive.frame(maxOffsetsPerTrigger="50").writeStream.foreachBatch(_fail)
    checkpoint = str(archive.checkpoint)
    query = gone_wrong.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert "on purpose" in failure(lambda: query.awaitTermination(END_S))
    assert archive.logged(0) == {stream.name: 51}
    assert not (archive.checkpoint / "commits" / "0").exists()

    # The batch is what it was, though another limit would make another one.
    again = archive.run(maxOffsetsPerTrigger="70")

    assert archive.numbers() == list(range(120))
    assert sizes(again) == [50, 70]


def _fail(frame: DataFrame, batch: int) -> None:
    raise RuntimeError("on purpose")


def test_a_new_query_begins_behind_what_is_there_unless_told_otherwise(
    spark: SparkSession, stream: Stream, archive: Archive
) -> None:
    stream.publish(numbers(0, 10))
    options = stream.options(columns="offset,body")
    frame = spark.readStream.format("lavinmq").options(**options).load()
    seen: list[int] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.extend(int(row.body) for row in batch.collect())

    query = frame.writeStream.foreachBatch(keep).start()
    try:
        wait_for(lambda: query.lastProgress is not None, "no progress", END_S)
        stream.publish(numbers(10, 20))
        wait_for(lambda: len(seen) == 10, f"not all came: {seen}", END_S)
        progress = query.lastProgress
        assert progress is not None
        assert json.loads(progress["sources"][0]["latestOffset"])["offsets"][stream.name] >= 11
    finally:
        query.stop()

    assert sorted(seen) == list(range(10, 20))


def test_positions_are_shown_by_the_broker_when_asked_for(stream: Stream, archive: Archive) -> None:
    stream.publish(numbers(0, 30))

    archive.run(storeOffsets="archive", maxOffsetsPerTrigger="10")

    path = f"/api/queues/%2F/{stream.name}/stream/consumers"
    (position,) = Api(stream.broker).get(path)
    # Spark tells the end of a batch with the next one, and that of the last batch never.
    assert (position["name"], position["offset"], position["lag"]) == ("archive", 21, 10)


def test_bytes_limit_a_batch_too(stream: Stream, archive: Archive) -> None:
    stream.publish(b"%d" % n + b" " * 1000 for n in range(100))

    query = archive.run(maxBytesPerTrigger="50k")

    assert archive.numbers() == list(range(100))
    assert len(sizes(query)) >= 2
    assert max(sizes(query)) < 60


@pytest.mark.parametrize("n_messages", [20, 200])
def test_a_stream_made_anew_is_not_read_from_the_middle(
    stream: Stream, archive: Archive, n_messages: int
) -> None:
    stream.publish(numbers(0, 100))
    archive.run()
    stream.delete()
    stream.declare().publish(numbers(1000, 1000 + n_messages))

    query = archive.start()
    told = failure(lambda: query.awaitTermination(END_S))
    archive.run(failOnDataLoss="false")

    assert f"stream '{stream.name}': it was deleted and made anew" in told
    found = archive.data.parent  # offsets are there twice now, those of the old stream and the new
    rows = archive._spark.read.parquet(str(found / "data")).select("body").collect()
    expected = [*range(100), *range(1000, 1000 + n_messages)]
    assert sorted(int(row.body) for row in rows) == expected


def test_what_retention_removed_ends_a_query_or_is_passed_over(
    spark: SparkSession, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    ini = tmp_path / "small-segments.ini"
    ini.write_text("[main]\nsegment_size = 65536\n")
    broker = broker_factory(["-c", str(ini)], http=True)
    stream = Stream(broker, "short").declare(**{"x-max-length": 500})
    archive = Archive(spark, stream, tmp_path)
    stream.publish(numbers(0, 10))
    archive.run()
    stream.publish(b"%d" % n + b" " * 200 for n in range(10, 2000))
    with Streams(SourceOptions.parse(stream.options())) as streams:
        first = streams.bounds()["short"].first
    assert first > 11

    query = archive.start()
    told = failure(lambda: query.awaitTermination(END_S))
    archive.run(failOnDataLoss="false")

    assert f"stream 'short': offsets 11 to {first - 1} are gone, {first - 11} messages" in told
    assert archive.numbers() == [*range(10), *range(first - 1, 2000)]


def test_mistakes_are_told_though_spark_hides_what_makers_of_readers_raise(
    spark: SparkSession, stream: Stream
) -> None:
    reader = spark.readStream.format("lavinmq").options(**stream.options(endingOffsets="latest"))
    query = reader.schema("offset bigint").load().writeStream.format("noop").start()

    told = failure(lambda: query.awaitTermination(END_S))

    assert "option endingOffsets is for batch queries" in told


def test_no_connection_stays_after_a_query(
    spark: SparkSession, http_broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(http_broker, "left").declare()
    stream.publish(numbers(0, 200))
    archive = Archive(spark, stream, tmp_path)
    query = archive.start(once=False, maxOffsetsPerTrigger="20")
    try:
        wait_for(lambda: len(sizes(query)) >= 10, "10 batches", END_S)
    finally:
        query.stop()

    wait_for(lambda: not Api(http_broker).get("/api/connections"), "connections stay")
    assert archive.numbers() == list(range(200))
