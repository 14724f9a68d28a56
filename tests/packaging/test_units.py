"""The units of systemd: free of mistakes, and as closed as a broker can be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lavinmq.config.settings import SETTINGS

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "packaging/systemd"
MOST_EXPOSURE = 1.5
SERVICE = "lavinmq.service"
USER = 12345
pytestmark = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with a program that is there."""
    program = tmp_path / "lavinmq"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in SYSTEMD.iterdir():
        text = path.read_text().replace("/usr/bin/lavinmq", str(program))
        (tmp_path / path.name).write_text(text.replace("man:", "https://example.com/"))
    return tmp_path


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_they_have_no_mistakes(units: Path) -> None:
    done = analyze("verify", units / SERVICE, *sorted(units.glob("*.socket")))

    # It reads the units of this machine as well, which are not ours.
    assert "lavinmq" not in done.stdout + done.stderr


def test_the_sockets_that_settings_name_are_there() -> None:
    settings = {(each.section, each.key): each.default for each in SETTINGS}
    ports = {
        name: settings[section, "port"]
        for (section, key), name in settings.items()
        if key.endswith("_systemd_socket_name")
    }

    assert {path.name for path in SYSTEMD.glob("*.socket")} == ports.keys()
    for name, port in ports.items():
        assert f"\nListenStream={port}\n" in (SYSTEMD / name).read_text()


def test_the_service_is_not_exposed(units: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", units / SERVICE)

    found = re.search(r"Overall exposure level for lavinmq.service: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= MOST_EXPOSURE


def test_a_mistake_would_be_found(units: Path) -> None:
    service = units / SERVICE
    service.write_text(service.read_text().replace("ProtectClock=true", "ProtectClocks=true"))

    done = analyze("verify", service)

    assert "lavinmq.service" in done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_installation_changes_nothing_that_is_in_the_directories(tmp_path: Path) -> None:
    """Whoever has had the broker may have left links there: root's scripts must not follow them."""
    for place in ("etc", "usr/lib/tmpfiles.d", "var/lib/lavinmq/queue", "run", "root"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "etc/passwd").write_text(f"lavinmq:x:{USER}:{USER}::/:/bin/false\n")
    (tmp_path / "etc/group").write_text(f"lavinmq:x:{USER}:\n")
    shutil.copy(SYSTEMD / "lavinmq.tmpfiles", tmp_path / "usr/lib/tmpfiles.d/lavinmq.conf")
    secret = tmp_path / "root/secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    (tmp_path / "var/lib/lavinmq/queue/link").symlink_to(secret)
    (tmp_path / "var/lib/lavinmq/hard").hardlink_to(secret)
    (tmp_path / "var/lib/lavinmq/directory").symlink_to(secret.parent)

    subprocess.run(
        ["systemd-tmpfiles", f"--root={tmp_path}", "--create", "lavinmq.conf"],
        check=True, timeout=60,
    )  # fmt: skip

    modes = {each: each.stat() for each in (secret, secret.parent, tmp_path / "var/lib/lavinmq")}
    assert [(each.st_uid, each.st_mode & 0o777) for each in modes.values()] == [
        (0, 0o600), (0, 0o755), (USER, 0o700),
    ]  # fmt: skip


def test_scripts_of_packages_change_no_owners_and_modes_themselves() -> None:
    scripts = [*ROOT.glob("debian/*.post*"), *ROOT.glob("debian/*.pre*"), *ROOT.glob("rpm/*.spec")]

    assert len(scripts) >= 4
    for path in scripts:
        assert not re.search(r"\b(chown|chmod|chgrp|setfacl)\b", path.read_text()), path
