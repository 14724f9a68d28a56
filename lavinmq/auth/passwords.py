"""Password hashes: reading the stored kinds, verifying, and making new ones.

    sha256, sha512, md5   base64(salt, digest(salt + password)), RabbitMQ's layout. The salt has 4
                          bytes when made here and is whatever precedes the digest when read. Older
                          files have a `$5$`, `$6$` or `$1$` before the base64.
    bcrypt                the usual text of 60 characters, `$2a$...`, `$2b$...` or `$2y$...`
    scrypt                `$scrypt$ln=14,r=8,p=1$salt$key`: log2 of N, block size, parallelism; salt
                          and key in base64 without padding

What a stored hash asks for in time and memory is bounded before it is used. bcrypt and scrypt are
slow on purpose: `hashing.py` runs them in threads. Clear passwords are never kept or logged.
Source: docs/authentication.md, docs/formats.md, decision 0017.
"""

import binascii
import hashlib
import hmac
import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

log = logging.getLogger("lmq.auth.passwords")

ALGORITHMS: Final = {
    "scrypt": "lavinmq_scrypt",
    "sha256": "rabbit_password_hashing_sha256",
    "sha512": "rabbit_password_hashing_sha512",
    "bcrypt": "lavinmq_bcrypt",
}
"""The kinds that new hashes can have, with the names under which they are stored."""

DEFAULT_ALGORITHM: Final = ALGORITHMS["sha256"]
"""What a hash is that was given without saying so, and what `hash_password` makes for others."""

_SALT_BYTES: Final = 4
_DIGEST_BYTES: Final = {"sha256": 32, "sha512": 64, "md5": 16}
# MD5 guards nothing else here; saying so keeps it working where it is otherwise forbidden.
_DIGESTS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
    "md5": partial(hashlib.md5, usedforsecurity=False),
}
_OLD_PREFIXES: Final = {"$5$": "sha256", "$6$": "sha512", "$1$": "md5"}
_SLOW_KINDS: Final = ("bcrypt", "scrypt")

_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}", re.ASCII)
_BCRYPT_PASSWORD_BYTES: Final = 72
"""What bcrypt looks at; libraries for it used to drop the rest without a word."""
_MIN_BCRYPT_COST: Final = 4
_MAX_BCRYPT_COST: Final = 15  # two seconds
_NEW_BCRYPT_COST: Final = 10

_SCRYPT: Final = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{0,86})\$([A-Za-z0-9+/]{22,86})",
    re.ASCII,
)
_SCRYPT_SALT_BYTES: Final = 16
_SCRYPT_KEY_BYTES: Final = 32
_MAX_SCRYPT_MEMORY: Final = 64 << 20
_MAX_SCRYPT_WORK: Final = 1 << 20  # N * r * p, eight times that of a new hash


class PasswordHashError(ValueError):
    """A stored hash or the name of its algorithm cannot be understood."""


class _Cost(NamedTuple):
    """The parameters of scrypt (RFC 7914, section 2)."""

    ln: int
    r: int
    p: int

    @property
    def is_bearable(self) -> bool:
        """Whether this broker computes it."""
        # N has to be less than 2 to the 16 * r.
        if not (1 <= self.ln <= 20 and self.p and self.ln < 16 * self.r):
            return False
        return (
            self._memory_bytes <= _MAX_SCRYPT_MEMORY
            and (self.r * self.p << self.ln) <= _MAX_SCRYPT_WORK
        )

    def key(self, password: bytes, salt: bytes, size: int) -> bytes:
        """The key for a password. Cost: 40 ms and 16 MiB for `_NEW_COST`."""
        return hashlib.scrypt(
            password, salt=salt, n=1 << self.ln, r=self.r, p=self.p,
            maxmem=self._memory_bytes + (1 << 20), dklen=size,
        )  # fmt: skip

    @property
    def _memory_bytes(self) -> int:
        return 128 * self.r * ((1 << self.ln) + self.p)


_NEW_COST: Final = _Cost(ln=14, r=8, p=1)

DECOYS: Final = {
    "scrypt": "$scrypt$ln=14,r=8,p=1$" + "A" * 22 + "$" + "A" * 43,
    "bcrypt": "$2a$10$" + "." * 53,
}
"""Hashes of no password, as costly as new ones: so that a name that nobody has takes as long."""


def hash_password(password: bytes, kind: str = "sha256") -> str:
    """A new salted hash of one of the kinds of `ALGORITHMS`.

    Raises: ValueError for a password that bcrypt cannot hash whole.
    Cost: one digest; for the slow kinds some 50 ms.
    """
    if kind == "scrypt":
        salt = os.urandom(_SCRYPT_SALT_BYTES)
        key = _NEW_COST.key(password, salt, _SCRYPT_KEY_BYTES)
        cost = f"ln={_NEW_COST.ln},r={_NEW_COST.r},p={_NEW_COST.p}"
        return f"$scrypt${cost}${_base64(salt)}${_base64(key)}"
    if kind == "bcrypt":
        if len(password) > _BCRYPT_PASSWORD_BYTES:
            raise ValueError(f"the password is longer than {_BCRYPT_PASSWORD_BYTES} bytes")
        import bcrypt

        # The oldest of the equal spellings: every reader of such hashes knows it.
        return bcrypt.hashpw(password, bcrypt.gensalt(_NEW_BCRYPT_COST, b"2a")).decode()
    salt = os.urandom(_SALT_BYTES)
    return binascii.b2a_base64(salt + _digest(kind, salt, password), newline=False).decode()


def algorithm_of(stored: str) -> str:
    """The name of the algorithm that a hash in a configuration seems to be of."""
    if stored.startswith("$2"):
        return ALGORITHMS["bcrypt"]
    if stored.startswith("$scrypt$"):
        return ALGORITHMS["scrypt"]
    return "rabbit_password_hashing_" + _OLD_PREFIXES.get(stored[:3], "sha256")


@lru_cache(maxsize=64)
def is_slow(algorithm: str | None) -> bool:
    """Whether a hash of this algorithm is not to be computed in the loop's thread."""
    return algorithm is not None and algorithm.lower().endswith(_SLOW_KINDS)


def validate(stored: str, algorithm: str | None) -> None:
    """Check that a hash given by an administrator can be used; the empty one forbids login.

    Raises: PasswordHashError with a text that begins with `Invalid password hash: `.
    """
    kind = _kind(algorithm)
    if not stored:
        return
    if kind == "bcrypt":
        _check_bcrypt(stored)
    elif kind == "scrypt":
        _scrypt_parts(stored)
    else:
        _salt_and_digest(kind, stored)


def verify(password: bytes, stored: str | None, algorithm: str | None) -> bool:
    """Whether the password belongs to the stored hash; compares in constant time.

    Args: algorithm: a name that ends in sha256, sha512, md5, bcrypt or scrypt; None means MD5.
    Returns: False also for an empty, unreadable or unsupported hash.
    Cost: one digest; for the slow ones what their parameters say, milliseconds to seconds.
    """
    if not stored:
        return False
    try:
        kind = _kind(algorithm)
        if kind == "bcrypt":
            return _verify_bcrypt(password, stored)
        if kind == "scrypt":
            cost, salt, key = _scrypt_parts(stored)
            return hmac.compare_digest(cost.key(password, salt, len(key)), key)
        salt, digest = _salt_and_digest(kind, stored)
    except PasswordHashError as error:
        log.warning("a password cannot be verified: %s", error)
        return False
    return hmac.compare_digest(_digest(kind, salt, password), digest)


@lru_cache(maxsize=64)
def _kind(algorithm: str | None) -> str:
    """sha256, sha512, md5, bcrypt or scrypt, from the end of the algorithm's name."""
    if algorithm is None:
        return "md5"
    for kind in (*_DIGEST_BYTES, *_SLOW_KINDS):
        if algorithm.lower().endswith(kind):
            return kind
    raise PasswordHashError(f"Invalid password hash: unknown algorithm {algorithm!r}")


@lru_cache(maxsize=64)
def _salt_and_digest(kind: str, stored: str) -> tuple[bytes, bytes]:
    """Take a hash in RabbitMQ's layout apart."""
    text = stored[3:] if stored[:3] in _OLD_PREFIXES else stored
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
    digest: bytes = _DIGESTS[kind](salt + password).digest()
    return digest


def _check_bcrypt(stored: str) -> None:
    found = _BCRYPT.fullmatch(stored)
    if found is None:
        raise PasswordHashError("Invalid password hash: not a bcrypt hash")
    if not _MIN_BCRYPT_COST <= int(found[1]) <= _MAX_BCRYPT_COST:
        raise PasswordHashError(
            f"Invalid password hash: the cost of a bcrypt hash may be {_MIN_BCRYPT_COST} to "
            f"{_MAX_BCRYPT_COST}"
        )


def _verify_bcrypt(password: bytes, stored: str) -> bool:
    _check_bcrypt(stored)
    import bcrypt

    try:
        return bcrypt.checkpw(password[:_BCRYPT_PASSWORD_BYTES], stored.encode())
    except ValueError as error:  # a salt whose last character has stray bits
        raise PasswordHashError(f"Invalid password hash: {error}") from error


def _scrypt_parts(stored: str) -> tuple[_Cost, bytes, bytes]:
    """Cost, salt and key of a hash."""
    found = _SCRYPT.fullmatch(stored)
    if found is None:
        raise PasswordHashError("Invalid password hash: not a scrypt hash")
    cost = _Cost(int(found[1]), int(found[2]), int(found[3]))
    if not cost.is_bearable:
        raise PasswordHashError("Invalid password hash: the parameters of scrypt are out of range")
    return cost, _from_base64(found[4]), _from_base64(found[5])


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:
        raise PasswordHashError("Invalid password hash: not base64") from None
