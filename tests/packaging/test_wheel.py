"""The source distribution holds all that a wheel is built from."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, make

BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
FOLDERS = ("cext", "lavinmq", "pyspark_lavinmq", "pyspark_lavinmq_segments")
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")


@pytest.mark.skipif(
    os.environ.get("PACKAGE_TESTS") != "1",
    reason="compiles what is out of date: make test-packages",
)
def test_the_source_distribution_holds_every_file_of_ours(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git to compare with")
    make(sys.executable, "-c", BUILD, tmp_path)

    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS, *FILES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert listed
    assert {name for name in listed if (ROOT / name).exists()} <= names
