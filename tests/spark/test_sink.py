"""Spark publishes: batches and streaming queries, what they refuse, and tasks that come again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.frames import failure
from tests.spark.streams import Stream, channel, numbers
from tests.support.broker import Broker
from tests.support.raw_connection import Channel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def opened(broker: Broker) -> Iterator[Channel]:
    """A channel to look at what has arrived."""
    with channel(broker) as found:
        yield found


def write(frame: DataFrame, broker: Broker, **options: str) -> None:
    """Publish a frame."""
    given = {"url": broker.uri, **options}
    frame.write.format("lavinmq").options(**given).mode("append").save()


def ids(spark: SparkSession, n: int, parts: int = 2) -> DataFrame:
    """The numbers below n as bodies and as ids."""
    frame = spark.range(0, n, 1, parts)
    return frame.selectExpr("cast(id as string) body", "cast(id as string) id")


def arrived(opened: Channel, queue: str) -> list[Any]:
    """All messages of a queue."""
    found = []
    while (delivery := opened.get(queue, no_ack=True)) is not None:
        found.append(delivery)
    return found


def test_rows_of_a_stream_are_published_again_with_their_properties_and_origin(
    spark: SparkSession, broker: Broker, stream: Stream, opened: Channel
) -> None:
    from tests.support.raw_connection import Properties

    headers = {"a": 1, "t": {"x": [True, None]}}
    properties = Properties(content_type="a/b", priority=3, message_id="m", headers=headers)
    stream.publish(numbers(0, 300), properties=properties)
    source = spark.read.format("lavinmq").options(
        **stream.options(includeHeaders="json", minPartitions="2")
    )
    target = {"routingKey": "copy", "declare": "classic", "keepOrigin": "true"}

    write(source.load(), broker, exchange="", **target)

    found = arrived(opened, "copy")
    assert sorted(int(delivery.body) for delivery in found) == list(range(300))
    for delivery in found:
        origin = {"x-origin-queue": stream.name, "x-origin-offset": int(delivery.body) + 1}
        assert delivery.properties.headers == {**headers, **origin}
        assert delivery.properties.content_type == "a/b"
        assert (delivery.properties.priority, delivery.properties.message_id) == (3, "m")


def test_what_cannot_be_published_is_refused_in_one_line(
    spark: SparkSession, broker: Broker
) -> None:
    from pyspark.errors import PySparkException

    frame = ids(spark, 10)

    def refused(frame: DataFrame = frame, mode: str = "append", **options: str) -> str:
        given = {"url": broker.uri, "routingKey": "q", "idColumn": "id", **options}
        written = frame.write.format("lavinmq").options(**given)
        return failure(lambda: written.mode(mode).save())

    assert 'mode("overwrite") is refused' in refused(mode="overwrite")
    assert "column colour is no part of a message" in refused(
        frame.selectExpr("body", "id", "1 colour")
    )
    assert "no column body" in refused(frame.select("id"))
    assert "'mandatroy'" in refused(mandatroy="true")
    assert "maxInFlight" in refused(maxInFlight="0")
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.write.format("lavinmq").options(url=broker.uri, routingKey="q").save()


def test_messages_that_are_refused_or_come_back_fail_the_query(
    spark: SparkSession, broker: Broker, opened: Channel
) -> None:
    limits = {"x-max-length": 5, "x-overflow": "reject-publish"}
    opened.declare_queue("spark-short", durable=True, arguments=limits)
    frame = ids(spark, 20, 1).select("body")

    refused = failure(lambda: write(frame, broker, routingKey="spark-short"))
    returned = failure(lambda: write(frame, broker, routingKey="nobody", mandatory="true"))
    unknown = failure(lambda: write(frame, broker, exchange="nowhere", routingKey="k"))

    # Spark tells what became of the last of four attempts.
    assert "of 20 messages the broker refused 20 (nack)" in refused
    assert [int(each.body) for each in arrived(opened, "spark-short")] == [0, 1, 2, 3, 4]
    assert "no queue wanted 20 (mandatory): (default exchange) / 'nobody'" in returned
    assert "404" in unknown
    assert "exchange 'nowhere'" in unknown


@pytest.mark.parametrize("is_deduplicated", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_task_that_fails_once_publishes_again_what_it_had_published(
    spark: SparkSession, broker: Broker, opened: Channel, is_deduplicated: bool
) -> None:
    queue, n = f"again-{is_deduplicated}", 60_000
    arguments = {"x-message-deduplication": True, "x-cache-size": n} if is_deduplicated else {}
    opened.declare_queue(queue, durable=True, arguments=arguments)
    port = broker.port

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass half of the rows, wait until some have arrived, and fail; the first time."""
        import time

        from pyspark import TaskContext

        from tests.support.raw_connection import Address, Connection

        context = TaskContext.get()
        passed = 0
        for batch in batches:
            if context.attemptNumber() == 0 and passed >= n // 2:
                with Connection.open(Address("127.0.0.1", port)) as connection:
                    found = connection.channel()
                    deadline = time.monotonic() + 60
                    while not found.declare_queue(queue, passive=True).message_count:
                        assert time.monotonic() < deadline, "nothing arrives"
                        time.sleep(0.05)
                raise RuntimeError("the first attempt fails")
            passed += batch.num_rows
            yield batch

    frame = ids(spark, n, 1)
    failing = frame.mapInArrow(fail_once, frame.schema)
    options = {"idColumn": "id"} if is_deduplicated else {"ignoreExtraColumns": "true"}

    write(failing, broker, routingKey=queue, **options)

    counted = Counter(int(each.body) for each in arrived(opened, queue))
    assert sorted(counted) == list(range(n))
    twice = sorted(number for number, count in counted.items() if count > 1)
    if is_deduplicated:
        assert not twice
    else:
        # What the first attempt published, and nothing else, is there twice.
        assert set(counted.values()) == {1, 2}
        assert twice == list(range(len(twice)))


def test_a_streaming_query_publishes_each_batch_with_stable_ids(
    spark: SparkSession, broker: Broker, stream: Stream, opened: Channel, tmp_path: Path
) -> None:
    opened.declare_queue("streamed", durable=True)
    options = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="100")
    source = spark.readStream.format("lavinmq").options(**options).load()
    target = {"url": broker.uri, "exchange": "", "routingKey": "streamed", "dedup": "row"}

    def run() -> str:
        writer = source.select("body").writeStream.format("lavinmq").options(**target)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return str(query.id)

    stream.publish(numbers(0, 250))
    query_id = run()
    stream.publish(numbers(250, 300))
    assert run() == query_id

    found = arrived(opened, "streamed")
    assert sorted(int(each.body) for each in found) == list(range(300))
    made = {each.properties.message_id for each in found}
    assert {each.properties.headers["x-deduplication-header"] for each in found} == made
    assert len(made) == 300
    # Query, batch, partition, row.
    assert {name.split("/")[0] for name in made} == {query_id}
    assert {name.split("/")[1] for name in made} == {"0", "1", "2", "3"}


def test_for_each_batch_names_query_and_batch(
    spark: SparkSession, broker: Broker, stream: Stream, opened: Channel, tmp_path: Path
) -> None:
    opened.declare_queue("by-batch", durable=True)
    stream.publish(numbers(0, 30))
    options = stream.options(startingOffsets="earliest", columns="body")
    source = spark.readStream.format("lavinmq").options(**options).load()

    def publish(frame: DataFrame, batch: int) -> None:
        for query_id in ({"queryId": "mine"}, {}):
            given = {"routingKey": "by-batch", "dedup": "row", "batchId": str(batch), **query_id}
            write(frame, broker, **given)

    writer = source.writeStream.foreachBatch(publish)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()

    made = Counter(each.properties.message_id for each in arrived(opened, "by-batch"))
    assert set(made.values()) == {1}
    prefixes = Counter("/".join(name.split("/")[:2]) for name in made)
    assert prefixes == {"mine/0": 30, f"{query.id}/0": 30}


def test_a_streaming_query_that_cannot_publish_says_why(
    spark: SparkSession, broker: Broker, stream: Stream, tmp_path: Path
) -> None:
    stream.publish(numbers(0, 3))
    options = stream.options(startingOffsets="earliest")
    source = spark.readStream.format("lavinmq").options(**options).load()

    def run(frame: DataFrame, **options: str) -> None:
        writer = frame.writeStream.format("lavinmq").options(url=broker.uri, **options)
        writer = writer.option("checkpointLocation", str(tmp_path / options["routingKey"]))
        writer.trigger(availableNow=True).start().awaitTermination()

    extra = source.selectExpr("body", "1 colour")
    assert "column colour is no part" in failure(lambda: run(extra, routingKey="one"))
    body = source.select("body")
    returned = failure(lambda: run(body, routingKey="nobody", mandatory="true"))
    assert "no queue wanted 3 (mandatory)" in returned
