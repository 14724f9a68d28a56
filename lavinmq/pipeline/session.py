"""The Spark session of a job: versions checked, workers on our interpreter, UTC, quiet.

On a cluster (under spark-submit) the master and most settings are there already; what --conf says
wins over the defaults here. Source: docs/configuration.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from lavinmq.pipeline.errors import PipelineError, UsageError
from lavinmq.pipeline.failures import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN = (4, 2)
LOCAL_MASTER = "local[*,4]"
"""All cores; four attempts for a task, as on a cluster, where `local[*]` has one."""
INSTALL = 'pip install "lavinmq[spark]"'
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def make_session(
    name: str,
    *,
    master: str | None,
    conf: Mapping[str, str],
    publishes: bool,
    is_debug: bool = False,
) -> SparkSession:
    """Return a new session. Raises: PipelineError, UsageError."""
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    check_versions(is_submitted)
    from pyspark.conf import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    given = SparkConf().getAll() if is_submitted else []
    settings = defaults(dict(given), master, is_debug) | dict(conf)
    if publishes and settings.setdefault("spark.speculation", "false").lower() != "false":
        raise UsageError("spark.speculation must be false: a speculative task publishes, too")
    if settings.get("spark.master", "").startswith("local"):
        # Else workers are the first python3 of the PATH, which may not have this package.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with contextlib.nullcontext() if is_debug or is_submitted else _silent_start():
            spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise PipelineError(f"Spark does not start: {one_line(str(error))}") from None
    spark.sparkContext.setLogLevel("WARN" if is_debug else "FATAL")
    if is_submitted:
        _register_formats(spark)
    return spark


def defaults(given: Mapping[str, str], master: str | None, is_debug: bool) -> dict[str, str]:
    """Return the settings of a session: the `given` ones, and ours where they say nothing."""
    settings = {
        "spark.master": LOCAL_MASTER,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    } | dict(given)
    if master:
        settings["spark.master"] = master
    if settings["spark.master"].startswith("local"):
        settings.setdefault("spark.ui.enabled", "false")
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
        if not is_debug:
            settings.setdefault(
                "spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={LOG_SETTINGS}"
            )
    return settings


def check_versions(is_submitted: bool) -> None:
    """Raise PipelineError, with the remedy, unless pyspark, pyarrow and Java are there."""
    try:
        found = version("pyspark")
        version("pyarrow")
    except PackageNotFoundError as error:
        raise PipelineError(f"{error.name} is not installed: {INSTALL}") from None
    if tuple(int(part) for part in found.split(".")[:2]) < PYSPARK_MIN:
        raise PipelineError(f"pyspark {found} is too old, 4.2 is the oldest: {INSTALL}")
    home = os.environ.get("JAVA_HOME")
    if not is_submitted and not home and shutil.which("java") is None:
        raise PipelineError("there is no Java: install Java 17, or set JAVA_HOME")


@contextlib.contextmanager
def _silent_start() -> Iterator[None]:
    """Within it, programs that start write their errors where nobody sees them.

    The Java that Spark starts warns of its own modules, which no setting prevents, and repeats the
    tracebacks of its Python workers, which reach the driver anyhow.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with tempfile.TemporaryFile() as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _register_formats(spark: SparkSession) -> None:
    """Make our formats known: Spark itself looks for them with whatever python3 it finds."""
    from lavinmq.spark import LavinMQDataSource, SegmentDataSource

    spark.dataSource.register(LavinMQDataSource)
    spark.dataSource.register(SegmentDataSource)
