"""Any bytes as an access token: refused in words, whatever its header says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lavinmq.auth.attempt import TokenError
from lavinmq.auth.tokens import ALGORITHMS, TokenVerifier, header_of
from tests.fuzz.targets import Target

SEED = bytes(32)
"""Of the private key that the seeds are signed with."""
NOT_THIS = bytes([1]) * 32


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    key = Ed25519PrivateKey.from_private_bytes(NOT_THIS).public_key()
    verifier = TokenVerifier("https://issuer.example", "", False)

    def read(data: bytes) -> None:
        try:
            header = header_of(data)
        except TokenError:
            return
        assert header.alg in ALGORITHMS and header.kid
        try:
            verifier.claims(data, header, key)
        except TokenError:
            return
        raise AssertionError("a token signed with another key is accepted")

    yield read
