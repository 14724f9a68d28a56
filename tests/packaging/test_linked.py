"""The modules that only the executable has answer as the libraries do that they stand for.

They are compiled here as modules of this interpreter, so the executable itself is not needed.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import random
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import bcrypt
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from lavinmq.auth import signatures

ROOT = Path(__file__).parents[2]
LINKED = ROOT / "packaging/freeze/linked"
BCRYPT_CODE = next((ROOT / "build/freeze/sources").glob("bcrypt-*/src/_csrc"), None)
HEADERS = any(
    Path(place, "openssl/evp.h").exists() for place in ("/usr/include", "/usr/local/include")
)
ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")


def compiled(name: str, directory: Path, *more: str) -> ModuleType:
    """Compile a module of packaging/freeze/linked and import it, under a name of its own."""
    source = directory / f"{name}.c"
    cython = [sys.executable, "-m", "cython", "-3", str(LINKED / f"{name}.pyx"), "-o", str(source)]
    subprocess.run(cython, check=True, capture_output=True)
    result = directory / f"{name}.so"
    include = f"-I{sysconfig.get_path('include')}"
    compiler = os.environ.get("CC", "cc").split()
    command = [*compiler, "-shared", "-fPIC", "-O1", include, str(source), "-o", str(result), *more]
    subprocess.run(command, check=True, capture_output=True)
    spec = importlib.util.spec_from_file_location(name, result)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module that stands for `lavinmq.auth.signatures`."""
    if not HEADERS:
        pytest.skip("OpenSSL's headers are not installed: .ci/setup-debian.sh binary")
    verify = compiled("openssl_verify", tmp_path_factory.mktemp("linked"), "-lcrypto")
    spec = importlib.util.spec_from_file_location("linked_signatures", LINKED / "signatures.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "openssl_verify", verify)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def keys() -> dict[str, Any]:
    """A private key for each algorithm."""
    of_rsa = rsa.generate_private_key(65537, 2048)
    return {
        "RS256": of_rsa,
        "PS256": of_rsa,
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }


def public_entry(algorithm: str, key: Any) -> dict[str, Any]:
    """The JSON Web Key of the public half."""
    kinds = jwt.algorithms.get_default_algorithms()
    entry: dict[str, Any] = kinds[algorithm].to_jwk(key.public_key(), as_dict=True)
    return {name: entry[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in entry}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_signed_token_is_accepted(
    algorithm: str, linked: ModuleType, keys: dict[str, Any]
) -> None:
    token = jwt.encode({"sub": "ø"}, keys[algorithm], algorithm)
    key = linked.public_key(public_entry(algorithm, keys[algorithm]))

    payload = linked.jws([algorithm]).decode(token, key, algorithms=[algorithm])

    assert payload == jwt.api_jws.PyJWS().decode(
        token, keys[algorithm].public_key(), algorithms=[algorithm]
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_that_was_changed_anywhere_is_refused(
    algorithm: str, linked: ModuleType, keys: dict[str, Any]
) -> None:
    chance = random.Random(1)
    reader = linked.jws([algorithm])
    key = linked.public_key(public_entry(algorithm, keys[algorithm]))
    head, payload, signature = jwt.encode({"sub": "me"}, keys[algorithm], algorithm).split(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    wrong = [b"", raw[:-1], raw + b"\0", bytes(len(raw)), b"\xff" * len(raw)]
    for _ in range(50):
        changed = bytearray(raw)
        changed[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        wrong.append(bytes(changed))

    for each in wrong:
        text = base64.urlsafe_b64encode(each).rstrip(b"=").decode()
        with pytest.raises(jwt.InvalidSignatureError):
            reader.decode(f"{head}.{payload}.{text}", key, algorithms=[algorithm])
    with pytest.raises(jwt.InvalidSignatureError):
        reader.decode(f"{head}.e30.{signature}", key, algorithms=[algorithm])


def test_a_key_of_another_algorithm_is_of_no_use(linked: ModuleType, keys: dict[str, Any]) -> None:
    for algorithm in ALGORITHMS:
        token = jwt.encode({}, keys[algorithm], algorithm)
        for other in ALGORITHMS:
            if {algorithm, other} in ({algorithm}, {"RS256", "PS256"}):
                continue
            key = linked.public_key(public_entry(other, keys[other]))
            with pytest.raises(jwt.InvalidSignatureError):
                linked.jws([algorithm]).decode(token, key, algorithms=[algorithm])


def is_refused(read: Callable[[dict[str, Any]], Any], entry: dict[str, Any]) -> bool:
    """Whether a reader of keys refuses one in a way that the broker expects."""
    try:
        read(entry)
    except (jwt.InvalidKeyError, ValueError, TypeError, KeyError, AttributeError):
        return True
    return False


def test_keys_that_make_no_sense_are_refused_by_both(
    linked: ModuleType, keys: dict[str, Any]
) -> None:
    of_rsa, of_ec, of_okp = (public_entry(name, keys[name]) for name in ALGORITHMS[1:])
    wrong = [
        of_rsa | {"e": "Ag"}, of_rsa | {"e": "AQ"}, of_rsa | {"n": ""}, {"kty": "RSA", "e": "AQAB"},
        of_rsa | {"n": 5}, of_ec | {"x": of_ec["y"]}, of_ec | {"y": "AAAA"}, of_ec | {"x": None},
        {"kty": "EC", "crv": "P-256"}, of_okp | {"x": "AAAA"}, of_okp | {"x": ""},
        of_okp | {"crv": "Ed1"}, {"kty": "OKP", "crv": "Ed25519"},
    ]  # fmt: skip

    for entry in wrong:
        assert is_refused(signatures.public_key, entry), entry
        assert is_refused(linked.public_key, entry), entry


def test_keys_have_the_size_that_the_library_says(linked: ModuleType, keys: dict[str, Any]) -> None:
    for bits in (1024, 2048, 3072):
        entry = public_entry("RS256", rsa.generate_private_key(65537, bits))

        assert linked.public_key(entry).key_size == signatures.public_key(entry).key_size == bits


@pytest.fixture(scope="module")
def linked_bcrypt(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module that stands for the package `bcrypt`."""
    if BCRYPT_CODE is None:
        pytest.skip("the C code of bcrypt has not been fetched: make binary")
    files = [f"-I{BCRYPT_CODE}", str(BCRYPT_CODE / "bcrypt.c"), str(BCRYPT_CODE / "blf.c")]
    return compiled("bcrypt", tmp_path_factory.mktemp("bcrypt"), *files)


def test_bcrypt_hashes_are_those_of_the_library(linked_bcrypt: ModuleType) -> None:
    chance = random.Random(2)
    for length in (0, 1, 8, 55, 56, 71, 72):
        password = bytes(chance.randrange(1, 256) for _ in range(length))
        for prefix in (b"2a", b"2b", b"2y"):
            salt = b"$" + prefix + bcrypt.gensalt(4)[3:]

            stored = bcrypt.hashpw(password, salt)

            assert linked_bcrypt.hashpw(password, salt) == stored
            assert linked_bcrypt.checkpw(password, stored)
            assert not linked_bcrypt.checkpw(password[:-1] + b"?", stored)


def test_new_bcrypt_hashes_are_read_by_the_library(linked_bcrypt: ModuleType) -> None:
    stored = linked_bcrypt.hashpw(b"secret", linked_bcrypt.gensalt(4, b"2a"))

    assert stored.startswith(b"$2a$04$")
    assert bcrypt.checkpw(b"secret", stored)
    assert linked_bcrypt.gensalt(4) != linked_bcrypt.gensalt(4)


@pytest.mark.parametrize(
    ("password", "salt"),
    [(b"a" * 73, b""), (b"a\0b", b""), (b"a", b"$2b$04$short"), (b"a", b""), (b"a", b"$2x$04$")],
)
def test_what_bcrypt_cannot_hash_is_refused(
    linked_bcrypt: ModuleType, password: bytes, salt: bytes
) -> None:
    good = linked_bcrypt.gensalt(4)

    with pytest.raises(ValueError):
        linked_bcrypt.hashpw(password, salt if password == b"a" else good)
