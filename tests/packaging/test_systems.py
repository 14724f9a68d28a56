"""The Debian package on other systems than Debian 12: each installs, serves, upgrades, removes.

What depends on the package alone is tried on Debian 12 (test_deb.py). Where the archive of a system
cannot be reached its tests are skipped, and say so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.conftest import OLD_INI_LINE, OLD_VERSION, Packages, client
from tests.packaging.test_deb import INI, INSTALL, debian, is_active, journal
from tests.support.machine import DEBIAN_13, UBUNTU_22, UBUNTU_24, System, run_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("machines"),
    pytest.mark.parametrize(
        "system", [DEBIAN_13, UBUNTU_22, UBUNTU_24], ids=lambda system: system.suite
    ),
]
UNIFIED = Path("/sys/fs/cgroup/cgroup.controllers")
"""Where the kernel's control groups are of the second version."""


def test_it_installs_and_serves_where_nothing_is_booted(
    system: System, packages: Packages, tmp_path: Path
) -> None:
    root = debian(tmp_path / "root", packages, system).root

    def run(*command: str) -> str:
        return run_in(root, *command, shown=[packages.directory])

    run("apt-get", "update")
    run(*INSTALL, "lavinmq")

    assert "broker: ok" in run("lavinmq", "--selftest")
    assert run("lavinmq", "--check-config", "-c", f"/{INI}").startswith("The configuration is good")
    assert "lavinmq:" in (root / "etc/passwd").read_text()

    run("apt-get", "purge", "-y", "lavinmq")

    assert not (root / INI).exists() and not (root / "usr/bin/lavinmq").exists()


def test_the_service_serves_is_upgraded_and_removed(
    system: System, packages: Packages, tmp_path: Path
) -> None:
    if system is DEBIAN_13 and not UNIFIED.exists():
        pytest.skip("systemd of Debian 13 boots with control groups of version 2 only")
    with debian(tmp_path / "root", packages, system) as machine:
        machine.run("dpkg", "--install", str(packages.old_deb))
        assert is_active(machine), journal(machine)
        client(machine, "publish")

        machine.run("apt-get", "update")
        machine.run("apt-get", "upgrade", "-y")

        installed = machine.run("dpkg-query", "--show", "--showformat=${Version}", "lavinmq")
        assert installed != OLD_VERSION
        assert OLD_INI_LINE not in (machine.root / INI).read_text()
        assert is_active(machine)
        assert "Version:" in machine.run("lavinmqctl", "status")
        assert client(machine, "consume") == "hello"

        machine.run("apt-get", "remove", "-y", "lavinmq")

        assert machine.status("pidof", "lavinmq") == 1
        assert list((machine.root / "var/lib/lavinmq").iterdir())
