"""Workers, executors and brokers that die in the middle of a batch: no row lost, none twice.

A gate between task and broker holds the task where it is: some of its rows read, none written.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.gate import Gate, pids_connected_to
from tests.spark.half_done import END_S, HALF_BYTES, N_MESSAGES, filled, through, written
from tests.spark.streams import Stream
from tests.support.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark


@pytest.fixture
def held_broker(http_broker: Broker) -> Stream:
    return filled(http_broker)


@contextlib.contextmanager
def archiving(
    spark: SparkSession, gate: Gate, stream: Stream, path: Path
) -> Iterator[StreamingQuery]:
    """A query that stands in the middle of its only task."""
    frame = spark.readStream.format("lavinmq").options(**through(gate, stream)).load()
    writer = frame.writeStream.format("parquet").option("path", str(path / "data"))
    writer = writer.option("checkpointLocation", str(path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        wait_for(lambda: gate.held.is_set() or query.exception() is not None, "not held", END_S)
        yield query
    finally:
        query.stop()


def test_a_killed_worker_costs_no_row(
    spark: SparkSession, held_broker: Stream, tmp_path: Path
) -> None:
    with (
        Gate(held_broker.broker.port, HALF_BYTES) as gate,
        archiving(spark, gate, held_broker, tmp_path) as query,
    ):
        (worker,) = pids_connected_to(gate.port)
        os.kill(worker, signal.SIGKILL)
        gate.open()

        assert query.awaitTermination(END_S), "the query does not end"

    assert written(tmp_path / "data") == list(range(N_MESSAGES))


def test_a_broker_that_is_killed_and_comes_back_costs_no_row(
    spark: SparkSession, held_broker: Stream, tmp_path: Path
) -> None:
    with (
        Gate(held_broker.broker.port, HALF_BYTES) as gate,
        archiving(spark, gate, held_broker, tmp_path) as query,
    ):
        held_broker.broker.kill()
        gate.open()
        held_broker.broker.start()

        assert query.awaitTermination(END_S), "the query does not end"

    assert written(tmp_path / "data") == list(range(N_MESSAGES))
