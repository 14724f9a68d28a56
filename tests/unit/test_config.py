"""Configuration: the ini file, environment, flags, their order, and what is said about mistakes."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq import ini, usage
from lavinmq.config import Config, ConfigError, UsageError, defaults, load
from lavinmq.setting_types import LEVELS
from lavinmq.settings import MOVED, SECTIONS, SETTINGS, SNI, Setting, flags

ROOT = Path(__file__).parents[2]
HASH = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE+"
Loader = Callable[..., Config]


@pytest.fixture
def load_ini(tmp_path: Path) -> Loader:
    """Loads a text as the ini file; nothing of the machine is read."""

    def load_text(text: str | bytes, *argv: str, **environ: str) -> Config:
        path = tmp_path / "lavinmq.ini"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(argv, {"LAVINMQ_CONFIGURATION_DIRECTORY": str(tmp_path), **environ})

    return load_text


@pytest.fixture
def load_bare(tmp_path: Path) -> Loader:
    """Loads without an ini file."""

    def load_arguments(*argv: str, **environ: str) -> Config:
        return load(argv, {"LAVINMQ_CONFIGURATION_DIRECTORY": str(tmp_path), **environ})

    return load_arguments


def accepted(setting: Setting) -> str:
    """Return a text the setting takes that is not empty."""
    return setting.default or {"integer": "4096", "list of l": "local", "list of I": "::1"}.get(
        setting.kind.name[:9].partition(",")[0], "1.2" if "1.2" in setting.kind.name else "http://x"
    )


# --- defaults and the table


def test_nothing_given_gives_the_defaults_of_the_reference(load_bare: Loader) -> None:
    config = load_bare()

    assert config.data_dir == "/var/lib/lavinmq"
    assert (config.log_level, config.log_file, config.pidfile) == ("info", None, None)
    assert config.sync is True
    assert config.data_dir_lock is True
    assert config.segment_size == 8 * 1024 * 1024
    assert (config.default_user, config.default_password_hash) == ("guest", HASH)
    assert config.default_user_only_loopback is True
    assert config.default_consumer_prefetch == 65535
    assert config.max_deleted_definitions == 8192
    assert config.set_timestamp is False
    assert config.tcp_keepalive == (60, 10, 3)
    assert (config.tcp_recv_buffer_size, config.tcp_send_buffer_size) == (None, None)
    assert config.socket_buffer_size == 16384
    assert config.stats_interval == 5000
    assert (config.free_disk_min, config.free_disk_warn) == (0, 0)
    assert (config.amqp_bind, config.amqp_port) == ("127.0.0.1", 5672)
    assert config.amqp_unix_path is None
    assert (config.heartbeat, config.frame_max, config.channel_max) == (300, 131072, 2048)
    assert config.max_message_size == 128 * 1024 * 1024
    assert config.max_consumers_per_channel == 0
    assert (config.config_file, config.warnings) == (None, [])


def test_nodelay_is_on_by_default_unlike_the_reference() -> None:
    assert defaults().tcp_nodelay is True


def test_every_attribute_of_the_table_is_a_field_and_the_other_way_round() -> None:
    fields = {field.name for field in dataclasses.fields(Config)}

    attributes = [setting.attribute for setting in SETTINGS if setting.attribute]

    assert set(attributes) == fields - {"config_file", "argv", "warnings"}
    assert len(attributes) == len(set(attributes))


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

    assert page == usage.describe(), "run: python -m lavinmq.usage > docs/configuration.md"


def test_the_sample_file_shows_true_defaults_of_settings_that_have_an_effect() -> None:
    sample = (ROOT / "packaging" / "lavinmq.ini.sample").read_text()
    table = {(s.section, s.key): s for s in SETTINGS}
    uncommented = "\n".join(
        line.removeprefix("; ") if " =" in line else line for line in sample.splitlines()
    )

    shown = ini.read(uncommented)

    assert shown.keys() == {"main", "amqp"}
    for section, content in shown.items():
        for key, value in content.items():
            assert table[section, key].attribute
            assert table[section, key].default == value


def test_the_password_hash_is_not_in_the_representation(load_bare: Loader) -> None:
    assert HASH not in repr(load_bare("--default-password-hash", HASH))


# --- ini file


def test_values_of_the_file_count(load_ini: Loader, tmp_path: Path) -> None:
    config = load_ini("[main]\ndata_dir = /data\n[amqp]\nport=1234\nbind = ::\n")

    assert (config.data_dir, config.amqp_port, config.amqp_bind) == ("/data", 1234, "::")
    assert config.config_file == f"{tmp_path}/lavinmq.ini"
    assert config.warnings == []


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_comments_blank_lines_and_indentation_are_skipped(load_ini: Loader, newline: str) -> None:
    lines = ["; one", "# two", "", "  [ main ]  ", "   ; three", "  log_level =  debug  "]

    assert load_ini(newline.join(lines)).log_level == "debug"


def test_a_comment_sign_inside_a_value_belongs_to_the_value(load_ini: Loader) -> None:
    assert load_ini("[main]\ndata_dir = /a;b # c\n").data_dir == "/a;b # c"


def test_an_equals_sign_inside_a_value_belongs_to_the_value(load_ini: Loader) -> None:
    assert load_ini("[main]\nlog_file = a=b\n").log_file == "a=b"


def test_a_section_may_be_opened_again_and_the_last_value_counts(load_ini: Loader) -> None:
    config = load_ini("[amqp]\nport=1\nheartbeat=5\n[main]\n[amqp]\nport=2\n")

    assert (config.amqp_port, config.heartbeat) == (2, 5)


def test_an_indented_line_is_a_setting_of_its_own(load_ini: Loader) -> None:
    config = load_ini("[amqp]\nport=1\n  heartbeat=5\n")

    assert (config.amqp_port, config.heartbeat) == (1, 5)


def test_a_byte_order_mark_is_skipped(load_ini: Loader) -> None:
    assert load_ini(b"\xef\xbb\xbf[amqp]\nport=1\n").amqp_port == 1


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", "y", "TRUE", "Yes"])
def test_a_boolean_is_true_for_the_five_words(load_ini: Loader, text: str) -> None:
    config = load_ini(f"[main]\nset_timestamp = {text}\n")

    assert config.set_timestamp is True
    assert config.warnings == []


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "n", "", "FALSE"])
def test_a_boolean_is_false_for_the_usual_words(load_ini: Loader, text: str) -> None:
    config = load_ini(f"[main]\nsync = {text}\n")

    assert config.sync is False
    assert config.warnings == []


def test_a_boolean_that_is_no_known_word_is_false_and_warned_about(load_ini: Loader) -> None:
    config = load_ini("[main]\nsync = ture\n")

    assert config.sync is False
    assert config.warnings == [
        "'sync' in [main] (ini file): 'ture' is not a known boolean and counts as false"
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


def test_a_plain_password_for_a_hash_is_an_error_that_does_not_repeat_it(
    load_bare: Loader,
) -> None:
    with pytest.raises(ConfigError, match="not a password hash") as raised:
        load_bare(LAVINMQ_DEFAULT_PASSWORD="hunter2")

    assert "LAVINMQ_DEFAULT_PASSWORD" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_an_unknown_section_is_an_error(load_ini: Loader) -> None:
    with pytest.raises(ConfigError, match=r"^Unknown section \[manegement\]$"):
        load_ini("[manegement]\n")


def test_the_replication_section_is_an_error_that_names_its_successor(load_ini: Loader) -> None:
    with pytest.raises(ConfigError, match=r"\[replication\].*\[clustering\]"):
        load_ini("[replication]\nbind=::\n")


def test_an_unknown_key_is_a_warning_and_ignored(load_ini: Loader) -> None:
    assert load_ini("[amqp]\nprot=5\n").warnings == ["Unknown setting 'prot' in section [amqp]"]


def test_keys_are_case_sensitive(load_ini: Loader) -> None:
    config = load_ini("[amqp]\nPort=5\n")

    assert config.amqp_port == 5672
    assert config.warnings == ["Unknown setting 'Port' in section [amqp]"]


def test_the_old_name_of_the_management_section_is_read_with_a_warning(load_ini: Loader) -> None:
    config = load_ini("[http]\nport=8080\n")

    assert config.warnings == [
        "section [http] is deprecated, use [mgmt]",
        "setting 'port' in [mgmt] has no effect yet",
    ]


@pytest.mark.parametrize(("old", "new"), MOVED.items(), ids=str)
def test_an_old_name_is_read_with_a_warning_that_names_the_new_one(
    load_ini: Loader, old: tuple[str, str], new: tuple[str, str]
) -> None:
    setting = next(s for s in SETTINGS if (s.section, s.key) == new)

    config = load_ini(f"[{old[0]}]\n{old[1]} = {accepted(setting)}\n")

    assert config.warnings[0] == (
        f"setting '{old[1]}' in [{old[0]}] is deprecated, use '{new[1]}' in [{new[0]}]"
    )


def test_an_old_name_has_the_effect_of_the_new_one(load_ini: Loader) -> None:
    config = load_ini("[amqp]\nset_timestamp=true\ndefault_consumer_prefetch=7\n")

    assert (config.set_timestamp, config.default_consumer_prefetch) == (True, 7)


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_a_new_name_wins_over_its_old_one_wherever_they_stand(
    load_ini: Loader, order: slice
) -> None:
    sections = ["[amqp]\ndefault_consumer_prefetch=1\n", "[main]\ndefault_consumer_prefetch=2\n"]

    assert load_ini("".join(sections[order])).default_consumer_prefetch == 2


@pytest.mark.parametrize(
    "text", ["[amqp]\nunix_proxy_protocol=1\n", "[clustering]\nmax_unsynced_actions=1\n"]
)
def test_a_removed_setting_is_a_warning(load_ini: Loader, text: str) -> None:
    (warning,) = load_ini(text).warnings

    assert warning.endswith("is deprecated and has no effect")


@pytest.mark.parametrize(
    "setting",
    [s for s in SETTINGS if not s.attribute and not s.fate],
    ids=lambda s: f"{s.section}.{s.key}",
)
def test_a_setting_whose_feature_is_not_built_gives_one_warning(
    load_ini: Loader, setting: Setting
) -> None:
    text = f"[{setting.section}]\n{setting.key} = {accepted(setting)}\n"
    variable = {setting.variables[0]: accepted(setting)}
    expected = f"setting '{setting.key}' in [{setting.section}] has no effect yet"

    assert load_ini(text).warnings == [expected]
    assert load_ini("", **variable).warnings == [expected]
    assert load_ini(text, **variable).warnings == [expected]


def test_a_setting_without_meaning_here_is_accepted_in_silence(load_ini: Loader) -> None:
    assert load_ini("[main]\nsocket_buffer_size=0\n").warnings == []


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("[main]\nfoo\n", 2, 4),
        ("[main]\n  = 5\n", 2, 3),
        ("[main", 1, 6),
        ("[]", 1, 2),
        ("\n [main] x\n", 2, 8),
        ("port = 5\n[amqp]\n", 1, 1),
        (b"[main]\nlog_file = \xff\n", 2, 12),
    ],
)
def test_a_syntax_error_names_line_and_column(
    load_ini: Loader, text: str, line: int, column: int
) -> None:
    with pytest.raises(ConfigError, match=rf"lavinmq\.ini.* at line {line}, column {column}$"):
        load_ini(text)


# --- SNI sections


def test_a_host_section_is_read_with_prefixes_of_protocols(load_ini: Loader) -> None:
    config = load_ini("[sni:*.example.com]\ntls_cert=a\nmqtt_tls_min_version=1.3\n")

    assert config.warnings == [
        "setting 'tls_cert' in [sni:*.example.com] has no effect yet",
        "setting 'mqtt_tls_min_version' in [sni:*.example.com] has no effect yet",
    ]


def test_a_host_section_without_certificate_is_a_warning(load_ini: Loader) -> None:
    assert "section [sni:a] is ignored, it has no tls_cert" in load_ini("[sni:a]\n").warnings


def test_an_unknown_key_in_a_host_section_is_a_warning(load_ini: Loader) -> None:
    warnings = load_ini("[sni:a]\ntls_cert=x\nport=1\n").warnings

    assert "Unknown setting 'port' in section [sni:a]" in warnings


def test_a_host_section_without_host_is_an_error(load_ini: Loader) -> None:
    with pytest.raises(ConfigError, match="names no host"):
        load_ini("[sni:]\ntls_cert=x\n")


def test_an_unknown_tls_version_is_a_warning(load_ini: Loader) -> None:
    warnings = load_ini("[main]\ntls_min_version = 1.4\n").warnings

    assert any("'1.4' is not a known TLS version" in warning for warning in warnings)


# --- which file


def test_a_given_file_that_is_missing_is_an_error(load_bare: Loader) -> None:
    with pytest.raises(ConfigError, match="^Config could not be found: '/nowhere/x.ini'$"):
        load_bare("-c", "/nowhere/x.ini")


def test_a_given_file_is_read_instead_of_the_usual_one(load_ini: Loader, tmp_path: Path) -> None:
    other = tmp_path / "other.ini"
    other.write_text("[amqp]\nport=2\n")

    config = load_ini("[amqp]\nport=1\nheartbeat=9\n", "--config", str(other))

    assert (config.amqp_port, config.heartbeat, config.config_file) == (2, 300, str(other))


def test_a_directory_given_as_file_is_an_error(load_bare: Loader, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not be read: Is a directory"):
        load_bare("-c", str(tmp_path))


def test_a_path_with_a_zero_byte_is_an_error(load_bare: Loader) -> None:
    with pytest.raises(ConfigError, match="could not be found"):
        load_bare("-c", "a\0b")


def test_a_huge_file_is_an_error(load_bare: Loader) -> None:
    with pytest.raises(ConfigError, match="larger than"):
        load_bare("-c", "/dev/zero")


def test_the_directory_of_the_file_comes_from_the_environment(tmp_path: Path) -> None:
    for name, port in (("own", 1), ("systemd", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lavinmq.ini").write_text(f"[amqp]\nport={port}\n")
    systemd = {"CONFIGURATION_DIRECTORY": f"{tmp_path}/systemd:{tmp_path}/second"}

    assert load([], systemd).amqp_port == 2
    own = {"LAVINMQ_CONFIGURATION_DIRECTORY": f"{tmp_path}/own"}
    assert load([], {**systemd, **own}).amqp_port == 1


# --- environment and precedence


def test_flags_win_over_environment_over_file_over_default(load_ini: Loader) -> None:
    text = "[amqp]\nport=1\nheartbeat=1\nframe_max=5000\n"
    environ = {"LAVINMQ_AMQP_PORT": "2", "LAVINMQ_AMQP_HEARTBEAT": "2"}

    config = load_ini(text, "--amqp-port=3", **environ)

    found = (config.amqp_port, config.heartbeat, config.frame_max, config.channel_max)
    assert found == (3, 2, 5000, 2048)


@pytest.mark.parametrize(
    ("environ", "attribute", "expected"),
    [
        ({"LAVINMQ_DATADIR": "/a"}, "data_dir", "/a"),
        ({"LAVINMQ_MAIN_DATA_DIR": "/b", "LAVINMQ_DATADIR": "/a"}, "data_dir", "/b"),
        ({"STATE_DIRECTORY": "/s:/t"}, "data_dir", "/s"),
        ({"STATE_DIRECTORY": "/s", "LAVINMQ_DATADIR": "/a"}, "data_dir", "/a"),
        ({"LAVINMQ_AMQP_BIND": "::"}, "amqp_bind", "::"),
        ({"LAVINMQ_DEFAULT_USER": "bo"}, "default_user", "bo"),
        ({"LAVINMQ_DEFAULT_PASSWORD": "$5$" + HASH}, "default_password_hash", "$5$" + HASH),
        ({"LAVINMQ_DEFAULT_CONSUMER_PREFETCH": "9"}, "default_consumer_prefetch", 9),
        ({"LAVINMQ_SYNC": "no"}, "sync", False),
        ({"LAVINMQ_MAIN_LOG_LEVEL": "warn"}, "log_level", "warn"),
        ({"LAVINMQ_AMQP_PORT": ""}, "amqp_port", 5672),
        ({"STATE_DIRECTORY": ""}, "data_dir", "/var/lib/lavinmq"),
    ],
)
def test_variables_set_their_setting(
    load_bare: Loader, environ: Mapping[str, str], attribute: str, expected: object
) -> None:
    assert getattr(load_bare(**environ), attribute) == expected


def test_a_data_directory_in_the_file_wins_over_the_one_systemd_made(load_ini: Loader) -> None:
    config = load_ini("[main]\ndata_dir=/mine\n", STATE_DIRECTORY="/var/lib/lavinmq")

    assert config.data_dir == "/mine"


def test_a_key_log_file_for_other_programs_is_no_wish_for_this_one(load_bare: Loader) -> None:
    assert load_bare(SSLKEYLOGFILE="/tmp/keys").warnings == []


def test_a_bad_value_in_a_variable_names_the_variable(load_bare: Loader) -> None:
    with pytest.raises(ConfigError, match=r"'port' in \[amqp\] \(LAVINMQ_AMQP_PORT\)"):
        load_bare(LAVINMQ_AMQP_PORT="tcp://10.0.0.1:5672")


def test_an_error_is_one_line_whatever_the_value(load_bare: Loader) -> None:
    with pytest.raises(ConfigError) as raised:
        load_bare(LAVINMQ_AMQP_PORT="1\n2\udc80")

    assert str(raised.value).isprintable()


# --- flags


@pytest.mark.parametrize(
    ("argv", "attribute", "expected"),
    [
        (["-D", "/d"], "data_dir", "/d"),
        (["-D/d"], "data_dir", "/d"),
        (["--data-dir=/d"], "data_dir", "/d"),
        (["--data-dir", "/d"], "data_dir", "/d"),
        (["-l", "warn"], "log_level", "warn"),
        (["-d"], "log_level", "debug"),
        (["--debug", "-l", "error"], "log_level", "error"),
        (["--pidfile", "/p"], "pidfile", "/p"),
        (["--no-sync"], "sync", False),
        (["--no-data-dir-lock"], "data_dir_lock", False),
        (["--default-user", "bo"], "default_user", "bo"),
        (["--default-password-hash", "$5$" + HASH], "default_password_hash", "$5$" + HASH),
        (["--default-user-only-loopback", "false"], "default_user_only_loopback", False),
        (["--default-user-only-loopback=true"], "default_user_only_loopback", True),
        (["--default-consumer-prefetch", "3"], "default_consumer_prefetch", 3),
        (["-b", "::"], "amqp_bind", "::"),
        (["-b", "::", "--amqp-bind", "::1"], "amqp_bind", "::1"),
        (["-p", "1"], "amqp_port", 1),
        (["-p=1"], "amqp_port", 1),
        (["-dp1"], "amqp_port", 1),
        (["-dp", "1"], "amqp_port", 1),
        (["-p", "-1"], "amqp_port", -1),
        (["--amqp-port=-1"], "amqp_port", -1),
        (["-p", "1", "-p", "2"], "amqp_port", 2),
        (["--amqp-unix-path", "/s"], "amqp_unix_path", "/s"),
        (["--amqp-unix-path="], "amqp_unix_path", None),
    ],
)
def test_flags_set_their_setting(
    load_bare: Loader, argv: list[str], attribute: str, expected: object
) -> None:
    config = load_bare(*argv)

    assert getattr(config, attribute) == expected
    assert config.warnings == []


def test_every_flag_that_takes_an_argument_reaches_its_settings(load_bare: Loader) -> None:
    for flag, setting in flags():
        if setting is None or not flag.argument or flag.long == "--bind":
            continue
        warnings = load_bare(flag.long, accepted(setting)).warnings

        assert bool(warnings) == (bool(flag.instead) or not setting.attribute), flag.long


@pytest.mark.parametrize(
    ("argv", "successor"),
    [
        (["--default-password", HASH], "--default-password-hash"),
        (["--guest-only-loopback", "true"], "--default-user-only-loopback"),
    ],
)
def test_an_old_flag_works_with_a_warning(
    load_bare: Loader, argv: list[str], successor: str
) -> None:
    assert load_bare(*argv).warnings == [f"{argv[0]} is deprecated, use {successor}"]


def test_the_collector_flag_is_accepted_in_silence(load_bare: Loader) -> None:
    assert load_bare("--raise-gc-warn").warnings == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nope"], "Unknown option '--nope'"),
        (["--nope=1"], "Unknown option '--nope'"),
        (["-x"], "Unknown option '-x'"),
        (["-dx"], "Unknown option '-x'"),
        (["--data-di", "x"], "Unknown option '--data-di'"),
        (["-D"], "Missing argument of option -D"),
        (["-D", "-d"], "Missing argument of option -D"),
        (["--amqp-port"], "Missing argument of option --amqp-port"),
        (["--no-sync=1"], "Option --no-sync takes no argument"),
        (["stray"], "Unexpected argument 'stray'"),
        ([""], "Unexpected argument ''"),
        (["-"], "Unexpected argument '-'"),
        (["--"], "Unknown option '--'"),
    ],
)
def test_a_command_line_that_is_not_understood_is_a_usage_error(
    load_bare: Loader, argv: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        load_bare(*argv)

    assert str(raised.value) == message


# --- reload


def test_a_reload_takes_live_values_and_names_those_that_need_a_restart(load_ini: Loader) -> None:
    config = load_ini("[main]\nlog_level=info\n[amqp]\nport=1\n", "-D", "/d")
    fresh = load_ini("[main]\nlog_level=debug\nx=1\n[amqp]\nport=2\nheartbeat=7\n", *config.argv)

    waiting = config.take_live(fresh)

    assert waiting == ["'port' in [amqp]"]
    assert (config.log_level, config.heartbeat, config.amqp_port) == ("debug", 7, 1)
    assert config.data_dir == "/d"
    assert config.warnings == ["Unknown setting 'x' in section [main]"]


# --- any input


@given(
    st.text(alphabet=st.sampled_from("[]=;#\n\r\t \0\x85\u2028:amqpinsort1-é") | st.characters())
)
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    try:
        sections = ini.read(text)
    except ini.IniSyntaxError as error:
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        return
    written = "".join(
        f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in content.items())
        for section, content in sections.items()
    )
    assert ini.read(written) == sections


KEYS = st.sampled_from([(s.section, s.key) for s in (*SETTINGS, *SNI)] + list(MOVED))
VALUES = st.text(max_size=40) | st.integers().map(str) | st.sampled_from(["", "::", "true", "a,b"])


@given(st.lists(st.tuples(KEYS, VALUES), max_size=4))
def test_any_value_of_any_setting_is_taken_or_refused_in_one_line(
    given_values: list[tuple[tuple[str, str], str]],
) -> None:
    text = "".join(
        f"[{section.replace('sni', 'sni:h')}]\n{key} = {value}\n"
        for (section, key), value in given_values
    )
    _load_or_refuse(text.encode(errors="surrogatepass"))


@given(st.binary(max_size=200))
def test_any_file_is_taken_or_refused_in_one_line(content: bytes) -> None:
    _load_or_refuse(content)


def _load_or_refuse(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            config = load(["-c", file.name], {})
        except ConfigError as error:
            assert str(error).isprintable()
            return
        assert config.config_file == file.name
        assert all(warning.isprintable() for warning in config.warnings)


@given(st.lists(st.text(max_size=12) | st.sampled_from([flag.long for flag, _ in flags()])))
def test_any_command_line_is_taken_or_refused_in_one_line(argv: list[str]) -> None:
    try:
        config = load(argv, {"LAVINMQ_CONFIGURATION_DIRECTORY": "/nonexistent"})
    except ConfigError as error:
        assert str(error).isprintable()
    else:
        assert config.argv == tuple(argv)
