"""The configuration in force: built from defaults < ini files < environment < flags.

``load`` is called by ``__main__`` at the start and again at a reload; the result is passed down
by ``server.py``, nobody else reads files or variables. ``from_keywords`` reads neither: it is for
programs that start a broker inside themselves. What settings exist stands in
``settings.py``, how a source is read in ``sources.py``; this file knows their order and what a
reload changes. It prints nothing: warnings are collected in ``Config.warnings``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lavinmq.config.command_line import UsageError, parse
from lavinmq.config.settings import SETTINGS, ConfigError, Setting
from lavinmq.config.sources import (
    Given,
    Values,
    read_files,
    take_environment,
    take_fallbacks,
    take_files,
    unknown_variables,
)

__all__ = ["Config", "ConfigError", "UsageError", "defaults", "from_keywords", "load"]


@dataclass(slots=True)
class Config:
    """The values in force.

    Units are those of the ini file: bytes, seconds for ``heartbeat``, ``scrub_interval``
    and ``consumer_timeout_loop_interval``, milliseconds for ``stats_interval`` and
    ``consumer_timeout``. ``None`` is: not set. 0 is: no limit, for ``frame_max``, ``channel_max``
    and ``max_consumers_per_channel``; no heartbeats. Port -1 is: no TCP listener, 0: a free one.
    """

    data_dir: str
    log_level: str
    log_file: str | None
    log_format: str
    pidfile: str | None
    control_unix_path: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_ciphers: str
    tls_min_version: str
    tls_keylog_file: str | None
    tls_ktls: bool
    tls_verify_peer: bool
    tls_ca_cert: str | None
    tls_crl: str | None
    tls_cert_login_from: str
    metrics_http_bind: str
    metrics_http_port: int
    stats_interval: int
    stats_log_size: int
    set_timestamp: bool
    socket_buffer_size: int
    tcp_nodelay: bool
    tcp_keepalive: tuple[int, int, int] | None
    tcp_recv_buffer_size: int | None
    tcp_send_buffer_size: int | None
    segment_size: int
    sync: bool
    log_exchange: bool
    free_disk_min: int
    free_disk_warn: int
    load_definitions: str | None
    load_definitions_skip_if_unchanged: bool
    max_deleted_definitions: int
    max_arguments_bytes: int
    max_arguments_entries: int
    max_copy_keys: int
    max_filter_conditions: int
    consumer_timeout: int | None
    consumer_timeout_loop_interval: int
    default_consumer_prefetch: int
    auth_backends: tuple[str, ...]
    login_throttling: bool
    password_hashing_algorithm: str
    default_user: str
    default_password_hash: str = field(repr=False)
    default_password_plain: str | None = field(repr=False)
    default_user_only_loopback: bool
    webhook_private_networks: bool
    data_dir_lock: bool
    data_dir_access: str
    scrub_rate: int
    scrub_interval: int
    default_consistent_hash_algorithm: str

    amqp_bind: str
    amqp_port: int
    amqp_tls_port: int
    amqp_unix_path: str | None
    tcp_proxy_protocol: bool
    proxy_protocol_trusted_sources: tuple[str, ...]
    amqp_systemd_socket_name: str
    heartbeat: int
    frame_max: int
    channel_max: int
    max_message_size: int
    max_consumers_per_channel: int
    max_consumers_per_connection: int
    max_bindings_per_queue: int
    max_bindings_per_vhost: int

    mqtt_bind: str
    mqtt_port: int
    mqtt_tls_port: int
    mqtt_unix_path: str | None
    mqtt_max_inflight_messages: int
    mqtt_max_packet_size: int
    mqtt_default_vhost: str
    mqtt_permission_check_enabled: bool
    mqtt_client_id_validation: str
    mqtt_max_session_expiry: int
    mqtt_sys_interval: int
    mqtt_refused_publish: str
    mqtt_exchange: str
    mqtt_anonymous_user: str
    mqtt_systemd_socket_name: str

    http_bind: str
    http_port: int
    https_port: int
    http_unix_path: str | None
    http_systemd_socket_name: str
    cors_allowed_origins: tuple[str, ...]
    websocket_allowed_origins: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    max_body_size: int
    max_json_size: int
    http_max_connections: int | None
    head_timeout: int

    oauth_issuer: str | None
    oauth_client_id: str
    oauth_mgmt_base_url: str | None
    oauth_mgmt_scopes: str
    oauth_resource_server_id: str
    oauth_preferred_username_claims: tuple[str, ...]
    oauth_additional_scopes_keys: tuple[str, ...]
    oauth_scope_prefix: str
    oauth_verify_aud: bool
    oauth_audience: str
    oauth_jwks_cache_ttl: int

    clustering_enabled: bool
    clustering_bind: str
    clustering_port: int
    clustering_advertised_uri: str
    clustering_etcd_endpoints: tuple[str, ...]
    clustering_etcd_prefix: str
    clustering_etcd_ca_cert: str | None
    clustering_etcd_cert: str | None
    clustering_etcd_key: str | None
    clustering_tls_cert: str | None
    clustering_tls_key: str | None
    clustering_tls_ca_cert: str | None
    clustering_tls_crl: str | None
    clustering_tls_optional: bool
    clustering_min_insync_replicas: int
    clustering_below_min_insync: str
    clustering_compression: str
    clustering_lease_ttl: int
    clustering_hot_standby: bool
    clustering_reads_port: int
    clustering_reads_tls_port: int
    clustering_on_leader_elected: str
    clustering_on_leader_lost: str

    sni: dict[str, dict[str, Any]]
    """What is different for clients that ask for a host: its keys, maybe prefixed, and values."""

    config_file: str | None
    """The file that was read; ``None`` when there was none."""
    argv: tuple[str, ...] = field(repr=False)  # may hold the hash
    """The arguments given, so that a reload can apply them again."""
    warnings: list[str]
    """One line each, for the caller to show."""
    given: dict[tuple[str, str], Given] = field(default_factory=dict, repr=False, compare=False)
    """What is not by default: by section and key, the text in force and where it stood."""
    config_parts: tuple[str, ...] = ()
    """The files of conf.d that were read, in the order in which they count."""
    ignored: list[str] = field(default_factory=list)
    """One line for each file of conf.d that was not read."""

    def take_live(self, fresh: Config) -> Changes:
        """Take over, after a reload, the values that may change while the broker runs.

        Those that need a restart keep their old value. Source: docs/configuration.md.
        """
        live, waiting = [], []
        for setting in SETTINGS:
            if setting.effect != "yes":
                continue
            value = getattr(fresh, setting.attribute)
            if value == getattr(self, setting.attribute):
                continue
            if setting.live:
                setattr(self, setting.attribute, value)
                live.append(setting.name)
            else:
                waiting.append(setting.name)
        if fresh.sni != self.sni:
            self.sni = fresh.sni
            live.append("hosts in [sni:...]")
        self.config_file, self.warnings = fresh.config_file, fresh.warnings
        self.config_parts, self.ignored = fresh.config_parts, fresh.ignored
        self.given = fresh.given
        return Changes(live, waiting)

    @property
    def files(self) -> str:
        """The files that were read, for a message; empty when there was none."""
        return ", ".join([*filter(None, [self.config_file]), *self.config_parts])


class Changes(NamedTuple):
    """The names of the settings that a reload found changed."""

    live: list[str]
    """Those that have taken effect."""
    waiting: list[str]
    """Those that need a restart."""


def load(
    argv: Sequence[str], environ: Mapping[str, str], errors: list[str] | None = None
) -> Config:
    """Read all sources and return the configuration; flags that are actions are ignored.

    Args: the arguments without the program's name; the environment; a list that takes the mistakes
        in values and sections, so that all are found, instead of the first being raised.
    Raises: ``ConfigError`` (``UsageError`` for the command line).
    Source: docs/configuration.md.
    """
    given = parse(argv)
    files = read_files(given.actions.get("--config"), environ)
    values = Values(errors)
    take_fallbacks(values, environ)
    take_files(values, files)
    take_environment(values, environ)
    for flag, setting, value in given.values:
        if flag.instead:
            values.warn(f"{flag.long} is deprecated, use {flag.instead}")
        # The one flag for three addresses is no wish for the listeners that are not built yet.
        values.take(setting, value, flag.long, wished=flag.long != "--bind")
    if {("main", "default_password_hash"), ("main", "default_password_plain")} <= set(values.given):
        values.warn(
            "'default_password_plain' and 'default_password_hash' in [main] are both given,"
            " the plain one counts"
        )
    unknown_variables(values, environ)
    config = _checked(
        Config(
            config_file=files.path,
            config_parts=tuple(part.path for part in files.parts),
            ignored=files.ignored,
            argv=tuple(argv),
            warnings=values.warnings,
            given=values.given,
            **values.by_attribute,
        )
    )
    for line in _danger(config):
        values.warn(line)
    return config


def defaults() -> Config:
    """Return the configuration of a broker that was told nothing."""
    values = Values()
    return Config(config_file=None, argv=(), warnings=[], **values.by_attribute)


def from_keywords(given: Mapping[str, object]) -> Config:
    """Return the defaults with some settings replaced; no file and no variable is read.

    Args: given: values by the names of ``keywords``: text as in the ini file, numbers, booleans,
        paths, or ``None`` for an empty text.
    Raises: ``ConfigError`` for a value that cannot be used; ``TypeError`` for an unknown name or
        for another type of value. Both name the setting.
    """
    known = keywords()
    values = Values()
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"there is no setting {name!r}")
        text = _as_text(name, value)
        doubt = known[name].kind.doubt(text)
        if doubt:  # a program can be told at once
            raise ConfigError(f"Failed to handle value for {name!r}: {doubt}")
        values.take(known[name], text, "keyword", name=repr(name))
    if values.by_attribute["clustering_enabled"]:
        raise ConfigError(
            "'clustering_enabled': a broker inside a program is a single one; nodes of a cluster"
            " are started by the command lavinmq"
        )
    return _checked(
        Config(config_file=None, argv=(), warnings=values.warnings, **values.by_attribute)
    )


def _checked(config: Config) -> Config:
    """Return the configuration if its values go together. Raises: ``ConfigError``."""
    if "oauth" in config.auth_backends and not config.oauth_issuer:
        raise ConfigError("'auth_backends' in [main] names oauth: 'issuer' in [oauth] is missing")
    if config.clustering_enabled and not config.sync:
        raise ConfigError(
            "'enabled' in [clustering]: 'sync' in [main] is false, so nodes would acknowledge what"
            " no disk has. Take one of them out"
        )
    if config.clustering_enabled and config.clustering_port < 0:
        raise ConfigError("'port' in [clustering] is -1: other nodes could not reach this one")
    if config.clustering_enabled:
        _check_tls_of_nodes(config)
    if config.clustering_enabled and config.clustering_reads_tls_port >= 0 and not config.tls_cert:
        raise ConfigError(
            "'reads_tls_port' in [clustering]: 'tls_cert' in [main] is missing, so nobody could"
            " speak TLS there"
        )
    return config


def _danger(config: Config) -> Iterator[str]:
    """What the operator has set and has to know the end of, one line each."""
    if not config.sync:
        yield (
            "'sync' in [main] is false: what is confirmed is not on disk yet, and a loss of power"
            " takes it away"
        )
    if not config.data_dir_lock:
        yield (
            "'data_dir_lock' in [main] is false: a second broker on the same data directory would"
            " destroy what is in it"
        )
    if ("clustering", "enabled") not in config.given:
        for each in SETTINGS:
            section, key = each.section, each.key
            if section == "clustering" and not each.fate and (section, key) in config.given:
                yield (
                    f"'{key}' in [clustering] has no effect: without 'enabled' this broker is none"
                    " of a cluster"
                )
    ports = {
        "amqp": (config.amqp_port, config.amqp_tls_port),
        "mqtt": (config.mqtt_port, config.mqtt_tls_port),
        "mgmt": (config.http_port, config.https_port),
    }
    for section, (port, tls_port) in ports.items():
        if tls_port >= 0 and (section, "tls_port") in config.given and not config.tls_cert:
            rest = ", nor a 'port': no listener on TCP" if port < 0 else ""
            yield (
                f"'tls_port' in [{section}] has no effect: there is no 'tls_cert' in [main]{rest}"
            )


def _check_tls_of_nodes(config: Config) -> None:
    """Raises: ``ConfigError`` for half of what TLS between the nodes of a cluster needs."""
    paths = {
        "tls_cert": config.clustering_tls_cert, "tls_key": config.clustering_tls_key,
        "tls_ca_cert": config.clustering_tls_ca_cert,
    }  # fmt: skip
    given = [key for key, path in paths.items() if path]
    missing = [key for key, path in paths.items() if not path]
    if given and missing:
        raise ConfigError(f"{given[0]!r} in [clustering]: {missing[0]!r} is missing beside it")
    for key, is_given in (
        ("tls_crl", config.clustering_tls_crl), ("tls_optional", config.clustering_tls_optional),
    ):  # fmt: skip
        if is_given and missing:
            raise ConfigError(f"{key!r} in [clustering]: {missing[0]!r} is missing beside it")
    if config.clustering_advertised_uri.startswith("tls:") and missing:
        raise ConfigError(
            f"'advertised_uri' in [clustering] begins with tls://, and {missing[0]!r} is missing"
        )


def keywords() -> dict[str, Setting]:
    """Return the settings by their names in Python, which have no sections.

    One of [main] is called by its key, any other by section and key: ``amqp_port``. What
    ``Config`` calls it holds too: ``heartbeat``.
    """
    named = {
        setting.key if setting.section == "main" else f"{setting.section}_{setting.key}": setting
        for setting in SETTINGS
    }
    return named | {setting.attribute: setting for setting in SETTINGS if setting.attribute}


def _as_text(name: str, value: object) -> str:
    """Return a value as it would stand in the ini file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return value
    raise TypeError(f"{name!r} cannot be of type {type(value).__name__}")
