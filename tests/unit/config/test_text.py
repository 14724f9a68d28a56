"""What --print-config shows."""

from __future__ import annotations

import itertools
from pathlib import Path

from lavinmq.config import ini
from lavinmq.config.settings import SETTINGS
from lavinmq.config.text import MASK, config_text
from tests.support.configuration import HASH, Loader, accepted, load_bare, load_ini

__all__ = ["load_bare", "load_ini"]  # fixtures


def origins(text: str) -> dict[str, str]:
    """Return the comment above each assignment."""
    lines = text.splitlines()
    return {
        line.removeprefix("; ").partition(" =")[0]: above.removeprefix("; ")
        for above, line in itertools.pairwise(lines)
        if " =" in line
    }


def test_each_value_stands_below_its_origin(load_ini: Loader, tmp_path: Path) -> None:
    config = load_ini(
        "[main]\nlog_level=warn\n[amqp]\nheartbeat=9\n",
        "-D", "/d", LAVINMQ_AMQP_FRAME_MAX="5000", STATE_DIRECTORY="/s",
    )  # fmt: skip

    text = config_text(config)

    found = origins(text)
    assert found["log_level"] == found["heartbeat"] == f"file {tmp_path}/lavinmq.ini"
    assert found["data_dir"] == "flag --data-dir"
    assert found["frame_max"] == "environment LAVINMQ_AMQP_FRAME_MAX"
    assert found["channel_max"] == "default"
    sections = ini.read(text)
    assert sections["amqp"]["frame_max"] == "5000"
    assert sections["main"]["data_dir"] == "/d"


def test_the_text_read_again_gives_the_same_configuration(load_ini: Loader) -> None:
    given = "".join(
        f"[{setting.section}]\n{setting.key} = {accepted(setting)}\n"
        for setting in SETTINGS
        if not setting.secret and setting.fate != "removed"
    )
    config = load_ini(f"{given}[sni:a.example]\ntls_cert = x\nmqtt_tls_key = y\n")

    again = load_ini(config_text(config))

    assert config.given.items() <= again.given.items()
    for setting in SETTINGS:
        if setting.attribute:
            assert getattr(again, setting.attribute) == getattr(config, setting.attribute)


def test_the_text_of_the_defaults_read_again_gives_the_defaults(
    load_ini: Loader, load_bare: Loader
) -> None:
    text = config_text(load_bare())

    again = load_ini(text)

    for setting in SETTINGS:
        if setting.attribute:
            assert getattr(again, setting.attribute) == getattr(load_bare(), setting.attribute)


def test_secrets_and_credentials_are_masked(load_bare: Loader) -> None:
    text = config_text(
        load_bare(
            LAVINMQ_MAIN_DEFAULT_PASSWORD_PLAIN="geheim",
            LAVINMQ_MAIN_DEFAULT_PASSWORD_HASH="$5$" + HASH,
            LAVINMQ_CLUSTERING_ETCD_ENDPOINTS="http://bo:geheim@etcd:2379,other:1",
        )
    )

    assert "geheim" not in text
    assert "$5$" not in text
    assert f"; default_password_plain = {MASK}\n" in text
    assert f"etcd_endpoints = http://{MASK}@etcd:2379,other:1\n" in text


def test_a_value_that_cannot_stand_in_a_file_is_a_comment(load_bare: Loader) -> None:
    text = config_text(load_bare("--pidfile", " a\n[main"))

    assert "; pidfile = ' a\\n[main'\n" in text
    assert "pidfile" not in ini.read(text)["main"]
