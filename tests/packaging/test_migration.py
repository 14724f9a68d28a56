"""From the package of the original to ours and back, by the commands of docs/installation.md.

Nobody answers a question meanwhile. The package of the original is an imitation (original.py), its
data directory is one that LavinMQ 2.9.1 has written.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import original
from tests.packaging.conftest import ROOT, Packages, client, fresh_root, make
from tests.packaging.test_deb import INI, SOURCE, debian, is_active, journal
from tests.packaging.test_rpm import dnf, stand_in
from tests.support.machine import Machine
from tests.support.waiting import wait_for

__all__ = ["stand_in"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machines")]
ELSEWHERE = "/srv/messages"
DATA = "var/lib/lavinmq"
WRITTEN = ROOT / "tests/fixtures/data-dir/basic.tar.gz"
"""A data directory of the original; beside it is what the original finds in it."""


def commands(manager: str, version: str) -> list[list[str]]:
    """The commands of a package manager in the section on the original that install a version."""
    text = (ROOT / "docs/installation.md").read_text()
    section = text.split("\n## In the place of the original\n")[1].split("\n## ")[0]
    lines = re.findall(rf"^sudo ({manager} .*)$", section, re.MULTILINE)
    return [line.split() for line in lines if line.endswith(version)]


@pytest.fixture
def site(packages: Packages, tmp_path: Path) -> Iterator[Machine]:
    """A machine that runs the original, with a configuration of its own, and knows both."""
    old = original.deb(tmp_path / "original")
    machine = debian(tmp_path / "root", packages)
    machine.root.joinpath("etc/apt/sources.list.d/original.list").write_text(
        f"deb [trusted=yes] file:{old} ./\n"
    )
    ours = machine.root / SOURCE
    kept = ours.rename(ours.with_suffix(".later"))
    with Machine(machine.root, shown=[packages.directory, old]) as machine:
        machine.run("apt-get", "update")
        machine.run("apt-get", "install", "-y", "lavinmq")
        ini = machine.root / INI
        ini.write_text(ini.read_text().replace("log_level = info", "log_level = debug"))
        assert version(machine) == f"{original.VERSION}-1" and is_active(machine)
        kept.rename(ours)
        machine.run("apt-get", "update")
        yield machine


def version(machine: Machine, package: str = "lavinmq") -> str:
    return machine.run("dpkg-query", "--show", "--showformat=${Version}", package)


def bring_data(machine: Machine) -> dict[str, int]:
    """Unpack what the original has written; return the numbers of messages by queue."""
    make("tar", "-xzf", WRITTEN, "-C", machine.root / DATA)
    machine.run("chown", "-R", "lavinmq:lavinmq", f"/{DATA}")
    told = json.loads(WRITTEN.with_suffix("").with_suffix(".json").read_text())
    return {queue["name"]: queue["messages"] for queue in told["queues"] if queue["durable"]}


def queues(machine: Machine) -> dict[str, int]:
    said = machine.run("lavinmqctl", "-q", "list_queues", "name", "messages")
    rows = [line.rsplit("\t", 1) for line in said.splitlines()[1:]]
    return {name: int(number) for name, number in rows}


def stored(machine: Machine) -> dict[str, bytes]:
    """Return what is in the files of queues, without room that was written ahead."""
    data = machine.root / DATA
    return {
        str(path.relative_to(data)): path.read_bytes().rstrip(b"\0")
        for path in sorted(data.glob("*/*/*"))
        if path.name.startswith(("msgs.", "acks."))
    }


def test_both_pages_tell_the_same_commands() -> None:
    pages = [(ROOT / f"docs/{name}.md").read_text() for name in ("from-lavinmq", "installation")]

    moving, installing = (set(re.findall(r"^sudo .*lavinmq.*$", page, re.M)) for page in pages)

    its_own = {line for line in moving if re.search("systemctl (stop|start)|cp -a", line)}
    assert len(moving - its_own) >= 3
    assert moving - its_own <= installing


def state(machine: Machine) -> dict[str, str]:
    """What systemd knows of the service."""
    properties = "ActiveState,NRestarts,ExecMainStatus"
    said = machine.run("systemctl", "show", "-p", properties, "lavinmq")
    return dict(line.split("=", 1) for line in said.splitlines())


def test_apt_brings_ours_and_the_original_again(site: Machine) -> None:
    before = (site.root / INI).read_text()
    (there,) = commands("apt-get", "lavinmq")
    (back,) = commands("apt-get", f"lavinmq={original.VERSION}-1")
    site.run("systemctl", "stop", "lavinmq")
    messages = bring_data(site)
    written = stored(site)
    site.run("systemctl", "start", "lavinmq")

    site.run(*there)

    assert version(site).startswith("1:")
    assert is_active(site)
    assert (site.root / INI).read_text() == before
    assert version(site, "lavinmq-archive-keyring")  # the keys come with it
    assert "Version:" in site.run("lavinmqctl", "status")
    site.run("apt-get", "upgrade", "-y")  # both repositories are configured
    assert version(site).startswith("1:")
    assert queues(site) == messages
    client(site, "publish")
    assert queues(site) == messages | {"orders": messages["orders"] + 1}

    kept = (site.root / SOURCE).rename((site.root / SOURCE).with_suffix(".kept"))
    site.run("apt-get", "update")
    site.run(*back)

    assert version(site) == f"{original.VERSION}-1"
    assert is_active(site)
    assert site.run("lavinmq", "--version").strip() == original.VERSION
    assert (site.root / INI).read_text() == before
    # Nothing of what the original has written was written anew; ours has put one message behind it.
    now = stored(site)
    grown = {name for name in written if now[name] != written[name]}
    assert now.keys() == written.keys() and len(grown) == 1
    for name in grown:
        assert now[name].startswith(written[name]) and now[name].endswith(b"hello")
    site.run("apt-get", "upgrade", "-y")
    assert version(site) == f"{original.VERSION}-1"

    # A configuration that nobody has changed becomes ours.
    (site.root / INI).write_text(original.INI)
    kept.rename(site.root / SOURCE)
    site.run("apt-get", "update")
    site.run(*there)
    assert "control_unix_path" in (site.root / INI).read_text()
    assert version(site).startswith("1:") and is_active(site)


def test_a_data_directory_elsewhere_ends_the_service_once_with_what_to_do(site: Machine) -> None:
    directory = site.root / ELSEWHERE[1:]
    directory.mkdir(parents=True)
    site.run("chown", "lavinmq:lavinmq", ELSEWHERE)
    ini = site.root / INI
    ini.write_text(ini.read_text().replace("/var/lib/lavinmq", ELSEWHERE))
    (there,) = commands("apt-get", "lavinmq")

    site.run(*there)

    wait_for(lambda: state(site)["ActiveState"] == "failed", "the service is not given up")
    assert state(site) == {"ActiveState": "failed", "NRestarts": "0", "ExecMainStatus": "78"}
    advice = re.search(r"`(systemctl edit lavinmq)` with `(.+?)` below `(.+?)`", journal(site))
    assert advice, journal(site)
    drop_in = site.root / "etc/systemd/system/lavinmq.service.d/override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(f"{advice[3]}\n{advice[2]}\n")
    site.run("systemctl", "daemon-reload")
    site.run("systemctl", "restart", "lavinmq")

    assert is_active(site)
    assert (directory / "schema_version").exists()


def test_dnf_brings_ours_and_the_original_again(
    packages: Packages, stand_in: Path, tmp_path: Path
) -> None:
    root = fresh_root(tmp_path / "root")
    other = f"--repofrompath=original,file://{original.rpm(tmp_path / 'original')}"
    options = (other, "--setopt=original.gpgcheck=0")
    (there,) = commands("dnf", "lavinmq")
    (back,) = commands("dnf", f"lavinmq-{original.VERSION}")

    def run(*words: str) -> str:
        dnf(root, packages, stand_in, *options, *words)
        query = ("--query", "--queryformat", "%{EPOCHNUM}:%{VERSION}", "lavinmq")
        return make("rpm", "--root", str(root), *query)

    assert run("--disablerepo=lavinmq", "install", "lavinmq") == f"0:{original.VERSION}"
    ini = root / INI
    ini.write_text(ini.read_text() + "; of the site\n")
    before = ini.read_text()

    # Neither where dnf is content with what is there, nor where the package is left out.
    assert run("--setopt=best=False", "install", "lavinmq") == f"0:{original.VERSION}"
    assert run("--exclude=lavinmq", "upgrade") == f"0:{original.VERSION}"
    assert run(*there[1:]).startswith("1:")
    assert ini.read_text() == before
    assert (root / "usr/bin/lavinmqctl").exists()
    assert run("upgrade").startswith("1:")

    assert run(*back[1:]) == f"0:{original.VERSION}"
    assert ini.read_text() == before
    assert original.VERSION in (root / "usr/bin/lavinmq").read_text()
    shutil.rmtree(root)
