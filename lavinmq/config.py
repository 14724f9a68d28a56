"""The configuration in force: built from defaults < ini file < environment < flags.

``load`` is called by ``__main__`` at the start and again at a reload; the result is passed down
by ``server.py``, nobody else reads files or variables. ``from_keywords`` reads neither: it is for
programs that start a broker inside themselves. What settings exist stands in
``settings.py``; this file knows only the order of the sources and what is said about mistakes.
It prints nothing: warnings are collected in ``Config.warnings``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lavinmq import ini
from lavinmq.arguments import UsageError, parse
from lavinmq.setting_types import shown
from lavinmq.settings import MOVED, SECTIONS, SETTINGS, SNI, SNI_PREFIXES, ConfigError, Setting

__all__ = ["Config", "ConfigError", "UsageError", "defaults", "from_keywords", "load"]

CONFIG_FILE = "lavinmq.ini"
CONFIG_DIRECTORY = "/etc/lavinmq"
MAX_FILE_BYTES = 1 << 20


@dataclass(slots=True)
class Config:
    """The values in force.

    Units are those of the ini file: bytes, seconds for ``heartbeat`` and
    ``consumer_timeout_loop_interval``, milliseconds for ``stats_interval`` and
    ``consumer_timeout``. ``None`` is: not set. 0 is: no limit, for ``frame_max``, ``channel_max``
    and ``max_consumers_per_channel``; no heartbeats. Port -1 is: no TCP listener, 0: a free one.
    """

    data_dir: str
    log_level: str
    log_file: str | None
    log_format: str
    pidfile: str | None
    control_unix_path: str | None
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
    max_deleted_definitions: int
    consumer_timeout: int | None
    consumer_timeout_loop_interval: int
    default_consumer_prefetch: int
    default_user: str
    default_password_hash: str = field(repr=False)
    default_user_only_loopback: bool
    data_dir_lock: bool
    default_consistent_hash_algorithm: str

    amqp_bind: str
    amqp_port: int
    amqp_unix_path: str | None
    heartbeat: int
    frame_max: int
    channel_max: int
    max_message_size: int
    max_consumers_per_channel: int

    http_bind: str
    http_port: int
    http_unix_path: str | None
    cors_allowed_origins: tuple[str, ...]
    websocket_allowed_origins: tuple[str, ...]
    max_body_size: int

    config_file: str | None
    """The file that was read; ``None`` when there was none."""
    argv: tuple[str, ...] = field(repr=False)  # may hold the hash
    """The arguments given, so that a reload can apply them again."""
    warnings: list[str]
    """One line each, for the caller to show."""

    def take_live(self, fresh: Config) -> list[str]:
        """Take over, after a reload, the values that may change while the broker runs.

        Returns: the names of changed settings that need a restart; they keep their old value.
        Source: configuration reference, reload.
        """
        waiting = []
        for setting in SETTINGS:
            if setting.effect != "yes":
                continue
            value = getattr(fresh, setting.attribute)
            if value == getattr(self, setting.attribute):
                continue
            if setting.live:
                setattr(self, setting.attribute, value)
            else:
                waiting.append(setting.name)
        self.config_file, self.warnings = fresh.config_file, fresh.warnings
        return waiting


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read all sources and return the configuration; flags that are actions are ignored.

    Args: the arguments without the program's name; the environment.
    Raises: ``ConfigError`` (``UsageError`` for the command line).
    Source: configuration reference, sections 1 to 6.
    """
    given = parse(argv)
    path, text = _read_file(given.actions.get("--config"), environ)
    values = _Values()
    _take_fallbacks(values, environ)
    if path is not None:
        _take_file(values, path, text)
    _take_environment(values, environ)
    for flag, setting, value in given.values:
        if flag.instead:
            values.warn(f"{flag.long} is deprecated, use {flag.instead}")
        # The one flag for three addresses is no wish for the listeners that are not built yet.
        values.take(setting, value, flag.long, wished=flag.long != "--bind")
    return Config(
        config_file=path, argv=tuple(argv), warnings=values.warnings, **values.by_attribute
    )


def defaults() -> Config:
    """Return the configuration of a broker that was told nothing."""
    values = _Values()
    return Config(config_file=None, argv=(), warnings=[], **values.by_attribute)


def from_keywords(given: Mapping[str, object]) -> Config:
    """Return the defaults with some settings replaced; no file and no variable is read.

    Args: given: values by the names of ``keywords``: text as in the ini file, numbers, booleans,
        paths, or ``None`` for an empty text.
    Raises: ``ConfigError`` for a value that cannot be used; ``TypeError`` for an unknown name or
        for another type of value. Both name the setting.
    """
    known = keywords()
    values = _Values()
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"there is no setting {name!r}")
        text = _as_text(name, value)
        doubt = known[name].kind.doubt(text)
        if doubt:  # a program can be told at once
            raise ConfigError(f"Failed to handle value for {name!r}: {doubt}")
        values.take(known[name], text, "keyword", name=repr(name))
    return Config(config_file=None, argv=(), warnings=values.warnings, **values.by_attribute)


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


class _Values:
    """The values gathered so far; a later source replaces what an earlier one gave."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.by_attribute: dict[str, Any] = {
            setting.attribute: setting.kind.parse(setting.default)
            for setting in SETTINGS
            if setting.attribute
        }

    def warn(self, text: str) -> None:
        """Note a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def take(
        self, setting: Setting, text: str, source: str, *, name: str = "", wished: bool = True
    ) -> None:
        """Check a text and keep its value; ``name`` replaces the name the table gives."""
        name = name or setting.name
        try:
            value = setting.kind.parse(text)
        except ValueError as error:
            raise ConfigError(f"Failed to handle value for {name} ({source}): {error}") from None
        doubt = setting.kind.doubt(text)
        if doubt:
            self.warn(f"{name} ({source}): {doubt}")
        if setting.attribute:
            self.by_attribute[setting.attribute] = value
        if setting.effect == "removed":
            self.warn(f"setting {name} is deprecated and has no effect")
        elif setting.effect == "not yet" and wished:
            self.warn(f"setting {name} has no effect yet")


def _read_file(given: str | None, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return path and text of the ini file, or ``None`` when none was given and none is there."""
    path = given
    if path is None:
        directory = environ.get("LAVINMQ_CONFIGURATION_DIRECTORY") or _first_path(
            environ, "CONFIGURATION_DIRECTORY"
        )
        path = f"{directory or CONFIG_DIRECTORY}/{CONFIG_FILE}"
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if given is None:
            return None, ""
        raise ConfigError(f"Config could not be found: {path!r}") from None
    except OSError as error:
        raise ConfigError(f"Config {path!r} could not be read: {error.strerror}") from None
    except ValueError:  # a zero byte in the path
        raise ConfigError(f"Config could not be found: {path!r}") from None
    return path, _decode(path, content)


def _decode(path: str, content: bytes) -> str:
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"Config {path!r} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise ConfigError(f"Config {path!r} is not UTF-8 at line {line}, column {column}") from None


def _first_path(environ: Mapping[str, str], name: str) -> str:
    """Return the first of the paths in a variable; systemd separates several by colons."""
    return environ.get(name, "").partition(":")[0]


def _take_file(values: _Values, path: str, text: str) -> None:
    try:
        sections = ini.read(text)
    except ini.IniSyntaxError as error:
        raise ConfigError(f"Config {path!r}: {error}") from None
    table = {(setting.section, setting.key): setting for setting in SETTINGS}
    moved: list[tuple[Setting, str]] = []
    current: list[tuple[Setting, str]] = []
    for written, content in sections.items():
        if written.startswith("sni:"):
            _take_sni(values, written, content)
            continue
        section = _section(values, written)
        for key, value in content.items():
            place = MOVED.get((section, key))
            setting = table.get(place or (section, key))
            if setting is None:
                values.warn(f"Unknown setting {_quoted(key)} in section [{_plain(written)}]")
            elif place is None:
                current.append((setting, value))
            else:
                values.warn(f"setting '{key}' in [{written}] is deprecated, use {setting.name}")
                moved.append((setting, value))
    # A setting under its present name wins over its old one, wherever the two stand.
    for setting, value in moved + current:
        values.take(setting, value, "ini file")


def _section(values: _Values, written: str) -> str:
    if written == "http":
        values.warn("section [http] is deprecated, use [mgmt]")
        return "mgmt"
    if written == "replication":
        raise ConfigError("Section [replication] is no longer read, use [clustering]")
    if written not in SECTIONS:
        raise ConfigError(f"Unknown section [{_plain(written)}]")
    return written


def _take_sni(values: _Values, written: str, content: Mapping[str, str]) -> None:
    """Check a section ``[sni:<host name>]``.

    Source: configuration reference, section 5.
    """
    section = _plain(written)
    if not written.removeprefix("sni:").strip():
        raise ConfigError(f"Section [{section}] names no host")
    table = {setting.key: setting for setting in SNI}
    for key, value in content.items():
        prefix = next((prefix for prefix in SNI_PREFIXES if key.startswith(prefix)), "")
        setting = table.get(key.removeprefix(prefix))
        if setting is None:
            values.warn(f"Unknown setting {_quoted(key)} in section [{section}]")
            continue
        values.take(setting, value, "ini file", name=f"'{key}' in [{section}]")
    if not content.get("tls_cert"):
        values.warn(f"section [{section}] is ignored, it has no tls_cert")


def _take_fallbacks(values: _Values, environ: Mapping[str, str]) -> None:
    # Below the file: systemd sets STATE_DIRECTORY for every service that has one, which must not
    # make a data directory chosen in the file disappear.
    for setting in SETTINGS:
        text = _first_path(environ, setting.fallback)
        if text:
            values.take(setting, text, setting.fallback, wished=False)


def _take_environment(values: _Values, environ: Mapping[str, str]) -> None:
    for setting in SETTINGS:
        for variable in setting.variables:
            # An empty variable is the same as none: that is how container tools "unset" one.
            text = environ.get(variable)
            if text:
                values.take(setting, text, variable)
                break


def _plain(name: str) -> str:
    """Return a name from the file for a message: on one line and of bounded length."""
    return shown(name)[1:-1]


def _quoted(name: str) -> str:
    return f"'{_plain(name)}'"
