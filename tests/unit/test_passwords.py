"""Password hashes of every stored kind."""

import base64
import hashlib
import importlib.util
import logging
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.auth import passwords
from lavinmq.auth.passwords import DEFAULT_ALGORITHM, PasswordHashError

GUEST = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE+"

# Made by LavinMQ 2.9.1: password, hash, algorithm.
RECORDED = [
    (b"guest", GUEST, "rabbit_password_hashing_sha256"),
    (
        b"sooonepm",
        "blwkqaQYfIZb8HExS4crryOQNy4+qZJbRzY3m9UxMGseQKg9",
        "rabbit_password_hashing_sha256",
    ),
    (
        b"vyfavdgp",
        "jlEGf7ql39HnlPp3w2X54suNyXb5vMU81LnREOXzVI9EvcTN9iAuJVgJHW7KR82EE4JfiIHgSgZaEbqsxrRmAn8KCAM=",
        "rabbit_password_hashing_sha512",
    ),
    (b"qocdtbfw", "zJakIZrgmboeSChcJZne1IcMkBo=", "rabbit_password_hashing_md5"),
    (
        "pläin".encode(),
        "9x01b38eKZFqefosV3lVSZPL9EshtB41xyu1HF+TFG4LnktI",
        "rabbit_password_hashing_sha256",
    ),
]
BCRYPT = "$2a$05$EjG27kQU/kMvkWfwCdqNTuXvuQew7Jeq8r6Sm2JqkP03taXtDWWXK"

needs_crypt = pytest.mark.skipif(
    importlib.util.find_spec("_crypt") is None, reason="this Python has no crypt library"
)


def stored(kind: str, password: bytes, salt: bytes = b"salt", prefix: str = "") -> str:
    digest = hashlib.new(kind, salt + password).digest()
    return prefix + base64.b64encode(salt + digest).decode()


@pytest.mark.parametrize(("password", "text", "algorithm"), RECORDED)
def test_recorded_hashes_admit_their_password_only(
    password: bytes, text: str, algorithm: str
) -> None:
    assert passwords.verify(password, text, algorithm)
    assert not passwords.verify(password + b"x", text, algorithm)
    assert not passwords.verify(b"", text, algorithm)


@needs_crypt
def test_a_recorded_bcrypt_hash_admits_its_password_only() -> None:
    assert passwords.verify(b"ohtzpgvq", BCRYPT, "lavinmq_bcrypt")
    for wrong in (b"ohtzpgvQ", b"", b"\0", b"\xff\xfe"):
        assert not passwords.verify(wrong, BCRYPT, "lavinmq_bcrypt")


def test_without_a_crypt_library_bcrypt_is_refused_and_said_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "_crypt", None)

    assert not passwords.verify(b"ohtzpgvq", BCRYPT, "lavinmq_bcrypt")
    assert "not supported" in caplog.text


@pytest.mark.parametrize("kind", ["sha256", "sha512", "md5"])
@pytest.mark.parametrize("prefix", ["", "$5$", "$6$", "$1$"])
@pytest.mark.parametrize("salt", [b"", b"salt", b"a longer salt"])
def test_old_prefixes_and_any_length_of_salt_are_read(kind: str, prefix: str, salt: bytes) -> None:
    text = stored(kind, b"pw", salt, prefix)

    assert passwords.verify(b"pw", text, f"rabbit_password_hashing_{kind}")


@pytest.mark.parametrize("algorithm", [None, "MD5", "rabbit_password_hashing_md5"])
def test_no_algorithm_means_md5_and_case_does_not_matter(algorithm: str | None) -> None:
    """edge-cases.md 308"""
    assert passwords.verify(b"pw", stored("md5", b"pw"), algorithm)


@pytest.mark.parametrize("text", ["", None])
def test_without_a_hash_nobody_logs_in(text: str | None) -> None:
    """edge-cases.md 308"""
    assert not passwords.verify(b"", text, DEFAULT_ALGORITHM)


BAD: list[tuple[str, str | None]] = [
    ("not base64!", DEFAULT_ALGORITHM),
    ("grüße", DEFAULT_ALGORITHM),
    ("AAAA", DEFAULT_ALGORITHM),
    ("AAAA", None),
    (GUEST, "rot13"),
    ("hello", "lavinmq_bcrypt"),
    (GUEST, "lavinmq_bcrypt"),
]


@pytest.mark.parametrize(("text", "algorithm"), BAD)
def test_hashes_that_cannot_be_used_are_refused(text: str, algorithm: str | None) -> None:
    with pytest.raises(PasswordHashError, match=r"^Invalid password hash: "):
        passwords.validate(text, algorithm)


@pytest.mark.parametrize(("text", "algorithm"), BAD)
def test_hashes_that_cannot_be_used_admit_nobody(
    text: str, algorithm: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    assert not passwords.verify(b"guest", text, algorithm)


@pytest.mark.parametrize(("_password", "text", "algorithm"), [*RECORDED, (b"", "", None)])
def test_hashes_that_can_be_used_are_accepted(_password: Any, text: str, algorithm: str) -> None:
    passwords.validate(text, algorithm)
    assert not passwords.verify(b"another password", text, algorithm)


def test_a_new_hash_verifies_and_is_salted() -> None:
    first, second = passwords.hash_password(b"pw"), passwords.hash_password(b"pw")

    assert first != second
    assert len(base64.b64decode(first)) == 36
    assert passwords.verify(b"pw", first, DEFAULT_ALGORITHM)


@settings(deadline=None)
@given(st.binary(max_size=300), st.text(max_size=80), st.text(max_size=40) | st.none())
def test_any_input_is_only_refused(password: bytes, text: str, algorithm: str | None) -> None:
    assert not passwords.verify(password, text, algorithm)
