"""A certificate authority for tests: servers, clients, expired ones, hosts, revocation lists.

Everything is written as PEM below one directory; keys are elliptic, so that making one takes a
fraction of a millisecond.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtensionOID, NameOID

DAY = timedelta(days=1)
ORGANISATION = "Acme, Inc."


class Identity(NamedTuple):
    """A certificate and its key."""

    cert: Path
    key: Path
    serial: int


class Authority:
    """Issues certificates; its own is `path`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.path = directory / f"{name}.pem"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            self._builder(self._name, self._key, DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: tuple[str, ...] = (),
        *,
        common_names: tuple[str, ...] | None = None,
        expires: timedelta = DAY,
        password: bytes | None = None,
        alternatives: tuple[x509.GeneralName, ...] = (),
        raw_alternatives: bytes = b"",
    ) -> Identity:
        """A certificate for a server (its hosts) or a client (its name), in files of that name.

        Args: raw_alternatives: the extension as it is encoded, whatever that is.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION)]
        for each in (name,) if common_names is None else common_names:
            subject.append(x509.NameAttribute(NameOID.COMMON_NAME, each))
        builder = self._builder(x509.Name(subject), key, expires)
        names = [*alternatives, *map(_general_name, hosts)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if raw_alternatives:
            raw = x509.UnrecognizedExtension(
                ExtensionOID.SUBJECT_ALTERNATIVE_NAME, raw_alternatives
            )
            builder = builder.add_extension(raw, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        cert_path, key_path = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        cert_path.write_bytes(certificate.public_bytes(Encoding.PEM))
        protection = BestAvailableEncryption(password) if password else NoEncryption()
        key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
        return Identity(cert_path, key_path, certificate.serial_number)

    def revoke(self, *revoked: Identity, name: str = "crl") -> Path:
        """Return the file of a revocation list with these certificates."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - DAY)
            .next_update(now + DAY)
        )
        for identity in revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(identity.serial)
                .revocation_date(now - DAY)
                .build()
            )
        path = self.directory / f"{name}.pem"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, expires: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * DAY)
            .not_valid_after(now + expires)
        )

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        """A context for clients that trust this authority, and show a certificate or none."""
        context = ssl.create_default_context(cafile=str(self.path))
        if identity is not None:
            context.load_cert_chain(identity.cert, identity.key)
        return context


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
