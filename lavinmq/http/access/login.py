"""Who sends a request: the user behind the credentials of a header or a cookie.

Source: docs/authentication.md.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from lavinmq.auth.attempt import shown_name
from lavinmq.auth.users import User
from lavinmq.process import log

if TYPE_CHECKING:
    from tornado.httputil import HTTPServerRequest

    from lavinmq.auth.identity import Identity
    from lavinmq.auth.sessions import Session
    from lavinmq.broker import Broker

_log = log.get("lmq.http.login")
MAX_CREDENTIALS: Final = 16 << 10
OAUTH_MARK: Final = "|oauth:"
COOKIE: Final = "m"
SESSION_MARK: Final = "|session:"
"""What the cookie begins with when a token of ours follows (`auth/sessions.py`)."""


async def user_of(
    broker: Broker, request: HTTPServerRequest, address: str, is_loopback: bool, is_control: bool
) -> Identity | None:
    """The user, None when there is none, the credentials are wrong or it may not use the API.

    Args: is_control: the request came by the control socket, where nobody else can connect.
    """
    given = credentials(request)
    if given is None:
        if (session := session_of(broker, request)) is not None:
            user: Identity | None = session.user
            if isinstance(user, User) and broker.users.is_kept_out(user.name, is_loopback):
                _log.warning("the session of user %r is used from %s", user.name, address)
                return None
        else:
            return broker.users.direct_user if is_control else None
    else:
        user = await authenticated(broker, *given, address, is_loopback)
    if user is not None and not user.tags:
        _log.info("user %r has no tag that lets it use the HTTP API", user.name)
    return user if user is not None and user.tags else None


def session_token(request: HTTPServerRequest) -> str | None:
    """The token of a browser that has logged in with the pages, None when it has sent none."""
    morsel = request.cookies.get(COOKIE)
    if morsel is None or not morsel.value.startswith(SESSION_MARK):
        return None
    return morsel.value.removeprefix(SESSION_MARK)


def session_of(broker: Broker, request: HTTPServerRequest) -> Session | None:
    """The log-in with the pages that the request is part of."""
    token = session_token(request)
    return None if token is None else broker.sessions.find(token)


async def authenticated(
    broker: Broker, name: str, password: bytes, address: str, is_loopback: bool
) -> Identity | None:
    """The user of a name and a password, with tags or without; a failure is None, and logged."""
    if not password:
        return None
    user = broker.chain.at_once(name, password, address, is_loopback)
    if user is None:
        reasons: list[str] = []
        user = await broker.chain.authenticate(name, password, address, is_loopback, reasons)
    if user is None:
        why = "; ".join(reasons)
        _log.warning("log-in of user %s from %s failed: %s", shown_name(name), address, why)
    return user


def credentials(request: HTTPServerRequest) -> tuple[str, bytes] | None:
    """Name and password of a request, None when it carries none; the cookie wins."""
    morsel = request.cookies.get(COOKIE)
    if morsel is not None and not morsel.value.startswith((OAUTH_MARK, SESSION_MARK)):
        encoded = unquote_to_bytes(morsel.value.rpartition(":")[2])
        name, password = _split(encoded)
        if password:
            return name, password
    scheme, _, encoded_text = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    return _split(encoded_text.strip().encode("utf-8", "replace"))


def _split(encoded: bytes) -> tuple[str, bytes]:
    """Name and password in Base64; two empty ones when there is no sense in it."""
    if len(encoded) > MAX_CREDENTIALS:
        return "", b""
    try:
        name, _, password = base64.b64decode(encoded, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return "", b""
    return name.decode("utf-8", "surrogateescape"), password
