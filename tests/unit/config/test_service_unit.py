"""What a systemd unit says about where the service may write."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavinmq.config.service_unit import ServiceUnit, installed

ROOT = Path(__file__).parents[3]
PACKAGED = (ROOT / "packaging/systemd/lavinmq.service").read_text()


@pytest.mark.parametrize(
    ("path", "may"),
    [
        ("/var/lib/lavinmq", True), ("/var/lib/lavinmq/deeper", True), ("/var/lib/lavinmq2", False),
        ("/run/lavinmq/lavinmqctl.sock", True), ("/data", False), ("/home/me/data", False),
        ("/tmp/lavinmqctl.sock", True), ("/var/log/lavinmq.log", False), ("/", False),
    ],
)  # fmt: skip
def test_the_packaged_service_may_write_in_its_directories_only(path: str, may: bool) -> None:
    assert ServiceUnit([PACKAGED]).may_write(path) is may


def test_the_packaged_service_tells_its_file_and_user() -> None:
    unit = ServiceUnit([PACKAGED])

    assert (unit.config_file, unit.user, unit.hides_tmp) == (
        "/etc/lavinmq/lavinmq.ini", "lavinmq", True,
    )  # fmt: skip


def test_a_drop_in_adds_and_takes_away() -> None:
    added = ServiceUnit([PACKAGED, "[Service]\nReadWritePaths=-/data \\\n  /more\n"])
    emptied = ServiceUnit([PACKAGED, "[Service]\nStateDirectory=\nProtectHome=no\n"])
    open_ = ServiceUnit([PACKAGED, "[Service]\nProtectSystem=full\n[Unit]\nUser=no\n"])

    assert added.may_write("/data/q") and added.may_write("/more")
    assert not emptied.may_write("/var/lib/lavinmq")
    assert open_.may_write("/data") and not open_.may_write("/root/x")
    assert open_.user == "lavinmq"


def test_the_unit_of_the_operator_wins_and_drop_ins_come_from_everywhere(tmp_path: Path) -> None:
    etc, lib = tmp_path / "etc", tmp_path / "lib"
    for directory, user in ((etc, "etc"), (lib, "lib")):
        (directory / "lavinmq.service.d").mkdir(parents=True)
        (directory / "lavinmq.service").write_text(f"[Service]\nUser={user}\n")
    (lib / "lavinmq.service.d/a.conf").write_text("[Service]\nProtectSystem=strict\n")
    (etc / "lavinmq.service.d/b.conf").write_text("[Service]\nReadWritePaths=/data\n")

    unit = installed((str(etc), str(lib)), str(tmp_path))

    assert unit is not None
    assert unit.user == "etc"
    assert unit.may_write("/data") and not unit.may_write("/other")


def test_without_systemd_or_a_unit_there_is_none(tmp_path: Path) -> None:
    assert installed((str(tmp_path),), str(tmp_path)) is None
    (tmp_path / "lavinmq.service").write_text("")
    assert installed((str(tmp_path),), str(tmp_path / "no")) is None
