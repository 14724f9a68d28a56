"""Brokers that tests start: a forked one is as a new process, and ends as one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import __version__
from tests.support.disk import Call, Disk, compile_shim
from tests.support.nursery import COMMAND_VARIABLE, Forked, Process, begin
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def no_other_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)


def run(path: Path, *args: str, **env: str) -> tuple[Process, str]:
    """Start one that ends by itself. Returns: it, and what it has said."""
    with path.open("ab") as log:
        process = begin([], args, env, log)
    process.wait(60)
    return process, path.read_text()


def test_what_it_says_and_its_exit_code_are_there(tmp_path: Path) -> None:
    answer, said = run(tmp_path / "log", "--version")
    refusal, why = run(tmp_path / "other", "--no-such-option")

    assert isinstance(answer, Forked)
    assert (answer.returncode, said) == (0, f"{__version__}\n")
    assert refusal.wait() == refusal.returncode == 1
    assert "Error: " in why


def test_variables_are_those_of_now_and_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAVINMQ_MAIN_SEGMENT_SIZE", "65536")  # not for a broker under test

    _, plain = run(tmp_path / "plain", "--print-config")
    _, given = run(tmp_path / "given", "--print-config", LAVINMQ_MAIN_SEGMENT_SIZE="131072")

    assert "LAVINMQ_MAIN_SEGMENT_SIZE" not in plain
    assert "segment_size = 131072" in given


def test_its_directory_umask_and_limits_are_those_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    umask = os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        with (tmp_path / "log").open("ab") as log:
            process = begin([], ["-D", "data", "-p", "0", "--http-port=-1"], {}, log)
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    at = Path(f"/proc/{process.pid}")
    try:
        wait_for(lambda: (tmp_path / "data").exists(), "it has begun")
        assert at.joinpath("cwd").readlink() == tmp_path
        assert "Umask:\t0027" in at.joinpath("status").read_text()
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[1] == hard
    finally:
        process.kill()
    assert process.wait(60) == -9
    process.kill()  # idempotent: nobody else is meant


def test_who_waits_for_one_that_goes_on_is_told(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        process = begin([], ["-D", str(tmp_path / "data"), "-p", "0", "--http-port=-1"], {}, log)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(60)


@pytest.mark.parametrize("env", [{"PYTHONHASHSEED": "1"}, {"LD_PRELOAD": ""}])
def test_variables_of_others_take_a_new_interpreter(tmp_path: Path, env: dict[str, str]) -> None:
    process, said = run(tmp_path / "log", "--version", **env)

    assert isinstance(process, subprocess.Popen)
    assert (process.returncode, said) == (0, f"{__version__}\n")


def test_another_program_is_started_as_it_is(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        process = begin([sys.executable, "-c", "import sys; sys.exit(3)"], [], {}, log)

    assert process.wait(60) == 3


def test_a_broker_with_a_disk_of_its_own_has_what_it_does_there_noted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    disk = Disk(compile_shim(tmp_path), data, tmp_path)
    env = disk.env(log=True)
    with closing(disk), (tmp_path / "log").open("ab") as log:
        process = begin([], ["-D", str(data), "-p", "0", "--http-port=-1"], env, log)
        try:
            wait_for(lambda: disk.log_path.exists() and bool(disk.records()), "nothing is noted")
        finally:
            process.kill()
            process.wait(60)

    assert isinstance(process, Forked)
    assert Call.MKDIR in {record.kind for record in disk.records()}


def test_a_script_of_a_test_is_forked_as_a_program(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nif __name__ == '__main__':\n    print(sys.argv)\n    sys.exit(4)"
    )
    with (tmp_path / "log").open("ab") as log:
        process = begin([sys.executable, str(script)], ["-p", "1"], {}, log)

    assert process.wait(60) == 4
    assert isinstance(process, Forked)
    assert (tmp_path / "log").read_text() == f"{[str(script), '-p', '1']}\n"
