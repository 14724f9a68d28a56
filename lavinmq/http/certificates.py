"""When the certificates of the configuration expire: all of a file, with those of its chain.

Read from the files, so that one that was renewed counts as it will after the next reload. Of a
certificate just enough is parsed to find its dates. Source: RFC 5280, section 4.1; X.690 (DER).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lavinmq.config.values import Config

MAX_FILE: Final = 1 << 20
PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
VERSION: Final = 0xA0
SEQUENCE: Final = 0x30
TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def paths(config: Config) -> list[str]:
    """The files of certificates that the configuration names."""
    named = [config.tls_cert]
    for section in config.sni.values():
        named += [str(value) for key, value in section.items() if key.endswith("tls_cert")]
    return sorted({path for path in named if path})


def expirations(files: list[str]) -> list[tuple[str, datetime]]:
    """Path and end of each certificate. Blocks. Raises: OSError, ValueError naming the file."""
    return [(path, end) for path in files for end in _of_file(path)]


def _of_file(path: str) -> list[datetime]:
    with Path(path).open("rb") as file:
        text = file.read(MAX_FILE).decode("latin-1")
    try:
        found = [not_after(ssl.PEM_cert_to_DER_cert(block)) for block in PEM.findall(text)]
    except (ValueError, IndexError, StopIteration):
        raise ValueError(f"{path}: it holds a certificate that cannot be read") from None
    if not found:
        raise ValueError(f"{path}: it holds no certificate")
    return found


def not_after(certificate: bytes) -> datetime:
    """The last moment of a certificate in DER. Raises: ValueError, IndexError, StopIteration."""
    _, whole = next(_values(certificate))
    _, signed = next(_values(whole))
    fields = _values(signed)
    kind, _ = next(fields)
    for _ in range(3 if kind == VERSION else 2):  # serial number, algorithm, issuer
        next(fields)
    kind, validity = next(fields)
    if kind != SEQUENCE:
        raise ValueError("no validity")
    times = _values(validity)
    next(times)
    kind, end = next(times)
    if kind not in TIMES:
        raise ValueError("no time")
    return datetime.strptime(end.decode("ascii"), TIMES[kind]).replace(tzinfo=UTC)


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each value. Raises: IndexError, ValueError when it is cut short."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size >= 0x80:
            n_bytes = size & 0x7F
            size = int.from_bytes(data[at : at + n_bytes])
            at += n_bytes
        if at + size > len(data):
            raise ValueError("cut short")
        yield tag, data[at : at + size]
        at += size
