"""docs/example-orders.md does what it says: its blocks are run in order, as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "example-orders.md"
PROGRAM = "lavinmq-pipeline"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with the program: the installed one, or one that runs these sources."""
    directory = Path(sys.executable).parent
    if shutil.which(PROGRAM, path=str(directory)) is None:
        directory = tmp_path / "bin"
        directory.mkdir()
        program = directory / PROGRAM
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lavinmq.pipeline "$@"\n')
        program.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def test_the_example_runs_as_it_stands(http_broker: Broker, tmp_path: Path, path: str) -> None:
    broker = http_broker
    text = PAGE.read_text(encoding="utf-8")
    for there, here in {
        "localhost:5672": f"localhost:{broker.port}",
        "http://localhost:15672": broker.http_url,
        "/var/tmp/orders": str(tmp_path / "orders"),
    }.items():
        assert there in text
        text = text.replace(there, here)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks].count("text") == 2
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "LAVINMQ_URL": broker.uri.replace("127.0.0.1", "localhost"),
    }
    printed = ""

    for language, block in blocks:
        if language == "text":
            assert printed == block
            continue
        program = {"python": [sys.executable, "-c"], "sh": ["sh", "-ec"]}[language]
        done = subprocess.run(
            [*program, block], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        printed = done.stdout
