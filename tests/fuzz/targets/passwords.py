"""Any text as a password hash, after a byte for its algorithm: used, or refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq.auth import passwords
from tests.fuzz.targets import Target

ALGORITHMS = (*passwords.ALGORITHMS.values(), "rabbit_password_hashing_md5", None, "rot13")


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        algorithm = ALGORITHMS[data[0] % len(ALGORITHMS)] if data else None
        stored = data[1:].decode("utf-8", "surrogateescape")
        passwords.algorithm_of(stored)
        try:
            passwords.validate(stored, algorithm)
        except passwords.PasswordHashError as error:
            assert str(error).startswith("Invalid password hash: ")
            assert not passwords.verify(b"password", stored, algorithm)
            return
        if not passwords.is_slow(algorithm):
            passwords.verify(b"password", stored, algorithm)

    yield read
