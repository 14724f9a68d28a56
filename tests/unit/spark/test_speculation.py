"""Whether the driver above a process runs tasks twice on suspicion, from what /proc shows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
from lavinmq.spark.speculation import is_speculative

SUBMIT = ["java", "-Xmx1g", "org.apache.spark.deploy.SparkSubmit"]


class Processes:
    """A directory like /proc: each process is the child of the one before, from 10 on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.newest = 1

    def add(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        pid, parent = max(10, self.newest + 1), self.newest
        directory = self.root / str(pid)
        directory.mkdir()
        (directory / "cmdline").write_bytes("\0".join([*command, ""]).encode())
        pairs = [f"{name}={value}" for name, value in (environment or {}).items()]
        (directory / "environ").write_bytes("\0".join(pairs).encode())
        (directory / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0\n")
        self.newest = pid


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], False),
        (["--conf", "spark.speculation=true"], True),
        (["--conf=spark.speculation=TRUE"], True),
        (["-c", "spark.speculation=true"], True),
        (["-Dspark.speculation=true"], True),
        (["--conf", "spark.speculation=false"], False),
        (["--conf", "spark.speculation.quantile=0.5"], False),
    ],
)
def test_the_arguments_of_the_driver_tell(
    processes: Processes, arguments: list[str], expected: bool
) -> None:
    processes.add(["python", "job.py"])
    processes.add([*SUBMIT, *arguments, "pyspark-shell"])
    processes.add(["python", "-m", "pyspark.daemon"])
    processes.add(["python", "-m", "pyspark.daemon"])

    assert is_speculative(processes.root, processes.newest) is expected


@pytest.mark.parametrize("separator", [" ", "=", " = ", ":"])
def test_the_defaults_tell_what_no_argument_says(
    processes: Processes, tmp_path: Path, separator: str
) -> None:
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text(f"# spark.speculation false\nspark.speculation{separator}true\n")
    processes.add(SUBMIT, {"SPARK_HOME": str(tmp_path)})
    assert is_speculative(processes.root, processes.newest)

    processes.add([*SUBMIT, "--conf", "spark.speculation=false"], {"SPARK_HOME": str(tmp_path)})
    assert not is_speculative(processes.root, processes.newest)


def test_a_properties_file_replaces_the_defaults(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.speculation true\n")
    (tmp_path / "mine").write_text("spark.executor.memory 1g\n")
    arguments = ["--properties-file", str(tmp_path / "mine")]
    processes.add([*SUBMIT, *arguments], {"SPARK_CONF_DIR": str(tmp_path)})

    assert not is_speculative(processes.root, processes.newest)


def test_a_process_without_a_driver_above_it_has_none(processes: Processes) -> None:
    processes.add(["python", "--conf", "spark.speculation=true"])

    assert not is_speculative(processes.root, processes.newest)
    assert not is_speculative(processes.root, 4711)
