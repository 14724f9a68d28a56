"""Two distributions of one tree: each file of ours is in one of them, and none in both."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from setuptools.discovery import PEP420PackageFinder

from lavinmq import __version__
from lavinmq.cli import programs
from tests.packaging.conftest import ROOT, make

SPARK = ROOT / "packaging/spark/pyproject.toml"
LAY = (
    "import sys; sys.path.insert(0, 'packaging'); import wheel; from pathlib import Path;"
    " wheel.spark_tree(Path(sys.argv[1]))"
)


def project(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def packages(told: dict[str, Any], root: Path) -> set[str]:
    """What setuptools finds by a project file, without directories that hold no module."""
    wanted = told["tool"]["setuptools"]["packages"]["find"]
    found = PEP420PackageFinder.find(
        str(root), include=wanted["include"], exclude=wanted.get("exclude", ())
    )
    return {name for name in found if (root / name.replace(".", "/") / "__init__.py").exists()}


def test_every_package_is_in_one_distribution() -> None:
    broker, spark = (packages(project(path), ROOT) for path in (ROOT / "pyproject.toml", SPARK))
    ours = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("lavinmq", "pyspark_lavinmq", "pyspark_lavinmq_segments")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert broker | spark == ours
    assert not broker & spark
    assert {name for name in spark if not name.startswith(("lavinmq.spark", "pyspark_"))} == {
        name for name in ours if name.startswith("lavinmq.pipeline")
    }


def test_the_tests_have_what_the_other_distribution_needs() -> None:
    needed = set(project(SPARK)["project"]["dependencies"]) - {"lavinmq"}
    told = project(ROOT / "pyproject.toml")["project"]
    assert needed <= set(told["optional-dependencies"]["test"])
    assert told["optional-dependencies"]["spark"] == ["lavinmq-spark"]
    assert not needed & set(told["dependencies"])
    builds = [project(path)["build-system"] for path in (ROOT / "pyproject.toml", SPARK)]
    assert builds[0] == builds[1]


def test_its_tree_builds_one_module_and_wants_the_same_version(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    make(sys.executable, "-c", LAY, tree)
    told = project(tree / "pyproject.toml")
    assert f"lavinmq=={__version__}" in told["project"]["dependencies"]
    assert packages(told, tree) == packages(project(SPARK), ROOT)
    assert not (tree / "lavinmq" / "__init__.py").exists()
    named = "import sys; sys.argv.append('bdist_wheel'); import setup; print(*setup.named())"
    where = "import os, sys; sys.path.insert(0, os.getcwd());"
    assert make("sh", "-c", f'cd {tree} && {sys.executable} -c "{where} {named}"').split() == [
        "lavinmq.spark._arrow"
    ]
    assert make(sys.executable, "-c", f"{where} {named}").split() == [
        "lavinmq._cluster", "lavinmq._core", "lavinmq._pcre", "lavinmq._perf", "lavinmq._tls",
        "lavinmq.client._engine",
    ]  # fmt: skip


def test_without_it_nothing_is_completed_for_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lavinmq-pipeline" in programs.installed()
    monkeypatch.setattr(programs, "find_spec", lambda _: None)
    assert programs.installed() == ["lavinmq", "lavinmqctl", "lavinmqperf"]
