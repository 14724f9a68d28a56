"""An executor of a cluster that dies in the middle of a batch: no row lost, none twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.gate import Gate, parent_of, pids_connected_to
from tests.spark.half_done import END_S, HALF_BYTES, N_MESSAGES, filled, through, written
from tests.spark.home import spark_home
from tests.spark.streams import Stream
from tests.support.broker import Broker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


@pytest.fixture
def held_broker(http_broker: Broker) -> Stream:
    return filled(http_broker)


def test_a_killed_executor_costs_no_row(held_broker: Stream, tmp_path: Path) -> None:
    with Gate(held_broker.broker.port, HALF_BYTES) as gate:
        job = subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).parents[1] / "cluster_job.py")),
                *("local-cluster[2,1,1024]", str(tmp_path), json.dumps(through(gate, held_broker))),
            ],
            env=os.environ
            | {
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": str(spark_home(tmp_path / "spark-home")),
            }
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


def _executor_of(worker: int) -> int:
    """The process of an executor that a worker reads for."""
    pid = worker
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent_of(pid)
        assert pid > 1, f"worker {worker} belongs to no executor"
    return pid
