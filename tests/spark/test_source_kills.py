"""Workers, executors and brokers that die in the middle of a batch: no row lost, none twice.

A gate between task and broker holds the task where it is: some of its rows read, none written.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.gate import Gate, parent_of, pids_connected_to
from tests.spark.streams import Stream, numbers
from tests.support.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

END_S = 180
N_MESSAGES = 20_000
HALF_BYTES = 600_000  # of about 1.5 MB that these messages are as frames


def through(gate: Gate, stream: Stream) -> dict[str, str]:
    """Options that read the stream through the gate, in one task."""
    url = stream.broker.uri.replace(f":{stream.broker.port}", f":{gate.port}")
    more = {"startingOffsets": "earliest", "columns": "offset,body", "batchRows": "1000"}
    return stream.options(url=url, **more)


def written(directory: Path) -> list[int]:
    """The bodies that a query has committed, in the order of offsets; none may be there twice."""
    # Files of a task that died are there too: the log of the sink says which ones count.
    names = set()
    for batch in (directory / "_spark_metadata").iterdir():
        if batch.name.isdigit():
            entries = batch.read_text().splitlines()[1:]
            names |= {Path(json.loads(entry)["path"]).name for entry in entries}
    rows = [
        row for name in names for row in pyarrow.parquet.read_table(directory / name).to_pylist()
    ]
    assert len({row["offset"] for row in rows}) == len(rows)
    return [int(row["body"]) for row in sorted(rows, key=lambda row: row["offset"])]


@pytest.fixture
def held_broker(http_broker: Broker) -> Stream:
    """A stream with messages on a broker of one's own."""
    stream = Stream(http_broker, "held").declare()
    stream.publish(numbers(0, N_MESSAGES))
    return stream


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


def test_a_killed_executor_costs_no_row(held_broker: Stream, tmp_path: Path) -> None:
    with Gate(held_broker.broker.port, HALF_BYTES) as gate:
        job = subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).with_name("cluster_job.py"))),
                *("local-cluster[2,1,1024]", str(tmp_path), json.dumps(through(gate, held_broker))),
            ],
            env=os.environ
            | {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(_spark_home(tmp_path))}
            | {"SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            wait_for(lambda: gate.held.is_set() or job.poll() is not None, "not held", END_S)
            assert job.poll() is None, job.communicate()[0]
            (worker,) = pids_connected_to(gate.port)
            executor = _executor_of(worker)
            os.kill(executor, signal.SIGKILL)
            gate.open()

            output = job.communicate(timeout=END_S)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()

    assert job.returncode == 0, output
    assert written(tmp_path / "data") == list(range(N_MESSAGES))


def _spark_home(directory: Path) -> Path:
    """Spark as it is installed, but in a directory that workers may write to."""
    import pyspark

    home = directory / "spark-home"
    home.mkdir()
    for each in ("bin", "jars", "sbin"):
        (home / each).symlink_to(Path(pyspark.__path__[0]) / each)
    return home


def _executor_of(worker: int) -> int:
    """The process of an executor that a worker reads for."""
    pid = worker
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent_of(pid)
        assert pid > 1, f"worker {worker} belongs to no executor"
    return pid
