"""URLs of brokers: `amqp://user:password@host1:5672,host2/vhost?option=value`.

Schemes: amqp, amqps, ws, wss (then the path is the WebSocket's, and the virtual host is the option
`vhost`), and unix (the path is the socket's). A password never appears in what is raised here, nor
in the repr of what is returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from lavinmq.client.config import check_names
from lavinmq.client.errors import ConfigError

PORTS: Final = {"amqp": 5672, "amqps": 5671, "ws": 80, "wss": 443, "unix": 0}
ALSO: Final = ("vhost", "user", "password")
"""What may stand in a query and is no option of `Config`."""
NOT_ENCODED: Final = (
    "a URL with an @ behind its first / or ?: in user and password write %2F for a /, %3F for a ?, "
    "and in the name of a vhost %40 for an @"
)
"""What is there may be the end of a password, so it is not shown."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a broker listens."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def is_tls(self) -> bool:
        """Whether TLS is spoken."""
        return self.scheme in ("amqps", "wss")

    @property
    def is_websocket(self) -> bool:
        """Whether AMQP goes in frames of a WebSocket."""
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL says."""

    endpoints: tuple[Endpoint, ...]
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.endpoints))} as {self.user}, vhost {self.vhost}"


def parse_url(url: str) -> Target:
    """Read a URL. Raises: ConfigError, which names what is wrong and shows no password."""
    scheme, mark, rest = url.partition("://")
    scheme = scheme.lower()
    if not mark or scheme not in PORTS:
        raise ConfigError(
            f"a URL with {_named('the scheme', scheme)}, allowed are {', '.join(PORTS)}"
            if mark
            else "a URL without a scheme, as amqp://localhost"
        )
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    if "@" in path and scheme in ("amqp", "amqps"):
        raise ConfigError(NOT_ENCODED)
    try:
        return _parsed(scheme, rest, query)
    except ConfigError:
        if "@" in place or "@" not in query:
            raise
        # What is wrong, as a port, may be the beginning of a password.
        raise ConfigError(NOT_ENCODED) from None


def _named(what: str, text: str) -> str:
    """What is wrong in a URL by its name, if it is a word and no part of a log-in."""
    return f"{what} {text!r}" if text.isalnum() else f"{what} wrong"


def _parsed(scheme: str, rest: str, query: str) -> Target:
    place, slash, path = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    user, colon, password = login.partition(":")
    options = _options(query)
    vhost = options.pop("vhost", None)
    if scheme in ("amqp", "amqps"):
        if "/" in path:
            raise ConfigError("a URL with a second / in its path: in names of vhosts it is %2F")
        vhost = unquote(path) if path and vhost is None else vhost
        path = ""
    endpoints = tuple(
        _endpoint(scheme, host, f"{slash}{path}" if scheme in ("ws", "wss", "unix") else "")
        for host in (hosts.split(",") if scheme != "unix" else [""])
    )
    return Target(
        endpoints,
        str(options.pop("user", unquote(user) if at and user else "guest")),
        str(options.pop("password", unquote(password) if at and colon else "guest")),
        vhost or "/",
        options,
    )


def _options(query: str) -> dict[str, Any]:
    """The query by name. Raises: ConfigError for names that are none, or come twice."""
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if "@" in name:
            raise ConfigError(NOT_ENCODED)
        if name in options:
            raise ConfigError(f"option {name} is given twice in the URL")
        options[name] = value
    check_names(options, ALSO)
    return options


def _endpoint(scheme: str, text: str, path: str) -> Endpoint:
    if scheme == "unix":
        if len(path) < 2:
            raise ConfigError("a unix URL without a path")
        return Endpoint(scheme, "", 0, unquote(path))
    if text.startswith("["):
        host, mark, port = text[1:].partition("]")
        if not mark:
            raise ConfigError("a URL with a [ and no ]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"a URL with the port {port!r}, allowed are 1 to 65535")
    number = int(port) if port else PORTS[scheme]
    return Endpoint(scheme, unquote(host) or "localhost", number, path or "")
