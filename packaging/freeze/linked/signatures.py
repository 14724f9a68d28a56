"""Signatures of access tokens, checked by the OpenSSL that the executable holds.

Stands for `lavinmq/auth/signatures.py` in the executable, which has no package `cryptography`
(decision record 0021), and has its interface. A key is brought into the form that OpenSSL reads,
SubjectPublicKeyInfo (RFC 5280, section 4.1); OpenSSL checks that it makes sense.
"""

from __future__ import annotations

from typing import Any, Final

import jwt
import openssl_verify
from jwt.algorithms import Algorithm
from jwt.api_jws import PyJWS
from jwt.utils import base64url_decode

_RSA: Final = bytes.fromhex("300d06092a864886f70d0101010500")
_P256: Final = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")
_ED25519: Final = bytes.fromhex("300506032b6570")
"""Identifiers of algorithms. Source: RFC 3279, RFC 5480, RFC 8410."""

_INTEGER, _BIT_STRING, _SEQUENCE = 0x02, 0x03, 0x30
_COORDINATE: Final = 32
_UNCOMPRESSED: Final = b"\x04"


def jws(algorithms: list[str]) -> PyJWS:
    """Return a reader of tokens that accepts these algorithms. Raises: KeyError."""
    reader = PyJWS(algorithms=[])
    for name in algorithms:
        reader.register_algorithm(name, _ALGORITHMS[name]())
    return reader


def public_key(entry: dict[str, Any]) -> Any:
    """Return the key of a JSON Web Key: RSA, EC on P-256, or OKP with Ed25519.

    Raises: jwt.InvalidKeyError, and others of Python for what has not the form of a key.
    """
    kind, curve = entry["kty"], entry.get("crv")
    if kind == "RSA":
        n, e = (int.from_bytes(base64url_decode(entry[name]), "big") for name in ("n", "e"))
        if e < 3 or e % 2 == 0 or e >= n or n % 2 == 0:
            raise jwt.InvalidKeyError("Not a key of RSA")
        der = _info(_RSA, _item(_SEQUENCE, _integer(n) + _integer(e)))
    elif kind == "EC" and curve == "P-256":
        x, y = base64url_decode(entry["x"]), base64url_decode(entry["y"])
        if not len(x) == len(y) == _COORDINATE:
            raise jwt.InvalidKeyError("Coords should be 32 bytes for curve P-256")
        der = _info(_P256, _UNCOMPRESSED + x + y)
    elif kind == "OKP" and curve == "Ed25519":
        der = _info(_ED25519, base64url_decode(entry["x"]))
    else:
        raise jwt.InvalidKeyError(f"No key of {kind} {curve} can be used")
    return openssl_verify.PublicKey(der)


def _item(tag: int, content: bytes) -> bytes:
    """An item of DER. Source: X.690, sections 8.1 and 10.1."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _integer(value: int) -> bytes:
    return _item(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _info(algorithm: bytes, key: bytes) -> bytes:
    return _item(_SEQUENCE, algorithm + _item(_BIT_STRING, b"\0" + key))


class _Checking(Algorithm):
    """An algorithm of which signatures are checked and never made."""

    def prepare_key(self, key: Any) -> Any:
        return key

    def sign(self, msg: bytes, key: Any) -> bytes:
        raise NotImplementedError

    @staticmethod
    def to_jwk(key_obj: Any, as_dict: bool = False) -> Any:
        raise NotImplementedError

    @staticmethod
    def from_jwk(jwk: Any) -> Any:
        return public_key(jwk)


class _Rs256(_Checking):
    def verify(self, msg: bytes, key: Any, sig: bytes) -> bool:
        return bool(key.verify(sig, msg))


class _Ps256(_Checking):
    def verify(self, msg: bytes, key: Any, sig: bytes) -> bool:
        return bool(key.verify(sig, msg, pss=True))


class _Es256(_Checking):
    def verify(self, msg: bytes, key: Any, sig: bytes) -> bool:
        if len(sig) != 2 * _COORDINATE:
            return False
        halves = (sig[:_COORDINATE], sig[_COORDINATE:])
        numbers = b"".join(_integer(int.from_bytes(half, "big")) for half in halves)
        return bool(key.verify(_item(_SEQUENCE, numbers), msg))


class _EdDsa(_Checking):
    def verify(self, msg: bytes, key: Any, sig: bytes) -> bool:
        return bool(key.verify(sig, msg, digest=False))


_ALGORITHMS: Final[dict[str, type[_Checking]]] = {
    "RS256": _Rs256, "PS256": _Ps256, "ES256": _Es256, "EdDSA": _EdDsa,
}  # fmt: skip
