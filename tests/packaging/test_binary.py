"""dist/lavinmq: one file, one process, nothing needed from outside.

Runs where the executable has been built (`make binary`). The tests of the broker itself can be run
against it too: `make test-binary`. What the linker made of it is in test_linking.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import profiling
from tests.support.broker import Broker
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
BINARY = ROOT / "dist/lavinmq"
DESCRIPTION = ROOT / "dist/lavinmq.json"
MEGABYTE = 1_000_000
MAX_IDLE_MEMORY = 30 * MEGABYTE

pytestmark = pytest.mark.skipif(
    not BINARY.exists(), reason="dist/lavinmq has not been built: make binary"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root directory")


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it said."""
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=60, check=False,
        **options,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def selftest(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the self-test in a root directory, without any variable."""
    chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert chroot, "chroot is not installed"
    return run(chroot, root, "/bin/lavinmq", "--selftest", env={})


def output(*command: str | Path) -> str:
    done = run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the executable, started with a temporary directory of its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    broker = Broker(
        tmp_path / "data", command=[str(BINARY)], http=True, env={"TMPDIR": str(temporary)}
    )
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture
def empty_root(tmp_path: Path) -> Path:
    """A root directory with the executable, the C library, and nothing else."""
    root = tmp_path / "root"
    for name in ("tmp", "bin"):
        (root / name).mkdir(parents=True)
    shutil.copy2(BINARY, root / "bin")
    for path in re.findall(r"(/\S+) \(0x", output("ldd", BINARY)):
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, root / path[1:])
    return root


@as_root
def test_the_selftest_passes_in_an_empty_root(empty_root: Path) -> None:
    done = selftest(empty_root)

    assert done.returncode == 0, done.stdout
    checks = re.findall(r"^(\w+): ok", done.stdout, re.MULTILINE)
    assert checks == ["imports", "json", "codecs", "loop", "tls", "broker", "pages", "prepared"]
    assert "0 authorities from None" in done.stdout


@as_root
def test_it_runs_on_the_c_library_that_it_was_built_for(tmp_path: Path) -> None:
    description = json.loads(DESCRIPTION.read_text())
    libraries = ROOT / f"build/freeze/sysroot-{description['arch']}"
    if description["base"] == "native":
        pytest.skip("built for the C library of this machine, which the other tests use")
    root = tmp_path / "root"
    for name in ("tmp", "bin"):
        (root / name).mkdir(parents=True)
    for name in ("lib", "lib64"):
        shutil.copytree(libraries / name, root / name, symlinks=True)
    shutil.copy2(BINARY, root / "bin")

    done = selftest(root)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout


@as_root
@pytest.mark.parametrize(
    "place", ["etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt"]
)
def test_authorities_are_found_where_the_system_keeps_them(
    empty_root: Path, tmp_path: Path, place: str
) -> None:
    (empty_root / place).parent.mkdir(parents=True)
    output(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-subj", "/CN=test", "-keyout", tmp_path / "key.pem", "-out", empty_root / place,
    )  # fmt: skip

    done = selftest(empty_root)

    assert f"1 authorities from /{place}" in done.stdout


def test_the_name_decides_which_program_it_is(tmp_path: Path) -> None:
    for name in ("lavinmqctl", "lavinmqperf"):
        (tmp_path / name).symlink_to(BINARY)

    assert "Usage: lavinmqctl" in output(tmp_path / "lavinmqctl", "--help")
    assert "Usage: lavinmqperf" in output(tmp_path / "lavinmqperf", "--help")
    assert "Usage: lavinmqctl" not in output(BINARY, "--help")
    assert "Usage: lavinmqctl" in output(ROOT / "dist/lavinmqctl", "--help")


def test_all_programs_have_the_version_of_the_source() -> None:
    version = output(sys.executable, "-m", "lavinmq", "--version")

    for name in ("lavinmq", "lavinmqctl", "lavinmqperf"):
        assert output(ROOT / "dist" / name, "--version") == version


def test_a_wrong_option_ends_with_the_usual_code_and_text() -> None:
    source = run(sys.executable, "-m", "lavinmq", "--no-such-option")

    done = run(BINARY, "--no-such-option")

    assert done.returncode == source.returncode == 1
    assert done.stderr == source.stderr


def test_variables_of_python_mean_nothing_to_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('read from outside')")
    settings = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": str(tmp_path), "PYTHONVERBOSE": "1"}

    done = run(BINARY, "--selftest", env=settings | {"PATH": os.defpath}, cwd=tmp_path)

    assert done.returncode == 0, done.stdout
    assert "import" not in done.stderr


def test_a_closed_pipe_ends_a_tool_without_a_trace() -> None:
    command = f"{ROOT}/dist/lavinmqctl --help | head -n 1"

    done = run("bash", "-o", "pipefail", "-c", command)

    assert "Traceback" not in done.stderr


def test_the_broker_is_one_process_that_writes_nothing_outside_its_directory(
    broker: Broker, tmp_path: Path
) -> None:
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text()

    assert children == ""
    assert Path(f"/proc/{broker.pid}/comm").read_text().strip() == "lavinmq"
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.log", "tmp"]


def test_sigterm_ends_it_orderly(broker: Broker) -> None:
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text()


def test_sighup_reaches_it(broker: Broker) -> None:
    os.kill(broker.pid, signal.SIGHUP)

    wait_for(lambda: "Configuration reloaded" in broker.log_text(), "no reload in the log")
    assert broker.is_running()


def test_it_answers_over_http(broker: Broker) -> None:
    with socket.create_connection((broker.host, broker.http_port), timeout=10) as connection:
        guest = b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q="
        connection.sendall(b"GET /api/overview HTTP/1.0\r\n" + guest + b"\r\n\r\n")
        assert connection.recv(4096).split(b" ")[1] == b"200"


def test_an_idle_broker_with_all_of_its_listeners_needs_little_memory(broker: Broker) -> None:
    rollup = Path(f"/proc/{broker.pid}/smaps_rollup").read_text()

    anonymous = re.search(r"^Anonymous: +(\d+) kB$", rollup, re.MULTILINE)

    assert anonymous
    assert 0 < int(anonymous[1]) * 1024 <= MAX_IDLE_MEMORY


@pytest.mark.slow
def test_a_profile_of_the_running_broker_names_compiled_functions(
    broker: Broker, tmp_path: Path
) -> None:
    if reason := profiling.missing(tmp_path):
        pytest.skip(reason)
    uri = f"amqp://guest:guest@{broker.host}:{broker.port}"
    load = subprocess.Popen(
        [BINARY.with_name("lavinmqperf"), "throughput", "--uri", uri, "--time", "20"],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: broker.is_running() and connections(broker.pid) >= 2, "no load")
        names = profiling.hot_functions(broker.pid, 2.0, tmp_path)
    finally:
        load.kill()
        load.wait()

    assert any(name.startswith("__pyx_f_") for name in names), names


def connections(pid: int) -> int:
    """How many connections clients have to the ports of a process."""
    sockets = {
        match[1]
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if (match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(path)))
    }
    tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    lines = (line.split() for table in tables for line in table.splitlines()[1:])
    return sum(fields[3] == "01" and fields[9] in sockets for fields in lines)
