"""lavinmq-pipeline as a program of its own: the installed script, spark-submit, what users see."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.jobs import Archive, broker_arguments, run_job
from tests.spark.programs import BIN, ROOT, run
from tests.spark.streams import Stream, numbers
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed program; in an environment of before it was one, what an installer makes."""
    if installed := shutil.which("lavinmq-pipeline", path=str(BIN)):
        return Path(installed)
    project = tomllib.loads((ROOT / "packaging/spark/pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["lavinmq-pipeline"].partition(":")
    path = tmp_path_factory.mktemp("bin") / "lavinmq-pipeline"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
    )
    path.chmod(0o755)
    return path


def test_the_installed_script_refuses_loss_with_status_3(
    spark: SparkSession, stream: Stream, tmp_path: Path, script: Path
) -> None:
    """One line on standard error besides the progress, and no files beside the archive's."""
    archive = Archive(spark, stream, tmp_path)
    stream.publish(numbers(0, 100))
    archive.update()
    stream.delete()
    stream.declare().publish(numbers(0, 5))

    lost = run(script, "archive", *archive.arguments(), cwd=tmp_path)

    assert (lost.returncode, lost.stdout) == (3, "")
    *progress, error = lost.stderr.splitlines()
    assert error.startswith("Error: ")
    assert stream.name in error
    assert not [line for line in progress if "Error" in line or "Traceback" in line]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive", "checkpoint"]


def test_check_tells_versions_and_bounds(spark: SparkSession, stream: Stream) -> None:
    stream.publish(numbers(0, 7))

    good = run_job(spark, "check", *broker_arguments(stream), "--queue", stream.name)

    assert (good.status, good.values["problems"]) == (0, [])
    assert good.values["queues"] == {stream.name: {"first_offset": 1, "next_offset": 8}}
    assert good.values["http"]["streams"] >= 1
    (facts,) = good.values["executors"].values()
    assert {"lavinmq", "python", "pyspark", "pyarrow", "java"} <= set(facts)
    assert facts["lavinmq.spark._arrow"] == "ok"
    assert f"queues {stream.name}: first_offset 1, next_offset 8" in good.text


def test_check_goes_on_after_a_failure(spark: SparkSession, stream: Stream) -> None:
    port = free_port()
    arguments = ["--url", f"amqp://guest:secret-word@127.0.0.1:{port}",
                 "--http-url", stream.broker.http_url, "--queue", "no-such-queue"]  # fmt: skip

    bad = run_job(spark, "check", "--no-spark", *arguments)

    assert bad.status == 1
    assert [text.partition(":")[0] for text in bad.values["problems"]] == ["amqp", "http"]
    assert str(port) in bad.values["problems"][0]
    assert "secret-word" not in bad.text
    assert "executors" not in bad.values
