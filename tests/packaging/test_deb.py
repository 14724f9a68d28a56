"""The Debian package in fresh systems that systemd has booted: install, serve, upgrade, remove."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import (
    OLD_INI_LINE,
    OLD_VERSION,
    ROOT,
    Packages,
    client,
    fresh_root,
    line_of,
    profile,
)
from tests.support.machine import DEBIAN_12, Machine, System
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machines")]
INSTALL = ("apt-get", "install", "-y", "--no-install-recommends")
KEYRING = "usr/share/keyrings/lavinmq-archive-keyring.asc"
SOURCE = "etc/apt/sources.list.d/lavinmq.sources"
INI = "etc/lavinmq/lavinmq.ini"


def debian(path: Path, packages: Packages, system: System = DEBIAN_12) -> Machine:
    """A fresh Debian, or Ubuntu, that knows the repository, and no other."""
    root = fresh_root(path, system)
    (root / KEYRING).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(packages.key, root / KEYRING)
    shutil.copy(packages.repository / "lavinmq.sources", root / SOURCE)
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    (root / "etc/apt/sources.list.d/ubuntu.sources").unlink(missing_ok=True)
    return Machine(root, shown=[packages.directory])


@pytest.fixture(scope="module")
def machine(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose broker runs; tests leave it running."""
    with debian(tmp_path_factory.mktemp("deb") / "root", packages) as machine:
        machine.run("apt-get", "update")
        machine.run(*INSTALL, "lavinmq")
        yield machine


def is_active(machine: Machine) -> bool:
    return machine.run("systemctl", "is-active", "lavinmq", check=False).strip() == "active"


def pid(machine: Machine) -> str:
    return machine.run("pidof", "lavinmq", check=False).strip()


def journal(machine: Machine) -> str:
    return machine.run("journalctl", "--no-pager", "--output=cat", "--unit=lavinmq")


def test_lintian_and_rpmlint_have_nothing_to_say(packages: Packages) -> None:
    assert "0 errors, 0 warnings" in packages.said
    assert "is not installed" not in packages.said
    assert "\nE: " not in packages.said
    assert "\nW: " not in packages.said


def test_the_broker_runs_after_the_installation_and_serves(machine: Machine) -> None:
    assert is_active(machine)
    assert machine.run("systemctl", "is-enabled", "lavinmq").strip() == "enabled"

    client(machine, "publish")

    assert client(machine, "consume") == "hello"
    assert "warn" not in journal(machine).lower()


def test_it_is_one_process_of_a_user_without_rights(machine: Machine) -> None:
    number = pid(machine)

    assert number.isdigit()
    assert machine.run("ps", "-o", "user=,comm=", "-p", number).split() == ["lavinmq", "lavinmq"]
    status = machine.run("cat", f"/proc/{number}/status")
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


def test_the_page_says_how_exposed_the_service_is(machine: Machine) -> None:
    page = (ROOT / "docs/installation.md").read_text()

    said = machine.run("systemd-analyze", "security", "--no-pager", "lavinmq")

    found = re.search(r"Overall exposure level for lavinmq.service: ([\d.]+)", said)
    assert found, said
    assert f"`systemd-analyze security lavinmq` gives it {found[1]} of 10" in page


def test_the_tools_find_the_broker_without_being_told(machine: Machine) -> None:
    client(machine, "publish")

    assert client(machine, "consume") == "hello"
    assert "Version:" in machine.run("lavinmqctl", "status")
    assert "orders" in machine.run("lavinmqctl", "list_queues")
    said = machine.run("lavinmqperf", "throughput", "--time", "1", "--queue", "measured")
    assert re.search(r"Average consume rate: [1-9]", said), said


def test_perf_names_the_compiled_functions_of_the_broker(machine: Machine, tmp_path: Path) -> None:
    names = profile(machine, tmp_path)

    assert any(name.startswith("__pyx_f_") for name in names), names


def test_debuggers_find_lines_by_the_build_id_when_the_symbols_are_installed(
    machine: Machine,
) -> None:
    assert "No line number information" in line_of("PyObject_Vectorcall", machine.root)

    machine.run(*INSTALL, "lavinmq-dbgsym")

    assert re.search(
        r'Line \d+ of ".*Objects/call.c"', line_of("PyObject_Vectorcall", machine.root)
    )
    machine.run("apt-get", "purge", "-y", "lavinmq-dbgsym")


def test_the_package_of_the_keys_takes_over_the_file_that_users_have_fetched(
    machine: Machine,
) -> None:
    fetched = (machine.root / KEYRING).read_bytes()

    machine.run(*INSTALL, "lavinmq-archive-keyring")

    owner = machine.run("dpkg", "--search", f"/{KEYRING}")
    assert owner.startswith("lavinmq-archive-keyring:")
    assert (machine.root / KEYRING).read_bytes() == fetched
    machine.run("apt-get", "update")


def test_files_have_the_owners_and_modes_that_they_should(machine: Machine) -> None:
    expected = {
        "/usr/bin/lavinmq": "755 root root",
        "/etc/lavinmq/lavinmq.ini": "644 root root",
        "/etc/lavinmq/conf.d": "755 root root",
        "/etc/lavinmq/conf.d/README": "644 root root",
        "/etc/default/lavinmq": "644 root root",
        "/etc/apparmor.d/lavinmq": "644 root root",
        "/etc/needrestart/conf.d/lavinmq.conf": "644 root root",
        "/var/lib/lavinmq": "700 lavinmq lavinmq",
        "/run/lavinmq": "755 lavinmq lavinmq",
        "/run/lavinmq/lavinmqctl.sock": "660 lavinmq lavinmq",
        "/lib/systemd/system/lavinmq.service": "644 root root",
        "/usr/share/man/man1/lavinmqctl.1.gz": "644 root root",
        "/usr/share/bash-completion/completions/lavinmqctl": "644 root root",
        "/usr/share/doc/lavinmq/licenses/orjson/LICENSE-MPL-2.0": "644 root root",
        "/usr/share/doc/lavinmq/examples/cluster.ini": "644 root root",
    }

    found = machine.run("stat", "-c", "%n=%a %U %G", *expected)

    assert dict(line.split("=") for line in found.splitlines()) == expected


def test_the_shipped_configuration_is_good_and_names_the_settings(machine: Machine) -> None:
    said = machine.run("lavinmq", "--check-config", "-c", f"/{INI}")

    assert said == f"The configuration is good (/{INI})\n"
    assert "; max_message_size = 134217728" in (machine.root / INI).read_text()


def test_a_reload_reaches_the_broker_which_goes_on(machine: Machine) -> None:
    before, lines = pid(machine), journal(machine).count("Configuration reloaded")

    machine.run("systemctl", "reload", "lavinmq")

    wait_for(lambda: journal(machine).count("Configuration reloaded") == lines + 1, "no reload")
    assert pid(machine) == before
    assert is_active(machine)


def test_sigterm_ends_it_with_success_and_messages_are_kept(machine: Machine) -> None:
    client(machine, "publish")

    machine.run("kill", "-TERM", pid(machine))

    wait_for(lambda: not is_active(machine), "the broker does not stop")
    result = machine.run("systemctl", "show", "-p", "Result,ExecMainStatus", "lavinmq").split()
    assert sorted(result) == ["ExecMainStatus=0", "Result=success"]
    machine.run("systemctl", "start", "lavinmq")
    assert client(machine, "consume") == "hello"


def test_a_broker_that_is_killed_is_started_again(machine: Machine) -> None:
    before = pid(machine)

    machine.run("kill", "-KILL", before)

    wait_for(lambda: is_active(machine) and pid(machine) != before, "no new broker", 60)


def test_a_broker_that_hangs_is_ended_by_the_watchdog(machine: Machine) -> None:
    drop_in = machine.root / "etc/systemd/system/lavinmq.service.d/watchdog.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nWatchdogSec=2\nWatchdogSignal=SIGKILL\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "lavinmq")
    before = pid(machine)

    machine.run("kill", "-STOP", before)

    wait_for(lambda: "Watchdog timeout" in journal(machine), "the watchdog sleeps", 60)
    wait_for(lambda: is_active(machine) and pid(machine) != before, "no new broker", 60)
    drop_in.unlink()
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "lavinmq")


def test_with_socket_units_a_connection_starts_the_broker(machine: Machine) -> None:
    sockets = ("lavinmq-amqp.socket", "lavinmq-http.socket", "lavinmq-mqtt.socket")
    machine.run("systemctl", "stop", "lavinmq")
    machine.run("systemctl", "enable", "--now", *sockets)
    assert not is_active(machine)

    client(machine, "publish")

    assert is_active(machine)
    assert client(machine, "consume") == "hello"
    assert "no setting names it" not in journal(machine)
    machine.run("systemctl", "stop", *sockets)
    machine.run("systemctl", "disable", *sockets)
    machine.run("systemctl", "restart", "lavinmq")


def test_a_drop_in_gives_it_a_port_below_1024(machine: Machine) -> None:
    drop_in = machine.root / "etc/systemd/system/lavinmq.service.d/port.conf"
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    right = "CAP_NET_BIND_SERVICE"
    drop_in.write_text(
        f"[Service]\nCapabilityBoundingSet={right}\nAmbientCapabilities={right}\n"
        "Environment=LAVINMQ_AMQP_PORT=672\n"
    )
    machine.run("systemctl", "daemon-reload")

    machine.run("systemctl", "restart", "lavinmq")

    assert "Listening for AMQP on [::]:672\n" in journal(machine)
    drop_in.unlink()
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "lavinmq")


def test_variables_of_the_site_are_in_the_usual_file(machine: Machine) -> None:
    variables = machine.root / "etc/default/lavinmq"
    shipped = variables.read_text()
    variables.write_text("LAVINMQ_AMQP_PORT=5679\n")

    machine.run("systemctl", "restart", "lavinmq")

    assert "Listening for AMQP on [::]:5679\n" in journal(machine)
    variables.write_text(shipped)
    machine.run("systemctl", "restart", "lavinmq")


def test_a_file_of_conf_d_counts_after_a_reload(machine: Machine) -> None:
    part = machine.root / "etc/lavinmq/conf.d/20-site.ini"
    part.write_text("[amqp]\nheartbeat = 17\n")

    machine.run("systemctl", "reload", "lavinmq")

    assert "Configuration reloaded, changed: 'heartbeat' in [amqp]" in journal(machine)
    part.unlink()
    machine.run("systemctl", "reload", "lavinmq")


def test_an_upgrade_keeps_messages_and_a_changed_configuration(
    packages: Packages, tmp_path: Path
) -> None:
    with debian(tmp_path / "root", packages) as machine:
        machine.run("dpkg", "--install", str(packages.old_deb))
        ini = machine.root / INI
        assert OLD_INI_LINE in ini.read_text()
        changed = ini.read_text().replace("log_level = info", "log_level = warn")
        ini.write_text(changed)
        machine.run("systemctl", "restart", "lavinmq")
        client(machine, "publish")
        before = pid(machine)

        machine.run("apt-get", "update")
        machine.run("apt-get", "upgrade", "-y", "-o", "Dpkg::Options::=--force-confold")

        installed = machine.run("dpkg-query", "--show", "--showformat=${Version}", "lavinmq")
        assert installed != OLD_VERSION
        assert ini.read_text() == changed
        assert OLD_INI_LINE not in ini.with_name("lavinmq.ini.dpkg-dist").read_text()
        assert is_active(machine)
        assert pid(machine) != before
        assert client(machine, "consume") == "hello"


def test_removal_keeps_messages_and_purge_says_so(packages: Packages, tmp_path: Path) -> None:
    with debian(tmp_path / "root", packages) as machine:
        machine.run("apt-get", "update")
        machine.run(*INSTALL, "lavinmq")
        client(machine, "publish")

        machine.run("apt-get", "remove", "-y", "lavinmq")

        assert machine.status("pidof", "lavinmq") == 1
        assert (machine.root / INI).exists()
        kept = sorted((machine.root / "var/lib/lavinmq").iterdir())
        assert kept

        said = machine.run("apt-get", "purge", "-y", "lavinmq")

        assert "/var/lib/lavinmq" in said
        assert not (machine.root / INI).exists()
        assert sorted((machine.root / "var/lib/lavinmq").iterdir()) == kept

        machine.run(*INSTALL, "lavinmq")

        assert client(machine, "consume") == "hello"


def test_apt_refuses_a_repository_that_was_changed(packages: Packages, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(packages.repository, changed)
    for path in (changed / "deb/dists/stable").rglob("*Release"):
        path.write_text(path.read_text().replace("Label: lavinmq", "Label: somebody"))
    machine = debian(tmp_path / "root", packages)
    source = machine.root / SOURCE
    source.write_text(source.read_text().replace(str(packages.repository), str(changed)))
    with Machine(machine.root, shown=[changed]) as machine:
        said = machine.run("apt-get", "update", check=False)

        assert "BADSIG" in said
        assert "E: " in said
        assert machine.status(*INSTALL, "lavinmq") != 0
