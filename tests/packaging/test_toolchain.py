"""A step of the build is shown when it fails, and cannot hold a build for ever."""

from __future__ import annotations

import os
import subprocess
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


def side_by_side(place: Path, parts: str) -> subprocess.CompletedProcess[str]:
    """Build the parts, two at a time, in a process of its own, for it is forked."""
    program = f"import toolchain, time\nfrom pathlib import Path\n{parts}"
    return subprocess.run(
        [sys.executable, "-c", f"{program}\ntoolchain.side_by_side(parts, jobs=2)"],
        cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT / "packaging/freeze")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_parts_are_built_at_the_same_time_but_no_more_than_there_are_jobs(tmp_path: Path) -> None:
    """Each of two waits for the other; the third one begins when one of them is done."""
    done = side_by_side(
        tmp_path,
        """
def part(own, other):
    Path(own).touch()
    toolchain.run(["sh", "-c", f"until [ -e {other} ]; do sleep 0.01; done"])
    Path(f"{own} is done").touch()
def third():
    assert list(Path().glob("* is done"))
    Path("third").touch()
parts = [lambda: part("first", "second"), lambda: part("second", "first"), third]
""",
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "third").exists()


def test_a_part_that_fails_is_told_of_and_ends_those_beside_it(tmp_path: Path) -> None:
    done = side_by_side(
        tmp_path,
        """
def waits():
    toolchain.run(["sh", "-c", "sleep 600 & echo $! > started; mv started child; wait"])
def fails():
    while not Path("child").exists():
        time.sleep(0.01)
    toolchain.run(["sh", "-c", "echo no such thing; exit 3"])
parts = [waits, fails, Path("third").touch]
""",
    )

    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not is_running(child), "what the other one started runs on")
    assert done.returncode
    assert "no such thing" in done.stderr
    assert not (tmp_path / "third").exists()


def test_a_part_whose_code_comes_late_has_failed_all_the_same(tmp_path: Path) -> None:
    """Its end is told of by a pipe, which may be closed before the kernel has its code."""
    done = side_by_side(
        tmp_path,
        """
import multiprocessing.process
code_of = multiprocessing.process.BaseProcess.exitcode.fget
asked = set()
def late(self):
    code = code_of(self)
    is_first = code is not None and self not in asked
    asked.add(self)
    return None if is_first else code
multiprocessing.process.BaseProcess.exitcode = property(late)
parts = [lambda: toolchain.run(["false"])]
""",
    )

    assert done.returncode == 1
    assert "a part could not be built" in done.stderr


def test_a_part_that_is_to_end_while_it_starts_a_step_ends_the_step(tmp_path: Path) -> None:
    done = side_by_side(
        tmp_path,
        """
import os, signal, subprocess
start = subprocess.Popen.__init__
def start_when_told_to_end(self, *arguments, **named):
    start(self, *arguments, **named)
    Path("child").write_text(str(self.pid))
    os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen.__init__ = start_when_told_to_end
parts = [lambda: toolchain.run(["sleep", "600"])]
""",
    )

    assert done.returncode == 1, done.stderr
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not is_running(child), "the step runs on")


def test_a_step_hears_signals_to_end(tmp_path: Path) -> None:
    with pytest.raises(toolchain.BuildError, match="failed"):
        toolchain.run(["sh", "-c", "kill -TERM $$; touch deaf"], cwd=tmp_path)

    assert not (tmp_path / "deaf").exists()


def test_a_part_that_did_not_hear_that_it_is_to_end_is_told_again(tmp_path: Path) -> None:
    done = side_by_side(
        tmp_path,
        """
import signal
def waits():
    own = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, own))
    Path("child").touch()
    toolchain.run(["sleep", "600"])
def fails():
    while not Path("child").exists():
        time.sleep(0.01)
    toolchain.run(["false"])
parts = [waits, fails]
""",
    )

    assert done.returncode == 1, done.stderr
    assert "a part could not be built" in done.stderr
