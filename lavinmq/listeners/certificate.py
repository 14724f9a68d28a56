"""The user whom a client certificate names, for SASL EXTERNAL.

Takes a certificate that has been verified, in the form of `ssl.SSLSocket.getpeercert`. What is not
clear names nobody: a certificate with two common names must not log in as whichever comes first.
Source: docs/listeners.md, RFC 4514 for distinguished names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Certificate = Mapping[str, Any]
SHORT_NAMES: Final = {
    "commonName": "CN", "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
    "organizationName": "O", "organizationalUnitName": "OU", "streetAddress": "STREET",
    "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
ALTERNATIVE_KINDS: Final = ("DNS", "email", "URI")
"""The kinds of alternative names that can be a user, the one that counts first."""
SPECIAL: Final = '\\",+;<>'


def common_name(certificate: Certificate) -> str | None:
    """Return the common name of the subject, if it has exactly one."""
    names = [
        value for parts in certificate.get("subject", ()) for key, value in parts
        if key == "commonName"
    ]  # fmt: skip
    return names[0] if len(names) == 1 and names[0] else None


def distinguished_name(certificate: Certificate) -> str | None:
    """Return the subject as RFC 4514 writes it, its end first: `CN=client,O=Acme`."""
    parts = [
        "+".join(f"{SHORT_NAMES.get(key, key)}={_escaped(value)}" for key, value in part)
        for part in reversed(certificate.get("subject", ()))
    ]
    return ",".join(parts) or None


def subject_alternative_name(certificate: Certificate) -> str | None:
    """Return the first alternative name: of hosts, or else of mail addresses, or else of URIs."""
    names = certificate.get("subjectAltName", ())
    for wanted in ALTERNATIVE_KINDS:
        for kind, value in names:
            if kind == wanted and value:
                return str(value)
    return None


def _escaped(value: str) -> str:
    text = "".join(f"\\{char}" if char in SPECIAL else char for char in value)
    text = text.replace("\0", "\\00")
    if text[:1] in ("#", " "):
        text = f"\\{text}"
    if text.endswith(" ") and not text.endswith("\\ "):
        text = f"{text[:-1]}\\ "
    return text


LOGINS: Final[Mapping[str, Callable[[Certificate], str | None]]] = {
    "common_name": common_name,
    "distinguished_name": distinguished_name,
    "subject_alternative_name": subject_alternative_name,
    "none": lambda _: None,
}
"""How the user is found, by the value of `tls_cert_login_from`."""
