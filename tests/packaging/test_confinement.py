"""AppArmor, SELinux and needrestart: their own tools understand what is written for them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

PACKAGING = ROOT / "packaging"
PROFILE = PACKAGING / "apparmor/lavinmq"
MODULE, CONTEXTS = PACKAGING / "selinux/lavinmq.te", PACKAGING / "selinux/lavinmq.fc"
NEEDRESTART = PACKAGING / "needrestart/lavinmq.conf"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    if not shutil.which(str(command[0])):
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=60, check=False
    )


def parse(profile: Path) -> subprocess.CompletedProcess[str]:
    """Compile a profile, for no kernel in particular; nothing is loaded."""
    return run("apparmor_parser", "--skip-kernel-load", "--skip-cache", profile)


def compile_module(text: str, place: Path) -> subprocess.CompletedProcess[str]:
    source = place / "lavinmq.te"
    source.write_text(text)
    return run("checkmodule", "-M", "-m", "-o", place / "lavinmq.mod", source)


def test_apparmor_compiles_the_profile() -> None:
    done = parse(PROFILE)

    assert done.returncode == 0, done.stderr


def test_a_mistake_in_the_profile_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "lavinmq"
    wrong.write_text(PROFILE.read_text().replace("/etc/lavinmq/** r,", "/etc/lavinmq/** read,"))

    assert parse(wrong).returncode


def test_the_profile_confines_nobody_who_does_not_ask_for_it() -> None:
    (header,) = re.findall(r"^profile (.*) \{$", PROFILE.read_text(), re.MULTILINE)

    assert header == "lavinmq flags=(attach_disconnected)"  # a name, and no path to attach to


def test_rules_allow_what_the_sources_do() -> None:
    """Backups, and nodes that join, link files; a node of a cluster has memory with a name."""
    profile, module = PROFILE.read_text(), MODULE.read_text()
    linking = [path for path in (ROOT / "lavinmq").rglob("*.py") if "os.link(" in path.read_text()]
    assert ROOT / "lavinmq/files/snapshot.py" in linking
    assert re.search(r"owner /var/lib/lavinmq/\*\* \w*l\w*,", profile)
    assert re.search(r"lavinmq_var_lib_t:file \{[^}]* link ", module)
    rings = [path.read_text() for path in (ROOT / "cext").rglob("*.pyx")]
    names = {name for text in rings for name in re.findall(r'= memfd_create\(b"([\w-]+)"', text)}
    assert names == set(re.findall(r"/memfd:([\w-]+) rw,", profile))
    assert "type_transition lavinmq_t tmpfs_t:file lavinmq_tmp_t;" in module


def test_shovels_and_followers_may_connect_to_brokers() -> None:
    found = re.findall(
        r"allow lavinmq_t \{ ([\w ]+) \}:tcp_socket name_connect;", MODULE.read_text()
    )

    assert "amqp_port_t" in found[0].split()


def test_selinux_compiles_and_packs_the_module(tmp_path: Path) -> None:
    done = compile_module(MODULE.read_text(), tmp_path)
    assert done.returncode == 0, done.stderr

    packed = run(
        "semodule_package", "-o", tmp_path / "lavinmq.pp", "-m", tmp_path / "lavinmq.mod",
        "-f", CONTEXTS,
    )  # fmt: skip

    assert packed.returncode == 0, packed.stderr


def test_a_mistake_in_the_module_would_be_found(tmp_path: Path) -> None:
    text = MODULE.read_text().replace("type lavinmq_etc_t,", "type lavinmq_conf_t,")

    assert compile_module(text, tmp_path).returncode


def test_types_of_files_are_those_of_the_module() -> None:
    used = set(re.findall(r":(lavinmq_\w+):", CONTEXTS.read_text()))
    declared = set(re.findall(r"^type (lavinmq_\w+),", MODULE.read_text(), re.MULTILINE))

    assert used and used <= declared


@pytest.mark.parametrize(
    ("unit", "answer"), [("lavinmq.service", "0"), ("lavinmq-exporter.service", "")]
)
def test_needrestart_does_not_choose_the_broker_by_itself(unit: str, answer: str) -> None:
    asked = (
        "our %nrconf; do $ARGV[0]; die $@ if $@;"
        "for my $each (keys %{$nrconf{override_rc}})"
        " { print $nrconf{override_rc}{$each} if $ARGV[1] =~ /$each/ }"
    )

    done = run("perl", "-e", asked, NEEDRESTART, unit)

    assert (done.returncode, done.stderr, done.stdout) == (0, "", answer)
