"""The report that a person makes on a machine of ARM64: packaging/report.sh, with programs that
pretend. Whatever fails is in the report, and what comes after it is tried all the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

MAKE = '#!/bin/sh\necho "made $*"\n[ "$1" != "$FAILS" ]\n'
PYTHON = """#!/bin/sh
echo "$@" >>called
while [ $# -gt 1 ]; do
    [ "$1" != --report ] || printf '# All\\n\\n## Targets\\n\\n10 M\\n\\n## How\\n' >"$2"
    shift
done
"""
BROKER = '#!/bin/sh\necho "Finished startup"\nexec sleep 60\n'
LOAD = '#!/bin/sh\necho "Average consume rate: 1"\n'
PERF = """#!/bin/sh
[ "$1" != record ] || exit 0
echo "12.00% lavinmq ${FUNCTION}"
"""
PARTS = (
    "Machine", "Build", "Checks of the compiled code", "Tests", "Crash tests", "Benchmark",
    "Figures", "How long one client waits for another", "What perf names",
)  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Sources with nothing but the script, and what it calls."""
    for name, text in (
        ("bin/make", MAKE), (".venv/bin/python", PYTHON), (".venv/bin/lavinmq", BROKER),
        (".venv/bin/lavinmqperf", LOAD), ("bin/perf", PERF), ("bin/lscpu", "#!/bin/sh\n"),
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "packaging").mkdir()
    (tmp_path / "build").mkdir()
    shutil.copy(ROOT / "packaging/report.sh", tmp_path / "packaging")
    return tmp_path


def run(checkout: Path, *options: str, **variables: str) -> tuple[int, str]:
    """Return how it ends, and the report."""
    done = subprocess.run(
        [checkout / "packaging/report.sh", *options],
        env={"PATH": f"{checkout}/bin:/usr/bin:/bin", "FUNCTION": "__pyx_f_a", **variables},
        check=False, timeout=60, capture_output=True,
    )  # fmt: skip
    return done.returncode, (checkout / f"report-{os.uname().machine}.md").read_text()


def test_it_tells_all_that_was_built_tested_and_measured(checkout: Path) -> None:
    status, report = run(checkout, "--quick")

    assert status == 0
    assert re.findall("^## (.+)$", report, re.MULTILINE) == [*PARTS[:6], "Figures", "Targets",
                                                             *PARTS[7:]]  # fmt: skip
    assert "made test\n" in report and "10 M\n" in report and "## How\n" not in report
    assert "Average consume rate: 1" in report and "__pyx_f_a" in report
    assert "**It failed**" not in report
    called = (checkout / "called").read_text()
    assert "tests/crash" in called and "--seconds 2 --reps 1" in called


@pytest.mark.parametrize(
    ("variables", "part"),
    [({"FAILS": "test"}, "Tests"), ({"FUNCTION": "[unknown]"}, "What perf names")],
)
def test_what_fails_is_in_the_report_and_the_rest_is_tried(
    checkout: Path, variables: dict[str, str], part: str
) -> None:
    status, report = run(checkout, **variables)

    assert status == 1
    assert report.count("**It failed**") == 1
    assert f"## {part}\n\n**It failed**" in report
    assert set(PARTS) <= set(re.findall("^## (.+)$", report, re.MULTILINE))
