"""Password hashes of every stored kind."""

import base64
import hashlib
import logging
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


def test_a_recorded_bcrypt_hash_admits_its_password_only() -> None:
    assert passwords.verify(b"ohtzpgvq", BCRYPT, "lavinmq_bcrypt")
    for wrong in (b"ohtzpgvQ", b"", b"\0", b"\xff\xfe"):
        assert not passwords.verify(wrong, BCRYPT, "lavinmq_bcrypt")


def test_bcrypt_looks_at_72_bytes_as_it_always_has() -> None:
    text = passwords.hash_password(b"x" * 72, "bcrypt")

    assert passwords.verify(b"x" * 72 + b"what follows", text, "lavinmq_bcrypt")
    assert not passwords.verify(b"x" * 71, text, "lavinmq_bcrypt")
    with pytest.raises(ValueError, match="longer than 72 bytes"):
        passwords.hash_password(b"x" * 73, "bcrypt")


def test_a_scrypt_hash_is_read_as_the_standard_says() -> None:
    """RFC 7914, section 12: N = 1024, r = 8, p = 16, the key shortened to 32 bytes by PBKDF2."""
    key = hashlib.scrypt(b"password", salt=b"NaCl", n=1024, r=8, p=16, dklen=32)
    salt_text, key_text = (base64.b64encode(part).decode().rstrip("=") for part in (b"NaCl", key))
    text = f"$scrypt$ln=10,r=8,p=16${salt_text}${key_text}"

    assert key.hex().startswith("fdbabe1c9d347200")
    assert passwords.verify(b"password", text, "lavinmq_scrypt")
    assert not passwords.verify(b"passwore", text, "lavinmq_scrypt")


@pytest.mark.parametrize("kind", passwords.ALGORITHMS)
def test_every_kind_of_new_hash_verifies_and_is_salted(kind: str) -> None:
    first, second = passwords.hash_password(b"pw", kind), passwords.hash_password(b"pw", kind)
    algorithm = passwords.ALGORITHMS[kind]

    assert first != second
    passwords.validate(first, algorithm)
    assert passwords.verify(b"pw", first, algorithm)
    assert not passwords.verify(b"pW", first, algorithm)
    assert passwords.is_slow(algorithm) == (kind in ("scrypt", "bcrypt"))


@pytest.mark.parametrize("kind", passwords.DECOYS)
def test_a_decoy_costs_what_a_new_hash_costs(kind: str) -> None:
    decoy, algorithm = passwords.DECOYS[kind], passwords.ALGORITHMS[kind]
    passwords.validate(decoy, algorithm)

    assert not passwords.verify(b"pw", decoy, algorithm)
    cost = decoy.rindex("$") if kind == "scrypt" else 7
    assert len(decoy) == len(new := passwords.hash_password(b"pw", kind))
    assert kind == "scrypt" or decoy[:cost] == new[:cost]
    assert decoy.split("$")[:3] == new.split("$")[:3]


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        (GUEST, DEFAULT_ALGORITHM),
        (BCRYPT, "lavinmq_bcrypt"),
        (passwords.DECOYS["scrypt"], "lavinmq_scrypt"),
        ("$6$" + "A" * 88, "rabbit_password_hashing_sha512"),
        ("$1$" + "A" * 24, "rabbit_password_hashing_md5"),
        ("", DEFAULT_ALGORITHM),
    ],
)
def test_a_hash_in_the_configuration_tells_its_algorithm(text: str, algorithm: str) -> None:
    assert passwords.algorithm_of(text) == algorithm


def scrypt_text(cost: str, salt: str = "A" * 22, key: str = "A" * 43) -> str:
    return f"$scrypt${cost}${salt}${key}"


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
    (BCRYPT.replace("$05$", "$31$"), "lavinmq_bcrypt"),  # takes days
    (BCRYPT.replace("$05$", "$03$"), "lavinmq_bcrypt"),
    (BCRYPT[:-1] + "!", "lavinmq_bcrypt"),
    (GUEST, "lavinmq_scrypt"),
    (scrypt_text("ln=20,r=8,p=1"), "lavinmq_scrypt"),  # takes 1 GiB
    (scrypt_text("ln=14,r=8,p=99"), "lavinmq_scrypt"),
    (scrypt_text("ln=17,r=1,p=1"), "lavinmq_scrypt"),  # not allowed with so small blocks
    (scrypt_text("ln=0,r=8,p=1"), "lavinmq_scrypt"),
    (scrypt_text("ln=14,r=0,p=1"), "lavinmq_scrypt"),
    (scrypt_text("ln=14,r=8,p=0"), "lavinmq_scrypt"),
    (scrypt_text("ln=14,r=8,p=1", salt="A"), "lavinmq_scrypt"),
    (scrypt_text("ln=14,r=8,p=1", key="A" * 4), "lavinmq_scrypt"),
    (scrypt_text("ln=14,r=8,p=1") + "\n", "lavinmq_scrypt"),
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


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.from_regex(r"\$scrypt\$ln=\d{1,2},r=\d{1,2},p=\d{1,2}\$[A-Za-z0-9+/]{0,90}\$.{0,90}"),
        st.from_regex(r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{50,54}"),
        st.text(max_size=80),
    ),
    st.sampled_from(["lavinmq_scrypt", "lavinmq_bcrypt", None, DEFAULT_ALGORITHM]),
)
def test_any_hash_is_accepted_or_refused_in_words(text: str, algorithm: str | None) -> None:
    try:
        passwords.validate(text, algorithm)
    except PasswordHashError as error:
        assert str(error).startswith("Invalid password hash: ")
