"""One Spark session for the tests of this directory, and streams to read.

A session takes seconds to start and half a gigabyte, so there is one: with pytest-xdist all tests
of this directory run in the same worker (`tests/conftest.py`). Those in `apart/` do without, or
start a program that has its own: they run in any worker.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.home import spark_home
from tests.spark.streams import Stream
from tests.support.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For a Java that lives for seconds: one compiler, which is done soon, one collector, and no check
of thousands of classes that are Spark's own."""


def pytest_configure() -> None:
    """Have every process of Spark's, also of programs that tests start, begin quickly."""
    for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
        os.environ.setdefault(name, SHORT_LIVED)
    if _can_run():
        os.environ.setdefault("SPARK_HOME", str(spark_home(Path(sys.prefix) / "spark-home")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs a session where there can be none."""
    if _can_run():
        return
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.skip(reason="needs Java 17 or later and pyspark"))


def _can_run() -> bool:
    from importlib.util import find_spec

    return find_spec("pyspark") is not None and shutil.which("java") is not None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two threads that tries a task four times; it finds formats by itself."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers are processes of their own: they find our modules as this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.metricsEnabled", "false")
        # Spark writes and compiles Java for each query, which costs more than these few rows do.
        # Programs that tests start have it as users have it.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture
def stream(broker: Broker, request: pytest.FixtureRequest) -> Stream:
    """An empty stream queue on the shared broker, of this test's own name."""
    return Stream(broker, request.node.name[:80]).declare()
