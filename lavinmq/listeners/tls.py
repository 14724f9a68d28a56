"""TLS contexts from the configuration: certificates, versions, client certificates, per host.

Owned by the server; listeners ask `Contexts.choose` for the context of a connection. Everything is
built before anything is swapped in, so a broken file leaves what was there in force. Contexts that
would be equal are one. Links get those of `_tls`, which read and write without Python; HTTP gets
those of ssl, which its library knows. One reading of the settings makes both.
Source: docs/listeners.md.

The host a client asks for is looked up before its handshake begins (`server_name`): OpenSSL can
change the certificate in the course of a handshake, but not whether a client has to show its own.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from lavinmq.config.values import ConfigError
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq import _tls
    from lavinmq.config.values import Config

    Context = ssl.SSLContext | _tls.Context

Protocol = Literal["amqp", "mqtt", "http"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("amqp", "mqtt", "http")
VERSIONS: Final = {
    "1.0": ssl.TLSVersion.TLSv1,
    "1.1": ssl.TLSVersion.TLSv1_1,
    "1.2": ssl.TLSVersion.TLSv1_2,
    "1.3": ssl.TLSVersion.TLSv1_3,
}
OLD_VERSIONS: Final = ("1.0", "1.1")
OLD_SECURITY: Final = "@SECLEVEL=0"
"""OpenSSL 3 has TLS 1.0 and 1.1 on this level of security only."""
OP_ENABLE_KTLS: Final = 1 << 3
"""Python names it since 3.12; OpenSSL has it since 3.0."""
TCP_ULP: Final = 31
KERNEL_PROTOCOLS: Final = "/proc/sys/net/ipv4/tcp_available_ulp"
MAX_HELLO: Final = 16384 + 5
"""Bytes of a client's first record, by which it must have said what host it wants."""
_log = log.get("lmq.tls")


class TlsError(ConfigError):
    """TLS cannot be had as the configuration wants it; the text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Options:
    """What makes one context."""

    cert: str
    key: str | None
    min_version: str
    ciphers: str
    verify_peer: bool
    ca_cert: str | None
    crl: str | None
    keylog_file: str | None
    ktls: bool


class Contexts:
    """The contexts of a broker by protocol and host.

    Args: config: the values in force; read again by `load` and `loading`.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._main: dict[Protocol, Context] = {}
        self._hosts: dict[Protocol, dict[str, Context]] = {}
        self._scratch: _tls.Scratch | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether there is a certificate, so that TLS ports open."""
        return bool(self._main)

    def load(self) -> None:
        """Build everything now. Raises: TlsError; then nothing has changed."""
        for _ in self.loading():
            pass

    def loading(self) -> Iterator[None]:
        """Build one context in each step, and put them in force in the last one.

        Without a certificate those of before stay. Raises: TlsError; then nothing has changed.
        """
        config = self._config
        if not config.tls_cert and config.tls_verify_peer:
            _check_authority(config.tls_ca_cert, "[main]")  # nobody else looks without TLS
        if not config.tls_cert and self._main:
            return  # ports are open that need it
        made: dict[tuple[bool, Options], Context] = {}
        main: dict[Protocol, Context] = {}
        hosts: dict[Protocol, dict[str, Context]] = {name: {} for name in PROTOCOLS}
        if config.tls_cert:
            for protocol in PROTOCOLS:
                for host, section in ((None, {}), *config.sni.items()):
                    options = _options(config, protocol, host, section)
                    kind = protocol == "http", options
                    if kind not in made:
                        made[kind] = self._new(protocol)
                        set_up(made[kind], options, f"[sni:{host}]" if host else "[main]")
                        yield
                    if host:
                        hosts[protocol][host] = made[kind]
                    else:
                        main[protocol] = made[kind]
            if config.tls_ktls:
                _check_kernel_tls()
        self._main, self._hosts = main, hosts

    def anew(self, config: Config) -> Contexts:
        """Those of other settings, to `load` and then, when all else is good as well, `take`."""
        fresh = Contexts(config)
        fresh._scratch = self._scratch
        return fresh

    def take(self, fresh: Contexts) -> None:
        """Put in force what was loaded for other settings, which the broker takes over as well.
        Without a certificate those of before stay: ports are open that need one."""
        self._scratch = fresh._scratch
        if fresh.is_enabled or not self.is_enabled:
            self._main, self._hosts = fresh._main, fresh._hosts

    def _new(self, protocol: Protocol) -> Context:
        """Return an empty context."""
        if protocol == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        from lavinmq import _tls

        if self._scratch is None:
            self._scratch = _tls.Scratch()
        return _tls.Context(self._scratch)

    def has_hosts(self, protocol: Protocol) -> bool:
        """Whether it matters which host a client asks for."""
        return bool(self._hosts[protocol])

    def choose(self, protocol: Protocol, name: str | None) -> Context:
        """Return the context for a client that asks for a host: the exact one, `*.` and the rest
        after the first label, or that of [main]."""
        hosts = self._hosts[protocol]
        name = (name or "").lower().rstrip(".")
        context = hosts.get(name) or hosts.get("*." + name.partition(".")[2])
        return context or self._main[protocol]


def _options(
    config: Config, protocol: Protocol, host: str | None, section: Mapping[str, Any]
) -> Options:
    """Return what makes the context of a host, or of [main]."""

    def value(key: str, main: Any) -> Any:
        for name in (f"{protocol}_{key}", key):
            if section.get(name) not in (None, ""):
                return section[name]
        return main

    # A host has a certificate and key of its own; the rest is as in [main] unless it differs.
    return Options(
        cert=value("tls_cert", None if host else config.tls_cert),
        key=value("tls_key", None if host else config.tls_key),
        min_version=value("tls_min_version", config.tls_min_version),
        ciphers=value("tls_ciphers", config.tls_ciphers),
        verify_peer=value("tls_verify_peer", config.tls_verify_peer),
        ca_cert=value("tls_ca_cert", config.tls_ca_cert),
        crl=value("tls_crl", config.tls_crl),
        keylog_file=value("tls_keylog_file", config.tls_keylog_file),
        ktls=config.tls_ktls,
    )


def set_up(context: Context, options: Options, section: str) -> None:
    """Make an empty context what the options say. Args: section: names it in errors.

    Raises: TlsError.
    """
    context.options |= ssl.OP_NO_RENEGOTIATION
    if options.ktls:
        context.options |= OP_ENABLE_KTLS
    _set_versions(context, options, section)
    _load_certificate(context, options, section)
    if options.verify_peer:
        _verify_clients(context, options, section)
    elif options.crl:
        _log.warning("'tls_crl' in %s has no effect without 'tls_verify_peer'", section)
    if options.keylog_file:
        try:
            context.keylog_filename = options.keylog_file
        except OSError as error:
            raise _error("tls_keylog_file", section, options.keylog_file, error) from None
        _log.warning("keys of TLS sessions are written to %s", options.keylog_file)


def _set_versions(context: Context, options: Options, section: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # whoever asks for 1.0 knows
        context.minimum_version = VERSIONS.get(options.min_version, ssl.TLSVersion.TLSv1_2)
    ciphers = options.ciphers
    if options.min_version in OLD_VERSIONS and "@SECLEVEL" not in ciphers:
        ciphers = f"{ciphers or 'DEFAULT'}:{OLD_SECURITY}"
    if ciphers:
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise _error("tls_ciphers", section, options.ciphers, error) from None


def _load_certificate(context: Context, options: Options, section: str) -> None:
    key = options.key or options.cert

    def refuse() -> str:  # else OpenSSL asks at the terminal
        raise TlsError(f"'tls_key' in {section}: {key!r} is encrypted, which is not supported")

    for name, path in (("tls_cert", options.cert), ("tls_key", key)):
        _check_readable(name, section, path)
    try:
        context.load_cert_chain(options.cert, options.key, password=refuse)
    except ssl.SSLError as error:
        where = options.cert if options.key is None else f"{options.cert} with {options.key}"
        raise _error("tls_cert", section, where, error) from None


def _verify_clients(context: Context, options: Options, section: str) -> None:
    authority = _check_authority(options.ca_cert, section)
    context.verify_mode = ssl.CERT_REQUIRED
    if os.path.isdir(authority):
        _load_directory(context, authority, section)
    else:
        _load_authorities(context, "tls_ca_cert", authority, section)
    if not context.cert_store_stats()["x509_ca"]:
        raise TlsError(f"'tls_ca_cert' in {section}: {authority!r} holds no authority")
    if options.crl:
        before = context.cert_store_stats()["crl"]
        _load_authorities(context, "tls_crl", options.crl, section)
        if context.cert_store_stats()["crl"] == before:
            raise TlsError(f"'tls_crl' in {section}: {options.crl!r} holds no revocation list")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _check_authority(path: str | None, section: str) -> str:
    """Return the place of what client certificates are verified with. Raises: TlsError."""
    if not path:
        raise TlsError(f"'tls_verify_peer' in {section} needs 'tls_ca_cert'")
    return path


def _load_directory(context: Context, directory: str, section: str) -> None:
    """Take every certificate in a directory, whatever its files are called."""
    try:
        paths = [entry.path for entry in os.scandir(directory) if entry.is_file()]
    except OSError as error:
        raise _error("tls_ca_cert", section, directory, error) from None
    for path in sorted(paths):
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError:
            _log.debug("%s holds no certificate", path)
        except OSError as error:
            raise _error("tls_ca_cert", section, path, error) from None


def _load_authorities(context: Context, key: str, path: str, section: str) -> None:
    _check_readable(key, section, path)
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise _error(key, section, path, error) from None


def _check_readable(key: str, section: str, path: str) -> None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would hold up the broker
            raise OSError(errno.EINVAL, "is no file")
        with open(path, "rb"):
            pass
    except OSError as error:
        raise _error(key, section, path, error) from None


def _error(key: str, section: str, value: str, error: OSError) -> TlsError:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return TlsError(f"{key!r} in {section}: {value!r}: {reason.replace('_', ' ').lower()}")


def _check_kernel_tls() -> None:
    """Say why TLS in the kernel will not happen, as far as that can be known."""
    try:
        with open(KERNEL_PROTOCOLS, encoding="ascii") as file:
            is_there = "tls" in file.read().split()
    except OSError:
        is_there = False
    if ssl.OPENSSL_VERSION_INFO < (3, 0):
        _log.warning("'tls_ktls' has no effect: %s is older than 3.0", ssl.OPENSSL_VERSION)
    elif not is_there:
        _log.warning("'tls_ktls' has no effect: the kernel's module tls is not loaded")


def is_in_kernel(sock: socket.socket) -> bool:
    """Whether the kernel does the TLS of a connection."""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, TCP_ULP, 16).startswith(b"tls")
    except OSError:
        return False


class NameReader:
    """Finds the host that a client asks for in the first bytes that it sends.

    OpenSSL reads them itself, in a handshake that ends there: no parser of ours meets them.
    """

    def __init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._context.minimum_version = ssl.TLSVersion.TLSv1
        self._context.set_ciphers(f"ALL:{OLD_SECURITY}")
        self._context.sni_callback = self._found
        self._name: str | None = None

    def read(self, data: bytes) -> str | None:
        """Return the host, or None when it asks for none or speaks no TLS.

        Raises: ssl.SSLWantReadError when the bytes do not suffice. Cost: 20 µs.
        """
        incoming = ssl.MemoryBIO()
        incoming.write(data)
        self._name = None
        handshake = self._context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
        try:
            handshake.do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError:
            pass
        return self._name

    def _found(self, _: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        self._name = name
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
