"""One attempt to log in, as the chain and its backends hand it around."""

from typing import NamedTuple

MAX_SHOWN = 64
"""Characters of a name that are logged."""

MAX_TOKEN = 16384
"""Bytes of the longest access token that is looked at."""


class Attempt(NamedTuple):
    """What a client has shown. Never logged: it holds the password."""

    name: str
    password: bytes
    """For an access token this is the token, and the name does not matter."""
    address: str
    """Where the client is: an IP address without port; 127.0.0.1 for a unix socket."""
    is_loopback: bool

    def __repr__(self) -> str:
        return f"Attempt({shown_name(self.name)} from {self.address})"

    @property
    def is_token(self) -> bool:
        """Whether the password looks like an access token (RFC 7519): three parts, the first a
        JSON object in base64."""
        password = self.password
        return len(password) <= MAX_TOKEN and password[:2] == b"ey" and password.count(b".") == 2


def shown_name(name: str) -> str:
    """A name that somebody gave to log in, for the log: some put a token there."""
    if name.startswith("ey") and name.count(".") == 2:
        return "(an access token)"
    return repr(name if len(name) <= MAX_SHOWN else name[: MAX_SHOWN - 3] + "...")


class TokenError(ValueError):
    """An access token cannot be used; the text is for its owner and holds nothing secret."""
