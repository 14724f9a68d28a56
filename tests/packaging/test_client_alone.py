"""The client alone, with each interpreter that is there: its wheel, and all tests of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

sys.path.append(str(ROOT / "packaging"))
import client_alone

INTERPRETERS = (
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.13t",
    "python3.14",
    "python3.14t",
)
LIMIT_S = 3000.0


def interpreter(name: str) -> str:
    """Where an interpreter is, or skip the test."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.base_prefix, "bin")))
    # What is found may be a stand-in that only knows where interpreters would be.
    if (
        not found
        or subprocess.run([found, "-c", "import ensurepip"], capture_output=True).returncode
    ):
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("name", INTERPRETERS)
def test_the_client_alone_passes_its_tests(name: str) -> None:
    command = [interpreter(name), "packaging/client_alone.py", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def test_tests_are_laid_out_without_the_broker_and_what_is_left_out_is_told(tmp_path: Path) -> None:
    left_out = client_alone.lay_tests(tmp_path, {"pamqp", "kombu"})

    assert not (tmp_path / "lavinmq").exists()
    assert (tmp_path / "tests/unit/client/test_ring.py").exists()
    assert (tmp_path / "tests/integration/client/test_recovery.py").exists()
    assert left_out == [
        "tests/integration/client/test_fixture.py (needs the broker's package or its pages)",
        "tests/integration/client/test_kombu_transport.py (kombu is not to be had)",
        "tests/integration/client/test_pages.py (needs the broker's package or its pages)",
        "tests/unit/client/test_frames.py (pamqp is not to be had)",
        "tests/unit/client/test_values.py (pamqp is not to be had)",
    ]
    assert not (tmp_path / "tests/unit/client/test_values.py").exists()


def test_what_a_sanitizer_finds_is_told_and_fails_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of pytest may find it, whose exit code nobody sees."""
    monkeypatch.setenv("TSAN_OPTIONS", "history_size=7")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    (tmp_path / "tsan-suppressions.txt").touch()
    findings = tmp_path / "findings"
    options = client_alone.options_of_tsan(findings).split(":")
    assert options == [
        f"log_path={findings}/of",
        "history_size=7",
        f"suppressions={tmp_path}/tsan-suppressions.txt",
    ]
    assert client_alone.told(findings) == 0

    (findings / "of.4711").write_text("WARNING: ThreadSanitizer: data race")
    assert client_alone.told(findings) == 1
    assert "data race" in capfd.readouterr().err


def test_the_test_in_which_a_sanitizer_finds_something_fails(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import pathlib\n"
        "def test_good():\n    pass\n"
        "def test_bad():\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'of.1').write_text('a data race')\n"
        "def test_next():\n    pass\n"
    )
    plugins = ("-p", "no:cacheprovider", "-p", "tests.support.findings")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", tmp_path, tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TSAN_OPTIONS": f"log_path={tmp_path}/of:history_size=7"},
    )

    assert "a data race" in done.stdout and re.search(
        r"ERROR .*test_two\.py::test_bad\b", done.stdout
    )
    assert "3 passed, 1 error" in done.stdout
