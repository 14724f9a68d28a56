"""Variables, files that variables name, and how several sources of one setting get along."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lavinmq.config.settings import SETTINGS, Setting
from lavinmq.config.values import ConfigError, load
from tests.support.configuration import Loader, accepted, load_bare, load_ini

__all__ = ["load_bare", "load_ini"]  # fixtures

SETTABLE = [setting for setting in SETTINGS if setting.effect != "removed"]


@pytest.mark.parametrize("setting", SETTABLE, ids=lambda s: f"{s.section}.{s.key}")
def test_every_setting_has_a_variable_and_one_that_names_a_file(
    load_bare: Loader, tmp_path: Path, setting: Setting
) -> None:
    text = accepted(setting)
    path = tmp_path / "value"
    path.write_text(f"\n {text} \n")
    variable = f"LAVINMQ_{setting.section}_{setting.key}".upper()

    plain = load_bare(**{variable: text})
    from_file = load_bare(**{f"{variable}_FILE": str(path)})

    place = (setting.section, setting.key)
    assert plain.given[place] == (text, variable)
    assert from_file.given[place] == (text, f"{variable}_FILE")


def test_no_variable_that_names_a_file_is_the_variable_of_another_setting() -> None:
    variables = {name for setting in SETTINGS for name in setting.variables}

    assert not variables & {f"{name}_FILE" for name in variables}


def test_the_uniform_variable_wins_over_the_old_one_with_a_warning_that_names_both(
    load_bare: Loader,
) -> None:
    config = load_bare(LAVINMQ_DATADIR="/old", LAVINMQ_MAIN_DATA_DIR="/new")

    assert config.data_dir == "/new"
    assert config.warnings == [
        "LAVINMQ_MAIN_DATA_DIR and LAVINMQ_DATADIR differ, LAVINMQ_MAIN_DATA_DIR counts"
    ]


def test_two_variables_that_say_the_same_are_no_warning(load_bare: Loader) -> None:
    assert load_bare(LAVINMQ_DATADIR="/a", LAVINMQ_MAIN_DATA_DIR="/a").warnings == []


def test_a_variable_wins_over_the_one_that_names_a_file(load_bare: Loader, tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_text("2")

    config = load_bare(LAVINMQ_AMQP_HEARTBEAT="1", LAVINMQ_AMQP_HEARTBEAT_FILE=str(path))

    assert config.heartbeat == 1
    (warning,) = config.warnings
    assert "LAVINMQ_AMQP_HEARTBEAT and LAVINMQ_AMQP_HEARTBEAT_FILE differ" in warning


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b" \n", "is empty"), (b"\xff\xfe", "is not UTF-8"), (b"x", "x")],
)
def test_an_unusable_file_is_an_error_that_names_the_variable(
    load_bare: Loader, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "value"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=rf"LAVINMQ_AMQP_PORT_FILE.*{reason}") as raised:
        load_bare(LAVINMQ_AMQP_PORT_FILE=str(path))

    assert str(raised.value).isprintable()


def test_a_huge_file_is_an_error(load_bare: Loader, tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.touch()
    os.truncate(path, 1 << 30)

    with pytest.raises(ConfigError, match=r"LAVINMQ_MAIN_DEFAULT_USER_FILE.*larger"):
        load_bare(LAVINMQ_MAIN_DEFAULT_USER_FILE=str(path))


def test_a_pipe_is_an_error_and_not_waited_for(load_bare: Loader, tmp_path: Path) -> None:
    """A reload that opened one without a writer would stop the broker."""
    os.mkfifo(tmp_path / "pipe")

    for path in (f"{tmp_path}/pipe", "/dev/zero", str(tmp_path)):
        with pytest.raises(ConfigError, match=r"is no regular file|Is a directory"):
            load_bare(LAVINMQ_MAIN_DEFAULT_USER_FILE=path)


def test_a_plain_password_is_kept_secret_and_wins_over_the_hash(load_ini: Loader) -> None:
    config = load_ini(
        "[main]\ndefault_password_hash =\n", LAVINMQ_MAIN_DEFAULT_PASSWORD_PLAIN="geheim"
    )

    assert config.default_password_plain == "geheim"
    assert "geheim" not in repr(config)
    (warning,) = config.warnings
    assert "default_password_plain" in warning
    assert "default_password_hash" in warning


def test_a_password_that_cannot_be_used_is_not_repeated(load_ini: Loader) -> None:
    with pytest.raises(ConfigError, match=r"'default_password_plain' in \[main\]") as raised:
        load_ini("[main]\ndefault_password_plain = hunter\0two\n")

    assert "hunter" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["*", "https://a.example", "http://LOCALHOST:8080, https://b", "http://[::1]:80"]
)
def test_origins_are_a_scheme_and_a_host_or_all(load_ini: Loader, text: str) -> None:
    config = load_ini(f"[mgmt]\ncors_allowed_origins = {text}\n")

    assert config.cors_allowed_origins == tuple(part.strip().lower() for part in text.split(","))


@pytest.mark.parametrize("text", ["a.example", "https://", "https://a/b", "ftp://a", "https://a b"])
def test_what_is_no_origin_is_an_error(load_ini: Loader, text: str) -> None:
    with pytest.raises(ConfigError, match=r"'websocket_allowed_origins' in \[mgmt\].*neither"):
        load_ini(f"[mgmt]\nwebsocket_allowed_origins = {text}\n")


def test_all_mistakes_are_gathered_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "bad.ini"
    path.write_text(
        "[nope]\nx=1\n[replication]\n[sni:]\n[amqp]\nport=x\nheartbeat=y\nframe_max=5000"
    )
    errors: list[str] = []

    config = load(["-c", str(path)], {"LAVINMQ_MAIN_SYNC_FILE": "/nowhere"}, errors)

    assert [error.partition(" (")[0] for error in errors] == [
        "Unknown section [nope]",
        "Section [replication] is no longer read, use [clustering]",
        "Failed to handle value for 'port' in [amqp]",
        "Failed to handle value for 'heartbeat' in [amqp]",
        "Section [sni:] names no host",
        "Failed to handle value for 'sync' in [main]",
    ]
    assert (config.amqp_port, config.frame_max) == (5672, 5000)


def test_a_reload_goes_back_to_the_default_of_a_removed_key_and_keeps_flags_and_variables(
    load_ini: Loader,
) -> None:
    environ = {"LAVINMQ_AMQP_FRAME_MAX": "5000"}
    config = load_ini(
        "[amqp]\nheartbeat=9\nframe_max=6000\n[main]\nlog_level=warn\n",
        "--log-level=error", **environ,
    )  # fmt: skip

    fresh = load_ini("[amqp]\nframe_max=7000\n[main]\nlog_level=debug\n", *config.argv, **environ)
    changes = config.take_live(fresh)

    assert (config.heartbeat, config.frame_max, config.log_level) == (300, 5000, "error")
    assert changes == (["'heartbeat' in [amqp]"], [])
