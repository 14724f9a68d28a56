"""What a parameter says of an HTTP destination: where, how many at once, in which form, signed how.

Source: docs/shovels.md#webhooks.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

SCHEMES: Final = ("http", "https")
FORMATS: Final = ("raw", "json", "cloudevents")
OUTCOMES: Final = ("delivered", "retry", "dead-letter", "stop")
MAX_IN_FLIGHT: Final = 1024
MAX_BATCH: Final = 10_000
MAX_TIMEOUT_S: Final = 3600
MAX_HEADERS: Final = 64
SECRET_PREFIX: Final = "whsec_"
LEAST_SECRET: Final = 8
_STATUSES: Final = re.compile(r"[1-5](?:\d\d|xx)", re.ASCII)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_PRINTABLE: Final = re.compile(r"[\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(r"[\x21-\x7e]*")
OURS: Final = frozenset({
    "connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding",
    "upgrade", "webhook-id", "webhook-signature", "webhook-timestamp",
})  # fmt: skip
"""Headers that nobody else sets: they say where a request ends, or who has signed it."""
DEFAULTS: Final[Mapping[str, str]] = {
    "2xx": "delivered", "408": "retry", "425": "retry", "429": "retry", "410": "stop",
    "1xx": "retry", "3xx": "retry", "401": "retry", "403": "retry", "404": "retry",
    "405": "retry", "407": "retry", "4xx": "dead-letter", "5xx": "retry",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HookPlace:
    """One URI. `path`: with its query, empty when a message may say it."""

    is_tls: bool
    host: str
    port: int
    path: str
    authorization: str | None
    shown: str
    """Without user, password and query, for people."""

    @property
    def authority(self) -> str:
        """The header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hook:
    """An HTTP destination."""

    places: tuple[HookPlace, ...]
    failover: str
    in_flight: int
    order_by: str
    """`none`, `queue`, `routing-key` or `header:` and a name: what keeps messages in order."""
    format: str
    batch: int
    timeout_s: float
    connect_timeout_s: float
    secret: bytes | None
    headers: Mapping[str, str]
    outcomes: Mapping[str, str]

    def outcome(self, status: int) -> tuple[str, bool]:
        """What is done with a message after that status, and whether the parameter says so."""
        for key in (str(status), f"{status // 100}xx"):
            if key in self.outcomes:
                return self.outcomes[key], True
        for key in (str(status), f"{status // 100}xx"):
            if key in DEFAULTS:
                return DEFAULTS[key], False
        return "retry", False


def is_http(uri: str) -> bool:
    """Whether it is one for a webhook."""
    return uri.partition(":")[0].lower() in SCHEMES


def parse_place(uri: str) -> HookPlace:
    """Read a URI. Raises: ValueError, without anything secret."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is no URI: {error}") from None
    is_tls = parts.scheme == "https"
    if not parts.hostname:
        raise ValueError("has no host")
    if parts.fragment:
        raise ValueError("has a fragment, which no server would see")
    host = parts.hostname
    try:
        host = host if ":" in host else host.encode("idna").decode()
    except UnicodeError:
        raise ValueError("has a host that is no name") from None
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    if parts.query and not parts.path:
        path = f"/{path}"
    if not _TARGET.fullmatch(path):
        raise ValueError("has characters in its path that have to be written as %XX")
    authorization = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
    shown_host = f"[{host}]" if ":" in host else host
    shown = f"{parts.scheme}://{shown_host}{f':{port}' if port else ''}{parts.path}"
    return HookPlace(is_tls, host, port or (443 if is_tls else 80), path, authorization, shown)


def secret_of(text: str) -> bytes:
    """The key of the signature: as it stands, or behind `whsec_` in base64. Raises: ValueError."""
    if not text.startswith(SECRET_PREFIX):
        found = text.encode()
    else:
        try:
            found = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"is no base64 behind '{SECRET_PREFIX}'") from None
    if len(found) < LEAST_SECRET:
        raise ValueError(f"is shorter than {LEAST_SECRET} bytes")
    return found


# ---- checks of fields ----------------------------------------------------------------------------


def check_order(key: str, value: Any) -> None:
    """Raises: ValueError, as all of these."""
    is_right = isinstance(value, str) and (
        value in ("none", "queue", "routing-key")
        or (value.startswith("header:") and len(value) > len("header:"))
    )
    if not is_right:
        raise ValueError(f"Field '{key}' must be one of none, queue, routing-key, header:NAME")


def check_headers(key: str, value: Any) -> None:
    """Of each request."""
    if not isinstance(value, dict) or len(value) > MAX_HEADERS:
        raise ValueError(f"Field '{key}' must be an object of {MAX_HEADERS} headers at most")
    for name, text in value.items():
        if not _TOKEN.fullmatch(name) or not isinstance(text, str) or not is_printable(text):
            raise ValueError(f"Field '{key}' has '{name}', which is no header with a text")
        if name.lower() in OURS:
            raise ValueError(f"Field '{key}' may not set '{name}'")


def check_outcomes(key: str, value: Any) -> None:
    """Of statuses."""
    if not isinstance(value, dict):
        raise ValueError(f"Field '{key}' must be an object")
    for status, outcome in value.items():
        if not _STATUSES.fullmatch(status):
            raise ValueError(f"Field '{key}' has '{status}', which is no status such as 404 or 4xx")
        if outcome not in OUTCOMES:
            raise ValueError(f"Field '{key}' must have one of {', '.join(OUTCOMES)} for {status}")


def check_secret(key: str, value: Any) -> None:
    """Of the signature."""
    if not isinstance(value, str):
        raise ValueError(f"Field '{key}' must be a string")
    try:
        secret_of(value)
    except ValueError as error:
        raise ValueError(f"Field '{key}' {error}") from None


def is_token(text: str) -> bool:
    """Whether it can be the name of a header."""
    return _TOKEN.fullmatch(text) is not None


def is_printable(text: str) -> bool:
    """Whether it can be the value of a header."""
    return _PRINTABLE.fullmatch(text) is not None
