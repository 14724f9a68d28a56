"""Which requests of web pages are answered: a page of another origin is a stranger.

A browser sends on behalf of any page what it keeps for us, and from inside our machine. It says by
what name it reaches us (`Host`) and what page asks (`Origin`, `Sec-Fetch-Site`); pages cannot forge
that. Programs that are no browsers send no more than `Host`, and are served. Asked for every
request before anything else of it is looked at (`server.py`), but for the control socket.
Source: RFC 6454; Fetch Metadata Request Headers; decision 0041.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from lavinmq.config.setting_types import shown
from lavinmq.http.errors import ApiError, access_refused
from lavinmq.listeners.endpoints import is_loopback

if TYPE_CHECKING:
    from lavinmq.config.values import Config

ANY: Final = "*"
PORTS: Final = {"http": "80", "https": "443"}
LOOKING: Final = ("GET", "HEAD", "OPTIONS")
CHANGING: Final = "/api/aliveness-test/"
"""It is a GET, and makes a queue."""
OURS: Final = ("same-origin", "none")
"""Of `Sec-Fetch-Site`; none: the user has typed the address."""
JSON: Final = "application/json"
FORM: Final = "multipart/form-data"
UPLOAD: Final = "/upload"


class Reached(NamedTuple):
    """Where and how a request has come.

    `address`: of ours, to which the client has connected; None for a unix socket. `names`: of this
    machine. `is_tls`: whether we have ended TLS ourselves.
    """

    address: str | None
    names: tuple[str, ...]
    is_tls: bool


def check(
    config: Config, reached: Reached, method: str, path: str, headers: Mapping[str, str],
    *, is_upgrade: bool,
) -> None:  # fmt: skip
    """Whether a request may be looked at.

    Args: is_upgrade: it asks for a WebSocket.
    Raises: ApiError 403 that names the setting, 415 for a page of ours that sends no JSON.
    """
    host = headers.get("Host", "")
    _check_host(config, reached, host)
    origin = headers.get("Origin")
    site = headers.get("Sec-Fetch-Site")
    if is_upgrade:
        if origin is None or _is_own(config, reached, host, origin):
            return
        allowed = config.websocket_allowed_origins
        if ANY not in allowed and origin.lower() not in allowed:
            raise _stranger(origin, "open a WebSocket", "websocket_allowed_origins")
    elif _is_change(method, path):
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        allowed = config.cors_allowed_origins
        if origin is None:
            if site is not None and site.lower() not in OURS:
                raise _stranger(site, "change anything", "cors_allowed_origins")
        elif not _is_own(config, reached, host, origin):
            # With * only what the browser has asked about first, and so sends without credentials.
            is_asked = ANY in allowed and (kind == JSON or method not in ("POST", "GET"))
            if origin.lower() not in allowed and not is_asked:
                raise _stranger(origin, "change anything", "cors_allowed_origins")
        if origin is not None or site is not None:
            _check_kind(path, kind, headers)


def _is_change(method: str, path: str) -> bool:
    return method not in LOOKING or path.startswith(CHANGING)


def _check_host(config: Config, reached: Reached, host: str) -> None:
    """Raises: ApiError 403 for a name that somebody has given to our loopback address."""
    if not host or reached.address is None or not is_loopback(reached.address):
        return
    name, _ = _split(host)
    if name in ("localhost", reached.address, *reached.names) or is_address_of_loopback(name):
        return
    allowed = config.allowed_hosts
    if ANY not in allowed and name not in (_split(each)[0] for each in allowed):
        raise access_refused(
            f"{shown(host)} is not known as a name of this machine: see allowed_hosts in [mgmt]"
        )


def is_address_of_loopback(name: str) -> bool:
    """Whether it is 127.0.0.0/8 or ::1 in figures; a name that begins like that is not."""
    if name == "::1":
        return True
    parts = name.split(".")
    return (
        len(parts) == 4 and parts[0] == "127"
        and all(part.isdecimal() and part.isascii() and len(part) <= 3 for part in parts)
    )  # fmt: skip


def _is_own(config: Config, reached: Reached, host: str, origin: str) -> bool:
    """Whether a page has come from us, under the name it asks for or one that the operator gives
    us. A proxy may have ended TLS, so that a plain `Host` may go with https."""
    scheme, _, place = origin.lower().partition("://")
    usual = PORTS.get(scheme)
    if usual is None or not place:
        return False
    base = (config.oauth_mgmt_base_url or "").lower()
    if f"{base}/".startswith(f"{scheme}://{place}/"):
        return True
    ours = [each for each in config.allowed_hosts if each != ANY]
    if not reached.is_tls or scheme == "https":
        ours.append(host)
    page, port = _split(place)
    return any((page, port or usual) == (name, at or usual) for name, at in map(_split, ours))


def _split(host: str) -> tuple[str, str]:
    """The name and the port of a `Host`, lower case; an IPv6 address without its brackets."""
    host = host.lower()
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name.removesuffix("."), port


def _check_kind(path: str, kind: str, headers: Mapping[str, str]) -> None:
    """A page can make a browser send any text as a form, but not as JSON. Raises: ApiError 415."""
    is_empty = headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in headers
    if is_empty or kind == JSON or (kind == FORM and path.rstrip("/").endswith(UPLOAD)):
        return
    raise ApiError(415, "unsupported_content_type", f"Unsupported content type {shown(kind)}")


def _stranger(page: str, what: str, setting: str) -> ApiError:
    return access_refused(f"A page of {shown(page)} may not {what}: see {setting} in [mgmt]")
