"""Packages and repositories made of dist/lavinmq, once for all tests of packages."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lavinmq import __version__
from tests.support import machine, profiling
from tests.support.machine import DEBIAN_12, System
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
KEY = "tests@example.com"
OLD_VERSION = "1:0.0.9-1"
OLD_INI_LINE = "; a line that only the older version has\n"
CLIENT = """
import sys, pika
action, host = sys.argv[1:]
connection = pika.BlockingConnection(pika.ConnectionParameters(host))
channel = connection.channel()
channel.queue_declare("orders", durable=True)
channel.confirm_delivery()
if action == "publish":
    channel.basic_publish("", "orders", b"hello", pika.BasicProperties(delivery_mode=2))
else:
    method, _, body = channel.basic_get("orders")
    print(body.decode() if body else "nothing")
    if method:
        channel.basic_ack(method.delivery_tag)
connection.close()
"""


class Packages(NamedTuple):
    """What has been made. `repository` is signed by a key of its own."""

    directory: Path
    deb: Path
    rpm: Path
    old_deb: Path
    repository: Path
    said: str

    @property
    def key(self) -> Path:
        return self.repository / "lavinmq.asc"


def fresh_root(path: Path, system: System = DEBIAN_12) -> Path:
    """Return a new root directory of a system; skips the test where there can be none."""
    if reason := system.lacking():
        pytest.skip(reason)
    return machine.root_directory(path, system)


def client(of: machine.Machine, action: str) -> str:
    """Publish a message to, or take one from, the broker of a machine."""
    return of.run_client(sys.executable, "-c", CLIENT, action, "127.0.0.1").strip()


def profile(of: machine.Machine, directory: Path) -> set[str]:
    """Return the functions in which the broker of a machine is seen while it has work to do."""
    if reason := profiling.missing(directory):
        pytest.skip(reason)
    before = of.run("lavinmqctl", "list_connections")
    of.run("systemd-run", "--quiet", "--unit=load", "lavinmqperf", "throughput", "--time", "60")
    try:
        wait_for(lambda: of.run("lavinmqctl", "list_connections") != before, "no load", 30)
        pid = of.host_pid(int(of.run("pidof", "lavinmq")))
        return profiling.hot_functions(pid, 2.0, directory)
    finally:
        of.run("systemctl", "stop", "load")


def line_of(function: str, root: Path) -> str:
    """Return what a debugger says of a function of the broker below a root directory.

    It has the files of that root alone, and finds what belongs together by the build id.
    """
    return make(
        "gdb", "--batch", "--nx", "-iex", f"set debug-file-directory {root}/usr/lib/debug",
        "-ex", f"info line {function}", root / "usr/bin/lavinmq",
    )  # fmt: skip


def make(*command: str | Path, timeout_s: float = 600, **environment: str) -> str:
    """Run a program, perhaps one of packaging/ in a directory of its own, and return its words."""
    modules = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    with tempfile.TemporaryDirectory(prefix="packaging-") as directory:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout_s,
            env={
                **os.environ, "PYTHONPATH": modules, "PACKAGING_BUILD_DIR": f"{directory}/build",
                **environment,
            },
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packages]:
    """Both packages, checked by lintian and rpmlint, and their repositories."""
    reason = machine.missing(
        "lintian", "rpmlint", "dpkg-buildpackage", "dh", "rpmbuild", "rpmsign", "apt-ftparchive",
        "createrepo_c", "gpg", "gdb",
    )  # fmt: skip
    if not (ROOT / "dist/lavinmq").exists():
        reason = "dist/lavinmq has not been built: make binary"
    if reason:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("packages")
    made = directory / "made"
    # Most of the time of a package is its compression: as it is published only where it is tried.
    packing = {} if os.environ.get("PACKAGE_TESTS") == "1" else {"DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    # Of whichever form the executable has.
    packing["REHEARSAL"] = "1"
    said = make(sys.executable, "packaging/deb.py", "--output", made, **packing)
    said += make(sys.executable, "packaging/rpm.py", "--output", made, **packing)
    deb = next(made.glob("lavinmq_*.deb"))
    rpm = next(path for path in made.glob("*.rpm") if "debuginfo" not in path.name)
    old_deb = _older(deb, directory)
    keyring = directory / "gnupg"
    keyring.mkdir(mode=0o700)
    gpg = {"GNUPGHOME": str(keyring)}
    # The keyring comes from the same repository.
    make("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", KEY, "rsa3072",
         "sign", "never", **gpg)  # fmt: skip
    said += make(sys.executable, "packaging/keyring.py", "--key", KEY, "--output", made, **gpg)
    repository = directory / "repository"
    make(
        sys.executable, "packaging/repository.py", "--packages", made, "--output", repository,
        "--key", KEY, "--url", f"file://{repository}", REHEARSAL="1", **gpg,
    )  # fmt: skip
    directory.chmod(0o755)
    yield Packages(directory, deb, rpm, old_deb, repository, said)
    subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, **gpg}, check=False)


def _older(deb: Path, directory: Path) -> Path:
    """The same package as an older version, with another configuration."""
    tree = directory / "older"
    make("dpkg-deb", "--raw-extract", deb, tree)
    control = tree / "DEBIAN/control"
    control.write_text(
        control.read_text().replace(f"Version: 1:{__version__}-1", f"Version: {OLD_VERSION}")
    )
    ini = tree / "etc/lavinmq/lavinmq.ini"
    ini.write_text(ini.read_text() + OLD_INI_LINE)
    target = directory / "lavinmq_old.deb"
    make("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, target)
    return target
