"""A step of the build is shown when it fails, and cannot hold a build for ever."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.support.waiting import wait_for

sys.path.append(str(ROOT / "packaging/freeze"))
import toolchain


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_step_that_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = "sleep 600 & echo $! > child; echo waiting; wait"

    with pytest.raises(toolchain.BuildError, match="not done in 5 s"):
        toolchain.run(["sh", "-c", step], cwd=tmp_path, limit_s=5)

    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not is_running(child), "what the step started runs on")
    assert "waiting" in capsys.readouterr().err


def test_a_step_that_fails_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(toolchain.BuildError, match="failed, see above"):
        toolchain.run(["sh", "-c", "echo no such thing; exit 3"])

    assert "no such thing" in capsys.readouterr().err


def test_a_step_that_succeeds_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    toolchain.run(["sh", "-c", "echo hello; echo world >&2"])

    assert capfd.readouterr() == ("", "")
