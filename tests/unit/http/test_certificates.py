"""When certificates expire: found in the bytes, whatever the bytes are."""

from __future__ import annotations

import ssl
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.http.certificates import expirations, not_after, paths


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A certificate for thirty days."""
    return made(tmp_path_factory.mktemp("tls"), 30)


def made(directory: Path, days: int) -> str:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", str(days), "-subj", "/CN=x", "-keyout", directory / "key.pem", "-out",
         directory / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return (directory / "cert.pem").read_text()


def test_all_certificates_of_a_file_are_read(certificate: str, tmp_path: Path) -> None:
    path = tmp_path / "chain.pem"
    path.write_text(f"some text\n{certificate}{made(tmp_path, 20_000)}")  # a year of four digits

    (_, first), (_, second) = expirations([str(path)])

    now = datetime.now(UTC)
    assert timedelta(days=29) < first - now < timedelta(days=31)
    assert timedelta(days=19_999) < second - now < timedelta(days=20_001)


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    for text in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=str(path)):
            expirations([str(path)])
    with pytest.raises(OSError, match="missing"):
        expirations([str(tmp_path / "missing.pem")])


def test_every_cut_of_a_certificate_is_refused(certificate: str) -> None:
    der = ssl.PEM_cert_to_DER_cert(certificate)

    for end in range(len(der)):
        with pytest.raises((ValueError, IndexError, StopIteration)):
            not_after(der[:end])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_date_or_refused(data: bytes) -> None:
    with suppress(ValueError, IndexError, StopIteration):
        assert isinstance(not_after(data), datetime)


def test_the_files_of_hosts_count_as_well() -> None:
    sections = {"a": {"tls_cert": "/a"}, "b": {"http_tls_cert": "/b", "tls_key": "/k"}}
    config = SimpleNamespace(tls_cert="/main", sni=sections)

    assert paths(config) == ["/a", "/b", "/main"]  # type: ignore[arg-type]
    assert paths(SimpleNamespace(tls_cert=None, sni={})) == []  # type: ignore[arg-type]
