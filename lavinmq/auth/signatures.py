"""Signatures of access tokens: the algorithms and keys of PyJWT with the package `cryptography`.

A seam: the executable has another module in this one's place, with the same two functions
(packaging/freeze/linked/signatures.py). Imported only with the backend `oauth`.
"""

from __future__ import annotations

from typing import Any

from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.api_jws import PyJWS


def jws(algorithms: list[str]) -> PyJWS:
    """Return a reader of tokens that accepts these algorithms."""
    return PyJWS(algorithms=algorithms)


def public_key(entry: dict[str, Any]) -> Any:
    """Return the key of a JSON Web Key of type RSA, EC or OKP, without its private parts.

    Raises: jwt.InvalidKeyError, and others of Python for what has not the form of a key.
    """
    readers = {
        "RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk, "OKP": OKPAlgorithm.from_jwk,
    }  # fmt: skip
    return readers[entry["kty"]](entry)
