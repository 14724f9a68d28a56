"""Contexts of TLS from the configuration: which one for whom, and what cannot be used."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lavinmq.config.values import Config, defaults
from lavinmq.listeners.secure import SecureSocket, secured
from lavinmq.listeners.tls import Contexts, NameReader, Protocol, TlsError
from tests.support.certificates import Authority, Identity

if TYPE_CHECKING:
    from lavinmq.listeners.tls import Context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server", ("localhost",))


def config(identity: Identity | None = None, **values: Any) -> Config:
    made = defaults()
    if identity is not None:
        made.tls_cert, made.tls_key = str(identity.cert), str(identity.key)
    for name, value in values.items():
        setattr(made, name, value if isinstance(value, bool | dict) else str(value))
    return made


def loaded(identity: Identity | None = None, **values: Any) -> Contexts:
    contexts = Contexts(config(identity, **values))
    contexts.load()
    return contexts


@pytest.fixture(params=["amqp", "http"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """Links have contexts of ours, HTTP those of ssl: what is configured is the same for both."""
    made: Protocol = request.param
    return made


End = ssl.SSLSocket | SecureSocket


class Agreed(NamedTuple):
    """What a client sees of a handshake."""

    version: str | None
    cipher: str
    certificate: dict[str, Any]


def handshake(server: Context, client: ssl.SSLContext, name: str) -> Agreed:
    """Do one. Raises: ssl.SSLError of either end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    made = client.wrap_socket(theirs, server_hostname=name, do_handshake_on_connect=False)
    ends: tuple[End, ...] = (made, secured(server, ours))
    try:
        for _ in range(5):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        cipher, certificate = made.cipher(), made.getpeercert()
        assert cipher is not None
        assert certificate is not None
        return Agreed(made.version(), cipher[0], dict(certificate))
    finally:
        for end in ends:
            end.close()


def subject_of(identity: Identity) -> str:
    return identity.cert.stem


def shown_to(contexts: Contexts, protocol: Protocol, name: str, authority: Authority) -> str:
    """The common name of the certificate that a client of this host gets."""
    client = authority.client_context()
    client.check_hostname = False
    seen = handshake(contexts.choose(protocol, name), client, name).certificate
    return str(
        next(value for part in seen["subject"] for key, value in part if key == "commonName")
    )


# --- the simple case


def test_without_a_certificate_there_is_no_tls() -> None:
    assert not loaded().is_enabled


def test_a_key_may_be_in_the_file_of_its_certificate(
    protocol: Protocol, authority: Authority, server: Identity, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(server.cert.read_bytes() + server.key.read_bytes())

    contexts = loaded(tls_cert=both)

    assert contexts.is_enabled
    assert handshake(
        contexts.choose(protocol, None), authority.client_context(), "localhost"
    ).version in ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize(
    ("version", "oldest"),
    [
        ("", ssl.TLSVersion.TLSv1_2),
        ("1.2", ssl.TLSVersion.TLSv1_2),
        ("1.3", ssl.TLSVersion.TLSv1_3),
        ("1.1", ssl.TLSVersion.TLSv1_1),
        ("1.0", ssl.TLSVersion.TLSv1),
        ("7", ssl.TLSVersion.TLSv1_2),
    ],
)
def test_the_oldest_version_is_the_configured_one(
    protocol: Protocol, server: Identity, version: str, oldest: ssl.TLSVersion
) -> None:
    assert loaded(server, tls_min_version=version).choose(protocol, None).minimum_version == oldest


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("version", "works"), [("1.1", True), ("1.2", False)])
def test_tls_1_1_works_if_it_is_asked_for_and_only_then(
    protocol: Protocol, authority: Authority, server: Identity, version: str, works: bool
) -> None:
    client = authority.client_context()
    client.set_ciphers("DEFAULT:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    context = loaded(server, tls_min_version=version).choose(protocol, None)

    if works:
        assert handshake(context, client, "localhost").version == "TLSv1.1"
    else:
        with pytest.raises(ssl.SSLError):
            handshake(context, client, "localhost")


def test_the_cipher_list_is_the_configured_one(
    protocol: Protocol, authority: Authority, server: Identity
) -> None:
    client = authority.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    context = loaded(server, tls_ciphers="ECDHE-ECDSA-CHACHA20-POLY1305").choose(protocol, None)

    assert handshake(context, client, "localhost").cipher == "ECDHE-ECDSA-CHACHA20-POLY1305"


def test_session_keys_are_appended_to_the_file(
    protocol: Protocol, authority: Authority, server: Identity, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text("# before\n")
    context = loaded(server, tls_keylog_file=path).choose(protocol, None)

    handshake(context, authority.client_context(), "localhost")

    lines = path.read_text().splitlines()
    assert lines[0] == "# before"
    assert any("TRAFFIC_SECRET" in line for line in lines[1:])


# --- what cannot be used


def test_an_encrypted_key_is_a_clear_error(authority: Authority) -> None:
    with pytest.raises(TlsError, match=r"'tls_key' in \[main\]: .*locked.key' is encrypted"):
        loaded(authority.issue("locked", password=b"secret"))


def test_a_key_of_another_certificate_is_an_error(authority: Authority, server: Identity) -> None:
    other = authority.issue("other")

    with pytest.raises(TlsError, match="key values mismatch"):
        loaded(Identity(server.cert, other.key, 0))


@pytest.mark.parametrize("key", ["tls_cert", "tls_key", "tls_ca_cert", "tls_crl"])
def test_a_file_that_is_missing_is_named(authority: Authority, server: Identity, key: str) -> None:
    values: dict[str, Any] = {"tls_ca_cert": authority.path, key: "/no/such/file"}

    with pytest.raises(TlsError, match=rf"'{key}' in \[main\]: '/no/such/file': no such file"):
        loaded(server, tls_verify_peer=True, **values)


@pytest.mark.parametrize("key", ["tls_cert", "tls_ca_cert"])
def test_a_file_without_a_certificate_is_an_error(
    authority: Authority, server: Identity, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "text"
    path.write_text("hello\n")
    values: dict[str, Any] = {"tls_ca_cert": authority.path, key: path}

    with pytest.raises(TlsError, match=rf"'{key}' in \[main\]"):
        loaded(server, tls_verify_peer=True, **values)


def test_a_pipe_does_not_hold_up_the_broker(server: Identity, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(TlsError, match="is no file"):
        loaded(server, tls_cert=tmp_path / "pipe")


def test_clients_cannot_be_verified_without_an_authority(server: Identity) -> None:
    with pytest.raises(TlsError, match=r"'tls_verify_peer' in .* needs 'tls_ca_cert'"):
        loaded(server, tls_verify_peer=True)


def test_a_list_that_revokes_nothing_because_it_is_none_is_an_error(
    authority: Authority, server: Identity
) -> None:
    with pytest.raises(TlsError, match="holds no revocation list"):
        loaded(server, tls_verify_peer=True, tls_ca_cert=authority.path, tls_crl=server.cert)


@pytest.mark.parametrize(
    ("key", "value"), [("tls_ciphers", "NONSENSE"), ("tls_keylog_file", "/no/such/file")]
)
def test_other_values_that_cannot_be_used_are_named(server: Identity, key: str, value: str) -> None:
    with pytest.raises(TlsError, match=rf"'{key}' in \[main\]: '{value}'"):
        loaded(server, **{key: value})


def test_an_error_of_a_host_names_its_section(server: Identity) -> None:
    with pytest.raises(TlsError, match=r"'tls_cert' in \[sni:a\.example\]: '/no'"):
        loaded(server, sni={"a.example": {"tls_cert": "/no"}})


def test_a_broken_reload_leaves_everything_in_force(
    protocol: Protocol, authority: Authority, server: Identity
) -> None:
    contexts = loaded(server)
    before = contexts.choose(protocol, None)
    contexts._config.tls_cert = "/no/such/file"

    with pytest.raises(TlsError):
        contexts.load()

    assert contexts.choose(protocol, None) is before


def test_a_reload_without_certificate_leaves_that_of_open_ports(server: Identity) -> None:
    contexts = loaded(server)
    contexts._config.tls_cert = None

    contexts.load()

    assert contexts.is_enabled


# --- hosts


def test_a_host_is_found_exactly_before_by_wildcard(
    protocol: Protocol, authority: Authority, server: Identity
) -> None:
    names = {"a.example.com": "exact", "*.example.com": "wildcard"}
    sni = {}
    for host, name in names.items():
        identity = authority.issue(name)
        sni[host] = {"tls_cert": str(identity.cert), "tls_key": str(identity.key)}
    contexts = loaded(server, sni=sni)

    assert contexts.has_hosts(protocol)
    for asked, expected in (
        ("a.example.com", "exact"),
        ("A.Example.COM", "exact"),
        ("b.example.com", "wildcard"),
        ("x.b.example.com", "server"),
        ("example.com", "server"),
        ("localhost", "server"),
    ):
        assert shown_to(contexts, protocol, asked, authority) == expected, asked


def test_a_host_has_a_key_of_its_own_and_the_rest_from_main(
    protocol: Protocol, authority: Authority, server: Identity
) -> None:
    identity = authority.issue("host")
    sni = {"a": {"tls_cert": str(identity.cert), "tls_key": str(identity.key)}}

    strict = loaded(
        server, sni=sni, tls_min_version="1.3", tls_verify_peer=True, tls_ca_cert=authority.path
    ).choose(protocol, "a")

    assert strict.minimum_version == ssl.TLSVersion.TLSv1_3
    assert strict.verify_mode == ssl.CERT_REQUIRED


def test_a_host_may_be_less_strict_than_main(
    protocol: Protocol, authority: Authority, server: Identity
) -> None:
    identity = authority.issue("lax")
    section = {
        "tls_cert": str(identity.cert),
        "tls_key": str(identity.key),
        "tls_verify_peer": False,
        "tls_min_version": "1.2",
    }
    contexts = loaded(
        server, sni={"a": section}, tls_min_version="1.3", tls_verify_peer=True,
        tls_ca_cert=authority.path,
    )  # fmt: skip

    assert contexts.choose(protocol, "a").verify_mode == ssl.CERT_NONE
    assert contexts.choose(protocol, "a").minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_prefix_is_for_one_protocol(authority: Authority, server: Identity) -> None:
    section = {
        "tls_cert": str(server.cert),
        "tls_key": str(server.key),
        "tls_min_version": "1.2",
        "mqtt_tls_min_version": "1.3",
    }
    contexts = loaded(server, sni={"a": section})

    assert contexts.choose("mqtt", "a").minimum_version == ssl.TLSVersion.TLSv1_3
    for protocol in ("amqp", "http"):
        assert contexts.choose(protocol, "a").minimum_version == ssl.TLSVersion.TLSv1_2


def test_equal_contexts_are_one(server: Identity) -> None:
    section = {"tls_cert": str(server.cert), "tls_key": str(server.key)}

    contexts = loaded(server, sni={"a": section, "b": section})

    assert contexts.choose("http", "a") is contexts.choose("http", "b")
    assert contexts.choose("amqp", "a") is contexts.choose("mqtt", None)


# --- what a client asks for


def hello(name: str | None) -> bytes:
    client = ssl.create_default_context()
    client.check_hostname = False
    out = ssl.MemoryBIO()
    end = client.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        end.do_handshake()
    return out.read()


@pytest.mark.parametrize("name", ["mq.example.com", None])
def test_the_host_is_read_from_the_first_bytes(name: str | None) -> None:
    reader = NameReader()

    assert reader.read(hello(name)) == name
    assert reader.read(hello("other")) == "other"


def test_a_part_of_the_first_bytes_is_not_enough() -> None:
    data = hello("mq.example.com")

    for end in range(0, len(data), 16):
        with pytest.raises(ssl.SSLWantReadError):
            NameReader().read(data[:end])


@pytest.mark.parametrize(
    "data", [b"AMQP\x00\x00\x09\x01" * 4, b"GET / HTTP/1.1\r\n\r\n", b"\x16" * 64]
)
def test_what_is_no_tls_asks_for_no_host(data: bytes) -> None:
    assert NameReader().read(data) is None


def test_demanding_client_certificates_without_an_authority_is_refused_without_tls_too() -> None:
    with pytest.raises(TlsError, match=r"'tls_verify_peer' in \[main\] needs 'tls_ca_cert'"):
        loaded(tls_verify_peer=True)


def test_contexts_for_other_settings_count_once_they_are_taken(
    authority: Authority, server: Identity, protocol: Protocol
) -> None:
    contexts = loaded(server)
    fresh = contexts.anew(config(authority.issue("fresh", ("localhost",))))
    fresh.load()
    assert shown_to(contexts, protocol, "localhost", authority) == "server"

    contexts.take(fresh)

    assert shown_to(contexts, protocol, "localhost", authority) == "fresh"
    contexts.take(contexts.anew(config()))  # ports are open that need one
    assert shown_to(contexts, protocol, "localhost", authority) == "fresh"
