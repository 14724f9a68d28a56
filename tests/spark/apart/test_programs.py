"""Programs with a session of their own: what spark-submit runs, and one that speculates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.jobs import broker_arguments
from tests.spark.programs import SUBMIT, run
from tests.spark.streams import Stream, numbers

pytestmark = pytest.mark.spark

SPECULATIVE = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "512m")
spark = builder.config("spark.speculation", "true").getOrCreate()
frame = spark.range(3).selectExpr("cast(id as string) body")
frame.write.format("lavinmq").options(url=sys.argv[1], routingKey="q").mode("append").save()
"""


@pytest.mark.nightly
def test_spark_submit_runs_the_file_that_path_prints(stream: Stream, tmp_path: Path) -> None:
    stream.publish(numbers(0, 100))
    path = run(sys.executable, "-m", "lavinmq.pipeline", "path", cwd=tmp_path).stdout.strip()

    done = run(SUBMIT, "--master", "local[2,4]", "--conf", "spark.ui.enabled=false",
               "--conf", "spark.driver.bindAddress=127.0.0.1", path, "archive", "--json",
               *broker_arguments(stream), "--once", "--queue", stream.name,
               "--checkpoint", "checkpoint", "archive", cwd=tmp_path)  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 100


@pytest.mark.nightly
def test_speculation_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "speculative.py"
    program.write_text(SPECULATIVE)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}

    job = subprocess.run(
        [sys.executable, str(program), "amqp://localhost:1"],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert job.returncode != 0
    assert "spark.speculation is on" in job.stderr
