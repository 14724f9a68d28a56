"""Configuration: file, environment, flags, their order, and what is said about mistakes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.config.settings import MOVED, SETTINGS, SNI, Setting
from lavinmq.config.values import ConfigError, defaults, from_keywords, keywords, load
from lavinmq.missing import of_section
from tests.support.configuration import HASH, Loader, accepted, load_bare, load_ini

__all__ = ["load_bare", "load_ini"]  # fixtures


# --- defaults


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
    assert (config.heartbeat, config.frame_max, config.channel_max) == (300, 131072, 2047)
    assert config.max_message_size == 128 * 1024 * 1024
    assert config.max_consumers_per_channel == 0
    assert (config.config_file, config.warnings) == (None, [])


def test_nodelay_is_on_by_default_unlike_the_reference() -> None:
    assert defaults().tcp_nodelay is True


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
    (warning,) = load_ini("[amqp]\nxyzzy=5\n").warnings

    assert warning == "Unknown setting 'xyzzy' in section [amqp]"


@pytest.mark.parametrize(
    ("text", "meant"),
    [("[amqp]\nprot=5\n", "port"), ("[sni:a]\ntls_cert=x\ntls_certt=y\n", "tls_cert")],
)
def test_an_unknown_key_names_the_known_one_that_is_most_like_it(
    load_ini: Loader, text: str, meant: str
) -> None:
    (warning,) = load_ini(text).warnings

    assert warning.endswith(f", did you mean '{meant}'?")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LAVINMQ_DATA_DIR", "LAVINMQ_DATADIR"),
        ("LAVINMQ_MAIN_LOG_LEVL_FILE", "LAVINMQ_MAIN_LOG_LEVEL"),
        ("LAVINMQ_CLUSTER", "LAVINMQ_CLUSTERING"),  # it says neither yes nor no
    ],
)
def test_an_unknown_variable_is_a_warning_that_names_the_nearest(
    load_ini: Loader, name: str, meant: str
) -> None:
    (warning,) = load_ini("", **{name: "x"}).warnings

    assert warning == f"Unknown variable '{name}' sets nothing, did you mean '{meant}'?"


def test_a_variable_that_is_like_no_other_has_no_hint(load_ini: Loader) -> None:
    assert load_ini("", LAVINMQ_IMAGE="x").warnings == ["Unknown variable 'LAVINMQ_IMAGE' sets"
                                                        " nothing"]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[clustering]\nenable = true\n", "enabled"),
        ("[main]\ntls_verify_peers = true\n", "tls_verify_peer"),
        ("[main]\nsynk = true\n", "sync"),
        ("[mqtt]\npermission_check_enable = true\n", "permission_check_enabled"),
        ("[amqp]\ntcp_proxy_protokol = 1\n", "tcp_proxy_protocol"),
        ("[sni:a]\ntls_cert = x\nhttp_tls_verify_peers = true\n", "tls_verify_peer"),
    ],
)
def test_a_misspelt_key_cannot_leave_off_what_protects_data_or_access(
    load_ini: Loader, text: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^Unknown setting .*did you mean '{meant}'\? Data or"):
        load_ini(text)


@pytest.mark.parametrize(
    ("section", "key", "place"),
    [
        ("amqp", "sync", "main"), ("mgmt", "tls_verify_peer", "main"),
        ("main", "permission_check_enabled", "mqtt"), ("mqtt", "tcp_proxy_protocol", "amqp"),
        ("sni:a", "login_throttling", "main"), ("main", "verify_aud", "oauth"),
    ],
)  # fmt: skip
def test_a_key_in_another_section_cannot_leave_it_off_either(
    load_ini: Loader, section: str, key: str, place: str
) -> None:
    """It was warned about, and the broker ran without what it protects."""
    with pytest.raises(ConfigError) as raised:
        load_ini(f"[{section}]\n{key} = true\n")

    assert str(raised.value).startswith(
        f"Unknown setting '{key}' in section [{section}], did you mean '{key}' in [{place}]?"
        " Data or access hang on that one"
    )


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("[amqp]\nlog_level = debug\n", ", did you mean 'log_level' in [main]?"),
        ("[main]\nport = 1\n", ""),  # three sections have one
        ("[mqtt]\nenabled = true\n", ""),  # of MQTT, not of a cluster
    ],
)
def test_another_section_is_named_where_a_key_has_only_that(
    load_ini: Loader, text: str, end: str
) -> None:
    (warning,) = load_ini(text).warnings

    assert warning.partition("]")[2] == end


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("LAVINMQ_CLUSTERING_ENABLE", "true", "LAVINMQ_CLUSTERING_ENABLED"),
        ("LAVINMQ_CLUSTER", "1", "LAVINMQ_CLUSTERING"),
        ("LAVINMQ_MAIN_SYNK_FILE", "/run/secret", "LAVINMQ_MAIN_SYNC"),
    ],
)
def test_a_misspelt_variable_cannot_leave_it_off_either(
    load_ini: Loader, name: str, value: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^Unknown variable '{name}' .*'{meant}'\? Data or"):
        load_ini("", **{name: value})


def test_a_check_gathers_misspelt_keys_with_the_other_errors(tmp_path: Path) -> None:
    (tmp_path / "lavinmq.ini").write_text("[clustering]\nenable = true\n[amqp]\nport = x\n")
    errors: list[str] = []

    load(["-c", f"{tmp_path}/lavinmq.ini"], {}, errors)

    assert [error.split(":")[0].split(" (")[0] for error in errors] == [
        "Unknown setting 'enable' in section [clustering], did you mean 'enabled'? Data or access"
        " hang on that one",
        "Failed to handle value for 'port' in [amqp]",
    ]


# --- what would start and be dangerous


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[clustering]\netcd_endpoints = etcd1:2379\n",
         "'etcd_endpoints' in [clustering] has no effect: without 'enabled' this broker is none of"
         " a cluster"),
        ("[clustering]\nadvertised_uri = tcp://a\n",
         "'advertised_uri' in [clustering] has no effect: without 'enabled' this broker is none of"
         " a cluster"),
        ("[clustering]\nmin_insync_replicas = 2\n",
         "'min_insync_replicas' in [clustering] has no effect: without 'enabled' this broker is"
         " none of a cluster"),
        ("[main]\nsync = false\n",
         "'sync' in [main] is false: what is confirmed is not on disk yet, and a loss of power"
         " takes it away"),
        ("[main]\ndata_dir_lock = no\n",
         "'data_dir_lock' in [main] is false: a second broker on the same data directory would"
         " destroy what is in it"),
        ("[amqp]\nport = -1\ntls_port = 5671\n",
         "'tls_port' in [amqp] has no effect: there is no 'tls_cert' in [main], nor a 'port':"
         " no listener on TCP"),
        ("[mgmt]\ntls_port = 15671\n",
         "'tls_port' in [mgmt] has no effect: there is no 'tls_cert' in [main]"),
    ],
)  # fmt: skip
def test_what_is_dangerous_or_has_no_effect_is_warned_about(
    load_ini: Loader, text: str, warning: str
) -> None:
    assert load_ini(text).warnings == [warning]


@pytest.mark.parametrize(
    "text",
    [
        "[clustering]\nenabled = false\netcd_endpoints = etcd1:2379\n",
        "[clustering]\nenabled = true\netcd_endpoints = etcd1:2379\n",
        "[amqp]\nport = -1\n",
        "[mqtt]\ntls_port = -1\n",
        "[main]\ntls_cert = x\n[mgmt]\ntls_port = 15671\n",
    ],
)
def test_what_is_meant_is_not_warned_about(load_ini: Loader, text: str) -> None:
    assert load_ini(text).warnings == []


def test_a_node_without_a_port_for_others_is_refused(load_ini: Loader) -> None:
    with pytest.raises(ConfigError, match=r"^'port' in \[clustering\] is -1"):
        load_ini("[clustering]\nenabled = true\nport = -1\n")


@pytest.mark.parametrize(
    "name", ["LAVINMQ_SERVICE_HOST", "LAVINMQ_SERVICE_PORT_AMQP", "LAVINMQ_PORT_5672_TCP_ADDR"]
)
def test_variables_that_kubernetes_makes_of_a_service_are_no_slips(
    load_ini: Loader, name: str
) -> None:
    environ = {name: "10.0.0.1", "LAVINMQ_PORT": "tcp://10.0.0.1:5672", "LAVINMQCTL_HOST": "x"}

    assert load_ini("", **environ).warnings == []


def test_keys_are_case_sensitive(load_ini: Loader) -> None:
    config = load_ini("[amqp]\nPort=5\n")

    assert config.amqp_port == 5672
    assert config.warnings == ["Unknown setting 'Port' in section [amqp], did you mean 'port'?"]


def test_the_old_name_of_the_management_section_is_read_with_a_warning(load_ini: Loader) -> None:
    config = load_ini("[http]\nport=8080\n")

    assert config.warnings == ["section [http] is deprecated, use [mgmt]"]
    assert config.http_port == 8080


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
    [s for s in SETTINGS if s.effect == "not yet"],
    ids=lambda s: f"{s.section}.{s.key}",
)
def test_a_setting_whose_feature_is_not_built_gives_one_warning(
    load_ini: Loader, setting: Setting
) -> None:
    text = f"[{setting.section}]\n{setting.key} = {accepted(setting)}\n"
    variable = {setting.variables[0]: accepted(setting)}
    why = of_section(setting.section)
    expected = f"setting '{setting.key}' in [{setting.section}] has no effect yet: {why}"

    assert load_ini(text).warnings == [expected]
    assert load_ini("", **variable).warnings == [expected]
    assert load_ini(text, **variable).warnings == [expected]


def test_a_node_of_a_cluster_that_does_not_sync_is_refused(load_ini: Loader) -> None:
    with pytest.raises(ConfigError, match="'sync' in \\[main\\] is false") as raised:
        load_ini("[main]\nsync = false\n[clustering]\nenabled = true\n")

    assert str(raised.value).startswith("'enabled' in [clustering]: ")
    assert load_ini("[clustering]\nenabled = true\n").clustering_enabled


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tls_cert = /c", "'tls_cert' in [clustering]: 'tls_key' is missing beside it"),
        ("tls_key = /k", "'tls_key' in [clustering]: 'tls_cert' is missing beside it"),
        (
            "tls_cert = /c\ntls_key = /k",
            "'tls_cert' in [clustering]: 'tls_ca_cert' is missing beside it",
        ),
        ("tls_ca_cert = /a", "'tls_ca_cert' in [clustering]: 'tls_cert' is missing beside it"),
        (
            "advertised_uri = tls://node1:5679",
            "'advertised_uri' in [clustering] begins with tls://, and 'tls_cert' is missing",
        ),
    ],
)
def test_half_of_tls_between_nodes_is_refused(load_ini: Loader, text: str, names: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_ini(f"[clustering]\nenabled = true\n{text}\n")

    assert str(raised.value) == names
    assert load_ini(f"[clustering]\nenabled = false\n{text}\n").warnings == []


def test_a_port_for_readers_with_tls_needs_a_certificate(load_ini: Loader) -> None:
    node = "[clustering]\nenabled = true\nreads_tls_port = 5674\n"
    with pytest.raises(ConfigError, match=r"'reads_tls_port' in .*'tls_cert' in .* is missing"):
        load_ini(node)

    assert load_ini(f"[main]\ntls_cert = /c\n{node}").clustering_reads_tls_port == 5674


def test_a_program_cannot_start_a_node_of_a_cluster() -> None:
    with pytest.raises(ConfigError, match="a broker inside a program is a single one"):
        from_keywords({"clustering_enabled": True})


@pytest.mark.parametrize(
    "text",
    [f"[main]\n{key} = ture\n" for key in ("sync", "data_dir_lock", "tls_verify_peer",
                                            "default_user_only_loopback", "login_throttling")]
    + ["[oauth]\nverify_aud = ture\n", "[clustering]\nenabled = ture\n",
       "[mqtt]\npermission_check_enabled = ture\n", "[amqp]\ntcp_proxy_protocol = ture\n",
       "[main]\nwebhook_private_networks = ture\n",
       "[sni:a]\ntls_cert = x\namqp_tls_verify_peer = ture\n"],
)  # fmt: skip
def test_a_slip_cannot_turn_off_what_protects_data_or_access(load_ini: Loader, text: str) -> None:
    with pytest.raises(ConfigError, match="'ture' is neither true nor false"):
        load_ini(text)


def test_a_host_that_demands_certificates_is_not_left_out(load_ini: Loader) -> None:
    """Its clients would be served by [main], which asks for none."""
    with pytest.raises(ConfigError, match=r"section \[sni:a\] demands client certificates"):
        load_ini("[sni:a]\nhttp_tls_verify_peer = true\ntls_ca_cert = x\n")


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

    assert config.sni == {"*.example.com": {"tls_cert": "a", "mqtt_tls_min_version": "1.3"}}
    assert config.warnings == []


def test_a_host_section_without_certificate_changes_nothing(load_ini: Loader) -> None:
    assert load_ini("[sni:a]\ntls_min_version=1.3\n").sni == {}


def test_the_hosts_of_a_section_are_compared_without_capitals(load_ini: Loader) -> None:
    assert list(load_ini("[sni: Mq.Example.COM. ]\ntls_cert=a\n").sni) == ["mq.example.com"]


def test_a_host_section_without_certificate_is_a_warning(load_ini: Loader) -> None:
    assert "section [sni:a] is ignored, it has no tls_cert" in load_ini("[sni:a]\n").warnings


def test_an_unknown_key_in_a_host_section_is_a_warning(load_ini: Loader) -> None:
    warnings = load_ini("[sni:a]\ntls_cert=x\nport=1\n").warnings

    assert "Unknown setting 'port' in section [sni:a]" in warnings


def test_a_host_section_without_host_is_an_error(load_ini: Loader) -> None:
    with pytest.raises(ConfigError, match="names no host"):
        load_ini("[sni:]\ntls_cert=x\n")


# --- which file


def test_a_given_file_that_is_missing_is_an_error(load_bare: Loader) -> None:
    with pytest.raises(ConfigError, match=r"^Config could not be found: '/nowhere/x\.ini'$"):
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
    assert found == (3, 2, 5000, 2047)


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


CONTROL_OF_UNIT = {"LAVINMQ_DEFAULT_CONTROL_UNIX_PATH": "/run/lavinmq/lavinmqctl.sock"}


def test_the_unit_says_where_the_control_socket_is_when_the_file_does_not(
    load_ini: Loader,
) -> None:
    config = load_ini("[main]\ndata_dir=/mine\n", **CONTROL_OF_UNIT)

    assert config.control_unix_path == "/run/lavinmq/lavinmqctl.sock"
    assert config.warnings == []


@pytest.mark.parametrize(("text", "expected"), [("/mine", "/mine"), ("", None)])
def test_a_control_socket_in_the_file_wins_over_that_of_the_unit(
    load_ini: Loader, text: str, expected: str | None
) -> None:
    config = load_ini(f"[main]\ncontrol_unix_path={text}\n", **CONTROL_OF_UNIT)

    assert config.control_unix_path == expected


def test_a_key_log_file_for_other_programs_is_no_wish_for_this_one(load_bare: Loader) -> None:
    assert load_bare(SSLKEYLOGFILE="/tmp/keys").warnings == []


def test_a_bad_value_in_a_variable_names_the_variable(load_bare: Loader) -> None:
    with pytest.raises(ConfigError, match=r"'port' in \[amqp\] \(LAVINMQ_AMQP_PORT\)"):
        load_bare(LAVINMQ_AMQP_PORT="tcp://10.0.0.1:5672")


def test_an_error_is_one_line_whatever_the_value(load_bare: Loader) -> None:
    with pytest.raises(ConfigError) as raised:
        load_bare(LAVINMQ_AMQP_PORT="1\n2\udc80")

    assert str(raised.value).isprintable()


# --- reload


def test_a_reload_takes_live_values_and_names_those_that_need_a_restart(load_ini: Loader) -> None:
    config = load_ini("[main]\nlog_level=info\n[amqp]\nport=1\n", "-D", "/d")
    fresh = load_ini("[main]\nlog_level=debug\nx=1\n[amqp]\nport=2\nheartbeat=7\n", *config.argv)

    changes = config.take_live(fresh)

    assert changes.live == ["'log_level' in [main]", "'heartbeat' in [amqp]"]
    assert changes.waiting == ["'port' in [amqp]"]
    assert (config.log_level, config.heartbeat, config.amqp_port) == ("debug", 7, 1)
    assert config.data_dir == "/d"
    assert config.warnings == ["Unknown setting 'x' in section [main]"]


# --- any input


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


# --- keywords


def test_without_keywords_the_defaults_count_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAVINMQ_AMQP_PORT", "1")
    monkeypatch.setenv("STATE_DIRECTORY", "/elsewhere")

    assert from_keywords({}) == defaults()


@pytest.mark.parametrize(
    ("keyword", "given", "attribute", "value"),
    [
        ("segment_size", 65536, "segment_size", 65536),
        ("segment_size", "65536", "segment_size", 65536),
        ("sync", False, "sync", False),
        ("sync", "yes", "sync", True),
        ("amqp_port", -1, "amqp_port", -1),
        ("amqp_bind", "::1", "amqp_bind", "::1"),
        ("heartbeat", 30, "heartbeat", 30),
        ("amqp_heartbeat", 30, "heartbeat", 30),
        ("data_dir", Path("/tmp/x"), "data_dir", "/tmp/x"),
        ("tcp_send_buffer_size", None, "tcp_send_buffer_size", None),
        ("tcp_keepalive", False, "tcp_keepalive", None),
        ("tcp_keepalive", "1:2:3", "tcp_keepalive", (1, 2, 3)),
    ],
)
def test_a_keyword_takes_text_numbers_booleans_and_paths(
    keyword: str, given: object, attribute: str, value: object
) -> None:
    assert getattr(from_keywords({keyword: given}), attribute) == value


@pytest.mark.parametrize(
    ("keyword", "given", "text"),
    [
        ("segment_size", 1, "1 is out of range"),
        ("segment_size", True, "not a whole number"),
        ("segment_size", None, "not a whole number"),
        ("default_password_hash", "plain", "not a password hash"),
        ("sync", "perhaps", "neither true nor false"),
        ("data_dir", "", "the path is empty"),
    ],
)
def test_an_unusable_value_of_a_keyword_is_an_error_that_names_it(
    keyword: str, given: object, text: str
) -> None:
    with pytest.raises(ConfigError, match=f"{keyword!r}.*{text}"):
        from_keywords({keyword: given})


@pytest.mark.parametrize("given", [1.5, b"/tmp", ["a"], os.fsencode])
def test_another_type_of_value_is_an_error_that_names_the_keyword(given: object) -> None:
    with pytest.raises(TypeError, match=rf"'data_dir' cannot be of type {type(given).__name__}"):
        from_keywords({"data_dir": given})


def test_an_unknown_keyword_is_an_error_that_names_it() -> None:
    with pytest.raises(TypeError, match="no setting 'segmentsize'"):
        from_keywords({"segmentsize": 65536})


def test_a_keyword_without_effect_gives_a_warning() -> None:
    config = from_keywords({"clustering_max_unsynced_actions": 1})

    (warning,) = config.warnings
    assert warning == "setting 'clustering_max_unsynced_actions' is deprecated and has no effect"


def test_every_setting_has_a_keyword_of_its_own() -> None:
    by_name = keywords()

    assert {id(setting) for setting in by_name.values()} == {id(setting) for setting in SETTINGS}
    assert all(name.isidentifier() for name in by_name)


# --- the exchange that shares its topics with MQTT


@pytest.mark.parametrize("name", ["amq.direct", "amq.topics", "mqtt.default"])
def test_an_exchange_for_mqtt_that_can_never_be_one_is_told(load_ini: Loader, name: str) -> None:
    (warning,) = load_ini(f"[mqtt]\nexchange = {name}\n").warnings

    assert warning == (
        f"'exchange' in [mqtt] (ini file): '{name}' is no topic exchange and cannot be declared as"
        " one: MQTT and AMQP share no topics"
    )


def test_an_exchange_for_mqtt_that_may_come_is_not_told(load_ini: Loader) -> None:
    for name in ("", "amq.topic", "sensors"):
        assert load_ini(f"[mqtt]\nexchange = {name}\n").warnings == []
    with pytest.raises(ConfigError, match=r"'exchange' in \[mqtt\].* is longer than 255 bytes"):
        load_ini(f"[mqtt]\nexchange = {'x' * 256}\n")
