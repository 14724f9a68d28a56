"""Checks of a configuration that need the machine but no running broker: ``--check-config``.

Called by ``__main__``. Files that are named must be readable and hold what they should, addresses
must exist, and no two listeners may want the same place. Nothing is written, bound or connected,
so a running broker is not disturbed and does not disturb the answer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lavinmq.config.control_paths import CONTROL_PATHS
from lavinmq.config.settings import SETTINGS, SNI_PREFIXES, Setting
from lavinmq.config.values import Config

if TYPE_CHECKING:
    import ssl

    from lavinmq.config.service_unit import ServiceUnit

LISTENERS = (("amqp", "bind", "port"), ("amqp", "bind", "tls_port"),
             ("mqtt", "bind", "port"), ("mqtt", "bind", "tls_port"),
             ("mgmt", "bind", "port"), ("mgmt", "bind", "tls_port"),
             ("main", "metrics_http_bind", "metrics_http_port"))  # fmt: skip
OF_NODES = (("clustering", "bind", "port"),)
SOCKETS = (("main", "control_unix_path"), ("amqp", "unix_path"), ("mqtt", "unix_path"),
           ("mgmt", "unix_path"))  # fmt: skip
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
RUN = "/run"
WRITTEN = ("log_file", "pidfile", "tls_keylog_file")
SINGLE_SIGN_ON = ("issuer", "client_id", "mgmt_base_url")
_TABLE = {(setting.section, setting.key): setting for setting in SETTINGS}


def problems(config: Config) -> list[str]:
    """Return what would keep a broker with this configuration from starting, one line each."""
    found = [
        *_directory_problems(config),
        *_file_problems(config),
        *_address_problems(config),
        *_socket_problems(config),
        *_tls_problems(config),
        *_definitions_problems(config),
        *_service_problems(config, unit_of(config)),
    ]
    return [_placed(config, line) for line in found]


def _placed(config: Config, line: str) -> str:
    """Return a problem with the files of conf.d that gave the settings which it names."""
    named = (
        given.source
        for (section, key), given in config.given.items()
        if given.source in config.config_parts and f"'{key}' in [{section}]" in line
    )
    places = ", ".join(dict.fromkeys(named))
    return f"{line} ({places})" if places else line


def doubts(config: Config) -> list[str]:
    """Return what would start and is probably not meant, one line each."""
    return [*_sign_on_doubts(config), *_control_doubts(config, unit_of(config))]


def unit_of(config: Config) -> ServiceUnit | None:
    """The unit of the service that uses this very configuration file, if there is one."""
    from lavinmq.config.service_unit import installed

    unit, path = installed(), config.config_file
    if unit is None or path is None or not os.path.exists(unit.config_file):
        return None
    return unit if os.path.samefile(path, unit.config_file) else None


def _sign_on_doubts(config: Config) -> Iterator[str]:
    missing = [key for key in SINGLE_SIGN_ON if not value(config, "oauth", key)]
    if missing and len(missing) < len(SINGLE_SIGN_ON):
        yield f"single sign-on stays off: [oauth] has no {' and no '.join(missing)}"


def _control_doubts(config: Config, unit: ServiceUnit | None) -> Iterator[str]:
    path = value(config, "main", "control_unix_path")
    name = _TABLE["main", "control_unix_path"].name
    how = "give it --control-unix-path, or LAVINMQCTL_CONTROL_UNIX_PATH"
    if path and os.path.abspath(path) not in CONTROL_PATHS:
        looked = " and ".join(map(repr, CONTROL_PATHS))
        yield f"{name}: {path!r}: lavinmqctl looks for {looked} only: {how}"
    # Where nothing is given the unit's environment says where it is.
    is_given = ("main", "control_unix_path") in config.given
    if is_given and unit is not None and unit.hides_tmp and path.startswith("/tmp/"):
        yield (
            f"{name}: {path!r}: the service has a /tmp of its own, lavinmqctl does not see it:"
            f" use {CONTROL_PATHS[0]!r}"
        )


def _service_problems(config: Config, unit: ServiceUnit | None) -> Iterator[str]:
    """What systemd does not let the service do, which uses this file."""
    if unit is None:
        return
    for section, key in (("main", "data_dir"), *(("main", key) for key in WRITTEN), *SOCKETS):
        path = value(config, section, key)
        is_default = (section, key) not in config.given
        if path and not is_default and not unit.may_write(os.path.abspath(path)):
            yield _problem(
                section, key, path,
                "the service may not write there: add ReadWritePaths= (systemctl edit lavinmq)",
            )  # fmt: skip
    yield from _owner_problems(config.data_dir, unit.user)


def _owner_problems(data_dir: str, user: str) -> Iterator[str]:
    import pwd

    try:
        owner, service = os.stat(data_dir).st_uid, pwd.getpwnam(user).pw_uid
    except (OSError, KeyError):
        return
    if owner != service:
        yield _problem(
            "main", "data_dir", data_dir, f"the service runs as {user}, to whom it does not belong"
        )


def value(config: Config, section: str, key: str) -> Any:
    """Return the value of a setting, whether or not the broker has a use for it."""
    setting = _TABLE[section, key]
    given = config.given.get((section, key))
    return setting.kind.parse(given.text if given else setting.default)


def _directory_problems(config: Config) -> Iterator[str]:
    path = config.data_dir
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            yield _problem("main", "data_dir", path, "not readable and writable")
        return
    if os.path.lexists(path):
        yield _problem("main", "data_dir", path, "is no directory")
        return
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not (os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK)):
        yield _problem("main", "data_dir", path, f"cannot be made in {above!r}")


def _file_problems(config: Config) -> Iterator[str]:
    for key in WRITTEN:
        path = value(config, "main", key)
        if not path:
            continue
        directory = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            yield _problem("main", key, path, "is a directory")
        elif os.path.exists(path):
            if not os.access(path, os.W_OK):
                yield _problem("main", key, path, "not writable")
        elif not os.access(directory, os.W_OK | os.X_OK):
            yield _problem("main", key, path, f"cannot be made in {directory!r}")


def _address_problems(config: Config) -> Iterator[str]:
    import socket

    wanted: dict[int, list[tuple[str, str]]] = {}
    resolved: dict[str, str] = {}
    for section, bind, port_key in LISTENERS + (OF_NODES if config.clustering_enabled else ()):
        address, port = value(config, section, bind), value(config, section, port_key)
        # Port 0 is a free one; a TLS port opens only with a certificate.
        if port < 0 or (port_key == "tls_port" and not value(config, "main", "tls_cert")):
            continue
        if address not in resolved:
            try:
                socket.getaddrinfo(address, port, flags=socket.AI_PASSIVE)
                resolved[address] = ""
            except (OSError, UnicodeError) as error:
                resolved[address] = getattr(error, "strerror", None) or str(error)
        if resolved[address]:
            yield _problem(section, bind, address, resolved[address])
        name = _TABLE[section, port_key].name
        for other, taken in wanted.get(port, ()) if port else ():
            if taken == address or {taken, address} & ANY_ADDRESS:
                yield f"{other} and {name}: both are port {port} of {address}"
                break
        wanted.setdefault(port, []).append((name, address))


def _socket_problems(config: Config) -> Iterator[str]:
    wanted: dict[str, str] = {}
    for section, key in SOCKETS:
        path = value(config, section, key)
        if not path:
            continue
        name = _TABLE[section, key].name
        other = wanted.setdefault(os.path.abspath(path), name)
        directory = os.path.dirname(os.path.abspath(path))
        if not os.path.lexists(directory) and os.path.dirname(directory) == RUN:
            directory = RUN  # where the listener makes it
        if other != name:
            yield f"{name} and {other}: both are {path!r}"
        elif os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
            yield _problem(section, key, path, "is there and is no socket")
        elif not os.access(directory, os.W_OK | os.X_OK):
            yield _problem(section, key, path, f"cannot be made in {directory!r}")


def _definitions_problems(config: Config) -> Iterator[str]:
    import json

    path = value(config, "main", "load_definitions")
    if not path:
        return
    try:
        with open(path, "rb") as file:
            content = json.load(file)
    except OSError as error:
        yield _problem("main", "load_definitions", path, error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        yield _problem("main", "load_definitions", path, f"not JSON: {error}")
    else:
        if not isinstance(content, dict):
            yield _problem("main", "load_definitions", path, "not a JSON object")


def _tls_problems(config: Config) -> Iterator[str]:
    main = {
        key: value(config, "main", key)
        for key in ("tls_cert", "tls_key", "tls_ciphers", "tls_ca_cert", "tls_crl",
                    "tls_verify_peer")
    }  # fmt: skip
    yield from _context_problems("main", "", main)
    if config.clustering_enabled and config.clustering_tls_cert:
        keys = ("tls_cert", "tls_key", "tls_ca_cert", "tls_crl")
        nodes = {key: value(config, "clustering", key) for key in keys}
        yield from _context_problems("clustering", "", nodes | {"tls_verify_peer": True})
    hosts: dict[str, dict[str, Any]] = {}
    for (section, key), given in config.given.items():
        if section.startswith("sni:"):
            hosts.setdefault(section, {})[key] = given.text
    for section, texts in hosts.items():
        common = {key: text for key, text in texts.items() if not key.startswith(SNI_PREFIXES)}
        yield from _context_problems(section, "", common)
        for prefix in SNI_PREFIXES:
            own = {k.removeprefix(prefix): t for k, t in texts.items() if k.startswith(prefix)}
            if own:
                yield from _context_problems(section, prefix, {**common, **own})


def _context_problems(section: str, prefix: str, texts: dict[str, Any]) -> Iterator[str]:
    """Load the files of one certificate as a listener would."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key = texts.get("tls_cert"), texts.get("tls_key")
    if key and not certificate:
        yield f"'{prefix}tls_key' in [{section}]: there is no tls_cert"
    if certificate:
        unreadable = [path for path in (certificate, key) if path and not _is_readable(path)]
        for path in unreadable:
            name = "tls_cert" if path == certificate else "tls_key"
            yield _problem(section, prefix + name, path, "cannot be read")
        if not unreadable:
            yield from _load(context, section, prefix, certificate, key)
    for name in ("tls_ca_cert", "tls_crl"):
        path = texts.get(name)
        if path:
            try:
                is_directory = os.path.isdir(path)
                context.load_verify_locations(**{"capath" if is_directory else "cafile": path})
            except OSError as error:  # also what OpenSSL says
                yield _problem(section, prefix + name, path, _reason(error))
    if texts.get("tls_ciphers"):
        try:
            context.set_ciphers(texts["tls_ciphers"])
        except ssl.SSLError:
            yield _problem(section, prefix + "tls_ciphers", texts["tls_ciphers"], "no such cipher")
    verifies = texts.get("tls_verify_peer")
    boolean: Setting = _TABLE["main", "tls_verify_peer"]
    if isinstance(verifies, str):
        verifies = boolean.kind.parse(verifies)
    if verifies and not texts.get("tls_ca_cert"):
        yield f"'{prefix}tls_verify_peer' in [{section}]: there is no tls_ca_cert to verify with"


def _load(
    context: ssl.SSLContext, section: str, prefix: str, certificate: str, key: str | None
) -> Iterator[str]:
    def refuse() -> str:
        raise ValueError("the key is encrypted")

    try:
        context.load_cert_chain(certificate, key, password=refuse)
    except (OSError, ValueError) as error:
        yield _problem(section, f"{prefix}tls_cert", certificate, _reason(error))


def _reason(error: OSError | ValueError) -> str:
    """Return OpenSSL's word for what is wrong, or the system's."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).replace("_", " ").lower() if getattr(error, "reason", None) else str(reason)


def _is_readable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _problem(section: str, key: str, text: str, reason: str) -> str:
    return f"'{key}' in [{section}]: {text!r}: {reason}"
