"""A machine of Debian or Ubuntu for tests of packages: a root that systemd boots in a container.

`root_directory` makes a fresh root from one that debootstrap has made once; `Machine` boots it with
systemd-nspawn, with a network of its own, and runs programs in it; `run_in` runs one in a root that
is not booted. Needs root and the archive of the system; `missing()` and `System.lacking()` say what
is not there. Knows nothing of brokers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.support.waiting import wait_for

ROOTS = Path(__file__).parents[2] / "build/packages"
PROGRAMS = ("debootstrap", "systemd-nspawn", "nsenter", "cp")
INCLUDED = "systemd,dbus,procps"
BOOT_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class System:
    """A distribution that a root directory is made of. `script` is that of debootstrap, if it has
    none of the suite's name."""

    name: str
    suite: str
    mirror: str
    script: str = ""

    @property
    def base(self) -> Path:
        """The root that others are copies of."""
        return ROOTS / self.suite

    def lacking(self) -> str:
        """Say why no root of it can be had here; empty: one can."""
        if self.base.exists():
            return ""
        try:
            urllib.request.urlopen(
                f"{self.mirror}/dists/{self.suite}/Release", None, ANSWER_TIMEOUT_S
            )
        except (OSError, urllib.error.URLError) as error:
            return f"no root of {self.name}: its archive {self.mirror} cannot be reached ({error})"
        return ""


DEBIAN = "http://deb.debian.org/debian"
UBUNTU = "http://archive.ubuntu.com/ubuntu"
DEBIAN_12 = System("Debian 12", "bookworm", DEBIAN)
DEBIAN_13 = System("Debian 13", "trixie", DEBIAN)
UBUNTU_22 = System("Ubuntu 22.04", "jammy", UBUNTU, "gutsy")
UBUNTU_24 = System("Ubuntu 24.04", "noble", UBUNTU, "gutsy")


def missing(*programs: str) -> str:
    """Say why machines cannot be made here; empty: they can."""
    if os.environ.get("PACKAGE_TESTS") != "1":
        return "takes long, and a mirror of Debian: make test-packages"
    if os.geteuid() != 0:
        return "only root can make machines"
    lacking = [name for name in (*PROGRAMS, *programs) if not shutil.which(name)]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def root_directory(path: Path, system: System = DEBIAN_12) -> Path:
    """Return a new root with a system and systemd, as they are after an installation."""
    if not system.base.exists():
        unfinished = system.base.with_suffix(f".{os.getpid()}")
        script = [f"/usr/share/debootstrap/scripts/{system.script}"] if system.script else []
        subprocess.run(
            [
                "debootstrap", "--variant=minbase", f"--include={INCLUDED}", system.suite,
                unfinished, system.mirror, *script,
            ],
            check=True,
        )  # fmt: skip
        try:
            unfinished.rename(system.base)
        except OSError:  # somebody else was faster
            shutil.rmtree(unfinished)
    subprocess.run(["cp", "-a", "--reflink=auto", system.base, path], check=True)
    # The installer writes it, debootstrap does not.
    (path / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
    return path


def run_in(
    root: Path,
    *command: str,
    place: str = "/",
    network: bool = False,
    shown: Sequence[Path] = (),
    timeout_s: float = RUN_TIMEOUT_S,
) -> str:
    """Run a program in a root that is not booted, and return what it printed, errors included."""
    done = subprocess.run(
        [
            "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--console=pipe",
            f"--machine=test-{os.getpid()}-{time.monotonic_ns()}", f"--directory={root}",
            "--setenv=DEBIAN_FRONTEND=noninteractive", f"--chdir={place}",
            *(f"--bind-ro={path}" for path in shown),
            *([] if network else ["--private-network"]), *command,
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


class Machine:
    """A booted root directory; a context that ends with its shutdown.

    Args: `shown` are directories of this host that can be read there, at the same paths.
    """

    def __init__(self, root: Path, shown: Sequence[Path] = ()) -> None:
        self.root = root
        self._log_path = root.with_name(root.name + ".boot.log")
        self._binds = [f"--bind-ro={path}" for path in shown]
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Machine:
        with self._log_path.open("wb") as log:
            self._nspawn = subprocess.Popen(
                [
                    "systemd-nspawn", "--quiet", "--register=no", "--keep-unit",
                    "--private-network", "--console=pipe",
                    f"--machine=test-{os.getpid()}-{time.monotonic_ns()}",
                    f"--directory={self.root}", *self._binds, "--boot",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_for(self._is_up, "the machine does not boot", BOOT_TIMEOUT_S)
        except BaseException as error:
            self.close()
            error.add_note(self._boot_log())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Shut it down, or pull the plug."""
        if self._nspawn is None:
            return
        self._nspawn.send_signal(signal.SIGTERM)
        try:
            self._nspawn.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            if self._init:
                os.kill(self._init, signal.SIGKILL)
            self._nspawn.kill()
            self._nspawn.wait()
        self._nspawn = None

    def run(self, *command: str, check: bool = True) -> str:
        """Run a program in the machine and return what it printed, errors included."""
        return self._enter(("-m", "-u", "-i", "-n", "-p", "-r", "-w"), command, check=check)

    def run_client(self, *command: str | Path, check: bool = True) -> str:
        """Run a program of this host that sees the network of the machine."""
        return self._enter(("-n",), [str(word) for word in command], check=check)

    def status(self, *command: str) -> int:
        """Run a program in the machine and return its exit status."""
        return subprocess.run(
            [*self._prefix(("-m", "-u", "-i", "-n", "-p", "-r", "-w")), *command],
            capture_output=True, timeout=RUN_TIMEOUT_S, check=False,
        ).returncode  # fmt: skip

    def host_pid(self, pid: int) -> int:
        """Return the number that a process of the machine has on this host."""
        namespace = os.readlink(f"/proc/{self._init}/ns/pid")
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns/pid") != namespace:
                    continue
                status = (path / "status").read_text()
            except OSError:  # it has ended meanwhile
                continue
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if int(numbers.split()[-1]) == pid:
                return int(path.name)
        raise AssertionError(f"no process {pid} in the machine")

    def _prefix(self, namespaces: Sequence[str]) -> list[str]:
        assert self._init, "the machine does not run"
        return ["nsenter", "-t", str(self._init), *namespaces]

    def _enter(self, namespaces: Sequence[str], command: Sequence[str], *, check: bool) -> str:
        environment = {"PATH": os.environ["PATH"], "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(
            [*self._prefix(namespaces), *command],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{command} ended with {done.returncode}:\n{done.stdout}"
        )
        return done.stdout

    def _is_up(self) -> bool:
        assert self._nspawn
        assert self._nspawn.poll() is None, self._boot_log()
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text()
        if not children.strip():
            return False
        self._init = int(children.split()[0])
        state = self.run("/bin/systemctl", "is-system-running", check=False).strip()
        return state in ("running", "degraded")

    def _boot_log(self) -> str:
        return self._log_path.read_text(errors="replace")[-4000:]
