"""The table of settings: its consistency, the pages made from it, and every kind of value."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from lavinmq.config import usage
from lavinmq.config.setting_types import LEVELS
from lavinmq.config.settings import MOVED, SECTIONS, SETTINGS, SNI, Setting, flags
from lavinmq.config.values import Config, ConfigError
from tests.support.configuration import HASH, Loader, load_ini

__all__ = ["load_ini"]  # fixtures

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "lavinmq"


def test_every_attribute_of_the_table_is_a_field_and_the_other_way_round() -> None:
    fields = {field.name for field in dataclasses.fields(Config)}

    attributes = [setting.attribute for setting in SETTINGS if setting.attribute]

    assert set(attributes) == fields - {
        "config_file", "config_parts", "ignored", "argv", "warnings", "given", "sni",
    }  # fmt: skip
    assert len(attributes) == len(set(attributes))


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.attribute], ids=lambda s: s.key)
def test_exactly_the_settings_said_to_have_an_effect_are_read_somewhere(setting: Setting) -> None:
    sources = [path for path in PACKAGE.rglob("*.py") if path.name != "values.py"]
    use = re.compile(rf"\bconfig\.{setting.attribute}\b")

    is_read = any(use.search(path.read_text()) for path in sources)

    assert is_read == (setting.effect == "yes"), f"adapt the fate of {setting.name} in settings.py"


@pytest.mark.parametrize("setting", [*SETTINGS, *SNI], ids=lambda s: f"{s.section}.{s.key}")
def test_every_default_is_accepted_without_doubt(setting: Setting) -> None:
    setting.kind.parse(setting.default)

    assert setting.kind.doubt(setting.default) == ""


def test_the_table_names_no_key_flag_or_variable_for_two_settings() -> None:
    keys = [(setting.section, setting.key) for setting in SETTINGS]
    variables = [name for setting in SETTINGS for name in setting.variables]
    longs = [flag.long for flag, _ in flags() if flag.long != "--bind"]
    shorts = [flag.short for flag, _ in flags() if flag.short and flag.short != "-b"]

    for names in (keys, longs, shorts):
        assert len(names) == len(set(names))
    # A variable of the reference may have the uniform name already, of the same setting.
    assert len(variables) == len(set(variables)) + sum(
        len(setting.variables) - len(set(setting.variables)) for setting in SETTINGS
    )
    assert {setting.section for setting in SETTINGS} == set(SECTIONS)


def test_moved_settings_lead_to_settings_that_exist() -> None:
    keys = {(setting.section, setting.key) for setting in SETTINGS}

    assert set(MOVED.values()) <= keys
    assert not set(MOVED) & keys


def test_the_documentation_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()

    assert page == usage.describe(), "run: python -m lavinmq.config.usage > docs/configuration.md"


# --- values


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", "y", "TRUE", "Yes"])
def test_a_boolean_is_true_for_the_five_words(load_ini: Loader, text: str) -> None:
    config = load_ini(f"[main]\ntcp_nodelay = {text}\n")

    assert config.tcp_nodelay is True
    assert config.warnings == []


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "n", "", "FALSE"])
def test_a_boolean_is_false_for_the_usual_words(load_ini: Loader, text: str) -> None:
    config = load_ini(f"[main]\ntcp_nodelay = {text}\n")

    assert config.tcp_nodelay is False
    assert config.warnings == []


def test_a_boolean_that_is_no_known_word_is_false_and_warned_about(load_ini: Loader) -> None:
    config = load_ini("[main]\nset_timestamp = ture\n")

    assert config.set_timestamp is False
    assert config.warnings == [
        "'set_timestamp' in [main] (ini file): 'ture' is not a known boolean and counts as false"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30:5:2", (30, 5, 2)),
        ("30", (30, 10, 3)),
        (":5", (60, 5, 3)),
        ("::7", (60, 10, 7)),
        ("true", (60, 10, 3)),
        ("false", None),
        ("off", None),
        ("0", None),
        ("32767:32767:127", (32767, 32767, 127)),
    ],
)
def test_keepalive_takes_missing_parts_from_its_default(
    load_ini: Loader, text: str, expected: tuple[int, int, int] | None
) -> None:
    assert load_ini(f"[main]\ntcp_keepalive = {text}\n").tcp_keepalive == expected


@pytest.mark.parametrize("text", ["1:2:3:4", "a", "0:1:1", "-1", "1:1:128", "32768", "9" * 9])
def test_a_keepalive_that_the_system_would_refuse_is_an_error(load_ini: Loader, text: str) -> None:
    with pytest.raises(ConfigError, match="not idle:interval:count or false"):
        load_ini(f"[main]\ntcp_keepalive = {text}\n")


def test_a_limit_of_zero_is_no_limit(load_ini: Loader) -> None:
    config = load_ini("[amqp]\nframe_max=0\nchannel_max=0\nheartbeat=0\n")

    assert (config.frame_max, config.channel_max, config.heartbeat) == (0, 0, 0)


@pytest.mark.parametrize(
    ("section", "key", "lowest", "highest"),
    [
        ("amqp", "port", -1, 65535),
        ("mqtt", "port", -1, 65535),
        ("main", "metrics_http_port", -1, 65535),
        ("amqp", "heartbeat", 0, 65535),
        ("amqp", "channel_max", 0, 65535),
        ("main", "default_consumer_prefetch", 0, 65535),
        ("main", "segment_size", 4096, 2**32 - 1),
        ("main", "stats_interval", 1, 2**31 - 1),
        ("amqp", "frame_max", 4096, 2**32 - 1),
        ("amqp", "max_message_size", 1, 2**63 - 1),
    ],
)
def test_a_number_is_accepted_up_to_its_limits_and_refused_beyond(
    load_ini: Loader, section: str, key: str, lowest: int, highest: int
) -> None:
    for number in (lowest, highest):
        load_ini(f"[{section}]\n{key} = {number}\n")

    for number in (lowest - 1, highest + 1):
        with pytest.raises(ConfigError) as raised:
            load_ini(f"[{section}]\n{key} = {number}\n")
        start = f"Failed to handle value for '{key}' in [{section}] (ini file): {number} is out"
        assert str(raised.value).startswith(start)


@pytest.mark.parametrize("text", ["", "x", "1.5", "1_0", "0x10", "١٢", "- 1", "--1", "9" * 5000])
def test_what_is_no_whole_number_is_an_error(load_ini: Loader, text: str) -> None:
    with pytest.raises(ConfigError, match="is not a whole number") as raised:
        load_ini(f"[amqp]\nport = {text}\n")

    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[main]\nlog_level = loud", "'loud' is none of trace, debug"),
        ("[main]\nauth_backends = local, ldap", "'ldap' is none of local, oauth"),
        ("[main]\ndata_dir =", "the path is empty"),
        ("[main]\ndata_dir = a\0b", "zero byte"),
        ("[main]\ndefault_user =", "is not a name"),
        ("[main]\ndefault_consistent_hash_algorithm = hash", "none of ring, jump"),
        ("[amqp]\nbind =", "not an address"),
        ("[amqp]\nbind = a b", "not an address"),
        ("[amqp]\nbind = http://x", "not an address"),
        ("[amqp]\nunix_path = /" + "x" * 107, "longer than 107 bytes"),
        ("[amqp]\nproxy_protocol_trusted_sources = 10.0.0.0/8, 10.0.0.0/33", "'10.0.0.0/33'"),
        ("[oauth]\nissuer = ftp://x", "not an http or https address"),
        ("[mqtt]\nclient_id_validation = maybe", "none of none, username"),
    ],
)
def test_a_value_of_the_wrong_kind_is_an_error_that_says_where(
    load_ini: Loader, line: str, problem: str
) -> None:
    key = line.partition("\n")[2].partition(" ")[0]

    with pytest.raises(ConfigError) as raised:
        load_ini(line)

    assert f"'{key}' in [" in str(raised.value)
    assert problem in str(raised.value)


@pytest.mark.parametrize("level", LEVELS)
def test_every_log_level_is_accepted_in_any_case(load_ini: Loader, level: str) -> None:
    assert load_ini(f"[main]\nlog_level = {level.upper()}\n").log_level == level


@pytest.mark.parametrize("text", [HASH, "$5$" + HASH, "$2a$04$" + "x" * 53, ""])
def test_hashes_of_all_formats_are_accepted(load_ini: Loader, text: str) -> None:
    assert load_ini(f"[main]\ndefault_password_hash={text}\n").default_password_hash == text


def test_an_unknown_tls_version_is_an_error(load_ini: Loader) -> None:
    """Any that is taken for it would allow more than was meant."""
    with pytest.raises(ConfigError, match=r"'1\.4' is not a known TLS version"):
        load_ini("[main]\ntls_min_version = 1.4\n")
