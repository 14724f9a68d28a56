"""Where a shovel connects to: a URI of a parameter, checked when it is set.

A URI without user and host is this broker. Options in the query are those of the client, by its
names or by those that other brokers have for them. Whoever is no administrator may not name files:
the broker would read them. No text that is raised here has a password in it.
Source: docs/shovels.md, docs/client.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakValueDictionary

from lavinmq.client.config import Config, option_names
from lavinmq.client.errors import ConfigError
from lavinmq.client.url import Target, parse_url
from lavinmq.nearest import hint

ALIASES: Final = {
    "auth_mechanism": "auth",
    "connection_timeout": "connect_timeout",
    "server_name_indication": "server_name",
}
"""Names of other brokers for options of the client."""
WITHOUT_EFFECT: Final = frozenset({"depth", "fail_if_no_peer_cert", "locale", "product"})
FILES: Final = ("cacertfile", "certfile", "keyfile")
BOUNDS: Final = ("frame_max", "max_message_size")
"""Options that say how much is held of what a peer sends."""
OURS: Final = frozenset({
    "auth", "cacertfile", "certfile", "channel_max", "connect_timeout", "frame_max", "heartbeat",
    "keyfile", "max_message_size", "name", "server_name", "tcp_keepalive", "verify",
})  # fmt: skip
"""Options that say how to connect; the others are the shovel's own affair."""
NONE: Final = ("verify_none", "none", "false", "0", "no", "off")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Place:
    """One URI: what it says to the client, or `is_local`: this broker, in `vhost`."""

    is_local: bool
    vhost: str
    shown: str
    """Without user and password, for people."""
    name: str | None
    """What the connection is to be called, if the URI says."""
    target: Target
    config: Config


_IN_USE: Final[WeakValueDictionary[tuple[str, str], Place]] = WeakValueDictionary()
"""One for all that connect to the same place: there may be thousands. Nobody keeps a password here
that is in no parameter any more."""


def parse(uri: str, own_vhost: str) -> Place:
    """Read a URI; `own_vhost` is the one of the parameter. Raises: ValueError."""
    found = _IN_USE.get((uri, own_vhost))
    if found is None:
        found = _IN_USE[uri, own_vhost] = _read(uri, own_vhost)
    return found


def _read(uri: str, own_vhost: str) -> Place:
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is no URI: {error}") from None
    if parts.scheme not in ("amqp", "amqps"):
        raise ValueError(
            f"has the scheme '{parts.scheme}', allowed are amqp and amqps"
            if parts.scheme
            else "is no URI such as amqp://host"
        )
    is_local = not parts.username and not parts.hostname
    options = _options(parts.query)
    name = options.pop("name", None)
    path = parts.path.removeprefix("/")
    vhost = unquote(path, errors="surrogateescape") if path else (own_vhost if is_local else "/")
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2] or 'localhost'}/{path}"
    login = parts.netloc.rpartition("@")[0]
    try:
        full = place if not login else place.replace("://", f"://{login}@", 1)
        target = parse_url(full)
        config = _config(tuple(options.items()), is_local)
    except ConfigError as error:
        raise ValueError(f"is refused: {error}") from None
    host = "" if is_local else parts.netloc.rpartition("@")[2]
    return Place(is_local, vhost, f"{parts.scheme}://{host}/{path}", name, target, config)


def files_of(uri: str) -> list[str]:
    """The options of a URI that name files."""
    return [name for name in _options(urlsplit(uri).query) if name in FILES]


def large_of(uri: str) -> str:
    """The option by which a peer may have more held here than by default; empty: none."""
    options, least = Config().updated(_options(urlsplit(uri).query)), Config()
    return next((name for name in BOUNDS if getattr(options, name) > getattr(least, name)), "")


def user_of(uri: str) -> str:
    """The user that a URI logs in as; that of the protocol when it names a host and no user."""
    parts = urlsplit(uri)
    if not parts.username and parts.hostname and parts.scheme in ("amqp", "amqps"):
        return "guest"
    return unquote(parts.username or "")


@lru_cache(maxsize=64)
def _config(options: tuple[tuple[str, Any], ...], is_local: bool) -> Config:
    """One for all URIs that say the same. Raises: ConfigError."""
    # A broker knows whether it is alive, and who it is.
    return Config().updated(dict(options) | ({"auth": "plain", "heartbeat": 0} if is_local else {}))


def _options(query: str) -> dict[str, Any]:
    """The options of a query by the client's names. Raises: ValueError."""
    found: dict[str, Any] = {}
    for given, value in parse_qsl(query, keep_blank_values=True):
        name = ALIASES.get(given, given)
        if given in WITHOUT_EFFECT:
            continue
        if name not in OURS:
            known = [*OURS, *ALIASES]
            what = "has an option" if name not in option_names() else "has an option of programs"
            raise ValueError(f"{what} '{given}', which is not known here{hint(given, known)}")
        if name == "verify":
            value = "false" if value.lower() in NONE else "true"
        if name == "auth":
            value = value.lower()
        if given == "connection_timeout":
            if not value.isdecimal():
                raise ValueError(f"has connection_timeout={value}, milliseconds are wanted")
            value = str(int(value) / 1000)
        found[name] = value
    return found
