"""The RPM package, installed by dnf from the signed repository into a system that systemd boots.

The system is Debian's: a package without files stands for its C library, systemd and tools, as no
mirror of Fedora or Enterprise Linux is needed then. What is proved are the package's own contents,
scripts and signatures, not that those distributions have what it requires.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import Packages, client, fresh_root, line_of, make, profile
from tests.support.machine import Machine, missing
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machines")]
KEYRING = "etc/pki/rpm-gpg/RPM-GPG-KEY-lavinmq"
INI = "etc/lavinmq/lavinmq.ini"
STAND_IN = """
Name: stand-in
Version: 1
Release: 1
Summary: Stands for what the system has
License: Apache-2.0
BuildArch: noarch
{provides}
%description
Stands for what the system has.
%files
"""
OWN = ("config(lavinmq)", "rpmlib(")


@pytest.fixture(scope="module")
def stand_in(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the package that provides all that ours requires of a system."""
    reason = missing("dnf", "rpm")
    if reason:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("stand-in")
    required = make("rpm", "--query", "--package", "--nosignature", "--requires", packages.rpm)
    lines = sorted({line for line in required.splitlines() if not line.startswith(OWN)})
    spec = directory / "stand-in.spec"
    spec.write_text(STAND_IN.format(provides="\n".join(f"Provides: {line}" for line in lines)))
    make("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {directory}", spec)
    make("createrepo_c", "--quiet", directory)
    return directory


def configured(packages: Packages) -> str:
    """Return our repository as users configure it, with the key at a place of this test.

    dnf looks for the key in this system, not in the root directory; users have put it there.
    """
    text = (packages.repository / "lavinmq.repo").read_text()
    assert f"file:///{KEYRING}" in text
    return text.replace(f"file:///{KEYRING}", f"file://{packages.key}")


def dnf(root: Path, packages: Packages, stand_in: Path, *words: str) -> str:
    """Run dnf for a root directory, with our repository as users configure it."""
    sources = root.parent / "repos"
    sources.mkdir(exist_ok=True)
    (sources / "lavinmq.repo").write_text(configured(packages))
    (sources / "stand-in.repo").write_text(
        f"[stand-in]\nname=stand-in\nbaseurl=file://{stand_in}\ngpgcheck=0\n"
    )
    return make(
        "dnf", "--assumeyes", f"--installroot={root}", f"--setopt=reposdir={sources}",
        "--releasever=1", *words,
    )  # fmt: skip


@pytest.fixture(scope="module")
def machine(
    packages: Packages, stand_in: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """A machine with the package; whether its broker starts by itself is a preset's matter."""
    root = fresh_root(tmp_path_factory.mktemp("rpm") / "root")
    dnf(root, packages, stand_in, "install", "lavinmq")
    with Machine(root) as machine:
        machine.run("systemctl", "start", "lavinmq")
        yield machine


def test_the_broker_runs_as_its_user_and_serves(machine: Machine) -> None:
    pid = machine.run("pidof", "lavinmq").strip()
    assert pid.isdigit()
    assert machine.run("ps", "-o", "user=", "-p", pid).strip() == "lavinmq"

    client(machine, "publish")

    assert client(machine, "consume") == "hello"
    assert "Version:" in machine.run("lavinmqctl", "status")


def test_perf_names_the_compiled_functions_of_the_broker(machine: Machine, tmp_path: Path) -> None:
    names = profile(machine, tmp_path)

    assert any(name.startswith("__pyx_f_") for name in names), names


def test_files_have_the_owners_and_modes_that_they_should(machine: Machine) -> None:
    expected = {
        "/usr/bin/lavinmq": "755 root root",
        "/etc/lavinmq/lavinmq.ini": "644 root root",
        "/etc/lavinmq/conf.d": "755 root root",
        "/etc/sysconfig/lavinmq": "644 root root",
        "/var/lib/lavinmq": "700 lavinmq lavinmq",
        "/usr/lib/systemd/system/lavinmq.service": "644 root root",
        "/usr/share/man/man5/lavinmq.ini.5.gz": "644 root root",
        "/usr/share/zsh/site-functions/_lavinmqctl": "644 root root",
        "/usr/share/doc/lavinmq/licenses/orjson/LICENSE-MPL-2.0": "644 root root",
    }

    found = machine.run("stat", "-c", "%n=%a %U %G", *expected)

    assert dict(line.split("=") for line in found.splitlines()) == expected


def test_debuggers_find_lines_by_the_build_id_when_the_symbols_are_installed(
    machine: Machine, packages: Packages, stand_in: Path
) -> None:
    assert "No line number information" in line_of("PyObject_Vectorcall", machine.root)

    dnf(machine.root, packages, stand_in, "install", "lavinmq-debuginfo", "lavinmq-archive-keyring")

    assert re.search(
        r'Line \d+ of ".*Objects/call.c"', line_of("PyObject_Vectorcall", machine.root)
    )
    assert (machine.root / KEYRING).read_bytes() == packages.key.read_bytes()


def test_signals_reach_it(machine: Machine) -> None:
    machine.run("systemctl", "reload", "lavinmq")
    log = ("journalctl", "--no-pager", "--unit=lavinmq")
    wait_for(lambda: "Configuration reloaded" in machine.run(*log), "no reload")

    machine.run("systemctl", "stop", "lavinmq")

    shown = machine.run("systemctl", "show", "-p", "Result,ExecMainStatus", "lavinmq").split()
    assert sorted(shown) == ["ExecMainStatus=0", "Result=success"]
    machine.run("systemctl", "start", "lavinmq")


def test_both_kinds_of_package_hold_the_same(packages: Packages) -> None:
    listed = make("rpm", "--query", "--package", "--nosignature", "--list", packages.rpm)
    rpm = {path for path in listed.splitlines() if path.startswith("/")}
    deb = set()
    for line in make("dpkg-deb", "--contents", packages.deb).splitlines():
        path = line.split(maxsplit=5)[5].split(" -> ")[0].removeprefix(".")
        if not path.endswith("/"):
            deb.add(path)

    only_debian = {
        "/usr/share/doc/lavinmq/copyright", "/usr/share/doc/lavinmq/changelog.Debian.gz",
        "/usr/share/lintian/overrides/lavinmq",
        "/etc/apparmor.d/lavinmq", "/etc/needrestart/conf.d/lavinmq.conf",
    }  # fmt: skip
    moved = {
        path.replace("/lib/systemd/system", "/usr/lib/systemd/system")
        .replace("/etc/default/", "/etc/sysconfig/")
        .replace("/zsh/vendor-completions", "/zsh/site-functions")
        .replace("doc/lavinmq/README.md.gz", "doc/lavinmq/README.md")
        .replace("doc/lavinmq/changelog.gz", "doc/lavinmq/changelog")
        for path in deb - only_debian
    }
    assert moved <= rpm
    only_rpm = {"/var/lib/lavinmq", "/usr/share/selinux/packages/lavinmq"}
    only_rpm |= {f"/usr/share/selinux/packages/lavinmq/lavinmq.{kind}" for kind in ("te", "fc")}
    assert {path for path in rpm - moved if not _is_directory(path, moved)} == only_rpm


def _is_directory(path: str, files: set[str]) -> bool:
    return any(each.startswith(path + "/") for each in files)


def test_removal_keeps_messages_and_a_changed_configuration(
    packages: Packages, stand_in: Path, tmp_path: Path
) -> None:
    root = fresh_root(tmp_path / "root")
    dnf(root, packages, stand_in, "install", "lavinmq")
    message = root / "var/lib/lavinmq/message"
    message.write_text("hello")
    ini = root / INI
    ini.write_text(ini.read_text() + "; changed\n")

    dnf(root, packages, stand_in, "remove", "lavinmq")

    assert not (root / "usr/bin/lavinmq").exists()
    assert message.read_text() == "hello"
    assert "; changed" in ini.with_name("lavinmq.ini.rpmsave").read_text()


def test_dnf_refuses_a_package_that_was_changed(
    packages: Packages, stand_in: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["cp", "-a", packages.repository, repository], check=True)
    package = next((repository / "rpm").glob("lavinmq-[0-9]*.rpm"))
    package.write_bytes(packages.rpm.read_bytes())  # the same, unsigned
    make("createrepo_c", "--quiet", repository / "rpm")
    text = configured(packages)
    sources = tmp_path / "repos"
    sources.mkdir()
    at = f"baseurl=file://{repository}/rpm"
    lines = [at if line.startswith("baseurl=") else line for line in text.splitlines()]
    for checks in (lines, [line.replace("repo_gpgcheck=1", "repo_gpgcheck=0") for line in lines]):
        (sources / "lavinmq.repo").write_text("\n".join(checks))
        done = subprocess.run(
            [
                "dnf", "--assumeyes", f"--installroot={tmp_path / 'root'}", "--releasever=1",
                f"--setopt=reposdir={sources}", f"--repofrompath=stand-in,file://{stand_in}",
                "--setopt=stand-in.gpgcheck=0", "install", "lavinmq",
            ],
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip

        assert done.returncode != 0, done.stdout
        assert not (tmp_path / "root/usr/bin/lavinmq").exists()
    assert "not signed" in done.stdout + done.stderr
