"""The examples of docs/embedding.md run as they stand and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
PROGRAM_TIMEOUT_S = 25.0
# A program, and what it prints if the page says so.
_EXAMPLE = re.compile(
    r"^```python\n(?P<source>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = [(match["source"], match["output"]) for match in _EXAMPLE.finditer(PAGE.read_text())]
PROGRAMS = [(source, output) for source, output in EXAMPLES if output is not None]
TESTS = [source for source, output in EXAMPLES if output is None]


def run(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python to its end in a directory."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=os.environ | environment,
        capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False,
    )  # fmt: skip


def test_the_page_has_examples_for_three_clients_and_for_pytest() -> None:
    assert all(f"import {name}\n" in PAGE.read_text() for name in ("pika", "aio_pika", "celery"))
    assert len(PROGRAMS) == 5
    assert len(TESTS) == 1


@pytest.mark.parametrize(("source", "output"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_prints_what_the_page_says(source: str, output: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(source)

    ended = run(tmp_path, "example.py")

    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", output)


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(TESTS[0])
    # The entry point is there only where the package was installed since it was declared.
    plugins = ["-p", "lavinmq.pytest_plugin", "-p", "no:cacheprovider"]
    # Without a place of its own it would delete at its end what earlier runs left, for minutes.
    plugins += ["--basetemp", str(tmp_path / "temporary")]

    ended = run(tmp_path, "-m", "pytest", *plugins, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")

    assert ended.returncode == 0, ended.stdout
    assert "3 passed" in ended.stdout
