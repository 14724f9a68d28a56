"""The directory conf.d beside the ini file: what is read, in which order, and what is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lavinmq.__main__ import main
from lavinmq.config import conf_d
from lavinmq.config.check import problems
from lavinmq.config.settings import ConfigError
from lavinmq.config.sources import MAX_FILE_BYTES
from lavinmq.config.text import config_text
from lavinmq.config.values import load
from tests.support.configuration import Loader, load_bare, load_ini

__all__ = ["load_bare", "load_ini"]  # fixtures


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """The directory, still empty."""
    directory = tmp_path / "conf.d"
    directory.mkdir(mode=0o755)
    return directory


def test_files_are_read_in_the_order_of_their_names_and_the_last_wins(
    load_ini: Loader, parts: Path
) -> None:
    (parts / "9.ini").write_text("[amqp]\nheartbeat = 9\n")
    (parts / "10.ini").write_text("[amqp]\nheartbeat = 10\nport = 10\n")

    config = load_ini("[amqp]\nheartbeat = 1\nport = 1\nframe_max = 5000\n")

    assert (config.heartbeat, config.amqp_port, config.frame_max) == (9, 10, 5000)
    assert config.config_parts == (f"{parts}/10.ini", f"{parts}/9.ini")


def test_an_old_name_in_a_later_file_wins_over_the_present_one_before(
    load_ini: Loader, parts: Path
) -> None:
    (parts / "a.ini").write_text("[amqp]\nset_timestamp = true\n")

    config = load_ini("[main]\nset_timestamp = false\n")

    assert config.set_timestamp
    (warning,) = config.warnings
    assert f"[amqp] ({parts}/a.ini) is deprecated" in warning


def test_flags_and_variables_are_stronger(load_ini: Loader, parts: Path) -> None:
    (parts / "a.ini").write_text("[amqp]\nheartbeat = 2\nport = 2\n")

    config = load_ini("", "-p", "3", LAVINMQ_AMQP_HEARTBEAT="3")

    assert (config.heartbeat, config.amqp_port) == (3, 3)


def test_they_count_without_an_ini_file(load_bare: Loader, parts: Path) -> None:
    (parts / "a.ini").write_text("[amqp]\nheartbeat = 2\n")

    config = load_bare()

    assert config.heartbeat == 2
    assert config.config_file is None


def test_they_are_beside_a_file_that_is_named(tmp_path: Path, parts: Path) -> None:
    (tmp_path / "x.ini").write_text("[amqp]\nheartbeat = 1\nport = 1\n")
    (parts / "a.ini").write_text("[amqp]\nheartbeat = 2\n")

    config = load(["-c", str(tmp_path / "x.ini")], {})

    assert (config.heartbeat, config.amqp_port) == (2, 1)


def test_the_parts_of_a_host_are_put_together(load_ini: Loader, parts: Path) -> None:
    (parts / "a.ini").write_text("[sni:a.example]\ntls_key = k\ntls_min_version = 1.3\n")
    (parts / "b.ini").write_text("[sni:a.example]\ntls_key = l\n")

    config = load_ini("[sni:a.example]\ntls_cert = c\n")

    assert config.sni == {"a.example": {"tls_cert": "c", "tls_key": "l", "tls_min_version": "1.3"}}
    assert config.warnings == []
    assert f"; file {parts}/b.ini\ntls_key = l" in config_text(config)


def test_what_has_another_name_is_not_read_and_told(
    load_ini: Loader, tmp_path: Path, parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.ini~", "a.ini.dpkg-old", ".a.ini.swp", ".#a.ini", "README"):
        (parts / name).write_text("[amqp]\nheartbeat = 2\n")

    config = load_ini("[amqp]\nheartbeat = 1\n")
    main(["--check-config", "-c", str(tmp_path / "lavinmq.ini")])

    assert config.heartbeat == 1
    assert config.ignored == [
        f"Not read: '{parts}/.#a.ini': its name is hidden",
        f"Not read: '{parts}/.a.ini.swp': its name is hidden",
        f"Not read: '{parts}/a.ini.dpkg-old': its name does not end in .ini",
        f"Not read: '{parts}/a.ini~': its name does not end in .ini",
    ]
    assert set(config.ignored) <= set(capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[amqp]\nport = x\n", r"'port' in \[amqp\] \({path}\)"),
        ("[amqp\n", "Config '{path}'.*line 1"),
        ("[nothing]\n", r"Unknown section \[nothing\] \({path}\)"),
        ("[clustering]\nlease_ttl = 1\n", r"'lease_ttl' in \[clustering\] \({path}\)"),
        ("[sni:a]\ntls_cert=c\ntls_verify_peer = maybe\n", r"\[sni:a\] \({path}\)"),
        (b"\xff", "Config '{path}' is not UTF-8 at line 1"),
    ],
)
def test_a_mistake_names_the_file(
    load_ini: Loader, parts: Path, text: str | bytes, said: str
) -> None:
    path = parts / "a.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(ConfigError, match=said.format(path=re.escape(str(path)))):
        load_ini("")


def test_a_check_goes_on_behind_a_mistake(tmp_path: Path, parts: Path) -> None:
    (parts / "a.ini").write_bytes(b"\xff")
    (parts / "b.ini").write_text("[amqp]\nport = x\n")
    errors: list[str] = []

    load([], {"LAVINMQ_CONFIGURATION_DIRECTORY": str(tmp_path)}, errors)

    assert [name in error for name, error in zip("ab", errors, strict=True)] == [True, True]


def test_a_check_says_which_file_gave_what_cannot_be_used(
    load_ini: Loader, tmp_path: Path, parts: Path
) -> None:
    (parts / "a.ini").write_text(f"[main]\nlog_file = {tmp_path}\n")

    found = problems(load_ini("", "-D", str(tmp_path / "data")))

    assert f"'log_file' in [main]: '{tmp_path}': is a directory ({parts}/a.ini)" in found


def test_an_unknown_key_is_warned_about_with_its_file(load_ini: Loader, parts: Path) -> None:
    (parts / "a.ini").write_text("[amqp]\nprot = 1\n[sni:a]\ntls_cert=c\nsize = 1\n")

    first, second = load_ini("").warnings

    assert f"'prot' in section [amqp] ({parts}/a.ini)" in first
    assert f"'size' in section [sni:a] ({parts}/a.ini)" in second


def test_each_value_is_shown_with_its_file(load_ini: Loader, parts: Path) -> None:
    (parts / "a.ini").write_text("[amqp]\nheartbeat = 2\n")

    text = config_text(load_ini(""))

    assert f"; file {parts}/a.ini\nheartbeat = 2\n" in text
    assert text.startswith(f"; configuration file: {parts.parent}/lavinmq.ini, {parts}/a.ini\n")


def make_directory(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_directory, "could not be read: Is a directory"),
        (make_pipe, "is no regular file"),
        (make_dangling_link, "could not be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(
    load_ini: Loader, parts: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(parts / "a.ini")

    with pytest.raises(ConfigError, match=re.escape(f"Config '{parts}/a.ini' {reason}")):
        load_ini("")


def test_a_file_instead_of_the_directory_is_an_error(load_ini: Loader, tmp_path: Path) -> None:
    (tmp_path / "conf.d").write_text("")

    with pytest.raises(ConfigError, match=r"conf\.d' could not be read: Not a directory"):
        load_ini("")


@pytest.mark.parametrize("name", ["conf.d", "conf.d/a.ini"])
def test_where_everybody_may_write_the_start_is_refused(
    load_ini: Loader, tmp_path: Path, parts: Path, name: str
) -> None:
    (parts / "a.ini").write_text("")
    (tmp_path / name).chmod(0o777)

    with pytest.raises(ConfigError, match=rf"/{name}' may be written by everybody: chmod o-w"):
        load_ini("")


def test_a_mount_to_which_nobody_can_write_may_have_any_mode(
    load_ini: Loader, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parts / "a.ini").write_text("[amqp]\nheartbeat = 2\n")
    parts.chmod(0o777)
    real = os.fstatvfs

    def read_only(descriptor: int) -> os.statvfs_result:
        values = list(real(descriptor))
        values[8] |= os.ST_RDONLY
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "fstatvfs", read_only)

    assert load_ini("").heartbeat == 2


def test_a_directory_of_a_stranger_is_refused_unless_the_ini_file_is_his_too(
    load_ini: Loader, tmp_path: Path, parts: Path
) -> None:
    if os.geteuid():
        pytest.skip("only root can give a directory away")
    load_ini("")
    os.chown(parts, 4711, -1)

    with pytest.raises(ConfigError, match=r"conf\.d' belongs to user 4711"):
        load_ini("")
    os.chown(tmp_path / "lavinmq.ini", 4711, -1)

    assert load(["-c", str(tmp_path / "lavinmq.ini")], {}).config_parts == ()


def test_all_files_together_and_their_number_are_bounded(load_ini: Loader, parts: Path) -> None:
    comment = "#" * (MAX_FILE_BYTES // 2)
    (parts / "a.ini").write_text(comment)
    load_ini(comment)
    (parts / "b.ini").write_text("#")

    with pytest.raises(ConfigError, match=r"b\.ini' makes the configuration larger than allowed"):
        load_ini(comment)
    for number in range(conf_d.MAX_ENTRIES - 1):
        (parts / f"{number}.txt").touch()
    with pytest.raises(ConfigError, match="holds more than 256 files"):
        load_ini("")


def test_a_reload_takes_over_what_the_files_say_now(load_ini: Loader, parts: Path) -> None:
    (parts / "a.ini").write_text("[amqp]\nheartbeat = 2\n")
    config = load_ini("")
    (parts / "a.ini").unlink()
    (parts / "b.ini").write_text("[amqp]\nframe_max = 5000\n")
    (parts / "b.old").touch()

    changes = config.take_live(load_ini(""))

    assert sorted(changes.live) == ["'frame_max' in [amqp]", "'heartbeat' in [amqp]"]
    assert (config.heartbeat, config.frame_max) == (300, 5000)
    assert config.config_parts == (f"{parts}/b.ini",)
    assert len(config.ignored) == 1
