"""Gathers the texts of all sources of settings, checks them, and notes where each came from.

Used by ``values.py``, which says in what order the sources come; a later one replaces what an
earlier one gave. Here is what can be read (ini file, variables, files that variables name) and
what is said about mistakes. Nothing is printed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from lavinmq import missing
from lavinmq.config import ini
from lavinmq.config.conf_d import Part, read_parts
from lavinmq.config.setting_types import is_boolean, shown
from lavinmq.config.settings import (
    MOVED,
    SAY_NOTHING_ALONE,
    SECTIONS,
    SETTINGS,
    SNI,
    SNI_PREFIXES,
    ConfigError,
    Setting,
)
from lavinmq.nearest import hint, nearest

CONFIG_FILE = "lavinmq.ini"
CONFIG_DIRECTORY = "/etc/lavinmq"
MAX_FILE_BYTES = 1 << 20
INI_FILE = "ini file"
PREFIX = "LAVINMQ_"
OTHER_VARIABLES = frozenset({"LAVINMQ_CONFIGURATION_DIRECTORY"})
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)")


class Given(NamedTuple):
    """What a source said about a setting."""

    text: str
    """As it stood there."""
    source: str
    """``ini file``, the path of one of conf.d, or the name of a variable, a flag or ``keyword``."""


class Values:
    """The values gathered so far.

    Args: errors: takes what is wrong, one line each, and the setting keeps its earlier value;
        without it the first mistake raises ``ConfigError``.
    """

    def __init__(self, errors: list[str] | None = None) -> None:
        self.warnings: list[str] = []
        self.given: dict[tuple[str, str], Given] = {}
        self._errors = errors
        self.by_attribute: dict[str, Any] = {
            setting.attribute: setting.kind.parse(setting.default)
            for setting in SETTINGS
            if setting.attribute
        }
        self.sni: dict[str, dict[str, Any]] = {}
        self.by_attribute["sni"] = self.sni

    def warn(self, text: str) -> None:
        """Note a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def refuse(self, text: str) -> None:
        """Note an error. Raises: ``ConfigError``, unless errors are gathered."""
        if self._errors is None:
            raise ConfigError(text) from None
        self._errors.append(text)

    def note_unknown(self, text: str, meant: Setting | None) -> None:
        """Note a name that sets nothing: as an error where a slip in it leaves data or access
        without what protects them, else as a warning. Raises: as `refuse`.

        Args: meant: the setting whose name is most like it.
        """
        if meant is not None and meant.kind.is_safeguard:
            self.refuse(f"{text} Data or access hang on that one: it is not left off by a slip")
        else:
            self.warn(text)

    def take(
        self, setting: Setting, text: str, source: str, *, name: str = "", wished: bool = True
    ) -> None:
        """Check a text and keep its value; ``name`` replaces the name the table gives."""
        name = name or setting.name
        try:
            value = self._checked(setting, text, source, name)
        except ValueError:
            return
        if setting.attribute:
            self.by_attribute[setting.attribute] = value
        self.given[setting.section, setting.key] = Given(text, source)
        if setting.effect == "removed":
            self.warn(f"setting {name} is deprecated and has no effect")
        elif setting.effect == "not yet" and wished:
            why = missing.of_section(setting.section)
            self.warn(f"setting {name} has no effect yet" + (f": {why}" if why else ""))

    def take_of_host(
        self, host: str, key: str, setting: Setting, given: Given, section: str
    ) -> None:
        """Check a text of a section ``[sni:<host>]`` and keep its value; ``key`` has its prefix."""
        with suppress(ValueError):
            name = f"'{key}' in [{_plain(section)}]"
            value = self._checked(setting, given.text, given.source, name)
            self.sni.setdefault(host, {})[key] = value
            self.given[section, key] = given

    def _checked(self, setting: Setting, text: str, source: str, name: str) -> object:
        """Return the value. Raises: ``ConfigError``, or ValueError when errors are gathered."""
        try:
            value = setting.kind.parse(text)
        except ValueError as error:
            self.refuse(f"Failed to handle value for {name} ({source}): {error}")
            raise
        doubt = setting.kind.doubt(text)
        if doubt:
            self.warn(f"{name} ({source}): {doubt}")
        return value


class Files(NamedTuple):
    """What was found of the ini file and the directory conf.d beside it."""

    path: str | None
    """Of the ini file; ``None`` when none was given and none is there."""
    text: str
    parts: list[Part]
    """The files of conf.d, in the order in which they count."""
    ignored: list[str]
    """One line for each file of conf.d that does not count."""


def read_files(given: str | None, environ: Mapping[str, str]) -> Files:
    """Read the ini file and those of conf.d. Raises: ``ConfigError``."""
    path = given
    if path is None:
        directory = environ.get("LAVINMQ_CONFIGURATION_DIRECTORY") or _first_path(
            environ, "CONFIGURATION_DIRECTORY"
        )
        path = f"{directory or CONFIG_DIRECTORY}/{CONFIG_FILE}"
    found, text = _read_file(path, given)
    parts = read_parts(path, MAX_FILE_BYTES - len(text))
    return Files(found, text, parts.read, parts.ignored)


def _read_file(path: str, given: str | None) -> tuple[str | None, str]:
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


def take_files(values: Values, files: Files) -> None:
    """Take the settings of the ini file, then those of conf.d. Raises: ``ConfigError``."""
    hosts: dict[str, dict[str, Given]] = {}
    if files.path is not None:
        _take_file(values, files.path, files.text, INI_FILE, hosts)
    for path, content in files.parts:
        try:
            text = _decode(path, content)
        except ConfigError as error:
            values.refuse(str(error))
        else:
            _take_file(values, path, text, path, hosts)
    # When all files were read: one may have the certificate, another what goes with it.
    for written, content_of_host in hosts.items():
        _take_sni(values, written, content_of_host)


def _take_file(
    values: Values, path: str, text: str, source: str, hosts: dict[str, dict[str, Given]]
) -> None:
    """Take the settings of one file; ``hosts`` gathers sections ``[sni:<host>]``."""
    try:
        sections = ini.read(text)
    except ini.IniSyntaxError as error:
        values.refuse(f"Config {path!r}: {error}")
        return
    table = {(setting.section, setting.key): setting for setting in SETTINGS}
    moved: list[tuple[Setting, str]] = []
    current: list[tuple[Setting, str]] = []
    for written, content in sections.items():
        if written.startswith("sni:"):
            given = {key: Given(value, source) for key, value in content.items()}
            hosts.setdefault(written, {}).update(given)
            continue
        section = _section(values, written, source)
        for key, value in content.items() if section else ():
            place = MOVED.get((section, key))
            setting = table.get(place or (section, key))
            if setting is None:
                known = {name: each for (place, name), each in table.items() if place == section}
                _note_unknown(values, key, written, source, known)
            elif place is None:
                current.append((setting, value))
            else:
                old = f"'{key}' in [{written}]{_place(source)}"
                values.warn(f"setting {old} is deprecated, use {setting.name}")
                moved.append((setting, value))
    # A setting under its present name wins over its old one, wherever the two stand.
    for setting, value in moved + current:
        values.take(setting, value, source)


def _note_unknown(
    values: Values, key: str, written: str, source: str, known: Mapping[str, Setting]
) -> None:
    """Note a key that its section does not have. Args: known: those that it has.

    Another section may have that very key: then it was meant, and stands in the wrong place.
    """
    elsewhere = [each for each in SETTINGS if each.key == key and key not in SAY_NOTHING_ALONE]
    if len(elsewhere) == 1:
        meant: Setting | None = elsewhere[0]
        guess = f", did you mean {elsewhere[0].name}?"
    else:
        meant, guess = known.get(nearest(key, known)), hint(key, known)
    text = f"Unknown setting {_quoted(key)} in section [{_plain(written)}]{_place(source)}{guess}"
    values.note_unknown(text, meant)


def _place(source: str) -> str:
    """Where something stands, for a message; nothing for the one ini file."""
    return "" if source == INI_FILE else f" ({source})"


def _section(values: Values, written: str, source: str) -> str:
    """Return the present name of a section, or nothing for one that is refused."""
    if written == "http":
        values.warn(f"section [http]{_place(source)} is deprecated, use [mgmt]")
        return "mgmt"
    if written in SECTIONS:
        return written
    if written == "replication":
        values.refuse(f"Section [replication]{_place(source)} is no longer read, use [clustering]")
    else:
        values.refuse(
            f"Unknown section [{_plain(written)}]{_place(source)}{hint(written, SECTIONS)}"
        )
    return ""


def _take_sni(values: Values, written: str, content: Mapping[str, Given]) -> None:
    """Check a section ``[sni:<host name>]``.

    Source: docs/configuration.md.
    """
    section = _plain(written)
    host = written.removeprefix("sni:").strip().lower().rstrip(".")
    if not host:
        values.refuse(f"Section [{section}] names no host")
        return
    table = {setting.key: setting for setting in SNI}
    for key, given in content.items():
        prefix = next((prefix for prefix in SNI_PREFIXES if key.startswith(prefix)), "")
        setting = table.get(key.removeprefix(prefix))
        if setting is None:
            _note_unknown(values, key, written, given.source, table)
            continue
        values.take_of_host(host, key, setting, given, written)
    if "tls_cert" not in content or not content["tls_cert"].text:
        kept = values.sni.pop(host, {})
        if any(key.endswith("tls_verify_peer") and on for key, on in kept.items()):
            values.refuse(
                f"section [{section}] demands client certificates and has no tls_cert, without"
                " which it is ignored: nobody would be asked for one. Add tls_cert"
            )
            return
        values.warn(f"section [{section}] is ignored, it has no tls_cert")


def take_fallbacks(values: Values, environ: Mapping[str, str]) -> None:
    """Take what others than the operator have set. Raises: ``ConfigError``."""
    # Below the file: systemd sets STATE_DIRECTORY for every service that has one, which must not
    # make a data directory chosen in the file disappear. The unit of packages sets the place of the
    # control socket, for files of the original that do not name one.
    for setting in SETTINGS:
        text = _first_path(environ, setting.fallback)
        if text:
            values.take(setting, text, setting.fallback, wished=False)


def take_environment(values: Values, environ: Mapping[str, str]) -> None:
    """Take the variables of every setting, the strongest of those that are there.

    Raises: ``ConfigError``.
    """
    for setting in SETTINGS:
        found = _variables_of(values, setting, environ)
        if not found:
            continue
        winner = found[0]
        for other in found[1:]:
            if other.text != winner.text:
                values.warn(f"{winner.source} and {other.source} differ, {winner.source} counts")
        values.take(setting, winner.text, winner.source)


def unknown_variables(values: Values, environ: Mapping[str, str]) -> None:
    """Tell of variables that begin like ours and set nothing: a slip would go unnoticed.

    Raises: ``ConfigError`` for one that is like that of a safeguard.
    """
    known: dict[str, Setting | None] = dict.fromkeys(OTHER_VARIABLES)
    for setting in SETTINGS:
        known |= dict.fromkeys((*setting.variables, setting.fallback), setting)
    # Without what all begin with: that alone makes any two of them alike.
    ends = {name.removeprefix(PREFIX): name for name in known if name.startswith(PREFIX)}
    for name in sorted(environ):
        plain = name.removesuffix("_FILE")
        if not name.startswith(PREFIX) or plain in known:
            continue
        # Kubernetes describes every service of the name space to every program.
        if _OF_KUBERNETES.search(name) or "://" in environ[name]:
            continue
        meant = ends.get(nearest(plain.removeprefix(PREFIX), ends), "")
        guess = f", did you mean '{meant}'?" if meant else ""
        # Programs and images have variables of their own; one that says yes or no is a slip.
        is_slip = plain != name or (environ[name] and is_boolean(environ[name]))
        values.note_unknown(
            f"Unknown variable {_quoted(name)} sets nothing{guess}",
            known.get(meant) if is_slip else None,
        )


def _variables_of(values: Values, setting: Setting, environ: Mapping[str, str]) -> list[Given]:
    """Return what the variables of a setting say, the strongest first."""
    found = []
    for variable in dict.fromkeys(setting.variables):
        # An empty variable is the same as none: that is how container tools "unset" one.
        text = environ.get(variable)
        if text:
            found.append(Given(text, variable))
        path = environ.get(f"{variable}_FILE")
        if path:
            try:
                found.append(Given(_read_secret(path), f"{variable}_FILE"))
            except (ConfigError, OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                values.refuse(
                    f"Failed to handle value for {setting.name} ({variable}_FILE):"
                    f" {shown(path)}: {reason}"
                )
    return found


def _read_secret(path: str) -> str:
    """Return the stripped content of a file. Raises: OSError, ValueError, ``ConfigError``."""
    # Not blocking: a pipe without a writer would hold the whole broker up at a reload.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError("is no regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:  # its own text would quote the content
        raise ConfigError("is not UTF-8") from None
    if not text:  # an empty password file must not open the door with the default password
        raise ConfigError("is empty")
    return text


def _plain(name: str) -> str:
    """Return a name from the file for a message: on one line and of bounded length."""
    return shown(name)[1:-1]


def _quoted(name: str) -> str:
    return f"'{_plain(name)}'"
