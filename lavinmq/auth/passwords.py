"""Password hashes: reading the stored kinds, verifying, and making new ones.

Layout (RabbitMQ's): base64(salt, digest(salt + password)). The salt has 4 bytes when made here and
is whatever precedes the digest when read. Older files have a `$5$`, `$6$` or `$1$` before the
base64. A bcrypt hash is the usual `$2a$...` text. Clear passwords are never kept or logged.
Source: command line reference, section 14; storage reference, section 9.
"""

import binascii
import hashlib
import hmac
import logging
import os
from typing import Final

log = logging.getLogger("lmq.auth.passwords")

DEFAULT_ALGORITHM: Final = "rabbit_password_hashing_sha256"

_SALT_BYTES: Final = 4
_DIGEST_BYTES: Final = {"sha256": 32, "sha512": 64, "md5": 16}
_OLD_PREFIXES: Final = ("$5$", "$6$", "$1$")


class PasswordHashError(ValueError):
    """A stored hash or the name of its algorithm cannot be understood."""


def hash_password(password: bytes) -> str:
    """A new salted SHA-256 hash; its algorithm is `DEFAULT_ALGORITHM`."""
    salt = os.urandom(_SALT_BYTES)
    return binascii.b2a_base64(salt + _digest("sha256", salt, password), newline=False).decode()


def validate(stored: str, algorithm: str | None) -> None:
    """Check that a hash given by an administrator can be used; the empty one forbids login.

    Raises: PasswordHashError with a text that begins with `Invalid password hash: `.
    """
    kind = _kind(algorithm)
    if not stored:
        return
    if kind == "bcrypt":
        if not stored.startswith("$2") or len(stored) != 60:
            raise PasswordHashError("Invalid password hash: not a bcrypt hash")
        return
    _salt_and_digest(kind, stored)


def verify(password: bytes, stored: str | None, algorithm: str | None) -> bool:
    """Whether the password belongs to the stored hash; compares in constant time.

    Args: algorithm: a name that ends in sha256, sha512, md5 or bcrypt; None means MD5.
    Returns: False also for an empty, unreadable or unsupported hash.
    Cost: one digest; for bcrypt what its cost factor says, milliseconds to seconds.
    """
    if not stored:
        return False
    try:
        kind = _kind(algorithm)
        if kind == "bcrypt":
            return _verify_bcrypt(password, stored)
        salt, digest = _salt_and_digest(kind, stored)
    except PasswordHashError as error:
        log.warning("a password cannot be verified: %s", error)
        return False
    return hmac.compare_digest(_digest(kind, salt, password), digest)


def _kind(algorithm: str | None) -> str:
    """sha256, sha512, md5 or bcrypt, from the end of the algorithm's name."""
    if algorithm is None:
        return "md5"
    for kind in (*_DIGEST_BYTES, "bcrypt"):
        if algorithm.lower().endswith(kind):
            return kind
    raise PasswordHashError(f"Invalid password hash: unknown algorithm {algorithm!r}")


def _salt_and_digest(kind: str, stored: str) -> tuple[bytes, bytes]:
    """Take a hash in RabbitMQ's layout apart."""
    text = stored[3:] if stored.startswith(_OLD_PREFIXES) else stored
    try:
        raw = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:  # also what is not ASCII
        raise PasswordHashError("Invalid password hash: not base64") from None
    size = _DIGEST_BYTES[kind]
    if len(raw) < size:
        raise PasswordHashError(f"Invalid password hash: too short for {kind}")
    return raw[:-size], raw[-size:]


def _digest(kind: str, salt: bytes, password: bytes) -> bytes:
    """The digest of salt and password."""
    # MD5 guards nothing else here; saying so keeps it working where it is otherwise forbidden.
    return hashlib.new(kind, salt + password, usedforsecurity=kind != "md5").digest()


def _verify_bcrypt(password: bytes, stored: str) -> bool:
    """Let the system's crypt library compute the hash again."""
    try:
        # The C module itself: importing `crypt`, gone in 3.13, warns of its removal.
        from _crypt import crypt  # type: ignore[import-not-found]
    except ImportError:
        log.error("bcrypt password hashes are not supported: this Python has no crypt library")
        return False
    try:
        computed = crypt(password.decode("utf-8"), stored)
    except (ValueError, OSError):  # a NUL byte, bytes that are not UTF-8, or no such method
        return False
    return computed is not None and hmac.compare_digest(computed.encode(), stored.encode())
