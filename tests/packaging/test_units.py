"""The units of systemd: free of mistakes, and as closed as a broker can be."""

from __future__ import annotations

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
