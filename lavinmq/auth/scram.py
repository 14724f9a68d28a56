"""SCRAM-SHA-256: a log-in in which the password itself does not travel.

What a user needs for it stands beside the hash of the password, as one text: iterations, salt,
stored key and server key, the latter three in base64. It is made from the clear password, so a user
has it whose password was set since; hashes that were given as such do not lead to it. Whoever reads
it could try passwords against it, as against a hash, and could pass for this broker.

    exchange = Exchange()
    answer = exchange.first(b"n,,n=user,r=...", secrets_of)    # server-first
    exchange.final(b"c=biws,r=...,p=...")                      # server-final; ScramError: wrong

Sans I/O. Source: RFC 5802, RFC 7677.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import os
import secrets
import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 1_000_000
"""Of a text that somebody gives us: clients have to compute them."""
MAX_MESSAGE: Final = 4096
"""Bytes of a message of a client."""
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_HEADERS: Final = (b"n,,", b"y,,")
"""Of a client without channel binding: there is none here."""
_DECOY_KEY: Final = os.urandom(32)
"""Makes the salt of users that there are not, the same each time."""


class ScramError(ValueError):
    """The exchange has failed; the text is for the log."""


class Keys(NamedTuple):
    """What the broker knows of a password."""

    iterations: int
    salt: bytes
    stored: bytes
    server: bytes

    def __str__(self) -> str:
        return ",".join(
            (str(self.iterations), *map(_base64, (self.salt, self.stored, self.server)))
        )


def keys_of(password: bytes, iterations: int = ITERATIONS, salt: bytes = b"") -> Keys:
    """What is to be kept of a password. Args: salt: a new one when it is empty. Cost: 3 ms."""
    salt = salt or os.urandom(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, iterations)
    client = hmac.digest(salted, b"Client Key", "sha256")
    server = hmac.digest(salted, b"Server Key", "sha256")
    return Keys(iterations, salt, hashlib.sha256(client).digest(), server)


def parse(text: str) -> Keys:
    """Keys as they are stored. Raises: ValueError."""
    parts = text.split(",")
    if len(parts) != 4 or not parts[0].isascii() or not parts[0].isdigit() or len(parts[0]) > 7:
        raise ValueError("not keys of SCRAM-SHA-256")
    salt, stored, server = (
        binascii.a2b_base64(part.encode("ascii"), strict_mode=True) for part in parts[1:]
    )
    keys = Keys(int(parts[0]), salt, stored, server)
    if not (
        ITERATIONS <= keys.iterations <= MAX_ITERATIONS
        and salt
        and len(stored) == len(server) == _KEY_BYTES
    ):
        raise ValueError("not keys of SCRAM-SHA-256")
    return keys


def prepared(password: bytes) -> bytes:
    """A password as clients hash it (SASLprep, RFC 4013, without its prohibitions)."""
    try:
        text = password.decode()
    except UnicodeDecodeError:
        return password
    if text.isascii():
        return password
    mapped = (
        " " if stringprep.in_table_c12(each) else each
        for each in text if not stringprep.in_table_b1(each)
    )  # fmt: skip
    return unicodedata.normalize("NFKC", "".join(mapped)).encode()


class Exchange:
    """One exchange, from the server's side. Args: nonce: of ours; one is made when it is empty."""

    def __init__(self, nonce: str = "") -> None:
        self.name = ""
        """Who the client says it is, once it has."""
        self._nonce = nonce or secrets.token_urlsafe(18)
        self._keys_for: Callable[[str], Keys | None] = _nothing_of
        self._keys: Keys | None = None
        self._header = b""
        self._whole_nonce = b""
        self._said = b""

    def first(self, message: bytes, keys_for: Callable[[str], Keys | None]) -> bytes:
        """The answer to the first message of the client. Raises: ScramError.

        Args: keys_for: what is known of a user; None: nothing, and the exchange fails at its end.
            It is asked again then: the password may have become another.
        """
        if len(message) > MAX_MESSAGE:
            raise ScramError("the message is too long")
        header, bare = message[:3], message[3:]
        if header not in _HEADERS:
            raise ScramError("channel binding, or another identity, is not possible here")
        fields = bare.split(b",")
        if len(fields) < 2 or fields[0][:2] != b"n=" or fields[1][:2] != b"r=" or not fields[1][2:]:
            raise ScramError("the first message is malformed")
        self.name = _name(fields[0][2:])
        self._keys_for, self._keys = keys_for, keys_for(self.name)
        shown = self._keys or _decoy(self.name)
        self._header = header
        self._whole_nonce = fields[1][2:] + self._nonce.encode()
        answer = b"r=%s,s=%s,i=%d" % (
            self._whole_nonce, _base64(shown.salt).encode(), shown.iterations,
        )  # fmt: skip
        self._said = bare + b"," + answer
        return answer

    def final(self, message: bytes) -> bytes:
        """The answer to the last message of the client, which has proved that it knows the
        password. Raises: ScramError."""
        start, found, proof = message.rpartition(b",p=")
        fields = start.split(b",")
        if len(message) > MAX_MESSAGE or not found or len(fields) < 2 or not self._said:
            raise ScramError("the last message is malformed")
        if fields[0] != b"c=" + _base64(self._header).encode():
            raise ScramError("the last message has another header than the first")
        if fields[1] != b"r=" + self._whole_nonce:
            raise ScramError("the last message has another nonce")
        said, self._said = self._said + b"," + start, b""
        try:
            given = binascii.a2b_base64(proof, strict_mode=True)
        except ValueError:
            raise ScramError("the proof is not base64") from None
        if self._keys is None:
            raise ScramError("there are no keys of SCRAM for this user")
        if self._keys_for(self.name) != self._keys:
            raise ScramError("the user has another password since")
        signature = hmac.digest(self._keys.stored, said, "sha256")
        if len(given) != _KEY_BYTES:
            raise ScramError("the proof is malformed")
        client = bytes(a ^ b for a, b in zip(given, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client).digest(), self._keys.stored):
            raise ScramError("wrong password")
        return b"v=" + _base64(hmac.digest(self._keys.server, said, "sha256")).encode()


def _nothing_of(_name: str) -> None:
    """Nobody is known before the client has said who it is."""


def _name(raw: bytes) -> str:
    """A user name as it is written. Raises: ScramError."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ScramError("the user name is not UTF-8") from None
    plain = text.replace("=2C", ",").replace("=3D", "=")
    if text.count("=") != text.count("=2C") + text.count("=3D") or not text:
        raise ScramError("the user name is malformed")
    return plain


def _decoy(name: str) -> Keys:
    """Keys of nobody, so that a client learns no names."""
    salt = hmac.digest(_DECOY_KEY, name.encode(), "sha256")[:_SALT_BYTES]
    return Keys(ITERATIONS, salt, b"", b"")


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()
